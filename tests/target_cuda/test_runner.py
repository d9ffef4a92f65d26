"""The runner on a pretended driver: guards, order of calls, faults that become statuses."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.target_cuda import fake_gpu
from tests.target_cuda.fake_driver import Card, CUresult, FakeDriver
from tests.target_cuda.fake_gpu import KERNELS, SIZE, FakeNvml, job, launch, runner
from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.ir.dtypes import DType
from tfsearch.measure.child import _MemoryLimit
from tfsearch.measure.job import Limits
from tfsearch.measure.run import measure
from tfsearch.measure.worker import Measurer
from tfsearch.target.cuda import support
from tfsearch.target.cuda.device import uuid_text
from tfsearch.target.cuda.driver import Driver
from tfsearch.target.cuda.launching import Configuration
from tfsearch.target.cuda.nvml import Sensors
from tfsearch.target.cuda.runner import CudaRunner

X = np.arange(SIZE, dtype=np.float32)


@pytest.fixture(autouse=True)
def _image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(support, "image", support.image)


def api(**fields: Any) -> FakeDriver:
    found = FakeDriver(kernels=KERNELS, **fields)
    found.limit = 1 << 28
    return found


def loaded(one: CudaRunner, symbol: str, folder: Path, spec: LaunchSpec | None = None) -> Any:
    path = folder / "a.cubin"
    path.write_text(json.dumps([symbol]))
    return one.load(path, spec or launch(symbol))


def test_a_kernel_is_bound_called_and_read(tmp_path: Path) -> None:
    kernel = loaded(runner(api()), "twice", tmp_path)
    arguments = kernel.bind({"x": X})
    kernel.call(arguments)
    np.testing.assert_array_equal(arguments.read("y"), 2 * X)
    assert arguments.damage() == []
    with pytest.raises(InternalError, match="not float64"):
        arguments.write("x", X.astype(np.float64))
    with pytest.raises(InternalError, match="no value for input 'x'"):
        kernel.bind({})


@pytest.mark.parametrize("alignment", [16, 64, 128, 256])
def test_verification_gets_the_least_alignment_and_timing_the_allocators(
    alignment: int, tmp_path: Path
) -> None:
    kernel = loaded(runner(api()), "twice", tmp_path, launch("twice", alignment))
    exact = [b.address for b in kernel.bind({"x": X}).buffers.values()]
    assert all(address % alignment == 0 for address in exact)
    if alignment < 256:
        assert all(address % (2 * alignment) == alignment for address in exact)
    timed = [b.address for b in kernel.bind_timed({"x": X}).buffers.values()]
    assert all(address % 256 == 0 for address in timed)


def test_strided_arguments_keep_their_gaps(tmp_path: Path) -> None:
    arguments = (
        ArgumentSpec("x", "bf16", (3, 5), (8, 1), "in", 16),
        ArgumentSpec("y", "f32", (3, 5), (7, 1), "out", 16),
    )
    spec = LaunchSpec(EntrySpec("twice", arguments, 1, 0), (), {"twice": {"block": [1]}})
    bound = loaded(runner(api()), "twice", tmp_path, spec).bind(
        {"x": np.arange(15).reshape(3, 5).astype(DType.BF16.numpy)}
    )
    np.testing.assert_array_equal(bound.read("x").astype(int), np.arange(15).reshape(3, 5))
    assert bound.damage() == []
    buffer = bound.buffers["y"]
    gap = buffer._context.driver.api.view(buffer.address + 4 * 5, (1,), np.dtype("f4"))
    gap[:] = 0.0
    assert "gaps between strided elements, the first at byte 20" in bound.damage()[0]


FAULTS = {
    "twice": (Status.OK, "", ""),
    "past_the_end": (Status.WRONG, "verify.out-of-bounds", "y: 4 bytes written after"),
    "changes_input": (Status.WRONG, "verify.input-changed", "input x changed at [3]"),
    "short": (Status.WRONG, "verify.unwritten", "still the poison"),
    "illegal": (Status.DEVICE_ERROR, "measure.device", "CUDA_ERROR_ILLEGAL_ADDRESS"),
}


@pytest.mark.parametrize("symbol", FAULTS)
def test_faults_become_statuses(symbol: str, tmp_path: Path) -> None:
    status, code, said = FAULTS[symbol]
    outcome = measure(job(symbol, tmp_path), runner(api()))
    assert (outcome.status, outcome.code) == (status, code), outcome.message
    assert said in outcome.message


def test_a_measurement_says_which_card_and_how_it_was(tmp_path: Path) -> None:
    outcome = measure(job("twice", tmp_path), runner(api()))
    assert outcome.measurement is not None
    told = outcome.measurement.conditions["device"]
    assert told["uuid"] == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert told["throttle"] == ["power cap", "thermal (software)"]
    assert (told["sm_mhz"], told["memory_mhz"], told["power_w"]) == (1980, 3201, None)
    assert (told["before"], told["after"]) == ({"temperature_c": 41}, {"temperature_c": 42})


def test_without_nvml_the_record_says_so() -> None:
    class Broken(FakeNvml):
        def nvmlInit(self) -> None:
            raise RuntimeError("Library Not Found")

    assert Sensors("GPU-1", Broken()).read() == {"nvml": "RuntimeError: Library Not Found"}


def test_cold_calls_are_flushed_one_by_one(tmp_path: Path) -> None:
    found = api()
    one = runner(found)
    kernel = loaded(one, "twice", tmp_path)
    sets = [kernel.bind_timed({"x": X}) for _ in range(2)]
    found.calls.clear()
    spent = one.time([kernel], [sets], [6], 1, cold=True, seed=0)
    assert spent.shape == (1, 1)
    assert spent[0, 0] > 0
    assert "cuCtxResetPersistingL2Cache" in found.calls
    own = [c for c in found.calls if c in ("cuLaunchKernelEx", "cuEventRecord")]
    assert own == ["cuLaunchKernelEx", "cuEventRecord", "cuLaunchKernelEx", "cuEventRecord"] * 6
    pointers = [item.pointers[0] for item in found.launches if len(item.pointers) == 2]
    assert pointers[:6] == [s.buffers["x"].address for s in sets] * 3


def test_warm_calls_rotate_between_two_events_behind_a_head_start(tmp_path: Path) -> None:
    found = api()
    one = runner(found)
    kernel = loaded(one, "twice", tmp_path)
    sets = [kernel.bind_timed({"x": X}) for _ in range(2)]
    one.time([kernel], [sets], [4], 1, cold=False, seed=0)
    found.calls.clear()
    out = one.time([kernel, kernel], [sets, sets], [4, 2], 3, cold=False, seed=0)
    assert out.shape == (3, 2)
    tail = found.calls[found.calls.index("cuLaunchKernelEx") :]
    launches = tail[: tail.index("cuEventSynchronize")]
    assert launches[:2] == ["cuLaunchKernelEx", "cuEventRecord"]
    assert launches[-1] == "cuEventRecord"
    assert launches[2:-1] in (["cuLaunchKernelEx"] * 4, ["cuLaunchKernelEx"] * 2)
    assert found.calls.count("cuCtxSynchronize") == 7


def test_work_that_outlasts_the_last_event_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = runner(api())
    kernel = loaded(one, "twice", tmp_path)
    sets = [kernel.bind_timed({"x": X})]
    plain = one.time([kernel], [sets], [1], 1, cold=False, seed=0)[0, 0]
    monkeypatch.setattr(one.context, "synchronise", lambda: time.sleep(0.02))
    assert one.time([kernel], [sets], [1], 1, cold=False, seed=0)[0, 0] > plain + 19_000_000


def test_prepare_entries_run_again_when_their_inputs_change(tmp_path: Path) -> None:
    found = api()
    arguments = (
        ArgumentSpec("x", "f32", (SIZE,), (1,), "in", 16),
        ArgumentSpec("p", "f32", (SIZE,), (1,), "out", 16),
    )
    main = (replace(arguments[1], io="prepared"), replace(arguments[1], name="y"))
    how = {"block": [SIZE]}
    spec = LaunchSpec(
        EntrySpec("twice", main, 1, 0),
        (EntrySpec("short", arguments, 1, 0),),
        {"twice": how, "short": how},
    )
    path = tmp_path / "a.cubin"
    path.write_text(json.dumps(["twice", "short"]))
    kernel = runner(found).load(path, spec)
    bound = kernel.bind({"x": X})
    kernel.call(bound)
    assert len(found.launches) == 2
    np.testing.assert_array_equal(bound.read("y")[:-1], 4 * X[:-1])
    kernel.call(bound)
    assert len(found.launches) == 3
    bound.write("x", 10 * X)
    kernel.call(bound)
    assert len(found.launches) == 5
    np.testing.assert_array_equal(bound.read("y")[:-1], 40 * X[:-1])


def test_a_workspace_is_zeroed_and_handed_last(tmp_path: Path) -> None:
    spec = launch("twice")
    spec = replace(spec, main=replace(spec.main, workspace_bytes=4096))
    found = api()
    bound = loaded(runner(found), "twice", tmp_path, spec).bind({"x": X})
    words = list(bound.packed._values)
    assert len(words) == 3
    assert not found.view(words[2], (4096,), np.dtype("u1")).any()


def test_shared_memory_and_clusters_are_asked_for(tmp_path: Path) -> None:
    found = api()
    spec = launch("twice", shared=200_000, cluster=[16], grid=[32])
    kernel = loaded(runner(found), "twice", tmp_path, spec)
    name = "CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES"
    assert found.functions[hash(("twice", name))] == 200_000
    name = "CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED"
    assert found.functions[hash(("twice", name))] == 1
    config = kernel.bind({"x": X}).packed._config
    assert (config.gridDimX, config.blockDimX, config.sharedMemBytes) == (32, SIZE, 200_000)
    assert config.numAttrs == 1
    assert config.attrs[0].value.clusterDim.x == 16
    how = Configuration.of(spec, spec.main)
    assert how.to_json() == {
        "grid": [32, 1, 1], "block": [64, 1, 1], "cluster": [16, 1, 1], "shared": 200_000
    }  # fmt: skip
    with pytest.raises(InternalError, match="no launch configuration"):
        Configuration.of(replace(spec, attributes={}), spec.main)


def test_memory_is_used_again_and_freed_when_it_runs_out(tmp_path: Path) -> None:
    found = api()
    one = runner(found)
    kernel = loaded(one, "twice", tmp_path)
    first = {b.address for b in kernel.bind({"x": X}).buffers.values()}
    assert {b.address for b in kernel.bind({"x": X}).buffers.values()} == first
    one.context.release(one.context.allocate(1 << 27))
    found.limit = 1 << 20
    with pytest.raises(MemoryError, match="CUDA_ERROR_OUT_OF_MEMORY"):
        one.context.allocate(1 << 26)
    assert one.context._kept == 0


def test_memory_that_is_not_there_is_out_of_memory(tmp_path: Path) -> None:
    found = api()
    one = runner(found)
    found.limit = 1000
    outcome = measure(job("twice", tmp_path), one)
    assert outcome.status is Status.OUT_OF_MEMORY


def test_an_artifact_that_the_driver_refuses_is_a_load_error(tmp_path: Path) -> None:
    broken = job("twice", tmp_path)
    one = runner(api())
    for text in ("not a cubin", '["another"]'):
        Path(broken.artifact).write_text(text)
        fields = replace(broken, sha256=fake_gpu.keys.digest_bytes(text.encode()))
        outcome = measure(fields, one)
        assert outcome.status is Status.LOAD_ERROR, outcome.message


def test_a_card_that_is_not_there_or_has_no_generator_is_refused() -> None:
    with pytest.raises(OSError, match="no GPU GPU-1 in this process"):
        CudaRunner(Driver(api()), "GPU-1")
    old = api(cards=[Card(capability=(7, 5))])
    with pytest.raises(OSError, match="no code is generated"):
        CudaRunner(Driver(old), uuid_text(old.cuDeviceGetUuid(0)[1]))


def test_arguments_may_take_a_share_of_the_cards_memory_and_address_space_is_free() -> None:
    room = runner(api()).room()
    limits = Limits().fitted(room)
    assert limits.argument_bytes == room.argument_bytes > Limits().argument_bytes
    assert limits.memory_bytes == 0
    with _MemoryLimit(limits) as nothing:
        assert nothing is None
    least = replace(room, argument_bytes=1, reference_bytes=1, bounded=True)
    assert Limits().fitted(least) == Limits()


def test_probes_are_of_the_clock_alone() -> None:
    one = runner(api())
    assert one.probe(["sm_clock"]) == {"sm_clock": 1.98e9}
    with pytest.raises(OSError, match="no probe 'tile'"):
        one.probe(["tile"])


def test_after_an_error_that_sticks_the_next_candidate_is_still_measured(tmp_path: Path) -> None:
    with Measurer(
        "tests.target_cuda.fake_gpu:make", "fake", lock_folder=tmp_path / "locks"
    ) as measurer:
        first = measurer.submit(job("twice", tmp_path))
        assert first.status is Status.OK, first.message
        pid = measurer.pid
        bad = measurer.submit(job("illegal", tmp_path))
        assert bad.status is Status.DEVICE_ERROR
        assert "CUDA_ERROR_ILLEGAL_ADDRESS" in bad.message
        again = measurer.submit(job("twice", tmp_path))
        assert again.status is Status.OK, again.message
        assert measurer.pid not in (None, pid)
        hung = replace(job("hangs", tmp_path), limits=Limits(deadline_s=1.0))
        assert measurer.submit(hung).status is Status.TIMEOUT
        assert measurer.submit(job("twice", tmp_path)).status is Status.OK


def test_the_driver_says_a_call_failed_by_its_status(tmp_path: Path) -> None:
    found = api()
    kernel = loaded(runner(found), "twice", tmp_path)
    bound = kernel.bind({"x": X})
    found.fail["cuLaunchKernelEx"] = CUresult.CUDA_ERROR_INVALID_VALUE
    with pytest.raises(OSError, match="cuLaunchKernelEx: CUDA_ERROR_INVALID_VALUE"):
        kernel.call(bound)
