import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from tests.measure.helpers import RUNNER, job, workload
from tfsearch.core import settings
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.measure.compare import Baseline
from tfsearch.measure.process import environment
from tfsearch.measure.worker import Measurer

ROOT = Path(__file__).parents[2]
QUICK = {"deadline_s": 1.0}


@pytest.fixture(scope="module")
def measurer(tmp_path_factory):
    with Measurer(RUNNER, "cpu", lock_folder=tmp_path_factory.mktemp("locks")) as made:
        yield made


def wait_until(condition, limit_s=10.0):
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, "did not happen in time"
        time.sleep(0.01)


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


@pytest.mark.parametrize(
    ("kernel", "status", "code", "says", "limits"),
    [
        ("right", Status.OK, "", "", {}),
        ("zeros", Status.WRONG, "verify.wrong", "35 of 35", {}),
        ("stops_working", Status.WRONG, "verify.later-calls", "after timing", {}),
        ("crash", Status.CRASH, "measure.crash", "SIGSEGV in phase verify", {}),
        ("null_pointer", Status.CRASH, "measure.crash", "SIGSEGV", {}),
        ("abort", Status.CRASH, "measure.crash", "free(): invalid pointer", {}),
        ("exits", Status.CRASH, "measure.exit", "code 7", {}),
        ("bug", Status.CRASH, "measure.exception", "KeyError", {}),
        ("hang", Status.TIMEOUT, "measure.timeout", "within 1 s", QUICK),
        (
            "memory_hog",
            Status.OUT_OF_MEMORY,
            "measure.memory",
            "",
            {"memory_bytes": 256 << 20},
        ),
        ("killed", Status.OUT_OF_MEMORY, "measure.killed", "memory runs out", {}),
        ("noisy", Status.OK, "", "", {}),
        ("out_of_bounds", Status.WRONG, "verify.out-of-bounds", "after the buffer", {}),
        ("device_error", Status.DEVICE_ERROR, "measure.device", "illegal memory", {}),
        ("load_error", Status.LOAD_ERROR, "measure.load", "undefined symbol", {}),
    ],
)
def test_each_fault_is_a_status_and_the_next_candidate_is_measured(
    measurer, tmp_path, kernel, status, code, says, limits
):
    outcome = measurer.submit(job(tmp_path, kernel, limits=limits))
    assert (outcome.status, outcome.code) == (status, code), outcome.message
    assert says in outcome.message
    after = measurer.submit(job(tmp_path, "right"))
    assert after.status is Status.OK, after.message


def test_what_a_kernel_leaves_running_does_not_disturb_the_next(measurer, tmp_path):
    assert measurer.submit(job(tmp_path, "right")).status is Status.OK
    first = measurer.pid
    assert measurer.submit(job(tmp_path, "leaves_a_process")).status is Status.OK
    assert measurer.pid != first
    wait_until(lambda: not is_alive(first))


def test_a_kernel_that_leaves_a_thread_running_is_wrong(measurer, tmp_path):
    for _ in range(5):  # on a busy machine a thread may get no time while it is looked for
        outcome = measurer.submit(job(tmp_path, "leaves_a_thread"))
        if outcome.status is not Status.OK:
            break
    assert (outcome.status, outcome.code) == (Status.WRONG, "verify.threads")
    assert measurer.submit(job(tmp_path, "right")).status is Status.OK


def test_a_faulty_candidate_costs_the_process_and_a_good_one_does_not(measurer, tmp_path):
    measurer.submit(job(tmp_path, "right"))
    first = measurer.pid
    measurer.submit(job(tmp_path, "right"))
    assert measurer.pid == first
    measurer.submit(job(tmp_path, "zeros"))
    measurer.submit(job(tmp_path, "right"))
    assert measurer.pid != first


def test_damage_left_by_an_earlier_candidate_is_not_blamed_on_the_next(measurer, tmp_path):
    assert measurer.submit(job(tmp_path, "damages_later")).status is Status.OK
    slow = job(tmp_path, "right", options={"sleep_s": 0.03}, limits={"budget_s": 1.0})
    outcome = measurer.submit(slow)
    assert outcome.status is Status.OK, outcome.message


def test_a_candidates_output_does_not_reach_ours(measurer, tmp_path, capfd):
    measurer.submit(job(tmp_path, "noisy"))
    assert capfd.readouterr() == ("", "")


def test_a_final_and_a_benchmark_run_in_the_process(measurer, tmp_path):
    fast = job(tmp_path, "right", options={"sleep_s": 0.0002}, limits={"most": 20})
    (tmp_path / "slow").mkdir()
    slow = job(tmp_path / "slow", "right", options={"sleep_s": 0.002})
    found = measurer.final([fast, slow, job(tmp_path, "zeros")])
    assert found.reference == 0
    assert found.standings[1].ratio > 1.5
    assert found.standings[2].outcome.status is Status.WRONG
    compared = measurer.benchmark(
        fast, [Baseline("numpy", "tests.measure.fake_runner:numpy_baseline")]
    )
    assert compared.standings[1].name == "numpy"
    assert compared.standings[1].ratio < 1


def test_a_crash_in_a_final_is_everybodys_status(measurer, tmp_path):
    found = measurer.final([job(tmp_path, "right"), job(tmp_path, "crash")])
    assert [s.outcome.status for s in found.standings] == [Status.CRASH, Status.CRASH]
    assert found.reference is None
    assert measurer.submit(job(tmp_path, "right")).status is Status.OK


def test_probes_are_answered(measurer):
    assert measurer.probe(["fma", "tile"]) == {"fma": 1.0, "tile": 1.0}


def slow_oracle(record, sizes):
    """An oracle that takes longer for a case than a job may take in all."""
    from tfsearch.measure.oracle import HirOracle

    class Slow(HirOracle):
        def case(self, which, seed, constant_seed=None, *, exchanged=False):
            time.sleep(0.7)
            return super().case(which, seed, constant_seed)

    return Slow(record, sizes)


def test_the_time_of_a_slow_reference_is_not_the_candidates(measurer, tmp_path, monkeypatch):
    slow = {"oracle": "tests.measure.test_worker:slow_oracle"}
    limits = {"deadline_s": 2.0, "budget_s": 0.2}
    made = job(tmp_path, "right", limits=limits, **slow)
    found = measurer.submit(made)
    assert found.status is Status.OK, found.message
    assert found.seconds > 2.0
    hanging = job(tmp_path, "hang", limits=limits, **slow)
    found = measurer.submit(hanging)
    assert found.status is Status.TIMEOUT
    assert "killed in phase verify" in found.message
    monkeypatch.setattr("tfsearch.measure.worker.REFERENCE_S", 0.2)
    found = measurer.submit(made)
    assert found.status is Status.TIMEOUT
    assert "the reference took longer than 0.2 s" in found.message


def test_a_wrong_request_is_raised_as_itself(measurer, tmp_path):
    with pytest.raises(RequestError, match="gone"):
        measurer.submit(job(tmp_path, "right", oracle="tests.measure.helpers:gone"))
    with pytest.raises(RequestError, match="at least one"):
        measurer.final([])
    with pytest.raises(RequestError) as found:
        measurer.submit(job(tmp_path, "right", work=workload(program="nonsense")))
    assert found.value.code.startswith("hir.")


def test_an_absent_device_or_runner_is_told_at_the_start(tmp_path):
    with (
        pytest.raises(UnavailableError, match="no such device"),
        Measurer(RUNNER, "absent", lock_folder=tmp_path),
    ):
        pass
    with (
        pytest.raises(RequestError, match="nowhere"),
        Measurer("tests.measure.nowhere:make", "cpu", lock_folder=tmp_path),
    ):
        pass


def test_a_process_killed_while_idle_is_replaced_unnoticed(measurer, tmp_path):
    measurer.submit(job(tmp_path, "right"))
    os.kill(measurer.pid, signal.SIGKILL)
    assert measurer.submit(job(tmp_path, "right")).status is Status.OK


def test_cancelling_ends_the_running_job(measurer, tmp_path):
    outcomes = []
    thread = threading.Thread(
        target=lambda: outcomes.append(measurer.submit(job(tmp_path, "hang")))
    )
    thread.start()
    wait_until(lambda: measurer._busy)
    time.sleep(0.1)
    measurer.cancel()
    thread.join(10)
    assert outcomes[0].status is Status.CANCELLED
    measurer.cancel()
    assert measurer.submit(job(tmp_path, "right")).status is Status.OK


def test_numerical_libraries_get_one_thread_and_nothing_of_the_callers_settings(monkeypatch):
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Prescott")
    monkeypatch.setenv("OMP_PROC_BIND", "true")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "7")
    env = environment(1, {})
    assert env["OPENBLAS_NUM_THREADS"] == env["OMP_NUM_THREADS"] == "1"
    assert "OPENBLAS_CORETYPE" not in env
    assert "OMP_PROC_BIND" not in env
    assert environment(2, {"EXTRA": "x"})["EXTRA"] == "x"
    assert environment(2, {})["OMP_NUM_THREADS"] == "2"


def test_what_a_measuring_process_caches_goes_where_the_callers_does(monkeypatch, tmp_path):
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path))
    assert environment(1, {})["TFSEARCH_HOME"] == str(tmp_path)
    monkeypatch.delenv("TFSEARCH_HOME")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    assert environment(1, {})["TFSEARCH_HOME"] == str(settings.load().home)


SESSION = """
import sys
from pathlib import Path
from tests.measure.helpers import RUNNER, job
from tfsearch.measure.worker import Measurer

folder = Path(sys.argv[1])
with Measurer(RUNNER, "cpu", lock_folder=folder) as measurer:
    print(measurer.pid, flush=True)
    measurer.submit(job(folder, "hang", limits={"deadline_s": 60}))
"""


def session(folder):
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(SESSION), str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    )
    worker = int(child.stdout.readline())
    wait_until(lambda: list(folder.glob("*.lock")))
    time.sleep(0.2)
    return child, worker


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_the_measuring_process_ends_with_its_session(tmp_path, number):
    if not Path("/proc/self/stat").exists():
        pytest.skip("needs /proc")
    child, worker = session(tmp_path)
    assert is_alive(worker)
    child.send_signal(number)
    child.wait(10)
    wait_until(lambda: not is_alive(worker))
    child.stdout.close()


def test_a_device_in_use_names_its_holder_after_a_bounded_wait(tmp_path):
    child, _ = session(tmp_path)
    try:
        with (
            pytest.raises(UnavailableError, match=f"process {child.pid}") as found,
            Measurer(RUNNER, "cpu", lock_folder=tmp_path, lock_wait_s=0.2) as second,
        ):
            second.submit(job(tmp_path, "right"))
        assert found.value.code == "device.busy"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    with Measurer(RUNNER, "cpu", lock_folder=tmp_path, lock_wait_s=5) as second:
        assert second.submit(job(tmp_path, "right")).status is Status.OK


def test_two_sessions_take_turns(tmp_path):
    with (
        Measurer(RUNNER, "cpu", lock_folder=tmp_path) as first,
        Measurer(RUNNER, "cpu", lock_folder=tmp_path) as second,
    ):
        outcomes = []
        made = job(tmp_path, "right", limits={"budget_s": 0.05})

        def repeat(measurer):
            outcomes.extend(measurer.submit(made).status for _ in range(3))

        threads = [threading.Thread(target=repeat, args=[m]) for m in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert outcomes == [Status.OK] * 6


def test_starting_takes_well_under_the_time_of_a_compilation(tmp_path):
    start = time.monotonic()
    with Measurer(RUNNER, "cpu", lock_folder=tmp_path):
        assert time.monotonic() - start < 10
