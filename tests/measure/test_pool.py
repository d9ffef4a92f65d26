import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from tfsearch.core.errors import InternalError
from tfsearch.measure.pool import CompilePool

ROOT = Path(__file__).parents[2]


def test_results_come_in_completion_order():
    gate = threading.Event()
    with CompilePool(2) as pool:
        pool.submit("slow", lambda: gate.wait(10) and "s")
        pool.submit("quick", lambda: "q")
        first = pool.next_done()
        gate.set()
        second = pool.next_done()
    assert [(d.tag, d.result()) for d in (first, second)] == [("quick", "q"), ("slow", "s")]


def test_an_error_is_the_tasks_own_and_the_pool_goes_on():
    with CompilePool(1) as pool:
        pool.submit(1, int, "x")
        pool.submit(2, int, "7")
        done = {d.tag: d for d in pool.results()}
    with pytest.raises(ValueError, match="x"):
        done[1].result()
    assert done[2].result() == 7


def test_no_more_tasks_run_at_once_than_there_are_workers():
    running, most, guard = 0, 0, threading.Lock()

    def task():
        nonlocal running, most
        with guard:
            running += 1
            most = max(most, running)
        time.sleep(0.02)
        with guard:
            running -= 1

    with CompilePool(2, backlog=20) as pool:
        for tag in range(8):
            pool.submit(tag, task)
        assert len(list(pool.results())) == 8
    assert most == 2


def test_all_workers_are_used_by_tasks_submitted_at_once():
    barrier = threading.Barrier(3, timeout=10)
    with CompilePool(3) as pool:
        for _ in range(2):
            for tag in range(3):
                pool.submit(tag, barrier.wait)
            assert all(d.error is None for d in pool.results())


def test_submitting_blocks_while_the_pool_is_full():
    gate = threading.Event()
    with CompilePool(1, backlog=1) as pool:
        assert pool.submit(1, gate.wait, 10)
        assert pool.submit(2, gate.wait, 10)
        assert not pool.submit(3, gate.wait, 10, timeout_s=0.05)
        assert pool.outstanding == 2
        gate.set()
        pool.next_done()
        assert pool.submit(3, gate.wait, 10, timeout_s=5)


def test_a_waiting_task_can_be_cancelled_and_a_running_one_cannot():
    gate, started = threading.Event(), threading.Event()

    def run():
        started.set()
        gate.wait(10)

    with CompilePool(1) as pool:
        pool.submit("running", run)
        pool.submit("waiting", pytest.fail, "must not run")
        started.wait(10)
        assert pool.cancel("waiting")
        assert not pool.cancel("running")
        assert not pool.cancel("unknown")
        gate.set()
        assert [d.tag for d in pool.results()] == ["running"]


def test_nothing_outstanding_and_nothing_in_time_are_none():
    gate = threading.Event()
    with CompilePool(1) as pool:
        assert pool.next_done() is None
        pool.submit(1, gate.wait, 10)
        assert pool.next_done(timeout_s=0.05) is None
        gate.set()


def test_a_closed_pool_takes_nothing_and_wakes_who_waits():
    gate = threading.Event()
    pool = CompilePool(1, backlog=0)
    pool.submit(1, gate.wait, 10)
    caught = []

    def submit():
        try:
            pool.submit(2, gate.wait, 10)
        except InternalError as error:
            caught.append(error.code)

    thread = threading.Thread(target=submit)
    thread.start()
    time.sleep(0.05)
    pool.close()
    thread.join(10)
    gate.set()
    assert caught == ["measure.pool"]
    assert pool.stopping.is_set()
    assert pool.next_done() is None


def test_a_pool_needs_a_worker():
    with pytest.raises(InternalError, match="at least one"):
        CompilePool(0)


def test_an_interrupted_program_does_not_wait_for_running_tasks():
    program = (
        "import time\n"
        "from tfsearch.measure.pool import CompilePool\n"
        "with CompilePool(2) as pool:\n"
        "    for tag in range(4):\n"
        "        pool.submit(tag, time.sleep, 60)\n"
        "    raise KeyboardInterrupt\n"
    )
    start = time.monotonic()
    subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, timeout=30)
    assert time.monotonic() - start < 20
