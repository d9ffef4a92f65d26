"""On a real card: numerics of candidates and references, timing, guards, sticky faults."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfsearch
from tests.target_cuda.support import MEMORY, compiler_named, source
from tests.target_cuda.test_arrays import FUNCTIONS, ODD, same
from tests.target_cuda.test_problem import WORKLOADS, sample
from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import Status, WorkloadRecord
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.named import named_workload
from tfsearch.measure.inputs import Pass
from tfsearch.measure.job import Limits, MeasureJob
from tfsearch.measure.oracle import HirOracle
from tfsearch.measure.run import measure
from tfsearch.measure.worker import Measurer
from tfsearch.plugin.jobs import measure_job
from tfsearch.plugin.target import Device
from tfsearch.target.cuda import target
from tfsearch.target.cuda.arrays import uploaded
from tfsearch.target.cuda.engine import CudaEngine
from tfsearch.target.cuda.runner import CudaRunner, make

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

SIZE = 1 << 20
PROGRAM = f"""program twice(x: f32[{SIZE}]) -> (y: f32[{SIZE}]) {{
  %1 = add(%0, %0) : f32[{SIZE}]
  return %1
}}
"""
BODIES = {
    "twice": "if (i < n) y[i] = 2.0f * x[i];",
    "past_the_end": "if (i < n) y[i] = 2.0f * x[i]; if (i == 0) y[n + 3] = 1.0f;",
    "changes_input": "if (i < n) { y[i] = 2.0f * x[i]; ((float *)x)[7] = 1.0f; }",
    "one_short": "if (i < n - 1) y[i] = 2.0f * x[i];",
    "illegal": "if (i < n) y[i + (1ll << 45)] = x[i];",
    "misaligned": "*(int *)((char *)y + 1) = i;",
    "traps": 'asm volatile("trap;");',
    "hangs": "while (((volatile float *)x)[0] > -1e30f) {}",
}
LIMITS = Limits(deadline_s=60.0, budget_s=0.3)


@pytest.fixture(scope="module")
def card() -> Device:
    found = target.devices()
    if not found:
        pytest.skip(f"needs an NVIDIA GPU: {target.absence()}")
    return found[0]


@pytest.fixture(scope="module")
def runner(card: Device) -> Iterator[CudaRunner]:
    one = make(card.selector)
    yield one
    one.close()


def built(name: str, folder: Path) -> tuple[Path, LaunchSpec]:
    text = f"""extern "C" __global__ void {name}(const float *x, float *y) {{
  const long long n = {SIZE}, i = (long long)blockIdx.x * blockDim.x + threadIdx.x;
  {BODIES[name]}
}}"""
    path = folder / f"{name}.cubin"
    compiler = compiler_named("nvrtc")
    done = compiler.compile(source(text, name), (), (), path, timeout_s=60, memory_bytes=MEMORY)
    assert done.status is Status.OK, done.log
    arguments = (
        ArgumentSpec("x", "f32", (SIZE,), (1,), "in", 16),
        ArgumentSpec("y", "f32", (SIZE,), (1,), "out", 16),
    )
    how: Mapping[str, Any] = {"block": [256], "grid": [SIZE // 256]}
    return path, LaunchSpec(EntrySpec(name, arguments, SIZE // 256, 0), (), {name: how})


def job(name: str, folder: Path, **fields: Any) -> MeasureJob:
    path, launch = built(name, folder)
    workload = WorkloadRecord("twice", {}, "f32", PROGRAM)
    digest = keys.digest_bytes(path.read_bytes())
    return MeasureJob(workload, str(path), digest, launch, **{"limits": LIMITS, **fields})


FAULTS = {
    "twice": (Status.OK, ""),
    "past_the_end": (Status.WRONG, "verify.out-of-bounds"),
    "changes_input": (Status.WRONG, "verify.input-changed"),
    "one_short": (Status.WRONG, "verify.unwritten"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_that_leave_the_card_well_become_statuses(
    name: str, runner: CudaRunner, tmp_path: Path
) -> None:
    outcome = measure(job(name, tmp_path), runner)
    assert (outcome.status, outcome.code) == FAULTS[name], outcome.message


def test_after_errors_that_stick_and_hangs_the_next_candidate_is_measured(
    card: Device, tmp_path: Path
) -> None:
    with Measurer(target.runner, card.selector, lock_folder=tmp_path / "locks") as measurer:
        good = job("twice", tmp_path)
        for name, said in (
            ("illegal", "CUDA_ERROR_ILLEGAL_ADDRESS"),
            ("misaligned", "CUDA_ERROR_MISALIGNED_ADDRESS"),
            ("traps", "CUDA_ERROR_"),
        ):
            bad = measurer.submit(job(name, tmp_path))
            assert bad.status is Status.DEVICE_ERROR, bad.message
            assert said in bad.message
            assert measurer.submit(good).status is Status.OK
        hung = replace(job("hangs", tmp_path), limits=Limits(deadline_s=5.0))
        assert measurer.submit(hung).status is Status.TIMEOUT
        again = measurer.submit(good)
        assert again.status is Status.OK, again.message


def test_times_are_plausible_and_the_record_names_the_card(
    card: Device, runner: CudaRunner, tmp_path: Path
) -> None:
    warm = measure(job("twice", tmp_path), runner).measurement
    cold = measure(job("twice", tmp_path, protocol="cold"), runner).measurement
    assert warm is not None
    assert cold is not None
    least_us = 2 * 4 * SIZE / 12e12 * 1e6
    assert least_us < warm.median_us < 100.0
    assert cold.median_us > 2 * 4 * SIZE / 4.8e12 * 1e6
    assert cold.median_us > warm.median_us
    told = warm.conditions["device"]
    assert told["uuid"] == card.selector
    flat = {**told, **told["before"], **told["after"]}
    assert flat["power_w"] > 10
    assert 300 < flat["sm_mhz"] < 3000


def test_device_arrays_give_what_numpy_gives(runner: CudaRunner) -> None:
    one = CudaEngine(runner.context, runner.architecture)
    generator = np.random.default_rng(1)
    for name, function in FUNCTIONS.items():
        a, b = generator.standard_normal((2, 5, 4)) * 3
        a.reshape(-1)[:10], b.reshape(-1)[5:15] = ODD, ODD
        with np.errstate(all="ignore"):
            wanted = np.asarray(function(a, b)).astype(np.float64)
            got = np.asarray(function(uploaded(one, a), uploaded(one, b))).astype(np.float64)
        np.testing.assert_allclose(got, wanted, rtol=1e-10, atol=1e-12, err_msg=name)
        assert one.on_host == 0, name


def test_large_reductions_and_products_are_right(runner: CudaRunner) -> None:
    one = CudaEngine(runner.context, runner.architecture)
    generator = np.random.default_rng(2)
    x = generator.standard_normal((1000, 3001))
    placed = uploaded(one, x)
    np.testing.assert_allclose(np.asarray(placed.sum(axis=1)), x.sum(axis=1), atol=1e-9)
    np.testing.assert_allclose(np.asarray(placed.sum(axis=0)), x.sum(axis=0), atol=1e-9)
    assert float(placed.max()) == x.max()
    same(placed.transpose().copy(), x.T)
    a, b = generator.standard_normal((3, 130, 517)), generator.standard_normal((3, 517, 201))
    np.testing.assert_allclose(
        np.asarray(np.matmul(uploaded(one, a), uploaded(one, b))), a @ b, atol=1e-9
    )
    turned = uploaded(one, np.ascontiguousarray(b.transpose(0, 2, 1))).transpose((0, 2, 1))
    np.testing.assert_allclose(np.asarray(np.matmul(uploaded(one, a), turned)), a @ b, atol=1e-9)
    assert one.on_host == 0


@pytest.mark.parametrize("which", Pass)
def test_references_on_the_card_are_those_of_the_host(runner: CudaRunner, which: Pass) -> None:
    options = {"m": 700, "n": 900, "k": 1100, "dtype": "bf16", "trans_b": True}
    record = build_workload("gemm", options).record
    host = HirOracle(record).case(which, 5)
    place = runner.placement(1 << 30)
    assert place is not None
    device = HirOracle(record, placement=lambda _: place).case(which, 5)
    assert device.place == "device"
    for name, wanted in host.expected.items():
        for field in ("ref", "lo", "hi"):
            got = np.asarray(getattr(device.expected[name], field))
            np.testing.assert_allclose(got, getattr(wanted, field), rtol=1e-12, atol=1e-9)


def test_a_large_reference_takes_seconds(runner: CudaRunner) -> None:
    options = {"m": 4096, "n": 4096, "k": 4096, "dtype": "bf16", "trans_b": True}
    place = runner.placement(1 << 30)
    oracle = HirOracle(build_workload("gemm", options).record, placement=lambda _: place)
    started = time.perf_counter()
    oracle.case(Pass.NORMAL, 1)
    print(f"reference of 4096^3: {time.perf_counter() - started:.2f} s")


@pytest.mark.parametrize("toolchain", ["nvrtc", "nvcc"])
@pytest.mark.parametrize("name", WORKLOADS)
def test_sampled_candidates_are_right_on_the_card(
    name: str, toolchain: str, card: Device, runner: CudaRunner, tmp_path: Path
) -> None:
    op, options = WORKLOADS[name]
    one = target.problem(named_workload(op, options), card)
    compiler = compiler_named(toolchain)
    for number, point in enumerate(sample(one, 8 if toolchain == "nvrtc" else 2, seed=11)):
        code = one.emit(one.lower(point), point)
        out = tmp_path / f"{number}.cubin"
        done = compiler.compile(code, (), (), out, timeout_s=120, memory_bytes=MEMORY)
        assert done.status is Status.OK, done.log
        made = measure_job(one, point, out, code.launch, protocol="warm", limits=LIMITS)
        outcome = measure(made, runner)
        assert outcome.status is Status.OK, (point.params, outcome.message)


def test_calibration_gives_rates_that_a_card_can_have(runner: CudaRunner) -> None:
    facts = runner.calibrate()
    for name, fact in facts.items():
        print(f"{name:24s} {fact['value']:10.4g} {fact['unit']:14s} {fact['conditions']}")
    assert 200 < facts["bandwidth.copy"]["value"] < 20_000
    assert facts["bandwidth.shared"]["value"] < 140
    assert facts["rate.f32"]["value"] < 135
    assert 0.5 < facts["launch"]["value"] < 20


@pytest.fixture(scope="module")
def tuned(card: Device, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with a tuned softmax of 4096 x 2048 in f32 and bf16."""
    del card
    url = f"sqlite:///{tmp_path_factory.mktemp('db') / 'records.db'}"
    for dtype in ("f32", "bf16"):
        tfsearch.tune("softmax", rows=4096, cols=2048, dtype=dtype, target="cuda", trials=6, db=url)
    return url


def torch_library() -> Any:
    torch = pytest.importorskip("torch", reason="needs torch with a GPU")
    if not torch.cuda.is_available():
        pytest.skip("needs torch with a GPU")
    return torch


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_tuned_kernel_serves_tensors_on_their_stream(tuned: str, dtype: str) -> None:
    torch = torch_library()
    softmax = tfsearch.op("softmax", db=tuned)
    x = torch.randn(4096, 2048, device="cuda", dtype=getattr(torch, dtype))
    wanted = torch.softmax(x.double(), dim=1)
    tolerance = {"float32": 1e-5, "bfloat16": 1e-2}[dtype]
    y = softmax(x)
    assert softmax.served_by.value == "exact"
    assert type(y) is type(x)
    assert (y.double() - wanted).abs().max().item() <= tolerance
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x.mul_(2.0)
        z = softmax(x)
    side.synchronize()
    assert (z.double() - torch.softmax(x.double(), dim=1)).abs().max().item() <= tolerance


def test_a_kernel_is_captured_in_a_graph_and_bound(tuned: str) -> None:
    torch = torch_library()
    options = {"rows": 4096, "cols": 2048, "dtype": "f32", "target": "cuda"}
    kernel = tfsearch.lookup("softmax", **options, db=tuned)
    x, y = torch.randn(4096, 2048, device="cuda"), torch.empty(4096, 2048, device="cuda")
    kernel(x, out=y)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, out=y)
    x.copy_(torch.randn(4096, 2048, device="cuda"))
    y.zero_()
    graph.replay()
    torch.testing.assert_close(y, torch.softmax(x, dim=1))
    bound = kernel.bind(x, out=y)
    y.zero_()
    assert bound() is y
    torch.testing.assert_close(y, torch.softmax(x, dim=1))
    started = time.perf_counter()
    for _ in range(500):
        bound()
    spent = (time.perf_counter() - started) / 500 * 1e6
    torch.cuda.synchronize()
    print(f"prebound call: {spent:.2f} us on the host")


def test_threads_call_one_kernel_at_once(tuned: str) -> None:
    torch = torch_library()
    options = {"rows": 4096, "cols": 2048, "dtype": "f32", "target": "cuda"}
    kernel = tfsearch.lookup("softmax", **options, db=tuned)

    def work(seed: int) -> float:
        generator = torch.Generator(device="cuda").manual_seed(seed)
        with torch.cuda.stream(torch.cuda.Stream()):
            worst = 0.0
            for _ in range(20):
                x = torch.randn(4096, 2048, device="cuda", generator=generator)
                error = (kernel(x) - torch.softmax(x, dim=1)).abs().max().item()
                worst = max(worst, error)
        return worst

    with ThreadPoolExecutor(4) as pool:
        assert max(pool.map(work, range(4))) < 1e-5


def test_wrong_tensors_are_one_line_each(tuned: str) -> None:
    torch = torch_library()
    options = {"rows": 4096, "cols": 2048, "dtype": "f32", "target": "cuda"}
    kernel = tfsearch.lookup("softmax", **options, db=tuned)
    x = torch.randn(4096, 2048, device="cuda")
    flat = torch.empty(4096 * 2048 + 1, device="cuda")
    for wrong, out, code in (
        (x.cpu(), None, "array.device"),
        (x.numpy(force=True), None, "array.device"),
        (x.double(), None, "array.dtype"),
        (x[:100], None, "array.shape"),
        (x.t().contiguous().t(), None, "array.strides"),
        (flat[1:].view(4096, 2048), None, "array.alignment"),
        (x, x, "array.overlap"),
    ):
        with pytest.raises(RequestError) as caught:
            kernel(wrong, out=out)
        assert caught.value.code == code
    torch.testing.assert_close(kernel(x), torch.softmax(x, dim=1))
