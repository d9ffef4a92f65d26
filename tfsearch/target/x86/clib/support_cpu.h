/* CPUID features gated by what the operating system saves (XCR0), and the tile permission. */
#ifndef TFS_SUPPORT_CPU_H
#define TFS_SUPPORT_CPU_H

#include <cpuid.h>

enum { TFS_OS_NONE = 0, TFS_OS_AVX = 0x6, TFS_OS_AVX512 = 0xe6, TFS_OS_TILE = 0x60000 };

typedef struct {
  const char* name;
  uint32_t leaf, subleaf;
  int reg; /* 0 eax, 1 ebx, 2 ecx, 3 edx */
  int bit;
  uint32_t os; /* bits of XCR0 that must be set */
} tfs_feature;

/* Bits: Intel SDM volume 2A, CPUID; AMD APM volume 3, appendix E. */
static const tfs_feature tfs_features[] = {
    {"sse2", 1, 0, 3, 26, TFS_OS_NONE},
    {"ssse3", 1, 0, 2, 9, TFS_OS_NONE},
    {"fma", 1, 0, 2, 12, TFS_OS_AVX},
    {"sse4_1", 1, 0, 2, 19, TFS_OS_NONE},
    {"sse4_2", 1, 0, 2, 20, TFS_OS_NONE},
    {"popcnt", 1, 0, 2, 23, TFS_OS_NONE},
    {"avx", 1, 0, 2, 28, TFS_OS_AVX},
    {"f16c", 1, 0, 2, 29, TFS_OS_AVX},
    {"bmi1", 7, 0, 1, 3, TFS_OS_NONE},
    {"avx2", 7, 0, 1, 5, TFS_OS_AVX},
    {"bmi2", 7, 0, 1, 8, TFS_OS_NONE},
    {"avx512f", 7, 0, 1, 16, TFS_OS_AVX512},
    {"avx512dq", 7, 0, 1, 17, TFS_OS_AVX512},
    {"avx512ifma", 7, 0, 1, 21, TFS_OS_AVX512},
    {"clflushopt", 7, 0, 1, 23, TFS_OS_NONE},
    {"clwb", 7, 0, 1, 24, TFS_OS_NONE},
    {"avx512cd", 7, 0, 1, 28, TFS_OS_AVX512},
    {"avx512bw", 7, 0, 1, 30, TFS_OS_AVX512},
    {"avx512vl", 7, 0, 1, 31, TFS_OS_AVX512},
    {"avx512vbmi", 7, 0, 2, 1, TFS_OS_AVX512},
    {"avx512_vbmi2", 7, 0, 2, 6, TFS_OS_AVX512},
    {"gfni", 7, 0, 2, 8, TFS_OS_NONE},
    {"avx512_vnni", 7, 0, 2, 11, TFS_OS_AVX512},
    {"avx512_bitalg", 7, 0, 2, 12, TFS_OS_AVX512},
    {"avx512_vpopcntdq", 7, 0, 2, 14, TFS_OS_AVX512},
    {"amx_bf16", 7, 0, 3, 22, TFS_OS_TILE},
    {"avx512_fp16", 7, 0, 3, 23, TFS_OS_AVX512},
    {"amx_tile", 7, 0, 3, 24, TFS_OS_TILE},
    {"amx_int8", 7, 0, 3, 25, TFS_OS_TILE},
    {"avx_vnni", 7, 1, 0, 4, TFS_OS_AVX},
    {"avx512_bf16", 7, 1, 0, 5, TFS_OS_AVX512},
    {"amx_fp16", 7, 1, 0, 21, TFS_OS_TILE},
};
enum { TFS_NFEATURES = sizeof tfs_features / sizeof *tfs_features };

static uint64_t tfs_xcr0(void) {
  uint32_t a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c >> 27 & 1)) return 0; /* OSXSAVE */
  __asm__ volatile("xgetbv" : "=a"(a), "=d"(d) : "c"(0));
  return (uint64_t)d << 32 | a;
}

static int tfs_has(const tfs_feature* f, uint64_t xcr0) {
  uint32_t r[4];
  if ((xcr0 & f->os) != f->os) return 0;
  if (!__get_cpuid_count(f->leaf, 0, &r[0], &r[1], &r[2], &r[3])) return 0;
  if (f->subleaf > 0) {
    if (r[0] < f->subleaf) return 0;
    __get_cpuid_count(f->leaf, f->subleaf, &r[0], &r[1], &r[2], &r[3]);
  }
  return r[f->reg] >> f->bit & 1;
}

int tfs_cpu_features(char* out, int n) {
  uint64_t xcr0 = tfs_xcr0();
  int length = 0;
  if (n > 0) out[0] = 0;
  for (int i = 0; i < TFS_NFEATURES; ++i) {
    if (!tfs_has(&tfs_features[i], xcr0)) continue;
    int room = length < n ? n - length : 0;
    length += snprintf(room ? out + length : NULL, (size_t)room, "%s%s", length ? " " : "",
                       tfs_features[i].name);
  }
  return length;
}

int tfs_cpu_identity(char* out, int n) {
  uint32_t a, b, c, d, v[4] = {0};
  __cpuid(0, a, v[0], v[2], v[1]);
  __cpuid(1, a, b, c, d);
  uint32_t family = a >> 8 & 0xf, model = a >> 4 & 0xf;
  if (family == 6 || family == 15) model |= a >> 12 & 0xf0;
  if (family == 15) family += a >> 20 & 0xff;
  return snprintf(n > 0 ? out : NULL, n > 0 ? (size_t)n : 0, "%.12s %u %u %u", (const char*)v,
                  family, model, a & 0xf);
}

int tfs_amx_enable(void) {
  static const tfs_feature tile = {"amx_tile", 7, 0, 3, 24, TFS_OS_TILE};
  enum { arch_req_xcomp_perm = 0x1023, xfeature_tiledata = 18 };
  if (!tfs_has(&tile, tfs_xcr0())) return -1;
  return syscall(SYS_arch_prctl, arch_req_xcomp_perm, xfeature_tiledata) == 0 ? 0 : errno;
}

#endif
