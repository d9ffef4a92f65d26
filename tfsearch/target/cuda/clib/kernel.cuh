// Types and functions that emitted kernels call: each is one instruction, or the fixed sequence
// that the instruction set forces. A fragment of n lanes is shared out over the threads of a unit
// in pieces of N = n / threads neighbours, one piece a thread, in order.

#pragma once

#define TFS_DEVICE static __device__ __forceinline__
#define TFS_INFINITY __int_as_float(0x7F800000)
#define TFS_NAN __int_as_float(0x7FC00000)

typedef signed char tfs_i8;
typedef int tfs_i32;
typedef float tfs_f32;
typedef double tfs_f64;
struct tfs_bf16 { unsigned short bits; };
struct tfs_f16 { unsigned short bits; };

template <class T, int N> struct tfs_vec { T x[N]; };

// Conversions, rounded once to nearest even; integers saturate and NaN becomes 0 ---------------

template <class To, class From> struct tfs_cast;
#define TFS_CAST(TO, FROM, EXPRESSION) \
  template <> struct tfs_cast<TO, FROM> { \
    static __device__ __forceinline__ TO of(FROM v) { return EXPRESSION; } \
  };

TFS_DEVICE float tfs_from_f16(unsigned short bits) {
  float f;
  asm("cvt.f32.f16 %0, %1;" : "=f"(f) : "h"(bits));
  return f;
}
TFS_DEVICE tfs_f16 tfs_to_f16(float v) {
  tfs_f16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
TFS_DEVICE tfs_f16 tfs_to_f16(double v) {
  tfs_f16 r;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r.bits) : "d"(v));
  return r;
}
TFS_DEVICE tfs_bf16 tfs_to_bf16(float v) {
  tfs_bf16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(v));
  return r;
}
TFS_DEVICE tfs_i32 tfs_to_i32(float v) { return __float2int_rn(v); }
TFS_DEVICE tfs_i32 tfs_to_i32(double v) { return isnan(v) ? 0 : __double2int_rn(v); }
TFS_DEVICE tfs_i32 tfs_saturated(tfs_i32 v) { return v < -128 ? -128 : v > 127 ? 127 : v; }

TFS_CAST(tfs_f32, tfs_f32, v)
TFS_CAST(tfs_f32, tfs_f64, (float)v)
TFS_CAST(tfs_f32, tfs_i32, (float)v)
TFS_CAST(tfs_f32, tfs_i8, (float)v)
TFS_CAST(tfs_f32, tfs_bf16, __uint_as_float((unsigned)v.bits << 16))
TFS_CAST(tfs_f32, tfs_f16, tfs_from_f16(v.bits))
TFS_CAST(tfs_f64, tfs_f64, v)
TFS_CAST(tfs_f64, tfs_f32, (double)v)
TFS_CAST(tfs_f64, tfs_i32, (double)v)
TFS_CAST(tfs_f64, tfs_i8, (double)v)
TFS_CAST(tfs_f64, tfs_bf16, (double)__uint_as_float((unsigned)v.bits << 16))
TFS_CAST(tfs_f64, tfs_f16, (double)tfs_from_f16(v.bits))
TFS_CAST(tfs_i32, tfs_i32, v)
TFS_CAST(tfs_i32, tfs_i8, (tfs_i32)v)
TFS_CAST(tfs_i32, tfs_f32, tfs_to_i32(v))
TFS_CAST(tfs_i32, tfs_f64, tfs_to_i32(v))
TFS_CAST(tfs_i8, tfs_i32, (tfs_i8)tfs_saturated(v))
TFS_CAST(tfs_i8, tfs_f32, (tfs_i8)tfs_saturated(tfs_to_i32(v)))
TFS_CAST(tfs_i8, tfs_f64, (tfs_i8)tfs_saturated(tfs_to_i32(v)))
TFS_CAST(tfs_bf16, tfs_f32, tfs_to_bf16(v))
TFS_CAST(tfs_f16, tfs_f32, tfs_to_f16(v))
TFS_CAST(tfs_f16, tfs_f64, tfs_to_f16(v))

// Memory ---------------------------------------------------------------------------------------

template <int BYTES> struct tfs_word;
template <> struct tfs_word<1> { typedef unsigned char type; };
template <> struct tfs_word<2> { typedef unsigned short type; };
template <> struct tfs_word<4> { typedef unsigned type; };
template <> struct tfs_word<8> { typedef uint2 type; };
template <> struct tfs_word<16> { typedef uint4 type; };

// A thread's piece as few words as its size allows, 16 bytes each at most.
template <class E, int N> union tfs_piece {
  enum { BYTES = N * sizeof(E), WORD = BYTES > 16 ? 16 : BYTES, WORDS = BYTES / WORD };
  typename tfs_word<WORD>::type words[WORDS];
  E x[N];
};

template <class R, class E, int N>
TFS_DEVICE void tfs_load_aligned(tfs_vec<R, N> &dst, const E *src, int lane) {
  typedef tfs_piece<E, N> Piece;
  typedef typename tfs_word<Piece::WORD>::type Word;
  Piece piece;
  const Word *from = reinterpret_cast<const Word *>(src + lane * N);
#pragma unroll
  for (int w = 0; w < Piece::WORDS; ++w) piece.words[w] = from[w];
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = tfs_cast<R, E>::of(piece.x[i]);
}

template <class R, class E, int N>
TFS_DEVICE void tfs_load(tfs_vec<R, N> &dst, const E *src, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = tfs_cast<R, E>::of(src[lane * N + i]);
}

template <class R, class E, int N>
TFS_DEVICE void tfs_load_strided(tfs_vec<R, N> &dst, const E *src, long step, long n, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    dst.x[i] = lane * N + i < n ? tfs_cast<R, E>::of(src[(lane * N + i) * step]) : R(0);
}

template <class R, class E, int N>
TFS_DEVICE void tfs_load_partial(tfs_vec<R, N> &dst, const E *src, long n, int lane) {
  tfs_load_strided(dst, src, 1, n, lane);
}

template <class R, class E, int N>
TFS_DEVICE void tfs_load_aligned_partial(tfs_vec<R, N> &dst, const E *src, long n, int lane) {
  if (lane * N + N <= n) {
    tfs_load_aligned(dst, src, lane);
  } else {
    tfs_load_strided(dst, src, 1, n, lane);
  }
}

template <class R, class E, int N> TFS_DEVICE void tfs_splat(tfs_vec<R, N> &dst, const E *src) {
  const R v = tfs_cast<R, E>::of(*src);
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = v;
}

template <class R, int N> TFS_DEVICE void tfs_fill(tfs_vec<R, N> &dst, double v) {
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = (R)v;
}

template <class E, class R, int N, bool STREAM>
TFS_DEVICE void tfs_store_words(E *dst, const tfs_vec<R, N> &src, int lane) {
  typedef tfs_piece<E, N> Piece;
  typedef typename tfs_word<Piece::WORD>::type Word;
  Piece piece;
#pragma unroll
  for (int i = 0; i < N; ++i) piece.x[i] = tfs_cast<E, R>::of(src.x[i]);
  Word *to = reinterpret_cast<Word *>(dst + lane * N);
#pragma unroll
  for (int w = 0; w < Piece::WORDS; ++w) {
    if (STREAM) {
      __stcs(to + w, piece.words[w]);
    } else {
      to[w] = piece.words[w];
    }
  }
}

template <class E, class R, int N>
TFS_DEVICE void tfs_store_aligned(E *dst, const tfs_vec<R, N> &src, int lane) {
  tfs_store_words<E, R, N, false>(dst, src, lane);
}

template <class E, class R, int N>
TFS_DEVICE void tfs_store_stream(E *dst, const tfs_vec<R, N> &src, int lane) {
  tfs_store_words<E, R, N, true>(dst, src, lane);
}

template <class E, class R, int N>
TFS_DEVICE void tfs_store_strided(E *dst, long step, const tfs_vec<R, N> &src, long n, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (lane * N + i < n) dst[(lane * N + i) * step] = tfs_cast<E, R>::of(src.x[i]);
}

template <class E, class R, int N>
TFS_DEVICE void tfs_store(E *dst, const tfs_vec<R, N> &src, int lane) {
#pragma unroll
  for (int i = 0; i < N; ++i) dst[lane * N + i] = tfs_cast<E, R>::of(src.x[i]);
}

template <class E, class R, int N>
TFS_DEVICE void tfs_store_partial(E *dst, const tfs_vec<R, N> &src, long n, int lane) {
  tfs_store_strided(dst, 1, src, n, lane);
}

template <class E, class R, int N>
TFS_DEVICE void tfs_store_aligned_partial(E *dst, const tfs_vec<R, N> &src, long n, int lane) {
  if (lane * N + N <= n) {
    tfs_store_aligned(dst, src, lane);
  } else {
    tfs_store_strided(dst, 1, src, n, lane);
  }
}

TFS_DEVICE void tfs_prefetch(const void *place, int lane) {
  if (lane == 0) asm volatile("prefetch.global.L2 [%0];" ::"l"(place));
}

// Maths, lane by lane --------------------------------------------------------------------------

TFS_DEVICE float tfs_max1(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
TFS_DEVICE float tfs_min1(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
TFS_DEVICE double tfs_max1(double a, double b) { return a > b || isnan(a) ? a : b; }
TFS_DEVICE double tfs_min1(double a, double b) { return a < b || isnan(a) ? a : b; }
TFS_DEVICE int tfs_max1(int a, int b) { return max(a, b); }
TFS_DEVICE int tfs_min1(int a, int b) { return min(a, b); }
// Wraps as the instructions do; signed overflow would be undefined.
TFS_DEVICE int tfs_add1(int a, int b) { return (int)((unsigned)a + (unsigned)b); }
TFS_DEVICE int tfs_sub1(int a, int b) { return (int)((unsigned)a - (unsigned)b); }
TFS_DEVICE int tfs_mul1(int a, int b) { return (int)((unsigned)a * (unsigned)b); }
TFS_DEVICE float tfs_add1(float a, float b) { return __fadd_rn(a, b); }
TFS_DEVICE float tfs_sub1(float a, float b) { return __fsub_rn(a, b); }
TFS_DEVICE float tfs_mul1(float a, float b) { return __fmul_rn(a, b); }
TFS_DEVICE double tfs_add1(double a, double b) { return __dadd_rn(a, b); }
TFS_DEVICE double tfs_sub1(double a, double b) { return __dsub_rn(a, b); }
TFS_DEVICE double tfs_mul1(double a, double b) { return __dmul_rn(a, b); }
TFS_DEVICE float tfs_div1(float a, float b) { return __fdiv_rn(a, b); }
TFS_DEVICE double tfs_div1(double a, double b) { return __ddiv_rn(a, b); }
TFS_DEVICE float tfs_fma1(float a, float b, float c) { return __fmaf_rn(a, b, c); }
TFS_DEVICE double tfs_fma1(double a, double b, double c) { return __fma_rn(a, b, c); }
TFS_DEVICE int tfs_fma1(int a, int b, int c) { return tfs_add1(tfs_mul1(a, b), c); }

#define TFS_UNARY1(NAME, F32, F64) \
  TFS_DEVICE float tfs_##NAME##1(float a) { return F32; } \
  TFS_DEVICE double tfs_##NAME##1(double a) { return F64; }
TFS_UNARY1(neg, -a, -a)
TFS_UNARY1(abs, fabsf(a), fabs(a))
TFS_UNARY1(sqrt, __fsqrt_rn(a), __dsqrt_rn(a))
TFS_UNARY1(floor, floorf(a), floor(a))
TFS_UNARY1(ceil, ceilf(a), ceil(a))
TFS_UNARY1(round, rintf(a), rint(a))
TFS_UNARY1(sign, isnan(a) ? a : (float)((a > 0) - (a < 0)), isnan(a) ? a : (double)((a > 0) - (a < 0)))
TFS_UNARY1(exp, expf(a), exp(a))
TFS_UNARY1(log, logf(a), log(a))
TFS_UNARY1(tanh, tanhf(a), tanh(a))
TFS_UNARY1(sin, sinf(a), sin(a))
TFS_UNARY1(cos, cosf(a), cos(a))
TFS_UNARY1(erf, erff(a), erf(a))
TFS_UNARY1(sigmoid, __fdiv_rn(1.0f, 1.0f + expf(-a)), 1.0 / (1.0 + exp(-a)))
TFS_UNARY1(rsqrt, rsqrtf(a), rsqrt(a))
TFS_UNARY1(recip, __frcp_rn(a), __drcp_rn(a))
TFS_DEVICE int tfs_neg1(int a) { return tfs_sub1(0, a); }
TFS_DEVICE int tfs_abs1(int a) { return a < 0 ? tfs_sub1(0, a) : a; }
TFS_DEVICE int tfs_sign1(int a) { return (a > 0) - (a < 0); }

#define TFS_FAST1(NAME, BODY) \
  TFS_DEVICE float tfs_fast_##NAME##1(float a) { BODY }
#define TFS_APPROX(INSTRUCTION, ARGUMENT) \
  float r; \
  asm(INSTRUCTION " %0, %1;" : "=f"(r) : "f"(ARGUMENT)); \
  return r;
TFS_DEVICE float tfs_ex2(float a) { TFS_APPROX("ex2.approx.f32", a) }
TFS_DEVICE float tfs_rcp(float a) { TFS_APPROX("rcp.approx.f32", a) }
TFS_FAST1(exp, return __expf(a);)
TFS_FAST1(log, return __logf(a);)
TFS_FAST1(tanh, TFS_APPROX("tanh.approx.f32", a))
TFS_FAST1(sin, return __sinf(a);)
TFS_FAST1(cos, return __cosf(a);)
TFS_FAST1(sigmoid, return tfs_rcp(1.0f + __expf(-a));)
TFS_FAST1(rsqrt, TFS_APPROX("rsqrt.approx.f32", a))
TFS_FAST1(recip, return tfs_rcp(a);)

#define TFS_UNARY(NAME) \
  template <class T, int N> TFS_DEVICE tfs_vec<T, N> tfs_##NAME(const tfs_vec<T, N> &a) { \
    tfs_vec<T, N> r; \
    _Pragma("unroll") for (int i = 0; i < N; ++i) r.x[i] = tfs_##NAME##1(a.x[i]); \
    return r; \
  }
#define TFS_BINARY(NAME) \
  template <class T, int N> \
  TFS_DEVICE tfs_vec<T, N> tfs_##NAME(const tfs_vec<T, N> &a, const tfs_vec<T, N> &b) { \
    tfs_vec<T, N> r; \
    _Pragma("unroll") for (int i = 0; i < N; ++i) r.x[i] = tfs_##NAME##1(a.x[i], b.x[i]); \
    return r; \
  }
#define TFS_SELECT(NAME, OPERATOR) \
  template <class T, int N> \
  TFS_DEVICE tfs_vec<T, N> tfs_select_##NAME(const tfs_vec<T, N> &a, const tfs_vec<T, N> &b, \
                                             const tfs_vec<T, N> &x, const tfs_vec<T, N> &y) { \
    tfs_vec<T, N> r; \
    _Pragma("unroll") for (int i = 0; i < N; ++i) \
        r.x[i] = a.x[i] OPERATOR b.x[i] ? x.x[i] : y.x[i]; \
    return r; \
  }

TFS_UNARY(neg) TFS_UNARY(abs) TFS_UNARY(sqrt) TFS_UNARY(floor) TFS_UNARY(ceil) TFS_UNARY(round)
TFS_UNARY(sign) TFS_UNARY(exp) TFS_UNARY(log) TFS_UNARY(tanh) TFS_UNARY(sin) TFS_UNARY(cos)
TFS_UNARY(erf) TFS_UNARY(sigmoid) TFS_UNARY(rsqrt) TFS_UNARY(recip)
TFS_UNARY(fast_exp) TFS_UNARY(fast_log) TFS_UNARY(fast_tanh) TFS_UNARY(fast_sin)
TFS_UNARY(fast_cos) TFS_UNARY(fast_sigmoid) TFS_UNARY(fast_rsqrt) TFS_UNARY(fast_recip)
TFS_BINARY(add) TFS_BINARY(sub) TFS_BINARY(mul) TFS_BINARY(div) TFS_BINARY(max) TFS_BINARY(min)
TFS_SELECT(lt, <) TFS_SELECT(le, <=) TFS_SELECT(gt, >) TFS_SELECT(ge, >=) TFS_SELECT(eq, ==)
TFS_SELECT(ne, !=)

template <class T, int N>
TFS_DEVICE tfs_vec<T, N> tfs_fma(const tfs_vec<T, N> &a, const tfs_vec<T, N> &b,
                                 const tfs_vec<T, N> &c) {
  tfs_vec<T, N> r;
#pragma unroll
  for (int i = 0; i < N; ++i) r.x[i] = tfs_fma1(a.x[i], b.x[i], c.x[i]);
  return r;
}

// The first n lanes of `changed`, the others of `kept`.
template <class T, int N>
TFS_DEVICE tfs_vec<T, N> tfs_first(const tfs_vec<T, N> &changed, const tfs_vec<T, N> &kept, long n,
                                   int lane) {
  tfs_vec<T, N> r;
#pragma unroll
  for (int i = 0; i < N; ++i) r.x[i] = lane * N + i < n ? changed.x[i] : kept.x[i];
  return r;
}

template <class To, class From, int N>
TFS_DEVICE void tfs_convert(tfs_vec<To, N> &dst, const tfs_vec<From, N> &src) {
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = tfs_cast<To, From>::of(src.x[i]);
}

template <class From, int N>
TFS_DEVICE void tfs_saturate_i8(tfs_vec<tfs_i32, N> &dst, const tfs_vec<From, N> &src) {
#pragma unroll
  for (int i = 0; i < N; ++i) dst.x[i] = tfs_saturated(tfs_cast<tfs_i32, From>::of(src.x[i]));
}

// Reductions -----------------------------------------------------------------------------------
// A thread's piece by halves, the threads of a warp by butterflies, then the warps in order.

#define TFS_REDUCE(NAME, STEP) \
  template <int WARPS, class T, int N> \
  TFS_DEVICE tfs_vec<T, N> tfs_reduce_##NAME(const tfs_vec<T, N> &src) { \
    tfs_vec<T, N> r = src; \
    _Pragma("unroll") for (int half = N / 2; half > 0; half /= 2) \
      _Pragma("unroll") for (int i = 0; i < half; ++i) r.x[i] = STEP(r.x[i], r.x[i + half]); \
    T v = r.x[0]; \
    _Pragma("unroll") for (int mask = 16; mask > 0; mask /= 2) \
      v = STEP(v, __shfl_xor_sync(0xFFFFFFFFu, v, mask)); \
    if (WARPS > 1) { \
      __shared__ T parts[WARPS]; \
      if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v; \
      __syncthreads(); \
      v = parts[0]; \
      _Pragma("unroll") for (int w = 1; w < WARPS; ++w) v = STEP(v, parts[w]); \
      __syncthreads(); \
    } \
    _Pragma("unroll") for (int i = 0; i < N; ++i) r.x[i] = v; \
    return r; \
  }
TFS_REDUCE(sum, tfs_add1)
TFS_REDUCE(prod, tfs_mul1)
TFS_REDUCE(max, tfs_max1)
TFS_REDUCE(min, tfs_min1)
