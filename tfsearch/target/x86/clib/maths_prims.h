/* Primitives with one name per width; the maths is written in these and in C's own operators.
 *
 *   set1, fma, madd (fma where the hardware has it, else multiply then add), sqrt, abs,
 *   bits / frombits (reinterpretation), lt le eq (ordered compares giving tfs_m_<N>),
 *   sel(m, a, b) = m ? a : b, zero_if(m, v), any, all, odd (lowest integer bit set),
 *   maxk(x, k) = k > x ? k : x and mink alike: a NaN in x passes through,
 *   scale(p, k) = p * 2^k for integral k, rounded once (gradual underflow, overflow to inf),
 *   scale_fast(p, t) = p * 2^k for t = k + 1.5 * 2^(mantissa bits), normal results, k <= 128,
 *   copysign, rcp_est / rsqrt_est (f32),
 *   max, min: NaN if either operand is NaN, like numpy.maximum; of equal operands (-0 and +0
 *   included) the second one. */
#ifndef TFS_MATHS_PRIMS_H
#define TFS_MATHS_PRIMS_H

#if !defined(__FMA__)
/* Correctly rounded f32 a*b+c: the product is exact in f64; the sum is rounded to odd there, which
 * makes the second rounding to f32 harmless (53 >= 2*24 + 2). */
TFS_FN float tfs_soft_fmaf(float a, float b, float c) {
  double p = (double)a * b, s = p + c, t = s - p;
  double e = (p - (s - t)) + ((double)c - t);
  if (e != 0 && s - s == 0) {
    uint64_t u;
    memcpy(&u, &s, 8);
    if (!(u & 1)) u += ((e > 0) == (s > 0)) ? 1 : (uint64_t)-1;
    memcpy(&s, &u, 8);
  }
  return (float)s;
}
#endif

/* What every width shares, given the type-specific pieces above it. N: suffix, U: integer type,
 * SIGN: the sign bit, BIAS, SH: exponent bias and position, MAGIC: 1.5 * 2^SH. */
#define TFS_PRIMS_COMMON(N, U, E, SIGN)                                                         \
  TFS_FN tfs_##N tfs_abs_##N(tfs_##N x) { return tfs_frombits_##N(tfs_bits_##N(x) & ~SIGN); }   \
  TFS_FN tfs_##N tfs_copysign_##N(tfs_##N mag, tfs_##N s) {                                     \
    return tfs_frombits_##N((tfs_bits_##N(mag) & ~SIGN) | (tfs_bits_##N(s) & SIGN));            \
  }                                                                                             \
  TFS_FN tfs_##N tfs_max_##N(tfs_##N a, tfs_##N b) {                                            \
    return tfs_sel_##N(tfs_eq_##N(a, a), tfs_maxk_##N(b, a), a);                                \
  }                                                                                             \
  TFS_FN tfs_##N tfs_min_##N(tfs_##N a, tfs_##N b) {                                            \
    return tfs_sel_##N(tfs_eq_##N(a, a), tfs_mink_##N(b, a), a);                                \
  }

/* scale: 2^k is split in two normal factors; the first product is exact, so one rounding happens.
 * scale_fast: p doubled, so that 2^(k-1) is a normal number up to the overflow. */
#define TFS_PRIMS_SCALE(N, U, BIAS, SH, MAGIC)                                                  \
  TFS_FN tfs_##N tfs_scale_##N(tfs_##N p, tfs_##N k) {                                          \
    tfs_##N t1 = tfs_fma_##N(k, tfs_set1_##N(0.5f), tfs_set1_##N(MAGIC));                       \
    tfs_##N t2 = (k - (t1 - tfs_set1_##N(MAGIC))) + tfs_set1_##N(MAGIC);                        \
    U b1 = (tfs_bits_##N(t1) << SH) + ((BIAS) << SH);                                           \
    U b2 = (tfs_bits_##N(t2) << SH) + ((BIAS) << SH);                                           \
    return p * tfs_frombits_##N(b1) * tfs_frombits_##N(b2);                                     \
  }                                                                                             \
  TFS_FN tfs_##N tfs_scale_fast_##N(tfs_##N p, tfs_##N t) {                                     \
    return (p + p) * tfs_frombits_##N((tfs_bits_##N(t) << SH) + ((BIAS - 1) << SH));            \
  }

#define TFS_PRIMS_SCALAR(N, T, U, FMA, SQRT)                                                    \
  typedef int tfs_m_##N;                                                                        \
  TFS_FN T tfs_set1_##N(T x) { return x; }                                                      \
  TFS_FN T tfs_fma_##N(T a, T b, T c) { return FMA(a, b, c); }                                  \
  TFS_FN U tfs_bits_##N(T x) {                                                                  \
    U u;                                                                                        \
    memcpy(&u, &x, sizeof u);                                                                   \
    return u;                                                                                   \
  }                                                                                             \
  TFS_FN T tfs_frombits_##N(U u) {                                                              \
    T x;                                                                                        \
    memcpy(&x, &u, sizeof x);                                                                   \
    return x;                                                                                   \
  }                                                                                             \
  TFS_FN int tfs_lt_##N(T a, T b) { return a < b; }                                             \
  TFS_FN int tfs_le_##N(T a, T b) { return a <= b; }                                            \
  TFS_FN int tfs_eq_##N(T a, T b) { return a == b; }                                            \
  TFS_FN int tfs_odd_##N(U u) { return (int)(u & 1); }                                          \
  TFS_FN int tfs_any_##N(int m) { return m; }                                                   \
  TFS_FN int tfs_all_##N(int m) { return m; }                                                   \
  TFS_FN T tfs_sel_##N(int m, T a, T b) { return m ? a : b; }                                   \
  TFS_FN T tfs_zero_if_##N(int m, T v) { return m ? 0 : v; }                                    \
  TFS_FN T tfs_maxk_##N(T x, T k) { return k > x ? k : x; }                                     \
  TFS_FN T tfs_mink_##N(T x, T k) { return k < x ? k : x; }                                     \
  TFS_FN T tfs_sqrt_##N(T x) { return SQRT; }

#define TFS_PRIMS_MADD_FMA(N)                                                                   \
  TFS_FN tfs_##N tfs_madd_##N(tfs_##N a, tfs_##N b, tfs_##N c) { return tfs_fma_##N(a, b, c); }
#define TFS_PRIMS_MADD_SPLIT(N)                                                                 \
  TFS_FN tfs_##N tfs_madd_##N(tfs_##N a, tfs_##N b, tfs_##N c) { return a * b + c; }

/* 128- and 256-bit: masks are all-ones integer lanes. */
#define TFS_PRIMS_VEC(N, U, I, E, P, S, ALL)                                                    \
  typedef I tfs_m_##N;                                                                          \
  TFS_FN tfs_##N tfs_set1_##N(E x) { return (tfs_##N)P##_set1_##S(x); }                         \
  TFS_FN tfs_##N tfs_fma_##N(tfs_##N a, tfs_##N b, tfs_##N c) {                                 \
    return (tfs_##N)P##_fmadd_##S(a, b, c);                                                     \
  }                                                                                             \
  TFS_FN U tfs_bits_##N(tfs_##N x) { return (U)x; }                                             \
  TFS_FN tfs_##N tfs_frombits_##N(U u) { return (tfs_##N)u; }                                   \
  TFS_FN I tfs_lt_##N(tfs_##N a, tfs_##N b) { return (I)(a < b); }                              \
  TFS_FN I tfs_le_##N(tfs_##N a, tfs_##N b) { return (I)(a <= b); }                             \
  TFS_FN I tfs_eq_##N(tfs_##N a, tfs_##N b) { return (I)(a == b); }                             \
  TFS_FN I tfs_odd_##N(U u) { return (I)((u & 1) == 1); }                                       \
  TFS_FN int tfs_any_##N(I m) { return P##_movemask_##S((tfs_##N)m) != 0; }                     \
  TFS_FN int tfs_all_##N(I m) { return P##_movemask_##S((tfs_##N)m) == ALL; }                   \
  TFS_FN tfs_##N tfs_sel_##N(I m, tfs_##N a, tfs_##N b) {                                       \
    return (tfs_##N)P##_blendv_##S(b, a, (tfs_##N)m);                                           \
  }                                                                                             \
  TFS_FN tfs_##N tfs_zero_if_##N(I m, tfs_##N v) {                                              \
    return (tfs_##N)P##_andnot_##S((tfs_##N)m, v);                                              \
  }                                                                                             \
  TFS_FN tfs_##N tfs_maxk_##N(tfs_##N x, tfs_##N k) { return (tfs_##N)P##_max_##S(k, x); }      \
  TFS_FN tfs_##N tfs_mink_##N(tfs_##N x, tfs_##N k) { return (tfs_##N)P##_min_##S(k, x); }      \
  TFS_FN tfs_##N tfs_sqrt_##N(tfs_##N x) { return (tfs_##N)P##_sqrt_##S(x); }

/* 512-bit: masks live in mask registers. */
#define TFS_PRIMS_512(N, U, E, S, X, M, ALL)                                                    \
  typedef M tfs_m_##N;                                                                          \
  TFS_FN tfs_##N tfs_set1_##N(E x) { return (tfs_##N)_mm512_set1_##S(x); }                      \
  TFS_FN tfs_##N tfs_fma_##N(tfs_##N a, tfs_##N b, tfs_##N c) {                                 \
    return (tfs_##N)_mm512_fmadd_##S(a, b, c);                                                  \
  }                                                                                             \
  TFS_FN U tfs_bits_##N(tfs_##N x) { return (U)x; }                                             \
  TFS_FN tfs_##N tfs_frombits_##N(U u) { return (tfs_##N)u; }                                   \
  TFS_FN M tfs_lt_##N(tfs_##N a, tfs_##N b) {                                                   \
    return _mm512_cmp_##S##_mask(a, b, _CMP_LT_OQ);                                             \
  }                                                                                             \
  TFS_FN M tfs_le_##N(tfs_##N a, tfs_##N b) {                                                   \
    return _mm512_cmp_##S##_mask(a, b, _CMP_LE_OQ);                                             \
  }                                                                                             \
  TFS_FN M tfs_eq_##N(tfs_##N a, tfs_##N b) {                                                   \
    return _mm512_cmp_##S##_mask(a, b, _CMP_EQ_OQ);                                             \
  }                                                                                             \
  TFS_FN M tfs_odd_##N(U u) {                                                                   \
    return _mm512_test_##X##_mask((__m512i)u, _mm512_set1_##X(1));                              \
  }                                                                                             \
  TFS_FN int tfs_any_##N(M m) { return m != 0; }                                                \
  TFS_FN int tfs_all_##N(M m) { return m == ALL; }                                              \
  TFS_FN tfs_##N tfs_sel_##N(M m, tfs_##N a, tfs_##N b) {                                       \
    return (tfs_##N)_mm512_mask_blend_##S(m, b, a);                                             \
  }                                                                                             \
  TFS_FN tfs_##N tfs_zero_if_##N(M m, tfs_##N v) {                                              \
    return (tfs_##N)_mm512_maskz_mov_##S((M)~m, v);                                             \
  }                                                                                             \
  TFS_FN tfs_##N tfs_maxk_##N(tfs_##N x, tfs_##N k) { return (tfs_##N)_mm512_max_##S(k, x); }   \
  TFS_FN tfs_##N tfs_mink_##N(tfs_##N x, tfs_##N k) { return (tfs_##N)_mm512_min_##S(k, x); }   \
  TFS_FN tfs_##N tfs_sqrt_##N(tfs_##N x) { return (tfs_##N)_mm512_sqrt_##S(x); }                \
  TFS_FN tfs_##N tfs_scale_##N(tfs_##N p, tfs_##N k) {                                          \
    return (tfs_##N)_mm512_scalef_##S(p, k);                                                    \
  }                                                                                             \
  TFS_FN tfs_##N tfs_scale_fast_##N(tfs_##N p, tfs_##N t) {                                     \
    const E magic = sizeof(E) == 4 ? (E)TFS_MAGIC32 : (E)TFS_MAGIC64;                           \
    return (tfs_##N)_mm512_scalef_##S(p, t - tfs_set1_##N(magic));                              \
  }

#define TFS_SIGN32 0x80000000u
#define TFS_SIGN64 UINT64_C(0x8000000000000000)
#define TFS_MAGIC32 12582912.0f
#define TFS_MAGIC64 6755399441055744.0
#define TFS_SQRT_SS(x) _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(x)))
#define TFS_SQRT_SD(x) _mm_cvtsd_f64(_mm_sqrt_sd(_mm_setzero_pd(), _mm_set_sd(x)))

#if defined(__FMA__)
TFS_PRIMS_SCALAR(f32x1, float, uint32_t, __builtin_fmaf, TFS_SQRT_SS(x))
TFS_PRIMS_MADD_FMA(f32x1)
TFS_PRIMS_SCALAR(f64x1, double, uint64_t, __builtin_fma, TFS_SQRT_SD(x))
TFS_PRIMS_MADD_FMA(f64x1)
#else
TFS_PRIMS_SCALAR(f32x1, float, uint32_t, tfs_soft_fmaf, TFS_SQRT_SS(x))
TFS_PRIMS_MADD_SPLIT(f32x1)
TFS_PRIMS_SCALAR(f64x1, double, uint64_t, fma, TFS_SQRT_SD(x))
TFS_PRIMS_MADD_SPLIT(f64x1)
#endif
TFS_PRIMS_COMMON(f32x1, uint32_t, float, TFS_SIGN32)
TFS_PRIMS_SCALE(f32x1, uint32_t, 127u, 23, TFS_MAGIC32)
TFS_PRIMS_COMMON(f64x1, uint64_t, double, TFS_SIGN64)
TFS_PRIMS_SCALE(f64x1, uint64_t, UINT64_C(1023), 52, TFS_MAGIC64)

#if TFS_ISA_AVX2
TFS_PRIMS_VEC(f32x4, tfs_u32x4, tfs_i32x4, float, _mm, ps, 0xf)
TFS_PRIMS_MADD_FMA(f32x4)
TFS_PRIMS_COMMON(f32x4, tfs_u32x4, float, TFS_SIGN32)
TFS_PRIMS_SCALE(f32x4, tfs_u32x4, 127u, 23, TFS_MAGIC32)
TFS_PRIMS_VEC(f32x8, tfs_u32x8, tfs_i32x8, float, _mm256, ps, 0xff)
TFS_PRIMS_MADD_FMA(f32x8)
TFS_PRIMS_COMMON(f32x8, tfs_u32x8, float, TFS_SIGN32)
TFS_PRIMS_SCALE(f32x8, tfs_u32x8, 127u, 23, TFS_MAGIC32)
TFS_PRIMS_VEC(f64x4, tfs_u64x4, tfs_i64x4, double, _mm256, pd, 0xf)
TFS_PRIMS_MADD_FMA(f64x4)
TFS_PRIMS_COMMON(f64x4, tfs_u64x4, double, TFS_SIGN64)
TFS_PRIMS_SCALE(f64x4, tfs_u64x4, UINT64_C(1023), 52, TFS_MAGIC64)
#endif
#if TFS_ISA_AVX512
TFS_PRIMS_512(f32x16, tfs_u32x16, float, ps, epi32, __mmask16, 0xffff)
TFS_PRIMS_MADD_FMA(f32x16)
TFS_PRIMS_COMMON(f32x16, tfs_u32x16, float, TFS_SIGN32)
TFS_PRIMS_512(f64x8, tfs_u64x8, double, pd, epi64, __mmask8, 0xff)
TFS_PRIMS_MADD_FMA(f64x8)
TFS_PRIMS_COMMON(f64x8, tfs_u64x8, double, TFS_SIGN64)
#endif

/* select16: of 16 numbers, those at the lowest four bits of each lane. scale_16: p * 2^floor(k) for
 * t = k + 1.5 * 2^19 and -256 < k < 256, rounded once; like scale it splits the power in two. */
#define TFS_MAGIC32_16 0x1.8p19f
static const float tfs_exp2_16[16] __attribute__((aligned(64), unused)) = {
    0x1.000000p+0f, 0x1.0b5586p+0f, 0x1.172b84p+0f, 0x1.2387a6p+0f,
    0x1.306fe0p+0f, 0x1.3dea64p+0f, 0x1.4bfdaep+0f, 0x1.5ab07ep+0f,
    0x1.6a09e6p+0f, 0x1.7a1148p+0f, 0x1.8ace54p+0f, 0x1.9c4918p+0f,
    0x1.ae89fap+0f, 0x1.c199bep+0f, 0x1.d5818ep+0f, 0x1.ea4afap+0f};
#define TFS_PRIMS_SCALE_16(N, U)                                                                \
  TFS_FN tfs_##N tfs_scale_16_##N(tfs_##N p, tfs_##N t) {                                       \
    U n = (tfs_bits_##N(t) - (0x49400000u - (256u << 4))) >> 4, half = n >> 1;                  \
    return p * tfs_frombits_##N((half - 1u) << 23) * tfs_frombits_##N((n - half - 1u) << 23);   \
  }
TFS_FN float tfs_select16_f32x1(const float* of, uint32_t i) { return of[i & 15]; }
TFS_PRIMS_SCALE_16(f32x1, uint32_t)
#if TFS_ISA_AVX512
TFS_FN tfs_f32x16 tfs_select16_f32x16(const float* of, tfs_u32x16 i) {
  return (tfs_f32x16)_mm512_permutexvar_ps((__m512i)i, _mm512_load_ps(of));
}
TFS_FN tfs_f32x8 tfs_select16_f32x8(const float* of, tfs_u32x8 i) {
  return (tfs_f32x8)_mm256_permutex2var_ps(_mm256_load_ps(of), (__m256i)i, _mm256_load_ps(of + 8));
}
TFS_FN tfs_f32x16 tfs_scale_16_f32x16(tfs_f32x16 p, tfs_f32x16 t) {
  return (tfs_f32x16)_mm512_scalef_ps(p, t - tfs_set1_f32x16(TFS_MAGIC32_16));
}
TFS_FN tfs_f32x8 tfs_scale_16_f32x8(tfs_f32x8 p, tfs_f32x8 t) {
  return (tfs_f32x8)_mm256_scalef_ps(p, t - tfs_set1_f32x8(TFS_MAGIC32_16));
}
#elif TFS_ISA_AVX2
TFS_FN tfs_f32x8 tfs_select16_f32x8(const float* of, tfs_u32x8 i) {
  __m256 low = _mm256_permutevar8x32_ps(_mm256_load_ps(of), (__m256i)i);
  __m256 high = _mm256_permutevar8x32_ps(_mm256_load_ps(of + 8), (__m256i)i);
  return (tfs_f32x8)_mm256_blendv_ps(low, high, (__m256)(i << 28));
}
TFS_PRIMS_SCALE_16(f32x8, tfs_u32x8)
#endif
#if TFS_ISA_AVX2
TFS_FN tfs_f32x4 tfs_select16_f32x4(const float* of, tfs_u32x4 i) {
  tfs_u32x8 wide = (tfs_u32x8)_mm256_castsi128_si256((__m128i)i);
  return (tfs_f32x4)_mm256_castps256_ps128((__m256)tfs_select16_f32x8(of, wide));
}
TFS_PRIMS_SCALE_16(f32x4, tfs_u32x4)
#endif

/* Estimates: relative error at most 2^-14 with AVX-512, 1.5 * 2^-12 otherwise (Intel SDM); the
 * baseline divides.  One instruction family per build keeps all widths equal. */
#if TFS_ISA_AVX512
TFS_FN tfs_f32x16 tfs_rcp_est_f32x16(tfs_f32x16 x) { return (tfs_f32x16)_mm512_rcp14_ps(x); }
TFS_FN tfs_f32x8 tfs_rcp_est_f32x8(tfs_f32x8 x) { return (tfs_f32x8)_mm256_rcp14_ps(x); }
TFS_FN tfs_f32x4 tfs_rcp_est_f32x4(tfs_f32x4 x) { return (tfs_f32x4)_mm_rcp14_ps(x); }
TFS_FN float tfs_rcp_est_f32x1(float x) {
  return _mm_cvtss_f32(_mm_rcp14_ss(_mm_setzero_ps(), _mm_set_ss(x)));
}
TFS_FN tfs_f32x16 tfs_rsqrt_est_f32x16(tfs_f32x16 x) { return (tfs_f32x16)_mm512_rsqrt14_ps(x); }
TFS_FN tfs_f32x8 tfs_rsqrt_est_f32x8(tfs_f32x8 x) { return (tfs_f32x8)_mm256_rsqrt14_ps(x); }
TFS_FN tfs_f32x4 tfs_rsqrt_est_f32x4(tfs_f32x4 x) { return (tfs_f32x4)_mm_rsqrt14_ps(x); }
TFS_FN float tfs_rsqrt_est_f32x1(float x) {
  return _mm_cvtss_f32(_mm_rsqrt14_ss(_mm_setzero_ps(), _mm_set_ss(x)));
}
#elif TFS_ISA_AVX2
TFS_FN tfs_f32x8 tfs_rcp_est_f32x8(tfs_f32x8 x) { return (tfs_f32x8)_mm256_rcp_ps(x); }
TFS_FN tfs_f32x4 tfs_rcp_est_f32x4(tfs_f32x4 x) { return (tfs_f32x4)_mm_rcp_ps(x); }
TFS_FN float tfs_rcp_est_f32x1(float x) { return _mm_cvtss_f32(_mm_rcp_ss(_mm_set_ss(x))); }
TFS_FN tfs_f32x8 tfs_rsqrt_est_f32x8(tfs_f32x8 x) { return (tfs_f32x8)_mm256_rsqrt_ps(x); }
TFS_FN tfs_f32x4 tfs_rsqrt_est_f32x4(tfs_f32x4 x) { return (tfs_f32x4)_mm_rsqrt_ps(x); }
TFS_FN float tfs_rsqrt_est_f32x1(float x) { return _mm_cvtss_f32(_mm_rsqrt_ss(_mm_set_ss(x))); }
#else
TFS_FN float tfs_rcp_est_f32x1(float x) { return 1.0f / x; }
TFS_FN float tfs_rsqrt_est_f32x1(float x) { return 1.0f / tfs_sqrt_f32x1(x); }
#endif

#endif
