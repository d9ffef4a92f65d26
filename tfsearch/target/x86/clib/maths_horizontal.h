/* Elementwise and horizontal reductions.
 *
 *   tfs_hsum_<N>, tfs_hprod_<N>, tfs_hmax_<N>, tfs_hmin_<N> give the scalar.
 *
 * The tree is fixed: while a register has more than one lane, lane i meets lane i + L/2 (that one
 * is the second operand) and the lower half goes on.  Float max and min follow tfs_max / tfs_min:
 * a NaN anywhere gives NaN.  i32 sum and product wrap modulo 2^32. */
#ifndef TFS_MATHS_HORIZONTAL_H
#define TFS_MATHS_HORIZONTAL_H

#define TFS_ELEMENTWISE(N)                                                                      \
  TFS_FN tfs_##N tfs_add_##N(tfs_##N a, tfs_##N b) { return a + b; }                            \
  TFS_FN tfs_##N tfs_mul_##N(tfs_##N a, tfs_##N b) { return a * b; }
#define TFS_ELEMENTWISE_I(N, U, P, R)                                                           \
  TFS_FN tfs_##N tfs_add_##N(tfs_##N a, tfs_##N b) { return (tfs_##N)((U)a + (U)b); }           \
  TFS_FN tfs_##N tfs_mul_##N(tfs_##N a, tfs_##N b) { return (tfs_##N)((U)a * (U)b); }           \
  TFS_FN tfs_##N tfs_max_##N(tfs_##N a, tfs_##N b) { return (tfs_##N)P##_max_epi32((R)a, (R)b); } \
  TFS_FN tfs_##N tfs_min_##N(tfs_##N a, tfs_##N b) { return (tfs_##N)P##_min_epi32((R)a, (R)b); }

#define TFS_HORIZONTAL(N, H, OP, RED)                                                           \
  TFS_FN TFS_SCALAR_##N tfs_##RED##_##N(tfs_##N v) {                                            \
    return tfs_##RED##_##H(tfs_##OP##_##H(tfs_lo_##N(v), tfs_hi_##N(v)));                       \
  }
#define TFS_HORIZONTAL_4(N, S, OP, RED)                                                         \
  TFS_FN TFS_SCALAR_##N tfs_##RED##_##N(tfs_##N v) {                                            \
    return tfs_##OP##_##S(tfs_##OP##_##S(v[0], v[2]), tfs_##OP##_##S(v[1], v[3]));              \
  }
#define TFS_HORIZONTAL_1(N, S, OP, RED)                                                         \
  TFS_FN TFS_SCALAR_##N tfs_##RED##_##N(tfs_##N v) { return v; }
#define TFS_ALL_REDUCTIONS(HOW, N, H)                                                           \
  HOW(N, H, add, hsum)                                                                          \
  HOW(N, H, mul, hprod)                                                                         \
  HOW(N, H, max, hmax)                                                                          \
  HOW(N, H, min, hmin)

#define TFS_SCALAR_f32x1 float
#define TFS_SCALAR_f32x4 float
#define TFS_SCALAR_f32x8 float
#define TFS_SCALAR_f32x16 float
#define TFS_SCALAR_f64x1 double
#define TFS_SCALAR_f64x4 double
#define TFS_SCALAR_f64x8 double
#define TFS_SCALAR_i32x1 int32_t
#define TFS_SCALAR_i32x4 int32_t
#define TFS_SCALAR_i32x8 int32_t
#define TFS_SCALAR_i32x16 int32_t

TFS_ELEMENTWISE(f32x1)
TFS_ELEMENTWISE(f64x1)
TFS_FN int32_t tfs_set1_i32x1(int32_t x) { return x; }
TFS_FN int32_t tfs_add_i32x1(int32_t a, int32_t b) { return (int32_t)((uint32_t)a + (uint32_t)b); }
TFS_FN int32_t tfs_mul_i32x1(int32_t a, int32_t b) { return (int32_t)((uint32_t)a * (uint32_t)b); }
TFS_FN int32_t tfs_max_i32x1(int32_t a, int32_t b) { return a > b ? a : b; }
TFS_FN int32_t tfs_min_i32x1(int32_t a, int32_t b) { return a < b ? a : b; }
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL_1, f32x1, )
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL_1, f64x1, )
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL_1, i32x1, )
#if TFS_ISA_AVX2
TFS_FN tfs_i32x4 tfs_set1_i32x4(int32_t x) { return (tfs_i32x4)_mm_set1_epi32(x); }
TFS_FN tfs_i32x8 tfs_set1_i32x8(int32_t x) { return (tfs_i32x8)_mm256_set1_epi32(x); }
TFS_ELEMENTWISE(f32x4)
TFS_ELEMENTWISE(f32x8)
TFS_ELEMENTWISE(f64x4)
TFS_ELEMENTWISE_I(i32x4, tfs_u32x4, _mm, __m128i)
TFS_ELEMENTWISE_I(i32x8, tfs_u32x8, _mm256, __m256i)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL_4, f32x4, f32x1)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL_4, f64x4, f64x1)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL_4, i32x4, i32x1)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL, f32x8, f32x4)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL, i32x8, i32x4)
#endif
#if TFS_ISA_AVX512
TFS_FN tfs_i32x16 tfs_set1_i32x16(int32_t x) { return (tfs_i32x16)_mm512_set1_epi32(x); }
TFS_ELEMENTWISE(f32x16)
TFS_ELEMENTWISE(f64x8)
TFS_ELEMENTWISE_I(i32x16, tfs_u32x16, _mm512, __m512i)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL, f32x16, f32x8)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL, f64x8, f64x4)
TFS_ALL_REDUCTIONS(TFS_HORIZONTAL, i32x16, i32x8)
#endif

#endif
