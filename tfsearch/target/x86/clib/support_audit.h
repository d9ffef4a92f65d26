/* Calls that show what a kernel does beside computing: inputs that change from call to call,
 * outputs that must be written by every call, memory that is known not to hold results. */
#ifndef TFS_SUPPORT_AUDIT_H
#define TFS_SUPPORT_AUDIT_H

enum { TFS_SOIL_STACK = 1 << 19, TFS_SOIL_CHUNK = 1040, TFS_SOIL_SAME = 8 };
enum { TFS_CANARY = 8, TFS_LATE_NS = 20000000, TFS_EXCHANGE_TRIES = 8 };

static void __attribute__((noinline)) tfs_soil_stack(int fill) {
  unsigned char hollow[TFS_SOIL_STACK];
  memset(hollow, fill, sizeof hollow);
  __asm__ volatile("" ::"r"(hollow) : "memory");
}

/* Small chunks come from lists that M_PERTURB does not reach: those lists are filled here. */
static void tfs_soil_heap(int fill) {
  unsigned char* kept[TFS_SOIL_SAME];
  for (size_t size = 24; size <= TFS_SOIL_CHUNK; size += 16) {
    for (int i = 0; i < TFS_SOIL_SAME; ++i) {
      kept[i] = malloc(size);
      if (kept[i]) memset(kept[i], fill, size);
      __asm__ volatile("" ::"r"(kept[i]) : "memory");
    }
    for (int i = 0; i < TFS_SOIL_SAME; ++i) free(kept[i]);
  }
}

int tfs_call_soiled(tfs_kernel fn, void** args, int fill) {
  tfs_soil_heap(fill);
#ifdef M_PERTURB
  mallopt(M_PERTURB, ~fill & 0xff);
#endif
  tfs_soil_stack(fill);
  int rc = fn(args);
#ifdef M_PERTURB
  mallopt(M_PERTURB, 0);
#endif
  return rc;
}

/* The exchange that is in place in one argument set; p is NULL when there is none. */
typedef struct {
  unsigned char *p, *q;
  int64_t width;
} tfs_exchange;

static void tfs_swap(const tfs_exchange* e) {
  for (int64_t i = 0; e->p && i < e->width; ++i) {
    unsigned char kept = e->p[i];
    e->p[i] = e->q[i];
    e->q[i] = kept;
  }
}

/* Draws two unequal elements of one of the inputs. */
static tfs_exchange tfs_draw(const tfs_arrays* a, uint64_t* seed) {
  tfs_exchange none = {NULL, NULL, 0};
  for (int t = 0; a->ninputs > 0 && t < TFS_EXCHANGE_TRIES; ++t) {
    const tfs_array* x = &a->inputs[tfs_random(seed) % (uint64_t)a->ninputs];
    uint64_t i = tfs_random(seed) % (uint64_t)x->count, j = tfs_random(seed) % (uint64_t)x->count;
    tfs_exchange e = {x->at + i * (uint64_t)x->width, x->at + j * (uint64_t)x->width, x->width};
    if (memcmp(e.p, e.q, (size_t)e.width)) return e;
  }
  return none;
}

static int64_t tfs_canary_size(const tfs_array* y) {
  return (TFS_CANARY + y->width - 1) / y->width * y->width;
}

/* Poisons a few elements of an output; NULL where it has too few. */
static unsigned char* tfs_canary(const tfs_array* y, uint64_t* seed) {
  int64_t few = tfs_canary_size(y) / y->width;
  if (y->count < few) return NULL;
  unsigned char* at = y->at + tfs_random(seed) % (uint64_t)(y->count - few + 1) * (uint64_t)y->width;
  for (int64_t k = 0; k < few; ++k) memcpy(at + k * y->width, &y->poison, (size_t)y->width);
  return at;
}

static int tfs_is_poison(const tfs_array* y, const volatile unsigned char* at) {
  const unsigned char* poison = (const unsigned char*)&y->poison;
  for (int64_t k = 0; k < tfs_canary_size(y); ++k) {
    if (at[k] != poison[k % y->width]) return 0;
  }
  return 1;
}

/* Whether something writes it after all; waits for at most TFS_LATE_NS. */
static int tfs_comes_late(const tfs_array* y, const unsigned char* at) {
  int64_t end = tfs_now_ns() + TFS_LATE_NS;
  while (tfs_now_ns() < end) {
    if (!tfs_is_poison(y, at)) return 1;
  }
  return 0;
}

int tfs_audit(tfs_kernel fn, void** const* argsets, const tfs_arrays* arrays, int nsets, int calls,
              int exchange, uint64_t seed, tfs_audited* out) {
  memset(out, 0, sizeof *out);
  if (!fn || !argsets || !arrays || nsets < 1 || calls < 2) return TFS_TIME_BAD_ARGUMENT;
  tfs_exchange* now = calloc((size_t)nsets, sizeof *now);
  if (!now) return TFS_TIME_BAD_ARGUMENT;
  int rc = 0;
  for (int i = 0; rc == 0 && !out->unwritten && i < calls * nsets; ++i) {
    int s = i % nsets, last = i >= (calls - 1) * nsets;
    const tfs_arrays* a = &arrays[s];
    tfs_swap(&now[s]);
    now[s] = tfs_draw(a, &seed);
    tfs_swap(&now[s]);
    if (!exchange || last) { /* the same stores, and the contents as they were */
      tfs_swap(&now[s]);
      now[s].p = NULL;
    }
    const tfs_array* y = a->noutputs ? &a->outputs[tfs_random(&seed) % (uint64_t)a->noutputs] : NULL;
    unsigned char* canary = y ? tfs_canary(y, &seed) : NULL;
    int64_t begin = tfs_fenced_now();
    rc = fn(argsets[s]);
    int64_t spent = tfs_fenced_now() - begin;
    out->calls += 1;
    if (!last) {
      out->ns += spent;
      out->counted += 1;
      out->exchanged += now[s].p != NULL;
    }
    if (rc == 0 && canary && tfs_is_poison(y, canary)) {
      out->unwritten += 1;
      out->late = tfs_comes_late(y, canary);
    }
  }
  for (int s = 0; s < nsets; ++s) tfs_swap(&now[s]);
  free(now);
  return rc;
}

#endif
