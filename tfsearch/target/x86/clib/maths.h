/* Vector maths, conversions, memory access and horizontal reductions for generated x86 kernels.
 *
 * Names.  A vector type is tfs_<dtype>x<lanes>; x1 is the plain C scalar.  A function is
 * tfs_<fn>_<dtype>x<lanes>.  The compiler's own ISA macros choose what exists:
 *
 *   level      needs                              f32 lanes      f64 lanes   i32 lanes
 *   AVX-512    F, BW, VL, DQ (with FMA, F16C)     16, 8, 4, 1    8, 4, 1     16, 8, 4, 1
 *   AVX2       AVX2, FMA, F16C                    8, 4, 1        4, 1        8, 4, 1
 *   baseline   x86-64                             1              1           1
 *
 * Define any of TFS_USE_F32X16, TFS_USE_F32X8, TFS_USE_F32X4, TFS_USE_F64X8, TFS_USE_F64X4 to
 * instantiate the maths of those widths only (scalars always come); with none, all of them.
 * Types, primitives, conversions, memory access and reductions exist for every width regardless.
 *
 * One source text serves every width, with a fused multiply-add wherever the text says fma, so a
 * lane gives the same bits at every width, scalar included, and precise functions give the same
 * bits at every level.  Without FMA hardware, f32 fma is computed exactly through f64 and f64 fma
 * through libm's correctly rounded fma (link -lm): same bits, slower.  The fast functions start
 * from the processor's reciprocal estimates and (baseline only) use separate multiplies and adds
 * in their polynomials: same bits at every width of one build on one processor, same bound
 * everywhere, other bits elsewhere.
 *
 * Compile with -O3 -ffp-contract=off, never -ffast-math.  The code assumes the default MXCSR
 * (round to nearest even, denormals kept). */
#ifndef TFS_MATHS_H
#define TFS_MATHS_H

#if defined(__FAST_MATH__)
#error "tfsearch maths.h relies on IEEE semantics: compile without -ffast-math"
#endif
#if !defined(__x86_64__)
#error "tfsearch maths.h is for x86-64"
#endif
#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#endif

#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define TFS_ISA_AVX2 1
#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__)
#define TFS_ISA_AVX512 1
#endif
#endif

#if !defined(TFS_USE_F32X16) && !defined(TFS_USE_F32X8) && !defined(TFS_USE_F32X4) && \
    !defined(TFS_USE_F64X8) && !defined(TFS_USE_F64X4)
#define TFS_USE_F32X16
#define TFS_USE_F32X8
#define TFS_USE_F32X4
#define TFS_USE_F64X8
#define TFS_USE_F64X4
#endif

#define TFS_FN static inline __attribute__((always_inline, unused))
#define TFS_RARE static __attribute__((noinline, cold, unused))
#define TFS_UNLIKELY(c) __builtin_expect(!!(c), 0)
#define TFS_CAT2(a, b) a##b
#define TFS_CAT(a, b) TFS_CAT2(a, b)
#define TFS_CAT4_(a, b, c, d) a##b##c##d
#define TFS_CAT4(a, b, c, d) TFS_CAT4_(a, b, c, d)

typedef float tfs_f32x1;
typedef double tfs_f64x1;
typedef int32_t tfs_i32x1;
typedef uint32_t tfs_u32x1;
typedef uint64_t tfs_u64x1;

#define TFS_VECTOR(base, name, bytes) typedef base name __attribute__((vector_size(bytes)))
#if TFS_ISA_AVX2
TFS_VECTOR(float, tfs_f32x8, 32);
TFS_VECTOR(float, tfs_f32x4, 16);
TFS_VECTOR(double, tfs_f64x4, 32);
TFS_VECTOR(double, tfs_f64x2, 16);
TFS_VECTOR(int32_t, tfs_i32x8, 32);
TFS_VECTOR(int32_t, tfs_i32x4, 16);
TFS_VECTOR(int64_t, tfs_i64x4, 32);
TFS_VECTOR(uint32_t, tfs_u32x8, 32);
TFS_VECTOR(uint32_t, tfs_u32x4, 16);
TFS_VECTOR(uint64_t, tfs_u64x4, 32);
#endif
#if TFS_ISA_AVX512
TFS_VECTOR(float, tfs_f32x16, 64);
TFS_VECTOR(double, tfs_f64x8, 64);
TFS_VECTOR(int32_t, tfs_i32x16, 64);
TFS_VECTOR(uint32_t, tfs_u32x16, 64);
TFS_VECTOR(uint64_t, tfs_u64x8, 64);
#endif

#include "maths_prims.h"

#include "maths_bigarg.h"

#include "maths_convert.h"

#include "maths_memory.h"

#include "maths_horizontal.h"

/* The maths, once per width.  TFS_N: suffix; TFS_U: unsigned integers of the same shape. */
#if TFS_ISA_AVX512 && defined(TFS_USE_F32X16)
#define TFS_N f32x16
#define TFS_U tfs_u32x16
#define TFS_L 16
#include "maths_f32.h"
#include "maths_fast.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L
#endif
#if TFS_ISA_AVX512 && defined(TFS_USE_F64X8)
#define TFS_N f64x8
#define TFS_U tfs_u64x8
#define TFS_L 8
#include "maths_f64.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L
#endif
#if TFS_ISA_AVX2 && defined(TFS_USE_F32X8)
#define TFS_N f32x8
#define TFS_U tfs_u32x8
#define TFS_L 8
#include "maths_f32.h"
#include "maths_fast.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L
#endif
#if TFS_ISA_AVX2 && defined(TFS_USE_F32X4)
#define TFS_N f32x4
#define TFS_U tfs_u32x4
#define TFS_L 4
#include "maths_f32.h"
#include "maths_fast.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L
#endif
#if TFS_ISA_AVX2 && defined(TFS_USE_F64X4)
#define TFS_N f64x4
#define TFS_U tfs_u64x4
#define TFS_L 4
#include "maths_f64.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L
#endif
#define TFS_N f32x1
#define TFS_U tfs_u32x1
#define TFS_L 1
#include "maths_f32.h"
#include "maths_fast.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L
#define TFS_N f64x1
#define TFS_U tfs_u64x1
#define TFS_L 1
#include "maths_f64.h"
#undef TFS_N
#undef TFS_U
#undef TFS_L

#endif
