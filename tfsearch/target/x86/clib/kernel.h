/* What generated kernels use beyond maths.h: lane utilities, strided access, tile transposes.
 *
 *   tfs_floor_N, tfs_ceil_N, tfs_round_N (half to even), tfs_sign_N, tfs_neg_N, tfs_div_N ...
 *   tfs_first_N(new, old, n)      lanes below n from new, the others from old
 *   tfs_select_<cmp>_N(a, b, x, y)  x where a <cmp> b, else y; N holds x, y; a, b of type N
 *   tfs_loads_<mem>_N(p, s, n)    element i from p[i * s] for i < n, the other lanes 0
 *   tfs_stores_<mem>_N(p, s, v, n)
 *   tfs_transpose_<mem>_N(d, ldd, s, lds, rows, columns)
 *                                 d[j * ldd + i] = s[i * lds + j] for i < rows, j < columns */
#ifndef TFS_KERNEL_H
#define TFS_KERNEL_H

#include "maths.h"

#define TFS_LANE_OPS(N, T, L)                                                                   \
  TFS_FN tfs_##N tfs_div_##N(tfs_##N a, tfs_##N b) { return a / b; }                            \
  TFS_FN tfs_##N tfs_sub_##N(tfs_##N a, tfs_##N b) { return a - b; }                            \
  TFS_FN tfs_##N tfs_neg_##N(tfs_##N a) { return -a; }                                          \
  TFS_FN tfs_##N tfs_sign_##N(tfs_##N a) {                                                      \
    tfs_##N zero = tfs_set1_##N(0), one = tfs_set1_##N(1);                                      \
    tfs_##N s = tfs_sel_##N(tfs_lt_##N(a, zero), tfs_neg_##N(one), one);                        \
    return tfs_sel_##N(tfs_eq_##N(a, zero), zero, tfs_sel_##N(tfs_eq_##N(a, a), s, a));         \
  }
#define TFS_SELECTS(N)                                                                          \
  TFS_FN tfs_##N tfs_select_lt_##N(tfs_##N a, tfs_##N b, tfs_##N x, tfs_##N y) {                \
    return tfs_sel_##N(tfs_lt_##N(a, b), x, y);                                                 \
  }                                                                                             \
  TFS_FN tfs_##N tfs_select_le_##N(tfs_##N a, tfs_##N b, tfs_##N x, tfs_##N y) {                \
    return tfs_sel_##N(tfs_le_##N(a, b), x, y);                                                 \
  }                                                                                             \
  TFS_FN tfs_##N tfs_select_gt_##N(tfs_##N a, tfs_##N b, tfs_##N x, tfs_##N y) {                \
    return tfs_sel_##N(tfs_lt_##N(b, a), x, y);                                                 \
  }                                                                                             \
  TFS_FN tfs_##N tfs_select_ge_##N(tfs_##N a, tfs_##N b, tfs_##N x, tfs_##N y) {                \
    return tfs_sel_##N(tfs_le_##N(b, a), x, y);                                                 \
  }                                                                                             \
  TFS_FN tfs_##N tfs_select_eq_##N(tfs_##N a, tfs_##N b, tfs_##N x, tfs_##N y) {                \
    return tfs_sel_##N(tfs_eq_##N(a, b), x, y);                                                 \
  }                                                                                             \
  TFS_FN tfs_##N tfs_select_ne_##N(tfs_##N a, tfs_##N b, tfs_##N x, tfs_##N y) {                \
    return tfs_sel_##N(tfs_eq_##N(a, b), y, x);                                                 \
  }
/* i32 has no primitives in maths.h: masks are the comparison's own all-ones lanes. */
#define TFS_INTEGER_PRIMS(N, U)                                                                 \
  typedef tfs_##N tfs_m_##N;                                                                    \
  TFS_FN tfs_##N tfs_lt_##N(tfs_##N a, tfs_##N b) { return a < b; }                             \
  TFS_FN tfs_##N tfs_le_##N(tfs_##N a, tfs_##N b) { return a <= b; }                            \
  TFS_FN tfs_##N tfs_eq_##N(tfs_##N a, tfs_##N b) { return a == b; }                            \
  TFS_FN tfs_##N tfs_sel_##N(tfs_##N m, tfs_##N a, tfs_##N b) { return (m & a) | (~m & b); }
#define TFS_INTEGER_OPS(N, U)                                                                   \
  TFS_FN tfs_##N tfs_sub_##N(tfs_##N a, tfs_##N b) { return (tfs_##N)((U)a - (U)b); }           \
  TFS_FN tfs_##N tfs_neg_##N(tfs_##N a) { return (tfs_##N)(-(U)a); }                            \
  TFS_FN tfs_##N tfs_abs_##N(tfs_##N a) { return tfs_max_##N(a, tfs_neg_##N(a)); }              \
  TFS_FN tfs_##N tfs_sign_##N(tfs_##N a) {                                                      \
    return tfs_max_##N(tfs_min_##N(a, tfs_set1_##N(1)), tfs_set1_##N(-1));                      \
  }                                                                                             \
  TFS_FN tfs_##N tfs_fma_##N(tfs_##N a, tfs_##N b, tfs_##N c) {                                 \
    return tfs_add_##N(tfs_mul_##N(a, b), c);                                                   \
  }                                                                                             \
  TFS_FN tfs_##N tfs_sat8_##N(tfs_##N a) {                                                      \
    return tfs_max_##N(tfs_min_##N(a, tfs_set1_##N(127)), tfs_set1_##N(-128));                  \
  }

#define TFS_FIRST_BY_INDEX(N, M, E, ...)                                                         \
  TFS_FN tfs_##N tfs_first_##N(tfs_##N a, tfs_##N b, long n) {                                  \
    const M index = {__VA_ARGS__};                                                              \
    M below = index < ((M){0} + (E)n);                                                           \
    return (tfs_##N)((below & (M)a) | (~below & (M)b));                                         \
  }
#define TFS_STRIDED(MEM, T, N, L)                                                               \
  TFS_FN tfs_##N tfs_loads_##MEM##_##N(const void* p, long s, long n) {                         \
    T e[L] = {0};                                                                               \
    for (long i = 0; i < n; ++i) memcpy(e + i, (const T*)p + i * s, sizeof(T));                 \
    return tfs_load_##MEM##_##N(e);                                                             \
  }                                                                                             \
  TFS_FN void tfs_stores_##MEM##_##N(void* p, long s, tfs_##N v, long n) {                      \
    T e[L];                                                                                     \
    tfs_store_##MEM##_##N(e, v);                                                                \
    for (long i = 0; i < n; ++i) memcpy((T*)p + i * s, e + i, sizeof(T));                       \
  }
#define TFS_STRIDED_FLOATS(N, L)                                                                \
  TFS_STRIDED(f32, float, N, L)                                                                 \
  TFS_STRIDED(f64, double, N, L)                                                                \
  TFS_STRIDED(bf16, uint16_t, N, L)                                                             \
  TFS_STRIDED(f16, uint16_t, N, L)                                                              \
  TFS_STRIDED(i8, int8_t, N, L)                                                                 \
  TFS_STRIDED(i32, int32_t, N, L)
#define TFS_STRIDED_INTEGERS(N, L) TFS_STRIDED(i8, int8_t, N, L) TFS_STRIDED(i32, int32_t, N, L)

/* Squares of L x L move through registers: log2 L rounds, each exchanging the off-diagonal halves
 * of pairs of rows. Missing rows and columns are loaded as zeros and never stored. */
#define TFS_TRANSPOSE(MEM, T, N, L)                                                             \
  TFS_FN void tfs_transpose_##MEM##_##N(float* d, long ldd, const T* s, long lds,     \
                                        long rows, long columns) {                              \
    tfs_##N r[L];                                                                               \
    if (rows == L && columns == L) {                                                            \
      for (int i = 0; i < L; ++i) r[i] = tfs_load_##MEM##_##N(s + i * lds);                     \
    } else {                                                                                    \
      for (int i = 0; i < L; ++i) {                                                             \
        r[i] = tfs_loadn_##MEM##_##N(s + (i < rows ? i : 0) * lds, i < rows ? (int)columns : 0); \
      }                                                                                         \
    }                                                                                           \
    tfs_square_##N(r);                                                                          \
    if (rows == L && columns == L) {                                                            \
      for (int j = 0; j < L; ++j) tfs_store_f32_##N(d + j * ldd, r[j]);                      \
    } else {                                                                                    \
      for (int j = 0; j < L; ++j) {                                                             \
        if (j < columns) tfs_storen_f32_##N(d + j * ldd, r[j], (int)rows);                   \
      }                                                                                         \
    }                                                                                           \
  }

TFS_LANE_OPS(f32x1, float, 1)
TFS_LANE_OPS(f64x1, double, 1)
TFS_SELECTS(f32x1)
TFS_SELECTS(f64x1)
typedef int32_t tfs_m_i32x1;
TFS_FN int32_t tfs_lt_i32x1(int32_t a, int32_t b) { return a < b; }
TFS_FN int32_t tfs_le_i32x1(int32_t a, int32_t b) { return a <= b; }
TFS_FN int32_t tfs_eq_i32x1(int32_t a, int32_t b) { return a == b; }
TFS_FN int32_t tfs_sel_i32x1(int32_t m, int32_t a, int32_t b) { return m ? a : b; }
TFS_INTEGER_OPS(i32x1, uint32_t)
TFS_SELECTS(i32x1)
TFS_FN float tfs_floor_f32x1(float x) { return __builtin_floorf(x); }
TFS_FN float tfs_ceil_f32x1(float x) { return __builtin_ceilf(x); }
TFS_FN float tfs_round_f32x1(float x) { return __builtin_rintf(x); }
TFS_FN double tfs_floor_f64x1(double x) { return __builtin_floor(x); }
TFS_FN double tfs_ceil_f64x1(double x) { return __builtin_ceil(x); }
TFS_FN double tfs_round_f64x1(double x) { return __builtin_rint(x); }
TFS_FN float tfs_first_f32x1(float a, float b, long n) { return n > 0 ? a : b; }
TFS_FN double tfs_first_f64x1(double a, double b, long n) { return n > 0 ? a : b; }
TFS_FN int32_t tfs_first_i32x1(int32_t a, int32_t b, long n) { return n > 0 ? a : b; }
TFS_STRIDED_FLOATS(f32x1, 1)
TFS_STRIDED_FLOATS(f64x1, 1)
TFS_STRIDED_INTEGERS(i32x1, 1)

#if TFS_ISA_AVX2
typedef int64_t tfs_index64x4 __attribute__((vector_size(32)));
#define TFS_ROUNDING(N, FLOOR, CEIL, ROUND)                                                     \
  TFS_FN tfs_##N tfs_floor_##N(tfs_##N x) { return (tfs_##N)FLOOR(x); }                         \
  TFS_FN tfs_##N tfs_ceil_##N(tfs_##N x) { return (tfs_##N)CEIL(x); }                           \
  TFS_FN tfs_##N tfs_round_##N(tfs_##N x) { return (tfs_##N)ROUND(x); }
#define TFS_ROUND128(x) _mm_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define TFS_ROUND256(x) _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define TFS_ROUND256D(x) _mm256_round_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
TFS_ROUNDING(f32x4, _mm_floor_ps, _mm_ceil_ps, TFS_ROUND128)
TFS_ROUNDING(f32x8, _mm256_floor_ps, _mm256_ceil_ps, TFS_ROUND256)
TFS_ROUNDING(f64x4, _mm256_floor_pd, _mm256_ceil_pd, TFS_ROUND256D)
TFS_LANE_OPS(f32x4, float, 4)
TFS_LANE_OPS(f32x8, float, 8)
TFS_LANE_OPS(f64x4, double, 4)
TFS_SELECTS(f32x4)
TFS_SELECTS(f32x8)
TFS_SELECTS(f64x4)
TFS_INTEGER_PRIMS(i32x4, tfs_u32x4)
TFS_INTEGER_PRIMS(i32x8, tfs_u32x8)
TFS_INTEGER_OPS(i32x4, tfs_u32x4)
TFS_INTEGER_OPS(i32x8, tfs_u32x8)
TFS_SELECTS(i32x4)
TFS_SELECTS(i32x8)
TFS_FIRST_BY_INDEX(f32x4, tfs_i32x4, int32_t, 0, 1, 2, 3)
TFS_FIRST_BY_INDEX(i32x4, tfs_i32x4, int32_t, 0, 1, 2, 3)
TFS_FIRST_BY_INDEX(f64x4, tfs_index64x4, int64_t, 0, 1, 2, 3)
TFS_FIRST_BY_INDEX(f32x8, tfs_i32x8, int32_t, 0, 1, 2, 3, 4, 5, 6, 7)
TFS_FIRST_BY_INDEX(i32x8, tfs_i32x8, int32_t, 0, 1, 2, 3, 4, 5, 6, 7)
TFS_STRIDED_FLOATS(f32x4, 4)
TFS_STRIDED_FLOATS(f32x8, 8)
TFS_STRIDED_FLOATS(f64x4, 4)
TFS_STRIDED_INTEGERS(i32x4, 4)
TFS_STRIDED_INTEGERS(i32x8, 8)

TFS_FN void tfs_square_f32x8(tfs_f32x8* r) {
  __m256 t[8], u[8];
  for (int i = 0; i < 8; i += 2) {
    t[i] = _mm256_unpacklo_ps((__m256)r[i], (__m256)r[i + 1]);
    t[i + 1] = _mm256_unpackhi_ps((__m256)r[i], (__m256)r[i + 1]);
  }
  for (int i = 0; i < 8; i += 4) {
    u[i] = _mm256_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm256_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm256_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    r[i] = (tfs_f32x8)_mm256_permute2f128_ps(u[i], u[i + 4], 0x20);
    r[i + 4] = (tfs_f32x8)_mm256_permute2f128_ps(u[i], u[i + 4], 0x31);
  }
}
#endif

#if TFS_ISA_AVX512
typedef int64_t tfs_index64x8 __attribute__((vector_size(64)));
#define TFS_FIRST_MASKED(N, M, BLEND)                                                           \
  TFS_FN tfs_##N tfs_first_##N(tfs_##N a, tfs_##N b, long n) {                                  \
    return (tfs_##N)BLEND((M)((1u << n) - 1u), b, a);                                           \
  }
#define TFS_FLOOR512(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define TFS_CEIL512(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)
#define TFS_ROUND512(x) _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
#define TFS_FLOOR512D(x) _mm512_roundscale_pd(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)
#define TFS_CEIL512D(x) _mm512_roundscale_pd(x, _MM_FROUND_TO_POS_INF | _MM_FROUND_NO_EXC)
#define TFS_ROUND512D(x) _mm512_roundscale_pd(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)
TFS_ROUNDING(f32x16, TFS_FLOOR512, TFS_CEIL512, TFS_ROUND512)
TFS_ROUNDING(f64x8, TFS_FLOOR512D, TFS_CEIL512D, TFS_ROUND512D)
TFS_LANE_OPS(f32x16, float, 16)
TFS_LANE_OPS(f64x8, double, 8)
TFS_SELECTS(f32x16)
TFS_SELECTS(f64x8)
TFS_INTEGER_PRIMS(i32x16, tfs_u32x16)
TFS_INTEGER_OPS(i32x16, tfs_u32x16)
TFS_SELECTS(i32x16)
TFS_FIRST_MASKED(f32x16, __mmask16, _mm512_mask_blend_ps)
TFS_FIRST_MASKED(f64x8, __mmask8, _mm512_mask_blend_pd)
TFS_FN tfs_i32x16 tfs_first_i32x16(tfs_i32x16 a, tfs_i32x16 b, long n) {
  return (tfs_i32x16)_mm512_mask_blend_epi32((__mmask16)((1u << n) - 1u), (__m512i)b, (__m512i)a);
}
TFS_STRIDED_FLOATS(f32x16, 16)
TFS_STRIDED_FLOATS(f64x8, 8)
TFS_STRIDED_INTEGERS(i32x16, 16)

TFS_FN void tfs_square_f32x16(tfs_f32x16* r) {
  __m512 t[16], u[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_ps((__m512)r[i], (__m512)r[i + 1]);
    t[i + 1] = _mm512_unpackhi_ps((__m512)r[i], (__m512)r[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    u[i] = _mm512_shuffle_ps(t[i], t[i + 2], 0x44);
    u[i + 1] = _mm512_shuffle_ps(t[i], t[i + 2], 0xee);
    u[i + 2] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0x44);
    u[i + 3] = _mm512_shuffle_ps(t[i + 1], t[i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    t[i] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0x88);
    t[i + 4] = _mm512_shuffle_f32x4(u[i], u[i + 4], 0xdd);
    t[i + 8] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0x88);
    t[i + 12] = _mm512_shuffle_f32x4(u[i + 8], u[i + 12], 0xdd);
  }
  for (int i = 0; i < 8; ++i) {
    r[i] = (tfs_f32x16)_mm512_shuffle_f32x4(t[i], t[i + 8], 0x88);
    r[i + 8] = (tfs_f32x16)_mm512_shuffle_f32x4(t[i], t[i + 8], 0xdd);
  }
}
#endif

#define TFS_TRANSPOSES(N, L)                                                                    \
  TFS_TRANSPOSE(f32, float, N, L)                                                               \
  TFS_TRANSPOSE(bf16, uint16_t, N, L)                                                           \
  TFS_TRANSPOSE(f16, uint16_t, N, L)
#if TFS_ISA_AVX512
TFS_TRANSPOSES(f32x16, 16)
#endif
#if TFS_ISA_AVX2
TFS_TRANSPOSES(f32x8, 8)
#endif

/* Reductions in the order of maths_horizontal.h that stay in vector registers: lane 0 of the four
 * that are left is the result, equal bit by bit to tfs_h<fn>_N. */
#define TFS_FOLD_4(N, OP, FN, SWAP2, SWAP1)                                                     \
  TFS_FN tfs_##N tfs_fold_##FN##_##N(tfs_##N v) {                                               \
    v = tfs_##OP##_##N(v, (tfs_##N)SWAP2(v));                                                   \
    return tfs_##OP##_##N(v, (tfs_##N)SWAP1(v));                                                \
  }
#define TFS_FOLD_HALVES(N, H, Q, OP, FN)                                                        \
  TFS_FN tfs_##Q tfs_fold_##FN##_##N(tfs_##N v) {                                               \
    return tfs_fold_##FN##_##H(tfs_##OP##_##H(tfs_lo_##N(v), tfs_hi_##N(v)));                   \
  }
#define TFS_FOLDS_4(N, SWAP2, SWAP1)                                                            \
  TFS_FOLD_4(N, add, sum, SWAP2, SWAP1)                                                         \
  TFS_FOLD_4(N, mul, prod, SWAP2, SWAP1)                                                        \
  TFS_FOLD_4(N, max, max, SWAP2, SWAP1)                                                         \
  TFS_FOLD_4(N, min, min, SWAP2, SWAP1)
#define TFS_FOLDS_HALVES(N, H, Q)                                                               \
  TFS_FOLD_HALVES(N, H, Q, add, sum)                                                            \
  TFS_FOLD_HALVES(N, H, Q, mul, prod)                                                           \
  TFS_FOLD_HALVES(N, H, Q, max, max)                                                            \
  TFS_FOLD_HALVES(N, H, Q, min, min)
#if TFS_ISA_AVX2
#define TFS_SWAP2_F32(v) _mm_movehl_ps((__m128)(v), (__m128)(v))
#define TFS_SWAP1_F32(v) _mm_movehdup_ps((__m128)(v))
#define TFS_SWAP2_I32(v) _mm_shuffle_epi32((__m128i)(v), 0x4e)
#define TFS_SWAP1_I32(v) _mm_shuffle_epi32((__m128i)(v), 0xb1)
#define TFS_SWAP2_F64(v) _mm256_permute4x64_pd((__m256d)(v), 0x4e)
#define TFS_SWAP1_F64(v) _mm256_permute_pd((__m256d)(v), 0x5)
TFS_FOLDS_4(f32x4, TFS_SWAP2_F32, TFS_SWAP1_F32)
TFS_FOLDS_4(i32x4, TFS_SWAP2_I32, TFS_SWAP1_I32)
TFS_FOLDS_4(f64x4, TFS_SWAP2_F64, TFS_SWAP1_F64)
TFS_FOLDS_HALVES(f32x8, f32x4, f32x4)
TFS_FOLDS_HALVES(i32x8, i32x4, i32x4)
#if TFS_ISA_AVX512
TFS_FOLDS_HALVES(f32x16, f32x8, f32x4)
TFS_FOLDS_HALVES(i32x16, i32x8, i32x4)
TFS_FOLDS_HALVES(f64x8, f64x4, f64x4)
#endif
#endif

#endif
