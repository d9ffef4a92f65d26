/* Run-time support for generated x86 kernels and their measurement: a thread pool, a barrier,
 * timing loops, machine probes and CPU features.  Linux, C11, pthreads; compiled once from
 * support.c.  Times are in nanoseconds of CLOCK_MONOTONIC_RAW. */
#ifndef TFS_SUPPORT_H
#define TFS_SUPPORT_H

#include <stddef.h>
#include <stdint.h>

/* ---- thread pool ------------------------------------------------------------------------- */

typedef struct tfs_pool tfs_pool;
typedef void (*tfs_body)(void* ctx, int tid, int threads);

/* A pool for up to `threads` threads, the caller of tfs_pool_run included; NULL if threads < 1 or
 * memory is short.  Workers start when a run first needs them.  They may use the CPUs that the
 * caller of their run may use, but not the one it is on while there is another for each: a
 * scheduler that wakes them beside the caller would have them take turns.  The caller's thread is
 * never bound. */
tfs_pool* tfs_pool_create(int threads);

/* Ends the workers and frees the pool; no run may be in progress. */
void tfs_pool_destroy(tfs_pool* pool);
int tfs_pool_threads(const tfs_pool* pool);

/* Calls body(ctx, tid, t) once for each tid in [0, t), tid 0 on the calling thread, and returns
 * when all have returned.  t is min(threads, the pool's size), at least 1, less only if the system
 * refuses more threads: the body must divide its work by the t it is given.  Concurrent callers
 * take turns.  A run started inside a body is body(ctx, 0, 1).  After fork the child's pool starts
 * its own workers. */
void tfs_pool_run(tfs_pool* pool, int threads, tfs_body body, void* ctx);

/* A barrier among the threads of one run; zero-initialised is ready, reusable any number of times.
 * Every thread passes the `threads` its body was given.  Waiters spin briefly, yield, then sleep,
 * so it stays live with more threads than cores. */
typedef struct tfs_barrier {
  uint32_t arrived __attribute__((aligned(64)));
  uint32_t phase __attribute__((aligned(64)));
  uint32_t sleepers;
} tfs_barrier;
void tfs_barrier_init(tfs_barrier* barrier);
void tfs_barrier_wait(tfs_barrier* barrier, int threads);

/* ---- timing ------------------------------------------------------------------------------ */

/* A kernel takes its argument pointers and returns 0, or a code that stops the measurement. */
typedef int (*tfs_kernel)(void** args);

/* A buffer larger than the last-level cache; NULL or no bytes: warm protocol. */
typedef struct tfs_flush {
  void* buffer;
  size_t bytes;
} tfs_flush;

enum { TFS_TIME_BAD_ARGUMENT = -1, TFS_TIME_NO_CLOCK = -2 };

/* `warmup` untimed calls, then `samples` samples of `batch` calls; call i uses
 * argsets[i % nsets].  out_ns[s] is the time of sample s's batch.  With a flush the caches are
 * displaced before each call and out_ns[s] is the sum of the calls' own times.  Returns 0, a
 * TFS_TIME_ code, or the first non-zero result of fn. */
int tfs_time(tfs_kernel fn, void** const* argsets, int nsets, int warmup, int batch, int samples,
             int64_t* out_ns, const tfs_flush* flush);

/* `pairs` batches of two kernels in the order A B, B A, A B, ...: out_ns[2p] is A's time in pair
 * p, out_ns[2p + 1] B's.  `warmup` untimed calls come before each batch. */
int tfs_time_pair(tfs_kernel a, tfs_kernel b, void** const* args_a, void** const* args_b,
                  int nsets, int warmup, int batch_a, int batch_b, int pairs, int64_t* out_ns,
                  const tfs_flush* flush);

/* `rounds` rounds, each timing one batch of each kernel in an order drawn anew from order_seed:
 * out_ns[r * nfns + f].  argsets[f][s]: set s of kernel f; batch[f]: its calls per batch. */
int tfs_time_many(const tfs_kernel* fns, void** const* const* argsets, int nfns, int nsets,
                  int warmup, const int* batch, int rounds, uint64_t order_seed, int64_t* out_ns,
                  const tfs_flush* flush);

int64_t tfs_now_ns(void);

/* Reads every cache line of the buffer once. */
void tfs_flush_caches(const tfs_flush* flush);

/* ---- audits ------------------------------------------------------------------------------ */

/* Calls fn with `fill` in the stack below it and in what malloc hands out: what it reads without
 * having written it is not what an earlier call left there.  Returns fn's result. */
int tfs_call_soiled(tfs_kernel fn, void** args, int fill);

/* A dense array: `count` elements of `width` bytes (at most 8); the poison of an output's element. */
typedef struct tfs_array {
  unsigned char* at;
  int64_t count;
  uint64_t poison;
  int64_t width;
} tfs_array;

/* What may be exchanged and what must be written in one argument set. */
typedef struct tfs_arrays {
  const tfs_array *inputs, *outputs;
  int64_t ninputs, noutputs;
} tfs_arrays;

/* ns: of the `counted` calls, which are all but the last one of each set; exchanged: how many of
 * those had contents of their own; unwritten: 1 if a call left poison in an output, after which
 * there is no further call; late: whether that was written within 20 ms after the return. */
typedef struct tfs_audited {
  int64_t ns, counted, exchanged, unwritten, late, calls;
} tfs_audited;

/* `calls` calls (two at least) on each set in turn.  Before a call two unequal elements of an input
 * are exchanged and a few elements of an output are poisoned; the exchange is undone before the
 * next call of that set, so each but the last has contents that were not seen before.  Without
 * `exchange` the same stores leave the contents as they are.  In the end they are as they were.
 * Returns 0, TFS_TIME_BAD_ARGUMENT or the first non-zero result of fn. */
int tfs_audit(tfs_kernel fn, void** const* argsets, const tfs_arrays* arrays, int nsets, int calls,
              int exchange, uint64_t seed, tfs_audited* out);

/* ---- probes ------------------------------------------------------------------------------ */

/* f32 GFLOP/s of independent FMA chains for about `ms` milliseconds on this thread, at the widest
 * vectors this file was compiled for (a baseline build multiplies and adds). */
double tfs_probe_fma(int ms);

/* GB/s (10^9 bytes, read plus written) of the fastest of `reps` copies with plain and `reps` with
 * non-temporal stores; buffers 64-byte aligned, bytes a multiple of 64; 0 on bad arguments. */
double tfs_probe_copy(void* dst, const void* src, size_t bytes, int reps);

/* GB/s of the fastest of `reps` passes that read the whole buffer; same requirements. */
double tfs_probe_read(const void* src, size_t bytes, int reps);

enum { TFS_TILE_NOT_COMPILED = -1, TFS_TILE_NOT_AVAILABLE = -2 };

/* bf16 GFLOP/s of the tile unit for about `ms` milliseconds, or a TFS_TILE_ code. */
double tfs_probe_tile(int ms);

/* ---- the processor ----------------------------------------------------------------------- */

/* Asks the kernel for the tile registers: 0 when this process may use AMX, -1 when the processor
 * or the kernel's configuration has no tiles, otherwise the errno of arch_prctl. */
int tfs_amx_enable(void);

/* Space-separated features that both the processor and the operating system (XCR0) support, named
 * as in /proc/cpuinfo.  Writes at most n bytes with the final NUL; returns the full length. */
int tfs_cpu_features(char* out, int n);

/* "<vendor> <family> <model> <stepping>" in decimal; same contract. */
int tfs_cpu_identity(char* out, int n);

#endif
