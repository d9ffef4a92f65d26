/* AMX tile instructions for generated kernels, real or modelled.
 *
 *   TFS_TILE_CONFIG(p)            ldtilecfg: 64 bytes, palette 1
 *   TFS_TILE_RELEASE()            tilerelease
 *   TFS_TILE_ZERO(t)              tilezero
 *   TFS_TILE_LOAD(t, p, stride)   tileloadd; stride in bytes between rows
 *   TFS_TILE_STREAM_LOAD(...)     tileloaddt1
 *   TFS_TILE_STORE(t, p, stride)  tilestored
 *   TFS_TILE_DPBF16PS(d, a, b)    tdpbf16ps
 *   TFS_TILE_DPBSSD(d, a, b)      tdpbssd
 *
 * Tile numbers are literals 0..7.  By default these are the compiler's intrinsics (-mamx-tile
 * -mamx-bf16 -mamx-int8).  With -DTFS_AMX_MODEL they are the C functions below, which follow the
 * operation sections of the Intel SDM, volume 2, so that a kernel can be checked on any x86
 * machine; what would fault there prints one line and aborts here.  The model's registers belong
 * to the thread and to the translation unit. */
#ifndef TFS_AMX_MODEL_H
#define TFS_AMX_MODEL_H

#include <stdint.h>

/* The operand of TFS_TILE_CONFIG. colsb: bytes per row, at most 64; rows: at most 16. */
typedef struct {
  uint8_t palette, start_row, reserved[14];
  uint16_t colsb[16];
  uint8_t rows[16];
} __attribute__((aligned(64))) tfs_tile_config;

#if !defined(TFS_AMX_MODEL)

#include <immintrin.h>

#define TFS_TILE_CONFIG(p) _tile_loadconfig(p)
#define TFS_TILE_RELEASE() _tile_release()
#define TFS_TILE_ZERO(t) _tile_zero(t)
#define TFS_TILE_LOAD(t, p, stride) _tile_loadd(t, p, stride)
#define TFS_TILE_STREAM_LOAD(t, p, stride) _tile_stream_loadd(t, p, stride)
#define TFS_TILE_STORE(t, p, stride) _tile_stored(t, p, stride)
#define TFS_TILE_DPBF16PS(d, a, b) _tile_dpbf16ps(d, a, b)
#define TFS_TILE_DPBSSD(d, a, b) _tile_dpbssd(d, a, b)

#else

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TFS_TILE_CONFIG(p) tfs_tile_config_model(p)
#define TFS_TILE_RELEASE() tfs_tile_release_model()
#define TFS_TILE_ZERO(t) tfs_tile_zero_model(t)
#define TFS_TILE_LOAD(t, p, stride) tfs_tile_load_model(t, p, (ptrdiff_t)(stride))
#define TFS_TILE_STREAM_LOAD(t, p, stride) tfs_tile_load_model(t, p, (ptrdiff_t)(stride))
#define TFS_TILE_STORE(t, p, stride) tfs_tile_store_model(t, p, (ptrdiff_t)(stride))
#define TFS_TILE_DPBF16PS(d, a, b) tfs_tile_dpbf16ps_model(d, a, b)
#define TFS_TILE_DPBSSD(d, a, b) tfs_tile_dpbssd_model(d, a, b)

enum { TFS_TILES = 8, TFS_TILE_ROWS = 16, TFS_TILE_BYTES = 64 };

static __thread struct {
  int configured;
  int colsb[TFS_TILES], rows[TFS_TILES];
  uint8_t data[TFS_TILES][TFS_TILE_ROWS][TFS_TILE_BYTES];
} tfs_amx;

static inline void tfs_amx_fault(const char* what) {
  fprintf(stderr, "AMX model: %s\n", what);
  abort();
}

static inline void tfs_tile_release_model(void) { memset(&tfs_amx, 0, sizeof tfs_amx); }

/* Palette 0 returns to the initial state; every rule of palette 1 that raises #GP is checked. */
static inline void tfs_tile_config_model(const void* p) {
  tfs_tile_config c;
  memcpy(&c, p, sizeof c);
  tfs_tile_release_model();
  if (c.palette == 0) return;
  if (c.palette != 1) tfs_amx_fault("ldtilecfg: the palette is neither 0 nor 1");
  for (int i = 0; i < 14; ++i) {
    if (c.reserved[i]) tfs_amx_fault("ldtilecfg: a reserved byte is not zero");
  }
  if (c.start_row) tfs_amx_fault("ldtilecfg: start_row is not zero (not modelled)");
  for (int t = 0; t < 16; ++t) {
    if (t >= TFS_TILES && (c.colsb[t] || c.rows[t])) {
      tfs_amx_fault("ldtilecfg: palette 1 has 8 tiles");
    }
    if (c.colsb[t] > TFS_TILE_BYTES || c.rows[t] > TFS_TILE_ROWS) {
      tfs_amx_fault("ldtilecfg: a tile is larger than 16 rows of 64 bytes");
    }
    if (!c.colsb[t] != !c.rows[t]) tfs_amx_fault("ldtilecfg: rows without colsb, or the reverse");
    if (t < TFS_TILES) {
      tfs_amx.colsb[t] = c.colsb[t];
      tfs_amx.rows[t] = c.rows[t];
    }
  }
  tfs_amx.configured = 1;
}

static inline void tfs_amx_need(int t) {
  if (!tfs_amx.configured) tfs_amx_fault("a tile instruction before ldtilecfg");
  if (t < 0 || t >= TFS_TILES || !tfs_amx.rows[t]) tfs_amx_fault("a tile that is not configured");
}

static inline void tfs_tile_zero_model(int t) {
  tfs_amx_need(t);
  memset(tfs_amx.data[t], 0, sizeof tfs_amx.data[t]);
}

static inline void tfs_tile_load_model(int t, const void* p, ptrdiff_t stride) {
  tfs_tile_zero_model(t);
  for (int r = 0; r < tfs_amx.rows[t]; ++r) {
    memcpy(tfs_amx.data[t][r], (const char*)p + r * stride, (size_t)tfs_amx.colsb[t]);
  }
}

static inline void tfs_tile_store_model(int t, void* p, ptrdiff_t stride) {
  tfs_amx_need(t);
  for (int r = 0; r < tfs_amx.rows[t]; ++r) {
    memcpy((char*)p + r * stride, tfs_amx.data[t][r], (size_t)tfs_amx.colsb[t]);
  }
}

/* The #UD rules that the dot-product instructions share. */
static inline void tfs_amx_need_product(int d, int a, int b) {
  tfs_amx_need(d);
  tfs_amx_need(a);
  tfs_amx_need(b);
  if (d == a || d == b || a == b) tfs_amx_fault("a product needs three different tiles");
  if (tfs_amx.colsb[d] % 4 || tfs_amx.colsb[a] % 4 || tfs_amx.colsb[b] % 4) {
    tfs_amx_fault("a product needs rows of whole 4-byte elements");
  }
  if (tfs_amx.rows[d] != tfs_amx.rows[a]) tfs_amx_fault("a product: rows of D and A differ");
  if (tfs_amx.colsb[d] != tfs_amx.colsb[b]) tfs_amx_fault("a product: columns of D and B differ");
  if (tfs_amx.colsb[a] != 4 * tfs_amx.rows[b]) {
    tfs_amx_fault("a product: columns of A and rows of B differ");
  }
}

static inline float tfs_amx_f32(const uint8_t* row, int i) {
  float f;
  memcpy(&f, row + 4 * i, 4);
  return f;
}

static inline float tfs_amx_bf16(const uint8_t* row, int i) {
  uint32_t u = (uint32_t)(row[2 * i] | row[2 * i + 1] << 8) << 16;
  float f;
  memcpy(&f, &u, 4);
  return f;
}

/* DAZ: a denormal operand counts as a zero of its sign. */
static inline float tfs_amx_daz(float x) {
  return __builtin_fabsf(x) < 0x1p-126f ? __builtin_copysignf(0.0f, x) : x;
}

/* a*b + c with DAZ, FTZ and one rounding to nearest even.  The product of two bf16 numbers, or of
 * an f32 and 1, is exact in f64; rounding the sum to odd there makes the final rounding exact.  FTZ
 * looks at the result rounded as if exponents had no lower limit: below 2^-126 - 2^-151 (the
 * midpoint that goes up to 2^-126) it is flushed. */
static inline float tfs_amx_fma(float a, float b, float c) {
  double p = (double)tfs_amx_daz(a) * tfs_amx_daz(b), z = tfs_amx_daz(c);
  double s = p + z, t = s - p, e = (p - (s - t)) + (z - t);
  if (__builtin_fabs(s) < 0x1.ffffffp-127) return (float)__builtin_copysign(0.0, s);
  if (e != 0 && s - s == 0) {
    uint64_t u;
    memcpy(&u, &s, 8);
    if (!(u & 1)) u += ((e > 0) == (s > 0)) ? 1 : (uint64_t)-1;
    memcpy(&s, &u, 8);
  }
  return (float)s;
}

/* Even and odd members of the pairs accumulate apart, in the order of k; the two sums are added,
 * then added to D. */
static inline void tfs_tile_dpbf16ps_model(int d, int a, int b) {
  tfs_amx_need_product(d, a, b);
  int depth = tfs_amx.colsb[a] / 4, cols = tfs_amx.colsb[d] / 4;
  for (int m = 0; m < tfs_amx.rows[d]; ++m) {
    for (int n = 0; n < cols; ++n) {
      float even = 0, odd = 0;
      for (int k = 0; k < depth; ++k) {
        const uint8_t *ra = tfs_amx.data[a][m], *rb = tfs_amx.data[b][k];
        even = tfs_amx_fma(tfs_amx_bf16(ra, 2 * k), tfs_amx_bf16(rb, 2 * n), even);
        odd = tfs_amx_fma(tfs_amx_bf16(ra, 2 * k + 1), tfs_amx_bf16(rb, 2 * n + 1), odd);
      }
      float pair = tfs_amx_fma(even, 1.0f, odd);
      float sum = tfs_amx_fma(tfs_amx_f32(tfs_amx.data[d][m], n), 1.0f, pair);
      memcpy(tfs_amx.data[d][m] + 4 * n, &sum, 4);
    }
  }
}

/* Four signed products at a time into 32 bits, wrapping. */
static inline void tfs_tile_dpbssd_model(int d, int a, int b) {
  tfs_amx_need_product(d, a, b);
  int depth = tfs_amx.colsb[a] / 4, cols = tfs_amx.colsb[d] / 4;
  for (int m = 0; m < tfs_amx.rows[d]; ++m) {
    for (int n = 0; n < cols; ++n) {
      uint32_t sum;
      memcpy(&sum, tfs_amx.data[d][m] + 4 * n, 4);
      for (int k = 0; k < depth; ++k) {
        const int8_t* ra = (const int8_t*)tfs_amx.data[a][m] + 4 * k;
        const int8_t* rb = (const int8_t*)tfs_amx.data[b][k] + 4 * n;
        for (int i = 0; i < 4; ++i) sum += (uint32_t)(ra[i] * rb[i]);
      }
      memcpy(tfs_amx.data[d][m] + 4 * n, &sum, 4);
    }
  }
}

#endif

#endif
