/* Conversions between register types, and to and from 16- and 8-bit memory formats.
 *
 *   tfs_cvt_<from>_<to>(v)    from, to: f32xL, f64xL, i32xL of one lane count
 *   tfs_widen_<fmt>_<to>(raw) fmt: bf16, f16, i8; exact
 *   tfs_narrow_<from>_<fmt>(v)
 *
 * Float to integer rounds half to even and saturates, NaN gives 0; i32 to i8 saturates.  Float to
 * a narrower float rounds once to nearest even, overflows to inf, keeps denormals; a NaN stays a
 * (quiet) NaN.  Raw registers hold L packed elements in their low bytes. */
#ifndef TFS_MATHS_CONVERT_H
#define TFS_MATHS_CONVERT_H

TFS_FN float tfs_cvt_f64x1_f32x1(double x) { return (float)x; }
TFS_FN double tfs_cvt_f32x1_f64x1(float x) { return x; }
TFS_FN float tfs_cvt_i32x1_f32x1(int32_t x) { return (float)x; }
TFS_FN double tfs_cvt_i32x1_f64x1(int32_t x) { return x; }
TFS_FN int32_t tfs_cvt_f32x1_i32x1(float x) {
  int32_t i = _mm_cvtss_si32(_mm_set_ss(x));
  return x >= 0x1p31f ? INT32_MAX : x == x ? i : 0;
}
TFS_FN int32_t tfs_cvt_f64x1_i32x1(double x) {
  int32_t i = _mm_cvtsd_si32(_mm_set_sd(tfs_mink_f64x1(x, 2147483647.0)));
  return x == x ? i : 0;
}

/* f64 to f32 rounded to odd: a later rounding to 16 bits then equals rounding once. */
TFS_FN float tfs_odd_f64x1_f32x1(double x) {
  float f = (float)x;
  uint32_t u = tfs_bits_f32x1(f);
  if ((double)f == x || x != x) return f;
  if (__builtin_fabs((double)f) > __builtin_fabs(x)) u -= 1;
  return tfs_frombits_f32x1(u | 1u);
}

TFS_FN float tfs_widen_bf16_f32x1(uint16_t h) { return tfs_frombits_f32x1((uint32_t)h << 16); }
TFS_FN uint16_t tfs_narrow_f32x1_bf16(float x) {
  uint32_t u = tfs_bits_f32x1(x);
  uint32_t r = x == x ? u + 0x7fffu + ((u >> 16) & 1u) : u | 0x400000u;
  return (uint16_t)(r >> 16);
}
/* gcc 12 vectorises unsigned sums of sign-extended bytes in several variables wrongly: it must not
 * see where the number comes from. */
#if defined(__GNUC__) && !defined(__clang__)
#define TFS_HIDE_INTEGER(x) __asm__("" : "+r"(x))
#else
#define TFS_HIDE_INTEGER(x) (void)(x)
#endif
TFS_FN int32_t tfs_widen_i8_i32x1(int8_t x) {
  int32_t wide = x;
  TFS_HIDE_INTEGER(wide);
  return wide;
}
TFS_FN int8_t tfs_narrow_i32x1_i8(int32_t x) {
  return (int8_t)(x > 127 ? 127 : x < -128 ? -128 : x);
}

#if defined(__F16C__)
TFS_FN float tfs_widen_f16_f32x1(uint16_t h) { return _cvtsh_ss(h); }
TFS_FN uint16_t tfs_narrow_f32x1_f16(float x) {
  return (uint16_t)_cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
#else
TFS_FN float tfs_widen_f16_f32x1(uint16_t h) {
  uint32_t s = (uint32_t)(h & 0x8000u) << 16, m = h & 0x7fffu;
  if (m >= 0x7c00u) {
    uint32_t quiet = m > 0x7c00u ? 0x400000u : 0u;
    return tfs_frombits_f32x1(s | 0x7f800000u | (m << 13) | quiet);
  }
  float f = tfs_frombits_f32x1(m << 13) * 0x1p112f; /* moves the exponent bias; exact */
  return tfs_frombits_f32x1(tfs_bits_f32x1(f) | s);
}
TFS_FN uint16_t tfs_narrow_f32x1_f16(float x) {
  uint32_t u = tfs_bits_f32x1(x), s = (u >> 16) & 0x8000u;
  u &= 0x7fffffffu;
  if (u > 0x7f800000u) return (uint16_t)(s | 0x7e00u | ((u >> 13) & 0x3ffu));
  if (u >= 0x477ff000u) return (uint16_t)(s | 0x7c00u); /* 65520 and up round to inf */
  if (u < 0x38800000u) {
    /* Below 2^-14: adding 0.5 leaves multiples of 2^-24, the denormal step, rounded to even. */
    float f = tfs_frombits_f32x1(u) + 0.5f;
    return (uint16_t)(s | (tfs_bits_f32x1(f) - 0x3f000000u));
  }
  u += 0xfffu + ((u >> 13) & 1u);
  return (uint16_t)(s | ((u - 0x38000000u) >> 13));
}
#endif

#if TFS_ISA_AVX2
/* i: the hardware's result, 0x80000000 where out of range or NaN. */
#define TFS_CVT_I32(L, CVT)                                                                     \
  TFS_FN tfs_i32x##L tfs_cvt_f32x##L##_i32x##L(tfs_f32x##L x) {                                 \
    tfs_i32x##L i = (tfs_i32x##L)CVT(x);                                                        \
    return (i ^ (tfs_i32x##L)(x >= tfs_set1_f32x##L(0x1p31f))) & (tfs_i32x##L)(x == x);         \
  }
TFS_CVT_I32(4, _mm_cvtps_epi32)
TFS_CVT_I32(8, _mm256_cvtps_epi32)
TFS_FN tfs_f32x4 tfs_cvt_i32x4_f32x4(tfs_i32x4 x) {
  return (tfs_f32x4)_mm_cvtepi32_ps((__m128i)x);
}
TFS_FN tfs_f32x8 tfs_cvt_i32x8_f32x8(tfs_i32x8 x) {
  return (tfs_f32x8)_mm256_cvtepi32_ps((__m256i)x);
}
TFS_FN tfs_f64x4 tfs_cvt_f32x4_f64x4(tfs_f32x4 x) { return (tfs_f64x4)_mm256_cvtps_pd(x); }
TFS_FN tfs_f32x4 tfs_cvt_f64x4_f32x4(tfs_f64x4 x) { return (tfs_f32x4)_mm256_cvtpd_ps(x); }
TFS_FN tfs_f64x4 tfs_cvt_i32x4_f64x4(tfs_i32x4 x) {
  return (tfs_f64x4)_mm256_cvtepi32_pd((__m128i)x);
}
TFS_FN tfs_i32x4 tfs_cvt_f64x4_i32x4(tfs_f64x4 x) {
  tfs_f64x4 c = tfs_zero_if_f64x4(~(tfs_i64x4)(x == x), x);
  c = tfs_mink_f64x4(c, tfs_set1_f64x4(2147483647.0));
  return (tfs_i32x4)_mm256_cvtpd_epi32(c); /* too small gives 0x80000000, which is right */
}
#endif
#if TFS_ISA_AVX512
TFS_FN tfs_i32x16 tfs_cvt_f32x16_i32x16(tfs_f32x16 x) {
  __m512i i = _mm512_maskz_cvtps_epi32(tfs_eq_f32x16(x, x), x);
  __mmask16 big = tfs_le_f32x16(tfs_set1_f32x16(0x1p31f), x);
  return (tfs_i32x16)_mm512_mask_mov_epi32(i, big, _mm512_set1_epi32(INT32_MAX));
}
TFS_FN tfs_f32x16 tfs_cvt_i32x16_f32x16(tfs_i32x16 x) {
  return (tfs_f32x16)_mm512_cvtepi32_ps((__m512i)x);
}
TFS_FN tfs_f64x8 tfs_cvt_f32x8_f64x8(tfs_f32x8 x) { return (tfs_f64x8)_mm512_cvtps_pd(x); }
TFS_FN tfs_f32x8 tfs_cvt_f64x8_f32x8(tfs_f64x8 x) { return (tfs_f32x8)_mm512_cvtpd_ps(x); }
TFS_FN tfs_f64x8 tfs_cvt_i32x8_f64x8(tfs_i32x8 x) {
  return (tfs_f64x8)_mm512_cvtepi32_pd((__m256i)x);
}
TFS_FN tfs_i32x8 tfs_cvt_f64x8_i32x8(tfs_f64x8 x) {
  __m512d c = tfs_mink_f64x8(x, tfs_set1_f64x8(2147483647.0));
  return (tfs_i32x8)_mm512_maskz_cvtpd_epi32(tfs_eq_f64x8(x, x), c);
}
#endif

/* Halves of a register. */
#if TFS_ISA_AVX2
#define TFS_HALVES(W, H, WI, HI, CASTLO, EXTRACT, CASTUP, INSERT)                               \
  TFS_FN tfs_##H tfs_lo_##W(tfs_##W v) { return (tfs_##H)CASTLO((WI)v); }                       \
  TFS_FN tfs_##H tfs_hi_##W(tfs_##W v) { return (tfs_##H)EXTRACT((WI)v, 1); }                   \
  TFS_FN tfs_##W tfs_join_##W(tfs_##H lo, tfs_##H hi) {                                         \
    return (tfs_##W)INSERT(CASTUP((HI)lo), (HI)hi, 1);                                          \
  }
#define TFS_HALVES_128(W, H) \
  TFS_HALVES(W, H, __m256i, __m128i, _mm256_castsi256_si128, _mm256_extracti128_si256,          \
             _mm256_castsi128_si256, _mm256_inserti128_si256)
TFS_HALVES_128(f32x8, f32x4)
TFS_HALVES_128(i32x8, i32x4)
TFS_HALVES_128(f64x4, f64x2)
#endif
#if TFS_ISA_AVX512
#define TFS_HALVES_256(W, H) \
  TFS_HALVES(W, H, __m512i, __m256i, _mm512_castsi512_si256, _mm512_extracti64x4_epi64,         \
             _mm512_castsi256_si512, _mm512_inserti64x4)
TFS_HALVES_256(f32x16, f32x8)
TFS_HALVES_256(i32x16, i32x8)
TFS_HALVES_256(f64x8, f64x4)
#endif

/* Vectors of 16-bit floats and of i8. */
#if TFS_ISA_AVX2
#define TFS_BF16_ROUND(L, U, x)                                                                 \
  U u = tfs_bits_f32x##L(x);                                                                    \
  U n = (u + 0x7fffu + ((u >> 16) & 1u)) >> 16, q = (u | 0x400000u) >> 16;                      \
  n = tfs_bits_f32x##L(                                                                         \
      tfs_sel_f32x##L(tfs_eq_f32x##L(x, x), tfs_frombits_f32x##L(n), tfs_frombits_f32x##L(q)))
#define TFS_RNE (_MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)

TFS_FN tfs_f32x4 tfs_widen_bf16_f32x4(__m128i h) {
  return (tfs_f32x4)_mm_slli_epi32(_mm_cvtepu16_epi32(h), 16);
}
TFS_FN tfs_f32x8 tfs_widen_bf16_f32x8(__m128i h) {
  return (tfs_f32x8)_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16);
}
TFS_FN tfs_f32x4 tfs_widen_f16_f32x4(__m128i h) { return (tfs_f32x4)_mm_cvtph_ps(h); }
TFS_FN tfs_f32x8 tfs_widen_f16_f32x8(__m128i h) { return (tfs_f32x8)_mm256_cvtph_ps(h); }
TFS_FN __m128i tfs_narrow_f32x4_f16(tfs_f32x4 x) { return _mm_cvtps_ph(x, TFS_RNE); }
TFS_FN __m128i tfs_narrow_f32x8_f16(tfs_f32x8 x) { return _mm256_cvtps_ph(x, TFS_RNE); }
TFS_FN __m128i tfs_narrow_f32x4_bf16(tfs_f32x4 x) {
  TFS_BF16_ROUND(4, tfs_u32x4, x);
  return _mm_packus_epi32((__m128i)n, (__m128i)n);
}
TFS_FN __m128i tfs_narrow_f32x8_bf16(tfs_f32x8 x) {
  TFS_BF16_ROUND(8, tfs_u32x8, x);
  return _mm_packus_epi32(_mm256_castsi256_si128((__m256i)n),
                          _mm256_extracti128_si256((__m256i)n, 1));
}
TFS_FN tfs_i32x4 tfs_widen_i8_i32x4(__m128i b) { return (tfs_i32x4)_mm_cvtepi8_epi32(b); }
TFS_FN tfs_i32x8 tfs_widen_i8_i32x8(__m128i b) { return (tfs_i32x8)_mm256_cvtepi8_epi32(b); }
TFS_FN __m128i tfs_narrow_i32x4_i8(tfs_i32x4 v) {
  __m128i w = _mm_packs_epi32((__m128i)v, (__m128i)v);
  return _mm_packs_epi16(w, w);
}
TFS_FN __m128i tfs_narrow_i32x8_i8(tfs_i32x8 v) {
  __m128i w = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)v),
                              _mm256_extracti128_si256((__m256i)v, 1));
  return _mm_packs_epi16(w, w);
}
TFS_FN tfs_f32x4 tfs_odd_f64x4_f32x4(tfs_f64x4 x) {
  tfs_f32x4 f = tfs_cvt_f64x4_f32x4(x);
  tfs_f64x4 back = tfs_cvt_f32x4_f64x4(f);
  __m256i inexact = (__m256i)((x == x) & (back != x));
  __m256i above = (__m256i)(tfs_abs_f64x4(back) > tfs_abs_f64x4(x));
  const __m256i low = _mm256_setr_epi32(0, 2, 4, 6, 0, 2, 4, 6);
  tfs_u32x4 ie = (tfs_u32x4)_mm256_castsi256_si128(_mm256_permutevar8x32_epi32(inexact, low));
  tfs_u32x4 ab = (tfs_u32x4)_mm256_castsi256_si128(_mm256_permutevar8x32_epi32(above, low));
  tfs_u32x4 u = tfs_bits_f32x4(f) + (ab & ie);
  return tfs_frombits_f32x4(u | (ie & 1u));
}
#endif
#if TFS_ISA_AVX512
TFS_FN tfs_f32x16 tfs_widen_bf16_f32x16(__m256i h) {
  return (tfs_f32x16)_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16);
}
TFS_FN tfs_f32x16 tfs_widen_f16_f32x16(__m256i h) { return (tfs_f32x16)_mm512_cvtph_ps(h); }
TFS_FN __m256i tfs_narrow_f32x16_f16(tfs_f32x16 x) { return _mm512_cvtps_ph(x, TFS_RNE); }
TFS_FN __m256i tfs_narrow_f32x16_bf16(tfs_f32x16 x) {
#if defined(__AVX512BF16__)
  /* The instruction gives the same bits, except that it flushes denormals (class 0x20). */
  if (!TFS_UNLIKELY(_mm512_fpclass_ps_mask((__m512)x, 0x20))) {
    return (__m256i)_mm512_cvtneps_pbh((__m512)x);
  }
#endif
  TFS_BF16_ROUND(16, tfs_u32x16, x);
  return _mm512_cvtepi32_epi16((__m512i)n);
}
TFS_FN tfs_i32x16 tfs_widen_i8_i32x16(__m128i b) { return (tfs_i32x16)_mm512_cvtepi8_epi32(b); }
TFS_FN __m128i tfs_narrow_i32x16_i8(tfs_i32x16 v) { return _mm512_cvtsepi32_epi8((__m512i)v); }
TFS_FN tfs_f32x8 tfs_odd_f64x8_f32x8(tfs_f64x8 x) {
  return tfs_join_f32x8(tfs_odd_f64x4_f32x4(tfs_lo_f64x8(x)), tfs_odd_f64x4_f32x4(tfs_hi_f64x8(x)));
}
#endif

/* f64 and f32 registers to and from the formats that have no direct step. */
#define TFS_VIA(L, R16, R8)                                                                     \
  TFS_FN tfs_f32x##L tfs_widen_i8_f32x##L(R8 r) {                                               \
    return tfs_cvt_i32x##L##_f32x##L(tfs_widen_i8_i32x##L(r));                                  \
  }                                                                                             \
  TFS_FN R8 tfs_narrow_f32x##L##_i8(tfs_f32x##L v) {                                            \
    return tfs_narrow_i32x##L##_i8(tfs_cvt_f32x##L##_i32x##L(v));                               \
  }
#define TFS_VIA64(L, R16, R8)                                                                   \
  TFS_FN tfs_f64x##L tfs_widen_i8_f64x##L(R8 r) {                                               \
    return tfs_cvt_i32x##L##_f64x##L(tfs_widen_i8_i32x##L(r));                                  \
  }                                                                                             \
  TFS_FN tfs_f64x##L tfs_widen_bf16_f64x##L(R16 r) {                                            \
    return tfs_cvt_f32x##L##_f64x##L(tfs_widen_bf16_f32x##L(r));                                \
  }                                                                                             \
  TFS_FN tfs_f64x##L tfs_widen_f16_f64x##L(R16 r) {                                             \
    return tfs_cvt_f32x##L##_f64x##L(tfs_widen_f16_f32x##L(r));                                 \
  }                                                                                             \
  TFS_FN R8 tfs_narrow_f64x##L##_i8(tfs_f64x##L v) {                                            \
    return tfs_narrow_i32x##L##_i8(tfs_cvt_f64x##L##_i32x##L(v));                               \
  }                                                                                             \
  TFS_FN R16 tfs_narrow_f64x##L##_bf16(tfs_f64x##L v) {                                         \
    return tfs_narrow_f32x##L##_bf16(tfs_odd_f64x##L##_f32x##L(v));                             \
  }                                                                                             \
  TFS_FN R16 tfs_narrow_f64x##L##_f16(tfs_f64x##L v) {                                          \
    return tfs_narrow_f32x##L##_f16(tfs_odd_f64x##L##_f32x##L(v));                              \
  }
TFS_VIA(1, uint16_t, int8_t)
TFS_VIA64(1, uint16_t, int8_t)
#if TFS_ISA_AVX2
TFS_VIA(4, __m128i, __m128i)
TFS_VIA(8, __m128i, __m128i)
TFS_VIA64(4, __m128i, __m128i)
#endif
#if TFS_ISA_AVX512
TFS_VIA(16, __m256i, __m128i)
TFS_VIA64(8, __m128i, __m128i)
#endif

#endif
