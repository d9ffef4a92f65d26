/* Timing loops. */
#ifndef TFS_SUPPORT_TIME_H
#define TFS_SUPPORT_TIME_H

int64_t tfs_now_ns(void) {
  struct timespec t;
  if (clock_gettime(CLOCK_MONOTONIC_RAW, &t)) return -1;
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Pages never written all map to one page of zeros, which displaces nothing. */
static void tfs_flush_prepare(const tfs_flush* flush) {
  if (!flush || !flush->buffer) return;
  volatile unsigned char* b = flush->buffer;
  for (size_t i = 0; i < flush->bytes; i += 64) b[i] = (unsigned char)(b[i] + 1);
}

/* Reading leaves clean lines behind, so the timed call pays for no write-back of the flush. */
void tfs_flush_caches(const tfs_flush* flush) {
  if (!flush || !flush->buffer) return;
  const volatile unsigned char* b = flush->buffer;
  for (size_t i = 0; i < flush->bytes; i += 64) (void)b[i];
}

/* One kernel with its rotation. */
typedef struct {
  tfs_kernel fn;
  void** const* argsets;
  int nsets, at;
} tfs_timed;

static int tfs_call(tfs_timed* t) {
  void** args = t->argsets[t->at];
  if (++t->at == t->nsets) t->at = 0;
  return t->fn(args);
}

static int tfs_calls(tfs_timed* t, int count) {
  for (int i = 0; i < count; ++i) {
    int rc = tfs_call(t);
    if (rc) return rc;
  }
  return 0;
}

/* Loads and stores of the program stay on their side of the clock. */
static int64_t tfs_fenced_now(void) {
  _mm_mfence();
  int64_t now = tfs_now_ns();
  _mm_lfence();
  return now;
}

static int tfs_batch(tfs_timed* t, int batch, int64_t* ns, const tfs_flush* flush) {
  int cold = flush && flush->buffer && flush->bytes, rc = 0;
  int64_t total = 0;
  for (int i = 0; rc == 0 && i < (cold ? batch : 1); ++i) {
    if (cold) tfs_flush_caches(flush);
    int64_t begin = tfs_fenced_now();
    rc = cold ? tfs_call(t) : tfs_calls(t, batch);
    total += tfs_fenced_now() - begin;
  }
  *ns = total;
  return rc;
}

static int tfs_check(const tfs_timed* t, int warmup, int batch) {
  if (!t->fn || !t->argsets || t->nsets < 1 || warmup < 0 || batch < 1) {
    return TFS_TIME_BAD_ARGUMENT;
  }
  return tfs_now_ns() < 0 ? TFS_TIME_NO_CLOCK : 0;
}

int tfs_time(tfs_kernel fn, void** const* argsets, int nsets, int warmup, int batch, int samples,
             int64_t* out_ns, const tfs_flush* flush) {
  tfs_timed t = {fn, argsets, nsets, 0};
  int rc = tfs_check(&t, warmup, batch);
  if (rc == 0 && (samples < 1 || !out_ns)) rc = TFS_TIME_BAD_ARGUMENT;
  if (rc == 0) {
    tfs_flush_prepare(flush);
    rc = tfs_calls(&t, warmup);
  }
  for (int s = 0; rc == 0 && s < samples; ++s) rc = tfs_batch(&t, batch, &out_ns[s], flush);
  return rc;
}

int tfs_time_pair(tfs_kernel a, tfs_kernel b, void** const* args_a, void** const* args_b,
                  int nsets, int warmup, int batch_a, int batch_b, int pairs, int64_t* out_ns,
                  const tfs_flush* flush) {
  tfs_timed t[2] = {{a, args_a, nsets, 0}, {b, args_b, nsets, 0}};
  const int batch[2] = {batch_a, batch_b};
  int rc = pairs < 1 || !out_ns ? TFS_TIME_BAD_ARGUMENT : 0;
  for (int k = 0; rc == 0 && k < 2; ++k) rc = tfs_check(&t[k], warmup, batch[k]);
  if (rc == 0) tfs_flush_prepare(flush);
  for (int i = 0; rc == 0 && i < 2 * pairs; ++i) {
    int pair = i / 2, k = (i + pair) & 1;
    rc = tfs_calls(&t[k], warmup);
    if (rc == 0) rc = tfs_batch(&t[k], batch[k], &out_ns[2 * pair + k], flush);
  }
  return rc;
}

/* SplitMix64 (Steele, Lea, Flood 2014). */
static uint64_t tfs_random(uint64_t* state) {
  uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
  z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
  return z ^ (z >> 31);
}

static void tfs_shuffle(int* order, int n, uint64_t* state) {
  for (int i = n - 1; i > 0; --i) {
    int j = (int)(tfs_random(state) % (uint64_t)(i + 1)), o = order[i];
    order[i] = order[j];
    order[j] = o;
  }
}

int tfs_time_many(const tfs_kernel* fns, void** const* const* argsets, int nfns, int nsets,
                  int warmup, const int* batch, int rounds, uint64_t order_seed, int64_t* out_ns,
                  const tfs_flush* flush) {
  if (!fns || !argsets || !batch || !out_ns || nfns < 1 || rounds < 1) {
    return TFS_TIME_BAD_ARGUMENT;
  }
  tfs_timed* t = malloc(sizeof *t * (size_t)nfns);
  int *order = malloc(sizeof *order * (size_t)nfns), rc = t && order ? 0 : TFS_TIME_BAD_ARGUMENT;
  for (int f = 0; rc == 0 && f < nfns; ++f) {
    t[f] = (tfs_timed){fns[f], argsets[f], nsets, 0};
    order[f] = f;
    rc = tfs_check(&t[f], warmup, batch[f]);
  }
  if (rc == 0) tfs_flush_prepare(flush);
  for (int r = 0; rc == 0 && r < rounds; ++r) {
    tfs_shuffle(order, nfns, &order_seed);
    for (int i = 0; rc == 0 && i < nfns; ++i) {
      int f = order[i];
      rc = tfs_calls(&t[f], warmup);
      if (rc == 0) rc = tfs_batch(&t[f], batch[f], &out_ns[(int64_t)r * nfns + f], flush);
    }
  }
  free(t);
  free(order);
  return rc;
}

#endif
