#include "kernel.h"

static void tfsearch_main_unit(void **args, long unit) {
  (void)unit;
  const float *restrict x_ = (const float *)args[0];
  float *restrict y_ = (float *)args[1];
  char *restrict tfs_workspace = (char *)args[2];
  float *restrict shared = (float *)(tfs_workspace + 0);
  float *restrict large = (float *)(tfs_workspace + 4096 + unit * 36864L);
  float small[6] __attribute__((aligned(128)));
  const long first = ((unit * 8) / 2);
  const long last = (((first + 4) > 1 ? (first + 4) : 1) < 8 ? ((first + 4) > 1 ? (first + 4) : 1) : 8);
  tfs_f32x1 r_0;
  tfs_f32x1 r_1;
  for (long row = first; row < last; row += 2) {
    #pragma GCC unroll 2
    for (long j = 0; j < 6; ++j) {
      {
        r_0 = tfs_load_f32_f32x1((x_ + ((row * 10) + j)));
        tfs_store_f32_f32x1((shared + ((row * 6) + j)), r_0);
      }
      {
        r_1 = tfs_load_f32_f32x1((x_ + ((row * 10) + j)));
        tfs_store_f32_f32x1((shared + ((row * 6) + j)), r_1);
      }
      if ((row == 4)) {
        r_0 = tfs_set1_f32x1(INFINITY);
      }
      r_1 = tfs_loadn_f32_f32x1((x_ + ((row * 10) + j)), (int)(((6 - j) < 1 ? (6 - j) : 1)));
      tfs_store_f32_f32x1((small + j), r_1);
      tfs_store_f32_f32x1((large + ((row * 128) + j)), r_1);
      if ((row == 0)) {
        r_0 = tfs_add_f32x1(r_0, r_1);
        tfs_store_f32_f32x1((y_ + ((row * 6) + j)), r_0);
      }
      else {
        r_1 = tfs_add_f32x1(r_1, r_0);
        tfs_store_f32_f32x1((y_ + ((row * 6) + j)), r_1);
      }
    }
  }
  if (unit >= 0 && unit < 1) {
    r_0 = tfs_set1_f32x1(-0x0.0p+0);
    tfs_store_f32_f32x1((y_ + 47), r_0);
  }
}

struct tfsearch_main_call { void **args; int refused; };
static void tfsearch_main_thread(void *context, int thread, int threads) {
  struct tfsearch_main_call *call = (struct tfsearch_main_call *)context;
  for (long unit = thread; unit < 2; unit += threads)
    tfsearch_main_unit(call->args, unit);
}

int tfsearch_main(void **args) {
  typedef void (*body_t)(void *, int, int);
  typedef void (*run_t)(void *, int, body_t, void *);
  struct tfsearch_main_call call = {args, 0};
  ((run_t)args[4])(args[3], 2, tfsearch_main_thread, &call);
  return call.refused;
}
