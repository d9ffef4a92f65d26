/* Thread pool and barrier.
 *
 * Each worker has a slot on its own cache lines; a run writes the job into the slots of the workers
 * it needs and advances their sequence numbers, so an idle worker never reads another run's job.
 * Sleeping and waking follow one pattern: the sleeper announces itself, checks the word again and
 * sleeps on it by futex; the waker changes the word, then looks for announced sleepers.  Both
 * sides are sequentially consistent, so one of them sees the other. */
#ifndef TFS_SUPPORT_POOL_H
#define TFS_SUPPORT_POOL_H

typedef struct {
  uint32_t seq __attribute__((aligned(128))); /* advanced once per job; futex word */
  uint32_t sleeping;
  tfs_body body; /* NULL: the worker ends */
  void* ctx;
  int tid, threads;
  uint32_t seen; /* seq when the worker was started */
  tfs_pool* pool;
  pthread_t thread;
} tfs_slot;

struct tfs_pool {
  uint32_t pending __attribute__((aligned(128))); /* workers still in the run; futex word */
  uint32_t waiting;
  pthread_mutex_t run_lock;
  int size, started;
  int avoided, placed; /* the CPU that the first `placed` workers keep away from */
  tfs_slot* slots;
  tfs_pool *next, *previous;
};

static pthread_mutex_t tfs_pools_lock = PTHREAD_MUTEX_INITIALIZER;
static tfs_pool* tfs_pools;
static pthread_once_t tfs_fork_once = PTHREAD_ONCE_INIT;
static int tfs_cpus_here = 1;
static __thread int tfs_inside_run;

static uint32_t tfs_get(const uint32_t* p) { return __atomic_load_n(p, __ATOMIC_SEQ_CST); }
static void tfs_set(uint32_t* p, uint32_t v) { __atomic_store_n(p, v, __ATOMIC_SEQ_CST); }
static uint32_t tfs_add(uint32_t* p, uint32_t v) {
  return __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST);
}

static void tfs_sleep_on(uint32_t* word, uint32_t value) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, value, NULL, NULL, 0);
}
static void tfs_wake(uint32_t* word, int count) {
  syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, count, NULL, NULL, 0);
}

/* About 30 us of spinning where every thread can have a core, none where they share cores. */
enum { TFS_SPIN_NS = 30000, TFS_SPINS_PER_CHECK = 32 };

static int64_t tfs_clock(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Spins while *word == value; returns 1 as soon as it differs, 0 when the time is up. */
static int tfs_spin(const uint32_t* word, uint32_t value, int threads) {
  if (tfs_get(word) != value) return 1;
  if (threads > tfs_cpus_here) return 0;
  int64_t end = tfs_clock() + TFS_SPIN_NS;
  do {
    for (int i = 0; i < TFS_SPINS_PER_CHECK; ++i) {
      if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != value) return 1;
      _mm_pause();
    }
  } while (tfs_clock() < end);
  return 0;
}

/* Waits until *word != value. */
static void tfs_wait_change(uint32_t* word, uint32_t value, uint32_t* sleepers, int threads) {
  if (tfs_spin(word, value, threads)) return;
  tfs_add(sleepers, 1);
  while (tfs_get(word) == value) tfs_sleep_on(word, value);
  tfs_add(sleepers, (uint32_t)-1);
}

static void* tfs_worker(void* arg) {
  tfs_slot* s = arg;
  uint32_t seen = s->seen;
  tfs_inside_run = 1;
  for (;;) {
    tfs_wait_change(&s->seq, seen, &s->sleeping, s->pool->size);
    seen = tfs_get(&s->seq);
    if (!s->body) return NULL;
    s->body(s->ctx, s->tid, s->threads);
    tfs_pool* p = s->pool;
    if (tfs_add(&p->pending, (uint32_t)-1) == 0 && tfs_get(&p->waiting)) tfs_wake(&p->pending, 1);
  }
}

/* Fork: the list stays consistent because the forking thread holds its lock; the child has no
 * workers, and whoever held a run lock does not exist there. */
static void tfs_before_fork(void) { pthread_mutex_lock(&tfs_pools_lock); }
static void tfs_after_fork_parent(void) { pthread_mutex_unlock(&tfs_pools_lock); }
static void tfs_after_fork_child(void) {
  tfs_inside_run = 0;
  for (tfs_pool* p = tfs_pools; p; p = p->next) {
    pthread_mutex_init(&p->run_lock, NULL);
    p->started = p->placed = 0;
    p->pending = p->waiting = 0;
    for (int i = 0; i < p->size - 1; ++i) p->slots[i].sleeping = 0;
  }
  pthread_mutex_init(&tfs_pools_lock, NULL);
}
static void tfs_register_fork(void) {
  cpu_set_t cpus;
  if (sched_getaffinity(0, sizeof cpus, &cpus) == 0) tfs_cpus_here = CPU_COUNT(&cpus);
  pthread_atfork(tfs_before_fork, tfs_after_fork_parent, tfs_after_fork_child);
}

tfs_pool* tfs_pool_create(int threads) {
  void *pool = NULL, *slots = NULL;
  if (threads < 1 || threads > 1 << 16) return NULL;
  pthread_once(&tfs_fork_once, tfs_register_fork);
  if (posix_memalign(&pool, 128, sizeof(tfs_pool))) return NULL;
  if (posix_memalign(&slots, 128, sizeof(tfs_slot) * (size_t)threads)) {
    free(pool);
    return NULL;
  }
  tfs_pool* p = pool;
  memset(p, 0, sizeof *p);
  memset(slots, 0, sizeof(tfs_slot) * (size_t)threads);
  p->slots = slots;
  p->size = threads;
  pthread_mutex_init(&p->run_lock, NULL);
  pthread_mutex_lock(&tfs_pools_lock);
  p->next = tfs_pools;
  if (p->next) p->next->previous = p;
  tfs_pools = p;
  pthread_mutex_unlock(&tfs_pools_lock);
  return p;
}

int tfs_pool_threads(const tfs_pool* pool) { return pool->size; }

static void tfs_hand_over(tfs_slot* s, tfs_body body, void* ctx, int threads) {
  s->body = body;
  s->ctx = ctx;
  s->threads = threads;
  tfs_add(&s->seq, 1);
  if (tfs_get(&s->sleeping)) tfs_wake(&s->seq, 1);
}

void tfs_pool_destroy(tfs_pool* pool) {
  if (!pool) return;
  pthread_mutex_lock(&tfs_pools_lock);
  if (pool->next) pool->next->previous = pool->previous;
  if (pool->previous) pool->previous->next = pool->next;
  else tfs_pools = pool->next;
  pthread_mutex_unlock(&tfs_pools_lock);
  for (int i = 0; i < pool->started; ++i) {
    tfs_hand_over(&pool->slots[i], NULL, NULL, 0);
    pthread_join(pool->slots[i].thread, NULL);
  }
  pthread_mutex_destroy(&pool->run_lock);
  free(pool->slots);
  free(pool);
}

/* Starts workers until there are `workers`; signals stay with the program's own threads. */
static void tfs_start_workers(tfs_pool* p, int workers) {
  sigset_t all, old;
  if (p->started >= workers) return;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &old);
  while (p->started < workers) {
    tfs_slot* s = &p->slots[p->started];
    s->pool = p;
    s->tid = p->started + 1;
    s->seen = s->seq;
    if (pthread_create(&s->thread, NULL, tfs_worker, s)) break;
    p->started += 1;
  }
  pthread_sigmask(SIG_SETMASK, &old, NULL);
}

/* Keeps workers off the caller's CPU where every thread can have one; asks the system only when the
 * caller has moved or workers are new. */
static void tfs_keep_away(tfs_pool* p, int workers) {
  cpu_set_t cpus;
  int here = sched_getcpu();
  if (here < 0 || (here == p->avoided && workers <= p->placed)) return;
  if (sched_getaffinity(0, sizeof cpus, &cpus) || !CPU_ISSET(here, &cpus)) return;
  if (CPU_COUNT(&cpus) <= workers) return;
  CPU_CLR(here, &cpus);
  for (int i = 0; i < workers; ++i) {
    pthread_setaffinity_np(p->slots[i].thread, sizeof cpus, &cpus);
  }
  p->avoided = here;
  p->placed = workers;
}

void tfs_pool_run(tfs_pool* pool, int threads, tfs_body body, void* ctx) {
  if (threads > pool->size) threads = pool->size;
  if (tfs_inside_run || threads <= 1) {
    int inside = tfs_inside_run;
    tfs_inside_run = 1;
    body(ctx, 0, 1);
    tfs_inside_run = inside;
    return;
  }
  pthread_mutex_lock(&pool->run_lock);
  tfs_start_workers(pool, threads - 1);
  if (threads > pool->started + 1) threads = pool->started + 1;
  tfs_keep_away(pool, threads - 1);
  tfs_set(&pool->pending, (uint32_t)(threads - 1));
  for (int i = 0; i < threads - 1; ++i) tfs_hand_over(&pool->slots[i], body, ctx, threads);
  tfs_inside_run = 1;
  body(ctx, 0, threads);
  tfs_inside_run = 0;
  for (uint32_t left; (left = tfs_get(&pool->pending)) != 0;) {
    tfs_wait_change(&pool->pending, left, &pool->waiting, threads);
  }
  pthread_mutex_unlock(&pool->run_lock);
}

void tfs_barrier_init(tfs_barrier* barrier) { memset(barrier, 0, sizeof *barrier); }

enum { TFS_YIELDS = 4 };

void tfs_barrier_wait(tfs_barrier* barrier, int threads) {
  if (threads <= 1) return;
  uint32_t phase = tfs_get(&barrier->phase);
  if (tfs_add(&barrier->arrived, 1) == (uint32_t)threads) {
    tfs_set(&barrier->arrived, 0);
    tfs_add(&barrier->phase, 1);
    if (tfs_get(&barrier->sleepers)) tfs_wake(&barrier->phase, INT_MAX);
    return;
  }
  if (tfs_spin(&barrier->phase, phase, threads)) return;
  for (int i = 0; i < TFS_YIELDS; ++i) {
    if (tfs_get(&barrier->phase) != phase) return;
    sched_yield();
  }
  tfs_wait_change(&barrier->phase, phase, &barrier->sleepers, INT_MAX);
}

#endif
