/* The tile unit in generated kernels: its configuration, and blocks in the order it takes them.
 *
 *   tfs_tiles_begin(), tfs_tiles_end()   eight whole tiles of 16 rows x 64 bytes; back to none
 *   TFS_TILES_LOAD(t, p, bytes)          TFS_TILE_LOAD that sees every store before it
 *   TFS_TILES_STREAM(t, p, bytes)        the same for TFS_TILE_STREAM_LOAD
 *   tfs_load_<t>(p), tfs_loadn_<t>(p, n), tfs_store_<t>(p, v)   t: bf16x32, i8x64, bits unchanged
 *   tfs_interleave_<e>(d, ldd, s, lds, rows, columns)
 *                                        d[i / G][j * G + i % G] = s[i][j], G elements in 4 bytes
 *   tfs_interleave_transposed_<e>(...)   the same for s[j][i]
 *   tfs_transpose_padded_<e>(...)        d[j][i] = s[i][j]
 *
 * e: bf16, i8; ldd and lds in elements.  The last three write a whole tile (16 rows of 64 bytes);
 * elements that the rows x columns of the source lack are zero, and no other byte is read. */
#ifndef TFS_TILES_H
#define TFS_TILES_H

#include "amx_model.h"
#include "kernel.h"

static const tfs_tile_config tfs_whole_tiles = {
    .palette = 1,
    .colsb = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};
TFS_FN void tfs_tiles_begin(void) { TFS_TILE_CONFIG(&tfs_whole_tiles); }
TFS_FN void tfs_tiles_end(void) { TFS_TILE_RELEASE(); }

/* gcc's intrinsic does not say that it reads memory: stores to a packed block could move past it
 * or be dropped. */
#define TFS_TILES_LOAD(t, p, bytes)    \
  do {                                 \
    __asm__ volatile("" ::: "memory"); \
    TFS_TILE_LOAD(t, p, bytes);        \
  } while (0)
#define TFS_TILES_STREAM(t, p, bytes)  \
  do {                                 \
    __asm__ volatile("" ::: "memory"); \
    TFS_TILE_STREAM_LOAD(t, p, bytes); \
  } while (0)

#if TFS_ISA_AVX512
typedef uint16_t tfs_bf16x32 __attribute__((vector_size(64)));
typedef int8_t tfs_i8x64 __attribute__((vector_size(64)));

TFS_FN __mmask64 tfs_bytes_mask(long bytes) {
  return bytes < 64 ? (1ull << bytes) - 1 : ~0ull;
}
#define TFS_BITS(N, T)                                                                    \
  TFS_FN tfs_##N tfs_load_##N(const void* p) { return (tfs_##N)_mm512_loadu_si512(p); }   \
  TFS_FN tfs_##N tfs_loadn_##N(const void* p, long n) {                                   \
    return (tfs_##N)_mm512_maskz_loadu_epi8(tfs_bytes_mask(n * (long)sizeof(T)), p);      \
  }                                                                                       \
  TFS_FN void tfs_store_##N(void* p, tfs_##N v) { _mm512_storeu_si512(p, (__m512i)v); }
TFS_BITS(bf16x32, uint16_t)
TFS_BITS(i8x64, int8_t)

/* Rows of 16 elements beyond `rows` or `columns` are zero. */
TFS_FN __m256i tfs_row_bf16(const uint16_t* s, long lds, long r, long rows, long columns) {
  if (r < rows && columns == 16) return _mm256_loadu_si256((const __m256i*)(s + r * lds));
  __mmask16 m = (__mmask16)(r < rows ? (1u << columns) - 1u : 0u);
  return _mm256_maskz_loadu_epi16(m, s + (r < rows ? r : 0) * lds);
}
TFS_FN __m128i tfs_row_i8(const int8_t* s, long lds, long r, long rows, long columns) {
  if (r < rows && columns == 16) return _mm_loadu_si128((const __m128i*)(s + r * lds));
  __mmask16 m = (__mmask16)(r < rows ? (1u << columns) - 1u : 0u);
  return _mm_maskz_loadu_epi8(m, s + (r < rows ? r : 0) * lds);
}

/* One group of rows, side by side. */
TFS_FN __m512i tfs_zip_bf16(const uint16_t* s, long lds, long g, long rows, long columns) {
  const __m512i order = _mm512_set_epi16(
      31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6, 21, 5, 20, 4, 19,
      3, 18, 2, 17, 1, 16, 0);
  __m512i low = _mm512_castsi256_si512(tfs_row_bf16(s, lds, 2 * g, rows, columns));
  __m256i high = tfs_row_bf16(s, lds, 2 * g + 1, rows, columns);
  return _mm512_permutexvar_epi16(order, _mm512_inserti64x4(low, high, 1));
}
TFS_FN __m512i tfs_zip_i8(const int8_t* s, long lds, long g, long rows, long columns) {
  __m128i r0 = tfs_row_i8(s, lds, 4 * g, rows, columns);
  __m128i r1 = tfs_row_i8(s, lds, 4 * g + 1, rows, columns);
  __m128i r2 = tfs_row_i8(s, lds, 4 * g + 2, rows, columns);
  __m128i r3 = tfs_row_i8(s, lds, 4 * g + 3, rows, columns);
  __m128i l01 = _mm_unpacklo_epi8(r0, r1), h01 = _mm_unpackhi_epi8(r0, r1);
  __m128i l23 = _mm_unpacklo_epi8(r2, r3), h23 = _mm_unpackhi_epi8(r2, r3);
  __m512i v = _mm512_castsi128_si512(_mm_unpacklo_epi16(l01, l23));
  v = _mm512_inserti32x4(v, _mm_unpackhi_epi16(l01, l23), 1);
  v = _mm512_inserti32x4(v, _mm_unpacklo_epi16(h01, h23), 2);
  return _mm512_inserti32x4(v, _mm_unpackhi_epi16(h01, h23), 3);
}

/* Groups of 4 bytes move as the lanes of f32 do: shuffles keep every bit. */
#define TFS_TILE_ORDERS(E, T)                                                                   \
  TFS_FN void tfs_interleave_##E(T* d, long ldd, const T* s, long lds, long rows, long columns) { \
    for (int g = 0; g < 16; ++g) {                                                              \
      _mm512_storeu_si512(d + g * ldd, tfs_zip_##E(s, lds, g, rows, columns));                  \
    }                                                                                           \
  }                                                                                             \
  TFS_FN void tfs_interleave_transposed_##E(T* d, long ldd, const T* s, long lds, long rows,    \
                                            long columns) {                                     \
    __mmask64 m = tfs_bytes_mask(columns * (long)sizeof(T));                                    \
    tfs_f32x16 r[16];                                                                           \
    for (int i = 0; i < 16; ++i) {                                                              \
      r[i] = (tfs_f32x16)_mm512_maskz_loadu_epi8(i < rows ? m : 0, s + (i < rows ? i : 0) * lds); \
    }                                                                                           \
    tfs_square_f32x16(r);                                                                       \
    for (int g = 0; g < 16; ++g) _mm512_storeu_si512(d + g * ldd, (__m512i)r[g]);               \
  }                                                                                             \
  TFS_FN void tfs_transpose_padded_##E(T* d, long ldd, const T* s, long lds, long rows,         \
                                       long columns) {                                          \
    tfs_f32x16 r[16];                                                                           \
    for (int g = 0; g < 16; ++g) r[g] = (tfs_f32x16)tfs_zip_##E(s, lds, g, rows, columns);      \
    tfs_square_f32x16(r);                                                                       \
    for (int i = 0; i < 16; ++i) _mm512_storeu_si512(d + i * ldd, (__m512i)r[i]);               \
  }
TFS_TILE_ORDERS(bf16, uint16_t)
TFS_TILE_ORDERS(i8, int8_t)
#endif

#endif
