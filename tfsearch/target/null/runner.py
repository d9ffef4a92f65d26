"""The null device's runner: NumPy computes, the clock is simulated.

Outputs are the float64 reference rounded to each output's type. Times come from
:mod:`tfsearch.target.null.model` with seeded noise; no clock is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np

from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import WorkloadRecord
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.rounding import round_to
from tfsearch.ir.hir.text import parse_program
from tfsearch.measure.buffers import HostArguments
from tfsearch.target.null import model

Array = np.ndarray[Any, np.dtype[Any]]

BASELINE = {"block": 32, "lanes": 4, "unroll": 1, "stages": 1, "order": "forward"}
"""Parameters of the simulated baseline."""


class NullLoaded:
    """A loaded document."""

    def __init__(self, document: Mapping[str, Any], launch: LaunchSpec) -> None:
        self.launch = launch
        self.document = document
        self.program = parse_program(document["program"])
        facts = {"work": model.work(self.program), "bytes": model.traffic(self.program)}
        self.time_us = model.time_us(facts, document["params"])

    def bind(self, inputs: Mapping[str, Array]) -> HostArguments:
        """Guarded host memory with the inputs copied in."""
        return HostArguments(self.launch, inputs)

    def call(self, arguments: HostArguments) -> None:
        """Evaluate the program."""
        inputs = {name: arguments.read(name) for name in self.program.input_names}
        outputs = evaluate(self.program, inputs)
        for (name, _), kind, value in zip(
            self.program.outputs, self.program.output_types, outputs, strict=True
        ):
            arguments.write(name, round_to(kind.dtype, value))


class NullRunner:
    """Loads documents and invents times; there is nothing to close."""

    def load(self, artifact: Path, launch: LaunchSpec) -> NullLoaded:
        """Read a document; ``OSError`` when the file is not one."""
        return NullLoaded(self.read(artifact), launch)

    @staticmethod
    def read(artifact: Path) -> Mapping[str, Any]:
        """The document inside an artifact; ``OSError`` when the file is not one."""
        try:
            content = json.loads(artifact.read_text())
            return cast("Mapping[str, Any]", content["document"])
        except (ValueError, KeyError, TypeError) as error:
            raise OSError(f"{artifact.name} is not an artifact of the null target") from error

    def time(
        self,
        kernels: Sequence[NullLoaded],
        arguments: Sequence[Sequence[HostArguments]],
        batches: Sequence[int],
        rounds: int,
        *,
        cold: bool,
        seed: int,
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Simulated nanoseconds of each batch, shape [rounds, kernels].

        Every kernel really runs once on each of its argument sets. A cold call takes a fifth
        longer.
        """
        for kernel, sets in zip(kernels, arguments, strict=True):
            for one in sets:
                kernel.call(one)
        generator = np.random.default_rng(seed)
        noise = np.abs(generator.standard_normal((rounds, len(kernels))))
        once = np.array([kernel.time_us for kernel in kernels]) * 1000.0 * (1.2 if cold else 1.0)
        times = once * np.asarray(batches) * (1.0 + model.NOISE * noise)
        return np.maximum(times, 1.0).astype(np.int64)

    def probe(self, names: Sequence[str]) -> Mapping[str, float]:
        """Every probe of a simulated machine reads 1."""
        return dict.fromkeys(names, 1.0)

    def close(self) -> None:
        """Nothing is held."""


def baseline(workload: WorkloadRecord, launch: LaunchSpec) -> NullLoaded:
    """The kernel that nobody tuned, for a workload."""
    return NullLoaded({"program": workload.program, "params": BASELINE}, launch)


def make(selector: str) -> NullRunner:
    """The runner of the one null device."""
    if selector != "null":
        raise OSError(f"the null target has one device, 'null', not {selector!r}")
    return NullRunner()
