/* Rates of the machine as it is now: arithmetic, memory, the tile unit. */
#ifndef TFS_SUPPORT_PROBE_H
#define TFS_SUPPORT_PROBE_H

/* The widest f32 vector of this build. TFS_PROBE_FMA(x, a, b) is one multiply-add per lane. */
#if defined(__AVX512F__)
typedef __m512 tfs_probe_v;
#define TFS_PROBE_SET1 _mm512_set1_ps
#define TFS_PROBE_FMA _mm512_fmadd_ps
#elif defined(__AVX2__) && defined(__FMA__)
typedef __m256 tfs_probe_v;
#define TFS_PROBE_SET1 _mm256_set1_ps
#define TFS_PROBE_FMA _mm256_fmadd_ps
#else
typedef __m128 tfs_probe_v;
#define TFS_PROBE_SET1 _mm_set1_ps
#define TFS_PROBE_FMA(x, a, b) _mm_add_ps(_mm_mul_ps(x, a), b)
#endif

/* Twelve chains hide 4-cycle latency at two (or three) issues a cycle and fit 16 registers with
 * the two constants. */
enum { TFS_CHAINS = 12, TFS_PROBE_STEPS = 20000 };

static volatile float tfs_probe_sink;

double tfs_probe_fma(int ms) {
  tfs_probe_v acc[TFS_CHAINS], a = TFS_PROBE_SET1(0.999f), b = TFS_PROBE_SET1(0.001f);
  for (int c = 0; c < TFS_CHAINS; ++c) acc[c] = TFS_PROBE_SET1((float)c);
  int64_t begin = tfs_now_ns(), now, blocks = 0;
  do {
    for (int i = 0; i < TFS_PROBE_STEPS; ++i) {
#pragma GCC unroll 12
      for (int c = 0; c < TFS_CHAINS; ++c) acc[c] = TFS_PROBE_FMA(acc[c], a, b);
    }
    ++blocks;
    now = tfs_now_ns();
  } while (now - begin < (int64_t)ms * 1000000);
  float total = 0;
  for (int c = 0; c < TFS_CHAINS; ++c) {
    float lanes[sizeof(tfs_probe_v) / sizeof(float)];
    memcpy(lanes, &acc[c], sizeof lanes);
    total += lanes[0];
  }
  tfs_probe_sink = total;
  double flops = 2.0 * (sizeof(tfs_probe_v) / sizeof(float)) * TFS_CHAINS * TFS_PROBE_STEPS;
  return flops * (double)blocks / (double)(now - begin);
}

static int tfs_probe_ok(const void* p, size_t bytes, int reps) {
  return p && ((uintptr_t)p & 63) == 0 && bytes && bytes % 64 == 0 && reps > 0;
}

/* 64 bytes at a time in the build's own vectors. */
enum { TFS_PER_LINE = 64 / sizeof(tfs_probe_v) };

static void tfs_copy_plain(tfs_probe_v* d, const tfs_probe_v* s, size_t count) {
  for (size_t i = 0; i < count; i += TFS_PER_LINE) {
    for (size_t j = 0; j < TFS_PER_LINE; ++j) d[i + j] = s[i + j];
    __asm__ volatile("" ::: "memory"); /* stays a loop; not turned into a call of memcpy */
  }
}

static void tfs_copy_stream(tfs_probe_v* d, const tfs_probe_v* s, size_t count) {
  for (size_t i = 0; i < count; ++i) {
#if defined(__AVX512F__)
    _mm512_stream_ps((float*)(d + i), s[i]);
#elif defined(__AVX2__) && defined(__FMA__)
    _mm256_stream_ps((float*)(d + i), s[i]);
#else
    _mm_stream_ps((float*)(d + i), s[i]);
#endif
  }
  _mm_sfence();
}

double tfs_probe_copy(void* dst, const void* src, size_t bytes, int reps) {
  if (!tfs_probe_ok(dst, bytes, reps) || !tfs_probe_ok(src, bytes, reps)) return 0;
  size_t count = bytes / sizeof(tfs_probe_v);
  int64_t best = INT64_MAX;
  for (int r = 0; r < 2 * reps; ++r) {
    int64_t begin = tfs_now_ns();
    if (r & 1) tfs_copy_stream(dst, src, count);
    else tfs_copy_plain(dst, src, count);
    int64_t ns = tfs_now_ns() - begin;
    if (ns < best) best = ns;
  }
  return 2.0 * (double)bytes / (double)(best > 0 ? best : 1);
}

double tfs_probe_read(const void* src, size_t bytes, int reps) {
  if (!tfs_probe_ok(src, bytes, reps)) return 0;
  const tfs_probe_v* s = src;
  size_t count = bytes / sizeof(tfs_probe_v);
  int64_t best = INT64_MAX;
  for (int r = 0; r < reps; ++r) {
    int64_t begin = tfs_now_ns();
    for (size_t i = 0; i < count; i += TFS_PER_LINE) {
      for (size_t j = 0; j < TFS_PER_LINE; ++j) {
        __asm__ volatile("" ::"v"(s[i + j])); /* the load must happen, nothing else */
      }
    }
    int64_t ns = tfs_now_ns() - begin;
    if (ns < best) best = ns;
  }
  return (double)bytes / (double)(best > 0 ? best : 1);
}

/* clang before 15 spells the macros without the inner underscore. */
#if (defined(__AMX_TILE__) || defined(__AMXTILE__)) && \
    (defined(__AMX_BF16__) || defined(__AMXBF16__))
double tfs_probe_tile(int ms) {
  if (tfs_amx_enable() != 0) return TFS_TILE_NOT_AVAILABLE;
  struct {
    uint8_t palette, start_row, reserved[14];
    uint16_t colsb[16];
    uint8_t rows[16];
  } __attribute__((packed, aligned(64))) cfg = {.palette = 1};
  for (int t = 0; t < 8; ++t) {
    cfg.colsb[t] = 64;
    cfg.rows[t] = 16;
  }
  /* Numbers of either sign around one: products of zeros run faster than those of real data. */
  static uint16_t data[4][512] __attribute__((aligned(64)));
  uint32_t seed = 1;
  for (int i = 0; i < 4 * 512; ++i) {
    seed = seed * 1664525u + 1013904223u;
    data[i / 512][i % 512] = (uint16_t)(0x3f00u | (seed >> 16 & 0x80ffu));
  }
  _tile_loadconfig(&cfg);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_loadd(4, data[0], 64);
  _tile_loadd(5, data[1], 64);
  _tile_loadd(6, data[2], 64);
  _tile_loadd(7, data[3], 64);
  enum { steps = 1000 };
  int64_t begin = tfs_now_ns(), now, blocks = 0;
  do {
    for (int i = 0; i < steps; ++i) {
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    ++blocks;
    now = tfs_now_ns();
  } while (now - begin < (int64_t)ms * 1000000);
  _tile_release();
  return 4.0 * steps * (2.0 * 16 * 16 * 32) * (double)blocks / (double)(now - begin);
}
#else
double tfs_probe_tile(int ms) {
  (void)ms;
  return TFS_TILE_NOT_COMPILED;
}
#endif

#endif
