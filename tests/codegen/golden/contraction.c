#include "kernel.h"

static void tfsearch_main_unit(void **args, long unit) {
  (void)unit;
  const float *restrict a_ = (const float *)args[0];
  const float *restrict b_ = (const float *)args[1];
  const float *restrict bias_ = (const float *)args[2];
  float *restrict c_ = (float *)args[3];
  const long n_first = ((unit * 2) / 2);
  const long n_last = (((unit + 1) * 2) / 2);
  for (long j = n_first; j < (n_last < 1 ? n_last : 1); ++j) {
    tfs_f32x8 acc_0_0;
    tfs_f32x8 acc_0_1;
    tfs_f32x8 acc_1_0;
    tfs_f32x8 acc_1_1;
    {
      {
        acc_0_0 = tfs_set1_f32x8(0x0.0p+0);
      }
      {
        acc_0_1 = tfs_set1_f32x8(0x0.0p+0);
      }
    }
    {
      {
        acc_1_0 = tfs_set1_f32x8(0x0.0p+0);
      }
      {
        acc_1_1 = tfs_set1_f32x8(0x0.0p+0);
      }
    }
    #pragma GCC unroll 2
    for (long p = 0; p < 7; ++p) {
      tfs_f32x8 bv_0;
      tfs_f32x8 bv_1;
      bv_0 = tfs_load_f32_f32x8((b_ + ((p * 20) + (j * 16))));
      bv_1 = tfs_load_f32_f32x8((b_ + ((p * 20) + ((j * 16) + 8))));
      {
        tfs_f32x8 av;
        av = tfs_set1_f32x8(tfs_load_f32_f32x1((a_ + p)));
        {
          acc_0_0 = tfs_fma_f32x8(av, bv_0, acc_0_0);
        }
        {
          acc_0_1 = tfs_fma_f32x8(av, bv_1, acc_0_1);
        }
      }
      {
        tfs_f32x8 av;
        av = tfs_set1_f32x8(tfs_load_f32_f32x1((a_ + (p + 7))));
        {
          acc_1_0 = tfs_fma_f32x8(av, bv_0, acc_1_0);
        }
        {
          acc_1_1 = tfs_fma_f32x8(av, bv_1, acc_1_1);
        }
      }
    }
    {
      tfs_f32x8 x;
      x = tfs_load_f32_f32x8((bias_ + (j * 16)));
      tfs_f32x8 t;
      t = tfs_add_f32x8(acc_0_0, x);
      tfs_f32x8 c1;
      c1 = tfs_set1_f32x8(0x0.0p+0);
      tfs_f32x8 t1;
      t1 = tfs_max_f32x8(t, c1);
      tfs_store_f32_f32x8((c_ + (j * 16)), t1);
    }
    {
      tfs_f32x8 x;
      x = tfs_load_f32_f32x8((bias_ + (j * 16)));
      tfs_f32x8 t;
      t = tfs_add_f32x8(acc_1_0, x);
      tfs_f32x8 c1;
      c1 = tfs_set1_f32x8(0x0.0p+0);
      tfs_f32x8 t1;
      t1 = tfs_max_f32x8(t, c1);
      tfs_store_f32_f32x8((c_ + ((j * 16) + 20)), t1);
    }
    {
      tfs_f32x8 x1;
      x1 = tfs_load_f32_f32x8((bias_ + ((j * 16) + 8)));
      tfs_f32x8 t2;
      t2 = tfs_add_f32x8(acc_0_1, x1);
      tfs_f32x8 c2;
      c2 = tfs_set1_f32x8(0x0.0p+0);
      tfs_f32x8 t3;
      t3 = tfs_max_f32x8(t2, c2);
      tfs_store_f32_f32x8((c_ + ((j * 16) + 8)), t3);
    }
    {
      tfs_f32x8 x1;
      x1 = tfs_load_f32_f32x8((bias_ + ((j * 16) + 8)));
      tfs_f32x8 t2;
      t2 = tfs_add_f32x8(acc_1_1, x1);
      tfs_f32x8 c2;
      c2 = tfs_set1_f32x8(0x0.0p+0);
      tfs_f32x8 t3;
      t3 = tfs_max_f32x8(t2, c2);
      tfs_store_f32_f32x8((c_ + ((j * 16) + 28)), t3);
    }
    tfs_f32x8 acc1_0_0;
    tfs_f32x8 acc1_0_1;
    {
      acc1_0_0 = tfs_set1_f32x8(0x0.0p+0);
    }
    {
      acc1_0_1 = tfs_set1_f32x8(0x0.0p+0);
    }
    #pragma GCC unroll 2
    for (long p1 = 0; p1 < 7; ++p1) {
      tfs_f32x8 bv1_0;
      tfs_f32x8 bv1_1;
      bv1_0 = tfs_load_f32_f32x8((b_ + ((p1 * 20) + (j * 16))));
      bv1_1 = tfs_load_f32_f32x8((b_ + ((p1 * 20) + ((j * 16) + 8))));
      tfs_f32x8 av1;
      av1 = tfs_set1_f32x8(tfs_load_f32_f32x1((a_ + (p1 + 14))));
      {
        acc1_0_0 = tfs_fma_f32x8(av1, bv1_0, acc1_0_0);
      }
      {
        acc1_0_1 = tfs_fma_f32x8(av1, bv1_1, acc1_0_1);
      }
    }
    tfs_f32x8 x2;
    x2 = tfs_load_f32_f32x8((bias_ + (j * 16)));
    tfs_f32x8 t4;
    t4 = tfs_add_f32x8(acc1_0_0, x2);
    tfs_f32x8 c3;
    c3 = tfs_set1_f32x8(0x0.0p+0);
    tfs_f32x8 t5;
    t5 = tfs_max_f32x8(t4, c3);
    tfs_store_f32_f32x8((c_ + ((j * 16) + 40)), t5);
    tfs_f32x8 x3;
    x3 = tfs_load_f32_f32x8((bias_ + ((j * 16) + 8)));
    tfs_f32x8 t6;
    t6 = tfs_add_f32x8(acc1_0_1, x3);
    tfs_f32x8 c4;
    c4 = tfs_set1_f32x8(0x0.0p+0);
    tfs_f32x8 t7;
    t7 = tfs_max_f32x8(t6, c4);
    tfs_store_f32_f32x8((c_ + ((j * 16) + 48)), t7);
  }
  if ((n_last == 2)) {
    tfs_f32x8 acc2_0_0;
    tfs_f32x8 acc2_1_0;
    {
      acc2_0_0 = tfs_set1_f32x8(0x0.0p+0);
    }
    {
      acc2_1_0 = tfs_set1_f32x8(0x0.0p+0);
    }
    #pragma GCC unroll 2
    for (long p2 = 0; p2 < 7; ++p2) {
      tfs_f32x8 bv2_0;
      bv2_0 = tfs_loadn_f32_f32x8((b_ + ((p2 * 20) + 16)), (int)(4));
      {
        tfs_f32x8 av2;
        av2 = tfs_set1_f32x8(tfs_load_f32_f32x1((a_ + p2)));
        acc2_0_0 = tfs_fma_f32x8(av2, bv2_0, acc2_0_0);
      }
      {
        tfs_f32x8 av2;
        av2 = tfs_set1_f32x8(tfs_load_f32_f32x1((a_ + (p2 + 7))));
        acc2_1_0 = tfs_fma_f32x8(av2, bv2_0, acc2_1_0);
      }
    }
    {
      tfs_f32x8 x4;
      x4 = tfs_loadn_f32_f32x8((bias_ + 16), (int)(4));
      tfs_f32x8 t8;
      t8 = tfs_add_f32x8(acc2_0_0, x4);
      tfs_f32x8 c5;
      c5 = tfs_set1_f32x8(0x0.0p+0);
      tfs_f32x8 t9;
      t9 = tfs_max_f32x8(t8, c5);
      tfs_storen_f32_f32x8((c_ + 16), t9, (int)(4));
    }
    {
      tfs_f32x8 x4;
      x4 = tfs_loadn_f32_f32x8((bias_ + 16), (int)(4));
      tfs_f32x8 t8;
      t8 = tfs_add_f32x8(acc2_1_0, x4);
      tfs_f32x8 c5;
      c5 = tfs_set1_f32x8(0x0.0p+0);
      tfs_f32x8 t9;
      t9 = tfs_max_f32x8(t8, c5);
      tfs_storen_f32_f32x8((c_ + 36), t9, (int)(4));
    }
    tfs_f32x8 acc3_0_0;
    acc3_0_0 = tfs_set1_f32x8(0x0.0p+0);
    #pragma GCC unroll 2
    for (long p3 = 0; p3 < 7; ++p3) {
      tfs_f32x8 bv3_0;
      bv3_0 = tfs_loadn_f32_f32x8((b_ + ((p3 * 20) + 16)), (int)(4));
      tfs_f32x8 av3;
      av3 = tfs_set1_f32x8(tfs_load_f32_f32x1((a_ + (p3 + 14))));
      acc3_0_0 = tfs_fma_f32x8(av3, bv3_0, acc3_0_0);
    }
    tfs_f32x8 x5;
    x5 = tfs_loadn_f32_f32x8((bias_ + 16), (int)(4));
    tfs_f32x8 t10;
    t10 = tfs_add_f32x8(acc3_0_0, x5);
    tfs_f32x8 c6;
    c6 = tfs_set1_f32x8(0x0.0p+0);
    tfs_f32x8 t11;
    t11 = tfs_max_f32x8(t10, c6);
    tfs_storen_f32_f32x8((c_ + 56), t11, (int)(4));
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
  ((run_t)args[6])(args[5], 2, tfsearch_main_thread, &call);
  return call.refused;
}
