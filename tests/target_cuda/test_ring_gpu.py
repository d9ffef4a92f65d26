"""Ring kernels on a real card: a ladder, random points and shapes, epilogues, streams, graphs.

Every kernel of the ladder and of the random points runs in a process of its own with a time limit;
what is wrong is said by the part of the computation that explains it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfsearch
from tests.repository import ROOT
from tests.target_cuda.support import MEMORY, compiler_named
from tests.target_cuda.test_gpu import LIMITS, torch_library
from tfsearch.core.records import Status
from tfsearch.ir.hir.named import named_workload
from tfsearch.measure.run import measure
from tfsearch.plugin.jobs import measure_job
from tfsearch.plugin.target import Device
from tfsearch.search.scan import scan
from tfsearch.target.cuda import target
from tfsearch.target.cuda.runner import CudaRunner, make

sys.path.insert(0, str(ROOT / "benchmarks"))

import h200_ring_check as check

pytestmark = [pytest.mark.gpu, pytest.mark.xdist_group("gpu")]
TIMEOUT_S = 60.0


@pytest.fixture(scope="module")
def card() -> Device:
    found = target.devices()
    if not found:
        pytest.skip(f"needs an NVIDIA GPU: {target.absence()}")
    if "wgmma" not in target.atoms(found[0]).features:
        pytest.skip("needs a GPU with WGMMA")
    return found[0]


@pytest.fixture(scope="module")
def runner(card: Device) -> Iterator[CudaRunner]:
    one = make(card.selector)
    yield one
    one.close()


def verdict(step: check.Step, folder: Path) -> str:
    compiler_named("nvrtc")
    job = check.build(step, folder, 0)
    assert "failed" not in job, (step, job["failed"])
    path = folder / "job.json"
    path.write_text(json.dumps(job))
    return check.verdict_of(path, TIMEOUT_S)


@pytest.mark.parametrize("step", check.LADDER, ids=lambda step: step.name)
def test_a_step_of_the_ladder(step: check.Step, card: Device, tmp_path: Path) -> None:
    del card
    assert verdict(step, tmp_path) == "right", step


MAJORS: dict[str, dict[str, str]] = {
    "rows": {"trans_b": "true"},
    "first across": {"trans_a": "true", "trans_b": "true"},
    "second across": {"trans_b": "false"},
    "both across": {"trans_a": "true", "trans_b": "false"},
}


def drawn(majors: str, seed: int) -> check.Step:
    """Random sizes that copies of boxes take, and a random point for them."""
    generator = np.random.default_rng([seed, *majors.encode()])
    options = {**MAJORS[majors], "out_dtype": str(generator.choice(["bf16", "f32"]))}
    m, n, k = (int(8 * generator.integers(1, top)) for top in (160, 160, 80))
    if options.get("trans_a") != "true":
        m -= int(generator.integers(0, 8))
    if options["trans_b"] == "true":
        n -= int(generator.integers(0, 8))
    given = {"m": str(m), "n": str(n), "k": str(k), "dtype": "bf16", **options}
    problem = target.problem(named_workload("gemm", given), target.nominal())
    points = [p for p in problem.space.sample(40, generator) if p.recipe_name == "ring"]
    return check.Step(f"{majors} {seed}", (m, n, k), dict(points[0].params), options)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("majors", MAJORS)
def test_random_shapes_and_points(majors: str, seed: int, card: Device, tmp_path: Path) -> None:
    del card
    step = drawn(majors, seed)
    assert verdict(step, tmp_path) == "right", step


@pytest.mark.parametrize("epilogue", ["bias+relu", "bias+gelu+residual", "scale+silu"])
@pytest.mark.parametrize("dtype", ["bf16", "f16"])
def test_fused_work_in_the_order_of_the_model(
    epilogue: str, dtype: str, card: Device, runner: CudaRunner, tmp_path: Path
) -> None:
    options = {
        "m": "1000", "n": "1160", "k": "520", "dtype": dtype, "out_dtype": dtype,
        "trans_b": "true", "epilogue": epilogue,
    }  # fmt: skip
    problem = target.problem(named_workload("gemm", options), card)
    pool = scan(problem, keep=64).pool
    for row in range(0, len(pool), max(1, len(pool) // 4)):
        point = pool.point(row)
        code = problem.emit(problem.lower(point), point)
        out = tmp_path / f"{row}.cubin"
        done = compiler_named("nvrtc").compile(
            code, (), (), out, timeout_s=120, memory_bytes=MEMORY
        )
        assert done.status is Status.OK, done.log
        job = measure_job(problem, point, out, code.launch, protocol="warm", limits=LIMITS)
        outcome = measure(job, runner)
        assert outcome.status is Status.OK, (point.params, outcome.message)


SIZES: dict[str, Any] = {"m": 512, "n": 640, "k": 1024}


@pytest.fixture(scope="module")
def tuned(card: Device, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A database with a tuned product in bf16."""
    del card
    url = f"sqlite:///{tmp_path_factory.mktemp('db') / 'records.db'}"
    given = {**SIZES, "dtype": "bf16", "out_dtype": "bf16", "trans_b": True}
    tfsearch.tune("gemm", **given, target="cuda", trials=4, db=url)
    return url


def test_tensors_on_a_side_stream_and_in_a_graph(tuned: str) -> None:
    torch = torch_library()
    given = {**SIZES, "dtype": "bf16", "out_dtype": "bf16", "trans_b": True, "target": "cuda"}
    kernel = tfsearch.lookup("gemm", **given, db=tuned)
    make_one = {"device": "cuda", "dtype": torch.bfloat16}
    a, b = torch.randn(512, 1024, **make_one), torch.randn(640, 1024, **make_one)
    c = torch.empty(512, 640, **make_one)

    def far(found: Any) -> float:
        wanted = a.double() @ b.double().T
        return float(((found.double() - wanted).abs() / (wanted.abs() + 8)).max())

    assert far(kernel(a, b)) < 0.01
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        a.mul_(2.0)
        kernel(a, b, out=c)
    side.synchronize()
    assert far(c) < 0.01
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(a, b, out=c)
    a.copy_(torch.randn(512, 1024, **make_one))
    c.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert far(c) < 0.01
    # Descriptors hold addresses: other tensors are not read at those of earlier calls.
    for _ in range(4):
        a, b = torch.randn(512, 1024, **make_one), torch.randn(640, 1024, **make_one)
        assert far(kernel(a, b)) < 0.01
