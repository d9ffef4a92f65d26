"""Thread pool and barrier of the support library."""

from __future__ import annotations

import ctypes
import os
import threading
import time

import numpy as np
import pytest
from clib_build import any_compiler, load, pointer

from tfsearch.target.x86 import clib

pytestmark = pytest.mark.xdist_group("clib_support")

# The library in one text with bodies to run on it.
DRIVER = """
typedef struct {
  tfs_pool* pool;
  tfs_barrier barrier;
  int64_t steps, size;
  uint32_t wrong, calls, inner_calls, most_threads;
  int64_t* cells;
  uint32_t* seen; /* one count per tid */
} job;

static void count_body(void* ctx, int tid, int threads) {
  job* j = ctx;
  __atomic_add_fetch(&j->calls, 1, __ATOMIC_SEQ_CST);
  __atomic_add_fetch(&j->seen[tid], 1, __ATOMIC_SEQ_CST);
  if (tid >= threads) __atomic_add_fetch(&j->wrong, 1, __ATOMIC_SEQ_CST);
  __atomic_store_n(&j->most_threads, (uint32_t)threads, __ATOMIC_SEQ_CST);
}

/* Each step every thread moves its neighbour's cell on by one; a step seen early or late shows. */
static void ring_body(void* ctx, int tid, int threads) {
  job* j = ctx;
  for (int64_t s = 0; s < j->steps; ++s) {
    int64_t* cell = &j->cells[(tid + s) % threads];
    if (*cell != s) __atomic_add_fetch(&j->wrong, 1, __ATOMIC_SEQ_CST);
    *cell += 1;
    tfs_barrier_wait(&j->barrier, threads);
  }
}

static void inner_body(void* ctx, int tid, int threads) {
  job* j = ctx;
  __atomic_add_fetch(&j->inner_calls, 1, __ATOMIC_SEQ_CST);
  if (tid != 0 || threads != 1) __atomic_add_fetch(&j->wrong, 1, __ATOMIC_SEQ_CST);
}
static void nested_body(void* ctx, int tid, int threads) {
  (void)tid;
  (void)threads;
  job* j = ctx;
  tfs_pool_run(j->pool, 4, inner_body, ctx);
}

/* Not atomic on purpose: only one run may be inside at a time. */
static void exclusive_body(void* ctx, int tid, int threads) {
  job* j = ctx;
  if (tid == 0) {
    int64_t v = j->cells[0];
    for (volatile int i = 0; i < 200; ++i) {}
    j->cells[0] = v + 1;
  }
  tfs_barrier_wait(&j->barrier, threads);
}

/* Where the threads of a run are; they meet, so that each is still there. */
static void place_body(void* ctx, int tid, int threads) {
  job* j = ctx;
  tfs_barrier_wait(&j->barrier, threads);
  j->cells[tid] = sched_getcpu();
}

void run_place(job* j, int threads) { tfs_pool_run(j->pool, threads, place_body, j); }
void run_count(job* j, int threads) { tfs_pool_run(j->pool, threads, count_body, j); }
void run_ring(job* j, int threads) { tfs_pool_run(j->pool, threads, ring_body, j); }
void run_nested(job* j, int threads) { tfs_pool_run(j->pool, threads, nested_body, j); }
void run_exclusive(job* j, int threads) { tfs_pool_run(j->pool, threads, exclusive_body, j); }
void make_job(job** out, tfs_pool* pool, int64_t steps, int64_t* cells, uint32_t* seen) {
  void* p = NULL;
  if (posix_memalign(&p, 64, sizeof(job))) abort();
  memset(p, 0, sizeof(job));
  *out = p;
  (*out)->pool = pool;
  (*out)->steps = steps;
  (*out)->cells = cells;
  (*out)->seen = seen;
}
uint32_t job_wrong(const job* j) { return j->wrong; }
uint32_t job_calls(const job* j) { return j->calls; }
uint32_t job_inner_calls(const job* j) { return j->inner_calls; }
uint32_t job_threads(const job* j) { return j->most_threads; }
"""


class Job:
    """A C job with the memory it writes to."""

    def __init__(self, lib: ctypes.CDLL, pool: int, steps: int = 0) -> None:
        self.lib = lib
        self.cells = np.zeros(64, np.int64)
        self.seen = np.zeros(64, np.uint32)
        self.address = ctypes.c_void_p()
        lib.make_job(
            ctypes.byref(self.address),
            ctypes.c_void_p(pool),
            ctypes.c_int64(steps),
            pointer(self.cells),
            pointer(self.seen),
        )

    def run(self, kind: str, threads: int) -> None:
        getattr(self.lib, f"run_{kind}")(self.address, threads)

    def count(self, what: str) -> int:
        return getattr(self.lib, f"job_{what}")(self.address)


@pytest.fixture(scope="module")
def lib(tmp_path_factory) -> ctypes.CDLL:
    text = clib.support_source() + DRIVER
    library = load(tmp_path_factory.mktemp("pool"), text, any_compiler(), ())
    library.tfs_pool_create.restype = ctypes.c_void_p
    return library


@pytest.fixture
def pool(lib):
    made = lib.tfs_pool_create(16)
    yield made
    lib.tfs_pool_destroy(ctypes.c_void_p(made))


def test_each_thread_runs_the_body_once(lib, pool):
    for threads in (1, 2, 5, 16, 3, 16):
        job = Job(lib, pool)
        for _ in range(200):
            job.run("count", threads)
        assert job.count("calls") == 200 * threads
        assert job.seen.tolist() == [200] * threads + [0] * (64 - threads)
        assert job.count("threads") == threads
        assert job.count("wrong") == 0


def test_a_run_is_clipped_to_the_size_of_the_pool(lib, pool):
    job = Job(lib, pool)
    job.run("count", 1000)
    assert (job.count("calls"), job.count("threads")) == (16, 16)
    job = Job(lib, pool)
    job.run("count", 0)
    assert (job.count("calls"), job.count("threads")) == (1, 1)


def test_a_worker_keeps_off_the_callers_cpu(lib, pool):
    cpus = sorted(os.sched_getaffinity(0))
    if len(cpus) < 2:
        pytest.skip("needs two CPUs")
    job = Job(lib, pool)
    together = 0
    try:
        for cpu in (*cpus[:2], *cpus[:2]):
            os.sched_setaffinity(0, {cpu})
            os.sched_setaffinity(0, cpus)
            for _ in range(20):
                time.sleep(0.001)
                job.run("place", 2)
                together += int(job.cells[0] == job.cells[1])
    finally:
        os.sched_setaffinity(0, cpus)
    assert together <= 20, "of 80; a busy machine may move the caller during a run"


def test_workers_run_where_there_is_one_cpu_for_all(lib, pool):
    cpus = os.sched_getaffinity(0)
    job = Job(lib, pool)
    try:
        os.sched_setaffinity(0, {min(cpus)})
        for _ in range(50):
            job.run("count", 3)
    finally:
        os.sched_setaffinity(0, cpus)
    assert job.count("calls") == 150


def test_a_pool_of_no_threads_is_refused(lib):
    assert lib.tfs_pool_create(0) is None


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
def test_the_barrier_separates_steps_with_more_threads_than_cores(lib, pool, threads: int):
    job = Job(lib, pool, steps=1000)
    job.run("ring", threads)
    assert job.count("wrong") == 0
    assert job.cells[:threads].tolist() == [1000] * threads


def test_a_barrier_is_reusable_over_runs_of_different_size(lib, pool):
    job = Job(lib, pool, steps=25)
    for threads in (2, 7, 3):
        job.cells[:] = 0
        job.run("ring", threads)
        assert job.cells[:threads].tolist() == [25] * threads
    assert job.count("wrong") == 0


def test_a_nested_run_is_serial(lib, pool):
    for threads in (1, 4):
        job = Job(lib, pool)
        job.run("nested", threads)
        assert job.count("inner_calls") == threads
        assert job.count("wrong") == 0


def test_concurrent_callers_take_turns(lib, pool):
    job = Job(lib, pool)
    callers = [
        threading.Thread(target=lambda: [job.run("exclusive", 3) for _ in range(150)])
        for _ in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert job.cells[0] == 4 * 150


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # fork beside threads is the subject
def test_a_forked_child_has_a_working_pool(lib, pool):
    job = Job(lib, pool)
    job.run("count", 4)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            mine = Job(lib, pool, steps=50)
            mine.run("ring", 4)
            mine.run("count", 4)
            code = 0 if mine.count("wrong") == 0 and mine.count("calls") == 4 else 2
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    job.run("count", 4)
    assert job.count("calls") == 8


def test_pools_come_and_go(lib):
    for threads in (1, 2, 8) * 10:
        pool = lib.tfs_pool_create(threads)
        job = Job(lib, pool)
        job.run("count", threads)
        assert job.count("calls") == threads
        assert lib.tfs_pool_threads(ctypes.c_void_p(pool)) == threads
        lib.tfs_pool_destroy(ctypes.c_void_p(pool))
