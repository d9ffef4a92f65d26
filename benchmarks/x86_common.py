"""What the x86 benchmark programs share: machine facts, building many candidates, timing them."""

from __future__ import annotations

import copy
import os
import platform
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core import settings
from tfsearch.core.records import Status
from tfsearch.db import ArtifactStore
from tfsearch.ir.workload import Workload
from tfsearch.measure.inputs import Pass, make_inputs
from tfsearch.plugin.target import Compiler, Problem
from tfsearch.space import Point
from tfsearch.target.x86.device import document_of, processor
from tfsearch.target.x86.runner import Packed, X86Arguments, X86Loaded, X86Runner

ARGUMENT_SETS = 2
ROUND_NS = 2_000_000


def winner(report: Any, store: Any) -> X86Loaded:
    """The tuned winner as a loaded kernel."""
    artifacts = ArtifactStore(settings.load().artifacts)
    trial = store.trial(report.best.trial).trial
    launch = store.launch(trial.build.key.launch)
    return X86Loaded(artifacts.path(trial.build.artifact), launch)


def machine_facts() -> dict[str, Any]:
    """The machine's facts that stand beside every result."""
    cpu = processor()
    load = os.getloadavg()
    return {
        "device": cpu.record.name,
        "document": document_of(cpu).name,
        "units": cpu.units,
        "caches": list(cpu.caches),
        "memory_bytes": cpu.memory_bytes,
        "system": platform.platform(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "load": list(load),
    }


@dataclass(frozen=True)
class Built:
    """A compiled candidate, loaded."""

    point: Point
    loaded: X86Loaded
    predicted_us: float


def build_all(
    problem: Problem,
    points: Sequence[tuple[Point, float]],
    compiler: Compiler,
    workers: int,
    folder: Path | None = None,
) -> list[Built]:
    """Compile and load candidates; those that fail are left out."""
    folder = folder or Path(tempfile.mkdtemp(prefix="tfsearch-bench-"))

    def one(job: tuple[int, tuple[Point, float]]) -> Built | None:
        index, (point, predicted) = job
        source = problem.emit(problem.lower(point), point)
        out = folder / f"{index}.so"
        outcome = compiler.compile(source, (), (), out, timeout_s=120, memory_bytes=4 << 30)
        if outcome.status is not Status.OK:
            return None
        return Built(point, X86Loaded(out, source.launch), predicted)

    with ThreadPoolExecutor(workers) as pool:
        return [built for built in pool.map(one, enumerate(points)) if built is not None]


def bind_all(workload: Workload, loaded: Sequence[Any], seed: int = 0) -> list[list[Any]]:
    """Argument sets of random inputs for each kernel; all kernels see the same numbers."""
    sets = [
        make_inputs(workload.program, Pass.NORMAL, seed + index) for index in range(ARGUMENT_SETS)
    ]
    bound: list[list[Any]] = []
    shared: dict[Any, list[Any]] = {}
    for kernel in loaded:
        arguments = kernel.launch.main.arguments
        if kernel.launch.prepares or not isinstance(kernel, X86Loaded):
            bound.append([kernel.bind(inputs) for inputs in sets])
            continue
        # Kernels of one signature share their arrays: hundreds of copies would fill the memory.
        if arguments not in shared:
            shared[arguments] = [kernel.bind(inputs) for inputs in sets]
        own = [copy.copy(one) for one in shared[arguments]]
        for one in own:
            place = {argument.name: one.address(argument.name) for argument in arguments}
            one.packed = Packed(kernel.launch.main, place)
        bound.append(own)
    return bound


def batches_for(
    runner: X86Runner, kernels: Sequence[X86Loaded], arguments: Sequence[Sequence[X86Arguments]]
) -> list[int]:
    """Calls per timed batch so that a batch takes about two milliseconds, after a warm-up."""
    out: list[int] = []
    for kernel, own in zip(kernels, arguments, strict=True):
        once = runner.time([kernel], [own], [1], 3, cold=False, seed=0)
        out.append(int(np.clip(ROUND_NS // max(int(once.min()), 1), 1, 10_000)))
    return out
