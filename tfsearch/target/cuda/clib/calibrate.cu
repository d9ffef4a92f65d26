// Kernels that saturate one part of a device each. Parameters are 64-bit words.

typedef unsigned long long u64;

// Copies `count` 16-byte pieces.
extern "C" __global__ void __launch_bounds__(512)
tfs_copy(uint4 *__restrict__ to, const uint4 *__restrict__ from, u64 count) {
  const u64 step = (u64)gridDim.x * blockDim.x;
  u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x;
  for (; i + 3 * step < count; i += 4 * step) {
    const uint4 a = from[i], b = from[i + step], c = from[i + 2 * step], d = from[i + 3 * step];
    to[i] = a;
    to[i + step] = b;
    to[i + 2 * step] = c;
    to[i + 3 * step] = d;
  }
  for (; i < count; i += step) to[i] = from[i];
}

// Reads `count` 16-byte pieces `times` times; what a block reads moves on from time to time, so that
// its L1 does not hold it.
extern "C" __global__ void __launch_bounds__(512)
tfs_read(const uint4 *__restrict__ data, u64 count, u64 times, u64 *__restrict__ sink) {
  u64 sum = 0;
  for (u64 t = 0; t < times; ++t) {
    const u64 block = (blockIdx.x + t * 37) % gridDim.x;
    for (u64 i = block * blockDim.x + threadIdx.x; i < count; i += (u64)gridDim.x * blockDim.x) {
      uint4 x;
      asm volatile("ld.global.cg.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "l"(data + i));
      sum += (u64)x.x * 3 + x.y + ((u64)x.z << 32) + x.w;
    }
  }
  if (sum == 0x9E3779B97F4A7C15ull) *sink = sum;
}

// 16-byte reads of shared memory without bank conflicts; volatile, or the assembler keeps the first.
extern "C" __global__ void __launch_bounds__(1024) tfs_shared(u64 times, unsigned *sink) {
  __shared__ uint4 data[2048];
  for (int i = threadIdx.x; i < 2048; i += blockDim.x) data[i] = make_uint4(i, i, i, i);
  __syncthreads();
  unsigned place = (unsigned)__cvta_generic_to_shared(data + threadIdx.x), sum = 0;
  for (u64 t = 0; t < times; ++t) {
#pragma unroll
    for (int u = 0; u < 8; ++u) {
      unsigned a, b, c, d;
      asm volatile("ld.volatile.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                   : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(place + (u & 1) * 16384));
      sum += a ^ b ^ c ^ d;
    }
  }
  if (sum == 0x9E3779B9u) *sink = sum;
}

// Independent multiply-adds in f32.
extern "C" __global__ void __launch_bounds__(512) tfs_fma(u64 times, float *sink) {
  float x[16];
#pragma unroll
  for (int i = 0; i < 16; ++i) x[i] = threadIdx.x * 0.001f + i;
  const float a = 0.999f, b = 0.001f * threadIdx.x;
  for (u64 t = 0; t < times; ++t)
#pragma unroll
    for (int u = 0; u < 8; ++u)
#pragma unroll
      for (int i = 0; i < 16; ++i) x[i] = __fmaf_rn(x[i], a, b);
  float sum = 0;
#pragma unroll
  for (int i = 0; i < 16; ++i) sum += x[i];
  if (sum == 1234567.0f) *sink = sum;
}

// The clock: cycles and nanoseconds of a stretch of work on the first SM.
extern "C" __global__ void tfs_clock(u64 cycles, u64 *found) {
  u64 start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  const long long first = clock64();
  while (clock64() - first < (long long)cycles) {
  }
  const long long last = clock64();
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  found[0] = last - first;
  found[1] = now - start;
}

static __device__ unsigned tfs_random(unsigned x) {
  x ^= x << 13;
  x ^= x >> 17;
  x ^= x << 5;
  return x;
}

// A pair of bf16 between 1 and 2 in magnitude, of random signs and digits.
static __device__ unsigned tfs_pair(unsigned seed) {
  return (tfs_random(seed) & 0x807F807Fu) | 0x3F803F80u;
}

// m16n8k16 products in bf16, eight independent ones a warp; the numbers are random.
extern "C" __global__ void __launch_bounds__(256) tfs_mma(u64 times, float *sink) {
  float d[8][4] = {};
  unsigned a[4], b[2];
  for (int i = 0; i < 4; ++i) a[i] = tfs_pair(threadIdx.x * 7919 + blockIdx.x * 31 + i + 1);
  for (int i = 0; i < 2; ++i) b[i] = tfs_pair(threadIdx.x * 104729 + blockIdx.x * 37 + i + 1);
  for (u64 t = 0; t < times; ++t)
#pragma unroll
    for (int i = 0; i < 8; ++i)
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
          "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
          : "+f"(d[i][0]), "+f"(d[i][1]), "+f"(d[i][2]), "+f"(d[i][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
  float sum = 0;
  for (int i = 0; i < 8; ++i) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
  if (sum == 1234567.0f) *sink = sum;
}

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
// m64n128k16 products in bf16 out of shared memory, two warpgroups a block; random numbers.
static __device__ __forceinline__ void tfs_wgmma_step(float (&d)[64], u64 a, u64 b) {
  asm volatile(
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
        "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, "
        "%19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, "
        "%36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, %52, "
        "%53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63 "
        "}, %64, %65, 1, 1, 1, 0, 0;"
      :
        "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]),
        "+f"(d[7]), "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]),
        "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
        "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]),
        "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]),
        "+f"(d[38]), "+f"(d[39]), "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]),
        "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]), "+f"(d[48]), "+f"(d[49]),
        "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]),
        "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b));
}

extern "C" __global__ void __launch_bounds__(256) tfs_wgmma(u64 times, float *sink) {
  __shared__ __align__(1024) unsigned data[2 * 64 * 32 + 128 * 32];
  for (int i = threadIdx.x; i < 2 * 64 * 32 + 128 * 32; i += blockDim.x)
    data[i] = tfs_pair(i * 7919 + blockIdx.x * 31 + 1);
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  // 128-byte swizzle, groups of 8 rows 1024 bytes apart.
  const u64 fixed = (1ull << 62) | ((u64)(1024 >> 4) << 32) | (1ull << 16);
  const unsigned base = (unsigned)__cvta_generic_to_shared(data);
  const unsigned own = base + threadIdx.x / 128 * 64 * 128, other = base + 2 * 64 * 128;
  float d[64] = {};
  for (u64 t = 0; t < times; ++t) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
    for (int k = 0; k < 4; ++k)
      tfs_wgmma_step(d, fixed | ((own + k * 32) & 0x3FFFF) >> 4,
                     fixed | ((other + k * 32) & 0x3FFFF) >> 4);
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float sum = 0;
  for (int i = 0; i < 64; ++i) sum += d[i];
  if (sum == 1234567.0f) *sink = sum;
}
#endif
