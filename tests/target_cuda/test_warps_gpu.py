"""On a real card: contractions by single warps are right for any size, major, type and epilogue."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.target_cuda.support import MEMORY, compiler_named
from tests.target_cuda.test_warps import bound, sampled
from tfsearch.core.records import Status
from tfsearch.measure.job import Limits
from tfsearch.measure.run import measure
from tfsearch.plugin.jobs import measure_job
from tfsearch.plugin.target import Device
from tfsearch.target.cuda import target
from tfsearch.target.cuda.runner import CudaRunner, make

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]

LIMITS = Limits(deadline_s=60.0, budget_s=0.05)
F32 = {"dtype": "f32", "out_dtype": "f32"}
WORKLOADS: dict[str, tuple[tuple[int, int, int], dict[str, str]]] = {
    "whole tiles": ((1024, 512, 768), {}),
    "tails": ((1000, 330, 200), {}),
    "rows of eight bytes": ((500, 330, 204), {}),
    "rows of four bytes": ((500, 330, 202), {}),
    "odd rows": ((333, 555, 777), {}),
    "one row": ((1, 4096, 1024), {}),
    "one column": ((700, 1, 512), {}),
    "short sums": ((300, 300, 8), {}),
    "across b": ((512, 512, 512), {"trans_b": "false"}),
    "across b, odd": ((333, 555, 777), {"trans_b": "false"}),
    "across a": ((512, 520, 512), {"trans_a": "true"}),
    "across both": ((520, 512, 264), {"trans_a": "true", "trans_b": "false"}),
    "across both, odd": ((333, 555, 777), {"trans_a": "true", "trans_b": "false"}),
    "batched": ((200, 328, 136), {"batch": "5"}),
    "batched across, odd": ((77, 99, 133), {"batch": "5", "trans_b": "false"}),
    "f16": ((512, 640, 256), {"dtype": "f16", "out_dtype": "f16"}),
    "f16 to f32": ((512, 641, 256), {"dtype": "f16", "out_dtype": "f32"}),
    "bf16 to f32": ((333, 640, 256), {"out_dtype": "f32"}),
    "bias and gelu": ((512, 640, 256), {"epilogue": "bias+gelu"}),
    "bias, silu, residual": ((333, 555, 200), {"epilogue": "bias+silu+residual"}),
    "scale and relu": ((512, 640, 256), {"epilogue": "scale+relu", "batch": "2"}),
    "f32": ((512, 640, 256), F32),
    "f32, odd": ((333, 555, 201), F32),
    "f32 across both": ((512, 640, 256), {**F32, "trans_a": "true", "trans_b": "false"}),
    "f32 across both, odd": ((333, 555, 201), {**F32, "trans_a": "true", "trans_b": "false"}),
    "f32 batched, fused": ((130, 200, 77), {**F32, "batch": "3", "epilogue": "bias+gelu"}),
}


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


def right(
    sizes: tuple[int, int, int],
    options: dict[str, str],
    count: int,
    seed: int,
    card: Device,
    runner: CudaRunner,
    folder: Path,
) -> None:
    problem = bound(sizes, options, card)
    compiler = compiler_named("nvrtc")
    for number, point in enumerate(sampled(problem, count, seed)):
        code = problem.emit(problem.lower(point), point)
        out = folder / f"{number}.cubin"
        done = compiler.compile(code, (), (), out, timeout_s=120, memory_bytes=MEMORY)
        assert done.status is Status.OK, done.log
        job = measure_job(problem, point, out, code.launch, protocol="warm", limits=LIMITS)
        outcome = measure(job, runner)
        assert outcome.status is Status.OK, (sizes, options, point.params, outcome.message)


@pytest.mark.parametrize("name", WORKLOADS)
def test_sampled_points_are_right_on_the_card(
    name: str, card: Device, runner: CudaRunner, tmp_path: Path
) -> None:
    sizes, options = WORKLOADS[name]
    right(sizes, options, 6, 11, card, runner, tmp_path)


def test_random_workloads_are_right_on_the_card(
    card: Device, runner: CudaRunner, tmp_path: Path
) -> None:
    generator = np.random.default_rng(23)
    for number in range(20):
        m, n, k = (int(v) for v in generator.integers(1, 700, 3))
        dtype = str(generator.choice(["bf16", "f16", "f32"]))
        options = {
            "trans_a": str(bool(generator.integers(2))).lower(),
            "trans_b": str(bool(generator.integers(2))).lower(),
            "dtype": dtype,
            "out_dtype": str(generator.choice(["bf16", "f16", "f32"])),
            "batch": str(generator.integers(1, 4)),
        }
        right((m, n, k), options, 2, number, card, runner, tmp_path)
