/* Loads and stores with conversion, whole and partial.
 *
 *   tfs_load_<mem>_<reg>(p)        all L elements
 *   tfs_loadn_<mem>_<reg>(p, n)    the first n (0 <= n <= L); other lanes are 0
 *   tfs_store_<mem>_<reg>(p, v)    tfs_storen_<mem>_<reg>(p, v, n)
 *   tfs_stream_<mem>_<reg>(p, v)   non-temporal where p is aligned to the stored bytes (4 or more),
 *                                  plain otherwise; tfs_stream_fence() orders them
 *
 * mem: f32, f64, bf16, f16, i8, i32; reg: f32xL, f64xL, and i32xL for mem i8 and i32.  Addresses
 * need no alignment.  Partial accesses touch no byte outside the n elements.  Values convert as in
 * maths_convert.h. */
#ifndef TFS_MATHS_MEMORY_H
#define TFS_MATHS_MEMORY_H

TFS_FN void tfs_stream_fence(void) { _mm_sfence(); }

#define TFS_COPY(T, p)                                                                          \
  T v;                                                                                          \
  memcpy(&v, p, sizeof v);                                                                      \
  return v

/* Raw accesses: tfs_{ld,ldn,st,stn,nt}<bits>x<lanes>, register type R. */
#define TFS_RAW_SCALAR(B, T)                                                                    \
  typedef T tfs_raw##B##x1;                                                                     \
  TFS_FN T tfs_ld##B##x1(const void* p) { TFS_COPY(T, p); }                                     \
  TFS_FN T tfs_ldn##B##x1(const void* p, int n) {                                               \
    T v = 0;                                                                                    \
    if (n > 0) memcpy(&v, p, sizeof v);                                                         \
    return v;                                                                                   \
  }                                                                                             \
  TFS_FN void tfs_st##B##x1(void* p, T v) { memcpy(p, &v, sizeof v); }                          \
  TFS_FN void tfs_stn##B##x1(void* p, T v, int n) {                                             \
    if (n > 0) memcpy(p, &v, sizeof v);                                                         \
  }
TFS_RAW_SCALAR(8, int8_t)
TFS_RAW_SCALAR(16, uint16_t)
TFS_RAW_SCALAR(32, uint32_t)
TFS_RAW_SCALAR(64, uint64_t)
TFS_FN void tfs_nt8x1(void* p, int8_t v) { tfs_st8x1(p, v); }
TFS_FN void tfs_nt16x1(void* p, uint16_t v) { tfs_st16x1(p, v); }
TFS_FN void tfs_nt32x1(void* p, uint32_t v) {
  if ((uintptr_t)p & 3) tfs_st32x1(p, v);
  else _mm_stream_si32((int*)p, (int)v);
}
TFS_FN void tfs_nt64x1(void* p, uint64_t v) {
  if ((uintptr_t)p & 7) tfs_st64x1(p, v);
  else _mm_stream_si64((long long*)p, (long long)v);
}

#if TFS_ISA_AVX2
/* Whole registers of 4 bytes and up; the low part of an __m128i where less than 16. */
#define TFS_RAW_TYPE(B, L, R) typedef R tfs_raw##B##x##L;
#define TFS_RAW_4BYTES(B, L)                                                                    \
  TFS_RAW_TYPE(B, L, __m128i)                                                                   \
  TFS_FN __m128i tfs_ld##B##x##L(const void* p) { return _mm_cvtsi32_si128((int)tfs_ld32x1(p)); } \
  TFS_FN void tfs_st##B##x##L(void* p, __m128i v) { tfs_st32x1(p, (uint32_t)_mm_cvtsi128_si32(v)); } \
  TFS_FN void tfs_nt##B##x##L(void* p, __m128i v) { tfs_nt32x1(p, (uint32_t)_mm_cvtsi128_si32(v)); }
#define TFS_RAW_8BYTES(B, L)                                                                    \
  TFS_RAW_TYPE(B, L, __m128i)                                                                   \
  TFS_FN __m128i tfs_ld##B##x##L(const void* p) { return _mm_loadl_epi64((const __m128i*)p); }  \
  TFS_FN void tfs_st##B##x##L(void* p, __m128i v) { _mm_storel_epi64((__m128i*)p, v); }         \
  TFS_FN void tfs_nt##B##x##L(void* p, __m128i v) { tfs_nt64x1(p, (uint64_t)_mm_cvtsi128_si64(v)); }
#define TFS_RAW_WHOLE(B, L, R, LD, ST, NT)                                                      \
  TFS_RAW_TYPE(B, L, R)                                                                         \
  TFS_FN R tfs_ld##B##x##L(const void* p) { return LD((const R*)p); }                           \
  TFS_FN void tfs_st##B##x##L(void* p, R v) { ST((R*)p, v); }                                   \
  TFS_FN void tfs_nt##B##x##L(void* p, R v) {                                                   \
    if ((uintptr_t)p & (sizeof(R) - 1)) ST((R*)p, v);                                           \
    else NT((R*)p, v);                                                                          \
  }
#define TFS_RAW_128(B, L) \
  TFS_RAW_WHOLE(B, L, __m128i, _mm_loadu_si128, _mm_storeu_si128, _mm_stream_si128)
#define TFS_RAW_256(B, L) \
  TFS_RAW_WHOLE(B, L, __m256i, _mm256_loadu_si256, _mm256_storeu_si256, _mm256_stream_si256)

TFS_RAW_4BYTES(8, 4)
TFS_RAW_8BYTES(8, 8)
TFS_RAW_8BYTES(16, 4)
TFS_RAW_128(16, 8)
TFS_RAW_128(32, 4)
TFS_RAW_256(32, 8)
TFS_RAW_256(64, 4)

#if TFS_ISA_AVX512
/* LLVM 22 turns a narrowing store under a mask that it knows to be 1 into a whole 32-bit store,
 * which overwrites the neighbour: it must not know the mask. */
#ifdef __clang__
#define TFS_HIDE_MASK(m) __asm__("" : "+r"(m))
#else
#define TFS_HIDE_MASK(m) (void)(m)
#endif
#define TFS_RAW_MASKED(B, L, R, P)                                                              \
  TFS_FN R tfs_ldn##B##x##L(const void* p, int n) {                                             \
    return P##_maskz_loadu_epi##B((TFS_MASK_##B##x##L)((1u << n) - 1u), p);                     \
  }                                                                                             \
  TFS_FN void tfs_stn##B##x##L(void* p, R v, int n) {                                           \
    unsigned mask = (1u << n) - 1u;                                                             \
    if (B < 32) TFS_HIDE_MASK(mask);                                                            \
    P##_mask_storeu_epi##B(p, (TFS_MASK_##B##x##L)mask, v);                                     \
  }
#define TFS_MASK_8x4 __mmask16
#define TFS_MASK_8x8 __mmask16
#define TFS_MASK_8x16 __mmask16
#define TFS_MASK_16x4 __mmask8
#define TFS_MASK_16x8 __mmask8
#define TFS_MASK_16x16 __mmask16
#define TFS_MASK_32x4 __mmask8
#define TFS_MASK_32x8 __mmask8
#define TFS_MASK_32x16 __mmask16
#define TFS_MASK_64x4 __mmask8
#define TFS_MASK_64x8 __mmask8
TFS_RAW_128(8, 16)
TFS_RAW_256(16, 16)
TFS_RAW_WHOLE(32, 16, __m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512)
TFS_RAW_WHOLE(64, 8, __m512i, _mm512_loadu_si512, _mm512_storeu_si512, _mm512_stream_si512)
TFS_RAW_MASKED(8, 4, __m128i, _mm)
TFS_RAW_MASKED(8, 8, __m128i, _mm)
TFS_RAW_MASKED(8, 16, __m128i, _mm)
TFS_RAW_MASKED(16, 4, __m128i, _mm)
TFS_RAW_MASKED(16, 8, __m128i, _mm)
TFS_RAW_MASKED(16, 16, __m256i, _mm256)
TFS_RAW_MASKED(32, 4, __m128i, _mm)
TFS_RAW_MASKED(32, 8, __m256i, _mm256)
TFS_RAW_MASKED(32, 16, __m512i, _mm512)
TFS_RAW_MASKED(64, 4, __m256i, _mm256)
TFS_RAW_MASKED(64, 8, __m512i, _mm512)
#else
/* 8- and 16-bit elements have no masked access before AVX-512: through a buffer, one by one. */
#define TFS_RAW_BUFFERED(B, L, T)                                                               \
  TFS_FN __m128i tfs_ldn##B##x##L(const void* p, int n) {                                       \
    T b[16 / sizeof(T)] = {0};                                                                  \
    for (int i = 0; i < n; ++i) memcpy(b + i, (const char*)p + i * sizeof(T), sizeof(T));       \
    return _mm_loadu_si128((const __m128i*)b);                                                  \
  }                                                                                             \
  TFS_FN void tfs_stn##B##x##L(void* p, __m128i v, int n) {                                     \
    T b[16 / sizeof(T)];                                                                        \
    _mm_storeu_si128((__m128i*)b, v);                                                           \
    for (int i = 0; i < n; ++i) memcpy((char*)p + i * sizeof(T), b + i, sizeof(T));             \
  }
#define TFS_RAW_MASKED(B, L, R, P, X, E, ...)                                                   \
  TFS_FN R tfs_ldn##B##x##L(const void* p, int n) {                                             \
    R m = P##_cmpgt_epi##B(P##_set1_epi##X(n), P##_setr_epi##X(__VA_ARGS__));                   \
    return P##_maskload_epi##B((const E*)p, m);                                                 \
  }                                                                                             \
  TFS_FN void tfs_stn##B##x##L(void* p, R v, int n) {                                           \
    R m = P##_cmpgt_epi##B(P##_set1_epi##X(n), P##_setr_epi##X(__VA_ARGS__));                   \
    P##_maskstore_epi##B((E*)p, m, v);                                                          \
  }
TFS_RAW_BUFFERED(8, 4, int8_t)
TFS_RAW_BUFFERED(8, 8, int8_t)
TFS_RAW_BUFFERED(16, 4, uint16_t)
TFS_RAW_BUFFERED(16, 8, uint16_t)
TFS_RAW_MASKED(32, 4, __m128i, _mm, 32, int, 0, 1, 2, 3)
TFS_RAW_MASKED(32, 8, __m256i, _mm256, 32, int, 0, 1, 2, 3, 4, 5, 6, 7)
TFS_RAW_MASKED(64, 4, __m256i, _mm256, 64x, long long, 0, 1, 2, 3)
#endif
#endif

/* The typed accesses: LOADED(r) turns a raw register into the compute type, STORED(v) back. */
#define TFS_ACCESS(MEM, B, N, L, LOADED, STORED)                                                \
  TFS_FN tfs_##N##x##L tfs_load_##MEM##_##N##x##L(const void* p) {                              \
    return LOADED(tfs_ld##B##x##L(p));                                                          \
  }                                                                                             \
  TFS_FN tfs_##N##x##L tfs_loadn_##MEM##_##N##x##L(const void* p, int n) {                      \
    return LOADED(tfs_ldn##B##x##L(p, n));                                                      \
  }                                                                                             \
  TFS_FN void tfs_store_##MEM##_##N##x##L(void* p, tfs_##N##x##L v) {                           \
    tfs_st##B##x##L(p, STORED(v));                                                              \
  }                                                                                             \
  TFS_FN void tfs_storen_##MEM##_##N##x##L(void* p, tfs_##N##x##L v, int n) {                   \
    tfs_stn##B##x##L(p, STORED(v), n);                                                          \
  }                                                                                             \
  TFS_FN void tfs_stream_##MEM##_##N##x##L(void* p, tfs_##N##x##L v) {                          \
    tfs_nt##B##x##L(p, STORED(v));                                                              \
  }

/* Reinterpretations between raw registers and typed ones. */
#define TFS_TYPED(L, N, B)                                                                      \
  TFS_FN tfs_##N##x##L tfs_of##B##_##N##x##L(tfs_raw##B##x##L r) {                              \
    tfs_##N##x##L v;                                                                            \
    memcpy(&v, &r, sizeof v);                                                                   \
    return v;                                                                                   \
  }                                                                                             \
  TFS_FN tfs_raw##B##x##L tfs_to##B##_##N##x##L(tfs_##N##x##L v) {                              \
    tfs_raw##B##x##L r;                                                                         \
    memcpy(&r, &v, sizeof r);                                                                   \
    return r;                                                                                   \
  }

#define TFS_ACCESS_32(L)                                                                        \
  TFS_TYPED(L, f32, 32)                                                                         \
  TFS_TYPED(L, i32, 32)                                                                         \
  TFS_FN tfs_f32x##L tfs_ofi_f32x##L(tfs_raw32x##L r) {                                         \
    return tfs_cvt_i32x##L##_f32x##L(tfs_of32_i32x##L(r));                                      \
  }                                                                                             \
  TFS_FN tfs_raw32x##L tfs_toi_f32x##L(tfs_f32x##L v) {                                         \
    return tfs_to32_i32x##L(tfs_cvt_f32x##L##_i32x##L(v));                                      \
  }                                                                                             \
  TFS_ACCESS(f32, 32, f32, L, tfs_of32_f32x##L, tfs_to32_f32x##L)                               \
  TFS_ACCESS(i32, 32, f32, L, tfs_ofi_f32x##L, tfs_toi_f32x##L)                                 \
  TFS_ACCESS(i32, 32, i32, L, tfs_of32_i32x##L, tfs_to32_i32x##L)                               \
  TFS_ACCESS(bf16, 16, f32, L, tfs_widen_bf16_f32x##L, tfs_narrow_f32x##L##_bf16)               \
  TFS_ACCESS(f16, 16, f32, L, tfs_widen_f16_f32x##L, tfs_narrow_f32x##L##_f16)                  \
  TFS_ACCESS(i8, 8, f32, L, tfs_widen_i8_f32x##L, tfs_narrow_f32x##L##_i8)                      \
  TFS_ACCESS(i8, 8, i32, L, tfs_widen_i8_i32x##L, tfs_narrow_i32x##L##_i8)

#define TFS_ACCESS_64(L)                                                                        \
  TFS_TYPED(L, f64, 64)                                                                         \
  TFS_FN tfs_f64x##L tfs_ofi_f64x##L(tfs_raw32x##L r) {                                         \
    return tfs_cvt_i32x##L##_f64x##L(tfs_of32_i32x##L(r));                                      \
  }                                                                                             \
  TFS_FN tfs_raw32x##L tfs_toi_f64x##L(tfs_f64x##L v) {                                         \
    return tfs_to32_i32x##L(tfs_cvt_f64x##L##_i32x##L(v));                                      \
  }                                                                                             \
  TFS_FN tfs_f64x##L tfs_off_f64x##L(tfs_raw32x##L r) {                                         \
    return tfs_cvt_f32x##L##_f64x##L(tfs_of32_f32x##L(r));                                      \
  }                                                                                             \
  TFS_FN tfs_raw32x##L tfs_tof_f64x##L(tfs_f64x##L v) {                                         \
    return tfs_to32_f32x##L(tfs_cvt_f64x##L##_f32x##L(v));                                      \
  }                                                                                             \
  TFS_FN tfs_f32x##L tfs_ofd_f32x##L(tfs_raw64x##L r) {                                         \
    return tfs_cvt_f64x##L##_f32x##L(tfs_of64_f64x##L(r));                                      \
  }                                                                                             \
  TFS_FN tfs_raw64x##L tfs_tod_f32x##L(tfs_f32x##L v) {                                         \
    return tfs_to64_f64x##L(tfs_cvt_f32x##L##_f64x##L(v));                                      \
  }                                                                                             \
  TFS_ACCESS(f64, 64, f64, L, tfs_of64_f64x##L, tfs_to64_f64x##L)                               \
  TFS_ACCESS(f64, 64, f32, L, tfs_ofd_f32x##L, tfs_tod_f32x##L)                                 \
  TFS_ACCESS(f32, 32, f64, L, tfs_off_f64x##L, tfs_tof_f64x##L)                                 \
  TFS_ACCESS(i32, 32, f64, L, tfs_ofi_f64x##L, tfs_toi_f64x##L)                                 \
  TFS_ACCESS(bf16, 16, f64, L, tfs_widen_bf16_f64x##L, tfs_narrow_f64x##L##_bf16)               \
  TFS_ACCESS(f16, 16, f64, L, tfs_widen_f16_f64x##L, tfs_narrow_f64x##L##_f16)                  \
  TFS_ACCESS(i8, 8, f64, L, tfs_widen_i8_f64x##L, tfs_narrow_f64x##L##_i8)

/* f32 registers on f64 memory where no register holds as many f64: in halves of H lanes. */
#define TFS_ACCESS_HALVES(L, H)                                                                 \
  TFS_FN tfs_f32x##L tfs_load_f64_f32x##L(const void* p) {                                      \
    return tfs_join_f32x##L(tfs_load_f64_f32x##H(p),                                            \
                            tfs_load_f64_f32x##H((const double*)p + H));                        \
  }                                                                                             \
  TFS_FN tfs_f32x##L tfs_loadn_f64_f32x##L(const void* p, int n) {                              \
    return tfs_join_f32x##L(                                                                    \
        tfs_loadn_f64_f32x##H(p, n < H ? n : H),                                                \
        tfs_loadn_f64_f32x##H((const double*)p + H, n > H ? n - H : 0));                        \
  }                                                                                             \
  TFS_FN void tfs_store_f64_f32x##L(void* p, tfs_f32x##L v) {                                   \
    tfs_store_f64_f32x##H(p, tfs_lo_f32x##L(v));                                                \
    tfs_store_f64_f32x##H((double*)p + H, tfs_hi_f32x##L(v));                                   \
  }                                                                                             \
  TFS_FN void tfs_storen_f64_f32x##L(void* p, tfs_f32x##L v, int n) {                           \
    tfs_storen_f64_f32x##H(p, tfs_lo_f32x##L(v), n < H ? n : H);                                \
    tfs_storen_f64_f32x##H((double*)p + H, tfs_hi_f32x##L(v), n > H ? n - H : 0);               \
  }                                                                                             \
  TFS_FN void tfs_stream_f64_f32x##L(void* p, tfs_f32x##L v) {                                  \
    tfs_stream_f64_f32x##H(p, tfs_lo_f32x##L(v));                                               \
    tfs_stream_f64_f32x##H((double*)p + H, tfs_hi_f32x##L(v));                                  \
  }

TFS_ACCESS_32(1)
TFS_ACCESS_64(1)
#if TFS_ISA_AVX2
TFS_ACCESS_32(4)
TFS_ACCESS_32(8)
TFS_ACCESS_64(4)
#if TFS_ISA_AVX512
TFS_ACCESS_32(16)
TFS_ACCESS_64(8)
TFS_ACCESS_HALVES(16, 8)
#else
TFS_ACCESS_HALVES(8, 4)
#endif
#endif

#endif
