// Arithmetic of references in float64: elementwise work, reductions, products of matrices.
//
// A kernel takes one structure by value. Elements of every type are read as double, which holds
// them exactly, and written rounded once to nearest.

typedef unsigned long long u64;
typedef long long i64;

enum Type { F64, F32, F16, BF16, I32, I8, U8, U16, U32 };

enum Op {
  COPY, NEG, ABS, EXP, LOG, SQRT, TANH, SIN, COS, ERF, FLOOR, CEIL, RINT, SIGN, ISNAN, ISINF,
  ISFINITE, SIGNBIT, NOT, MANTISSA, EXPONENT,
  ADD, SUB, MUL, DIV, MAX, MIN, LT, LE, GT, GE, EQ, NE, AND, OR, COPYSIGN, LDEXP,
  WHERE
};

const int RANK = 6;
const int INPUTS = 3;

struct View {
  u64 address;        // 0: a constant
  double constant;
  i64 strides[RANK];  // elements
  i64 type;
};

struct Map {
  i64 op, rank, size;
  i64 shape[RANK];    // outermost first
  View inputs[INPUTS];
  u64 out;            // dense
  i64 out_type;
};

static __device__ __forceinline__ double from_half(unsigned short bits) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}

static __device__ __forceinline__ double load(u64 address, i64 index, i64 type) {
  switch (type) {
    case F64: return ((const double *)address)[index];
    case F32: return ((const float *)address)[index];
    case F16: return from_half(((const unsigned short *)address)[index]);
    case BF16: return __uint_as_float((unsigned)((const unsigned short *)address)[index] << 16);
    case I32: return ((const int *)address)[index];
    case I8: return ((const signed char *)address)[index];
    case U8: return ((const unsigned char *)address)[index];
    case U16: return ((const unsigned short *)address)[index];
    default: return ((const unsigned *)address)[index];
  }
}

static __device__ __forceinline__ void store(u64 address, i64 index, i64 type, double x) {
  switch (type) {
    case F64: ((double *)address)[index] = x; break;
    case F32: ((float *)address)[index] = (float)x; break;
    case F16: {
      unsigned short bits;
      asm("cvt.rn.f16.f64 %0, %1;" : "=h"(bits) : "d"(x));
      ((unsigned short *)address)[index] = bits;
      break;
    }
    case I32: ((int *)address)[index] = (int)x; break;
    case I8: ((signed char *)address)[index] = (signed char)x; break;
    case U16: ((unsigned short *)address)[index] = (unsigned short)x; break;
    default: ((unsigned char *)address)[index] = (unsigned char)x; break;
  }
}

static __device__ double largest(double a, double b) {
  return isnan(a) ? a : isnan(b) ? b : (a > b ? a : b);
}
static __device__ double least(double a, double b) {
  return isnan(a) ? a : isnan(b) ? b : (a < b ? a : b);
}

static __device__ double apply(i64 op, double a, double b, double c) {
  int exponent;
  switch (op) {
    case NEG: return -a;
    case ABS: return fabs(a);
    case EXP: return exp(a);
    case LOG: return log(a);
    case SQRT: return sqrt(a);
    case TANH: return tanh(a);
    case SIN: return sin(a);
    case COS: return cos(a);
    case ERF: return erf(a);
    case FLOOR: return floor(a);
    case CEIL: return ceil(a);
    case RINT: return rint(a);
    case SIGN: return isnan(a) ? a : (a > 0) - (a < 0);
    case ISNAN: return isnan(a) != 0;
    case ISINF: return isinf(a) != 0;
    case ISFINITE: return isfinite(a) != 0;
    case SIGNBIT: return signbit(a) != 0;
    case NOT: return a == 0;
    case MANTISSA: return isfinite(a) ? frexp(a, &exponent) : a;
    case EXPONENT: exponent = 0; if (isfinite(a)) frexp(a, &exponent); return exponent;
    case ADD: return a + b;
    case SUB: return a - b;
    case MUL: return a * b;
    case DIV: return a / b;
    case MAX: return largest(a, b);
    case MIN: return least(a, b);
    case LT: return a < b;
    case LE: return a <= b;
    case GT: return a > b;
    case GE: return a >= b;
    case EQ: return a == b;
    case NE: return a != b;
    case AND: return a != 0 && b != 0;
    case OR: return a != 0 || b != 0;
    case COPYSIGN: return copysign(a, b);
    case LDEXP: return ldexp(a, (int)b);
    case WHERE: return a != 0 ? b : c;
    default: return a;
  }
}

extern "C" __global__ void __launch_bounds__(256) tfs_map(const __grid_constant__ Map map) {
  for (i64 i = (i64)blockIdx.x * blockDim.x + threadIdx.x; i < map.size;
       i += (i64)gridDim.x * blockDim.x) {
    i64 offsets[INPUTS] = {0, 0, 0};
    i64 rest = i;
#pragma unroll
    for (int d = RANK - 1; d >= 0; --d) {
      if (d >= map.rank) continue;
      i64 at = rest;
      if (d > 0) {
        const i64 extent = map.shape[d];
        if (map.size < (1ll << 31)) {
          rest = (unsigned)rest / (unsigned)extent;
        } else {
          rest /= extent;
        }
        at -= rest * extent;
      }
#pragma unroll
      for (int k = 0; k < INPUTS; ++k) offsets[k] += at * map.inputs[k].strides[d];
    }
    double x[INPUTS];
#pragma unroll
    for (int k = 0; k < INPUTS; ++k) {
      const View &in = map.inputs[k];
      x[k] = in.address ? load(in.address, offsets[k], in.type) : in.constant;
    }
    store(map.out, i, map.out_type, apply(map.op, x[0], x[1], x[2]));
  }
}

enum Fold { SUM, PROD, MAXIMUM, MINIMUM, ANY };

struct Reduce {
  i64 fold, rows, length, pieces;     // out is [rows, pieces], each piece a part of the length
  i64 row_stride, stride;             // elements
  u64 in, out;                        // out is double
  i64 type;
};

static __device__ double folded(i64 fold, double a, double b) {
  switch (fold) {
    case SUM: return a + b;
    case PROD: return a * b;
    case MAXIMUM: return largest(a, b);
    case MINIMUM: return least(a, b);
    default: return a != 0 || b != 0;
  }
}

static __device__ double neutral(i64 fold) {
  const double infinity = __longlong_as_double(0x7FF0000000000000ll);
  switch (fold) {
    case PROD: return 1;
    case MAXIMUM: return -infinity;
    case MINIMUM: return infinity;
    default: return 0;
  }
}

// A block for every row and piece: for rows that are contiguous, or long.
extern "C" __global__ void __launch_bounds__(256) tfs_reduce(const __grid_constant__ Reduce r) {
  __shared__ double parts[256];
  const i64 step = (r.length + r.pieces - 1) / r.pieces;
  for (i64 at = blockIdx.x; at < r.rows * r.pieces; at += gridDim.x) {
    const i64 row = at / r.pieces, first = at % r.pieces * step;
    const i64 last = first + step < r.length ? first + step : r.length;
    double sum = neutral(r.fold);
    for (i64 j = first + threadIdx.x; j < last; j += blockDim.x)
      sum = folded(r.fold, sum, load(r.in, row * r.row_stride + j * r.stride, r.type));
    parts[threadIdx.x] = sum;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
      if (threadIdx.x < half)
        parts[threadIdx.x] = folded(r.fold, parts[threadIdx.x], parts[threadIdx.x + half]);
      __syncthreads();
    }
    if (threadIdx.x == 0) ((double *)r.out)[at] = parts[0];
    __syncthreads();
  }
}

// A thread for every row: for rows that lie side by side.
extern "C" __global__ void __launch_bounds__(256)
tfs_reduce_rows(const __grid_constant__ Reduce r) {
  for (i64 row = (i64)blockIdx.x * blockDim.x + threadIdx.x; row < r.rows;
       row += (i64)gridDim.x * blockDim.x) {
    double sum = neutral(r.fold);
    for (i64 j = 0; j < r.length; ++j)
      sum = folded(r.fold, sum, load(r.in, row * r.row_stride + j * r.stride, r.type));
    ((double *)r.out)[row] = sum;
  }
}

// The index of the first element that is not 0, or the size.
extern "C" __global__ void __launch_bounds__(256)
tfs_first(const unsigned char *flags, u64 size, u64 *first) {
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < size;
       i += (u64)gridDim.x * blockDim.x)
    if (flags[i]) atomicMin(first, i);
}

struct Product {
  i64 m, n, k, batches;
  i64 a_batch, a_row, a_column;       // strides in elements
  i64 b_batch, b_row, b_column;
  u64 a, b, c;                        // double; c is dense [batches, m, n]
};

// Tiles of 64 x 64 by four warps of 32 x 32, in steps of 16 along k, on the matrix units.
const int TILE = 64, STEP = 16, PITCH = STEP + 4, PER_THREAD = TILE * STEP / 128;

static __device__ __forceinline__ void fetch(double (&held)[PER_THREAD], const double *base,
                                             i64 row0, i64 rows, i64 row_stride, i64 k0, i64 k,
                                             i64 k_stride) {
#pragma unroll
  for (int u = 0; u < PER_THREAD; ++u) {
    const int flat = u * 128 + threadIdx.x;
    // Neighbouring threads take neighbouring addresses.
    const int row = k_stride == 1 ? flat / STEP : flat % TILE;
    const int at = k_stride == 1 ? flat % STEP : flat / TILE;
    const bool inside = row0 + row < rows && k0 + at < k;
    held[u] = inside ? base[(row0 + row) * row_stride + (k0 + at) * k_stride] : 0.0;
  }
}

static __device__ __forceinline__ void place(double (*tile)[PITCH],
                                             const double (&held)[PER_THREAD], i64 k_stride) {
#pragma unroll
  for (int u = 0; u < PER_THREAD; ++u) {
    const int flat = u * 128 + threadIdx.x;
    const int row = k_stride == 1 ? flat / STEP : flat % TILE;
    const int at = k_stride == 1 ? flat % STEP : flat / TILE;
    tile[row][at] = held[u];
  }
}

extern "C" __global__ void __launch_bounds__(128) tfs_product(const __grid_constant__ Product p) {
  __shared__ double a_tile[TILE][PITCH], b_tile[TILE][PITCH];
  const i64 row0 = (i64)blockIdx.x * TILE, column0 = (i64)blockIdx.y * TILE;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int row = warp / 2 * 32, column = warp % 2 * 32;
  for (i64 batch = blockIdx.z; batch < p.batches; batch += gridDim.z) {
    const double *a = (const double *)p.a + batch * p.a_batch;
    const double *b = (const double *)p.b + batch * p.b_batch;
    double sum[4][4][2] = {}, a_held[PER_THREAD], b_held[PER_THREAD];
    fetch(a_held, a, row0, p.m, p.a_row, 0, p.k, p.a_column);
    fetch(b_held, b, column0, p.n, p.b_column, 0, p.k, p.b_row);
    for (i64 k0 = 0; k0 < p.k; k0 += STEP) {
      __syncthreads();
      place(a_tile, a_held, p.a_column);
      place(b_tile, b_held, p.b_row);
      __syncthreads();
      if (k0 + STEP < p.k) {
        fetch(a_held, a, row0, p.m, p.a_row, k0 + STEP, p.k, p.a_column);
        fetch(b_held, b, column0, p.n, p.b_column, k0 + STEP, p.k, p.b_row);
      }
#pragma unroll
      for (int kk = 0; kk < STEP; kk += 4) {
        double x[4], y[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          x[i] = a_tile[row + i * 8 + lane / 4][kk + lane % 4];
          y[i] = b_tile[column + i * 8 + lane / 4][kk + lane % 4];
        }
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
          for (int j = 0; j < 4; ++j)
            asm volatile(
                "mma.sync.aligned.m8n8k4.row.col.f64.f64.f64.f64 {%0, %1}, {%2}, {%3}, {%0, %1};"
                : "+d"(sum[i][j][0]), "+d"(sum[i][j][1])
                : "d"(x[i]), "d"(y[j]));
      }
    }
    double *c = (double *)p.c + batch * p.m * p.n;
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const i64 r = row0 + row + i * 8 + lane / 4;
          const i64 s = column0 + column + j * 8 + lane % 4 * 2 + h;
          if (r < p.m && s < p.n) c[r * p.n + s] = sum[i][j][h];
        }
  }
}
