"""The null target with one more parameter: how the candidate fails."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Status
from tfsearch.cost.model import Prediction
from tfsearch.ir.tir.nodes import Call, Module, Window
from tfsearch.ir.workload import Workload
from tfsearch.plugin.target import CompileOutcome, Compiler, Device, Problem, Source
from tfsearch.space import Kind, Parameter, Point, Points, RecipeSpace, Space
from tfsearch.target.null import NullTarget
from tfsearch.target.null.compiler import NullCompiler
from tfsearch.target.null.problem import NullProblem
from tfsearch.target.null.runner import NullLoaded, NullRunner

BY_FAULT = {
    "none": Status.OK,
    "lowering_raises": Status.REFUSED,
    "bad_window": Status.REFUSED,
    "wrong_tir": Status.REFUSED,
    "compile_error": Status.COMPILE_ERROR,
    "compile_crash": Status.COMPILE_CRASH,
    "compile_timeout": Status.COMPILE_TIMEOUT,
    "compile_raises": Status.COMPILE_CRASH,
    "load_error": Status.LOAD_ERROR,
    "off_by_one": Status.WRONG,
    "zeros": Status.WRONG,
    "unwritten": Status.WRONG,
    "input_changed": Status.WRONG,
    "late": Status.WRONG,
    "nondeterministic": Status.NONDETERMINISTIC,
    "implausible": Status.IMPLAUSIBLE,
    "crash": Status.CRASH,
    "exits": Status.CRASH,
    "raises": Status.CRASH,
    "hang": Status.TIMEOUT,
    "out_of_memory": Status.OUT_OF_MEMORY,
    "device_error": Status.DEVICE_ERROR,
}
"""Every fault and the status it must end in."""

WRONG = tuple(name for name, status in BY_FAULT.items() if status is Status.WRONG)
ONE_POINT: Mapping[str, int | str] = {
    "block": 64,
    "lanes": 16,
    "unroll": 2,
    "stages": 2,
    "order": "forward",
}
"""All other parameters fixed: the faults are what is left of the space."""


class FaultyTarget(NullTarget):
    name = "faulty"
    runner = "tests.tune.faulty:make"

    def problem(self, workload: Workload, device: Device) -> Problem:
        return FaultyProblem(workload, device)

    def compiler(self, name: str | None) -> Compiler:
        super().compiler(name)
        return FaultyCompiler(self.name)


class TightTarget(NullTarget):
    """The null target with a bound just below each point's time."""

    name = "tight"

    def problem(self, workload: Workload, device: Device) -> Problem:
        return TightProblem(workload, device)


class TightProblem(NullProblem):
    def predict(self, points: Points, *, cold: bool = False) -> Prediction:
        found = super().predict(points, cold=cold)
        return replace(found, bound_us=0.99 * found.estimate_us)


class FaultyProblem(NullProblem):
    def __init__(self, workload: Workload, device: Device) -> None:
        super().__init__(workload, device)
        recipe = self.space.recipes[0]
        fault = Parameter("fault", tuple(BY_FAULT), Kind.CATEGORICAL)
        self.space = Space(
            (
                RecipeSpace(
                    recipe.name,
                    recipe.version,
                    (*recipe.parameters, fault),
                    constraints=recipe.constraints,
                ),
            )
        )

    def lower(self, point: Point, trace: MutableMapping[str, str] | None = None) -> Module:
        module = super().lower(point, trace)
        match point.params["fault"]:
            case "lowering_raises":
                raise ZeroDivisionError("planted in lowering")
            case "bad_window":
                return _widened(module)
        return module

    def reduced(self, point: Point) -> tuple[Workload, Module]:
        workload, module = super().reduced(point)
        if point.params["fault"] == "wrong_tir":
            module = _without_computation(module)
        return workload, module


class FaultyCompiler(NullCompiler):
    def compile(
        self,
        source: Source,
        flags: Sequence[str],
        macros: Sequence[str],
        out: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> CompileOutcome:
        for fault, status in BY_FAULT.items():
            if f'"{fault}"' in source.text and fault.startswith("compile_"):
                if fault == "compile_raises":
                    raise OSError("planted in the compiler")
                return CompileOutcome(status, 0.1, f"planted {fault}")
        return super().compile(
            source, flags, macros, out, timeout_s=timeout_s, memory_bytes=memory_bytes
        )


class FaultyLoaded(NullLoaded):
    def __init__(self, document: Mapping[str, Any], launch: LaunchSpec) -> None:
        super().__init__(document, launch)
        self.fault = document["params"].get("fault", "none")
        self.calls = 0
        if self.fault in WRONG:
            self.time_us /= 8  # wrong kernels are fast, as they are in life

    def call(self, arguments: Any) -> None:
        self.calls += 1
        match self.fault:
            case "crash":
                os.kill(os.getpid(), signal.SIGSEGV)
            case "exits":
                os._exit(3)
            case "raises":
                raise ArithmeticError("planted in a call")
            case "hang":
                time.sleep(600)
            case "out_of_memory":
                raise MemoryError
            case "device_error":
                raise OSError(5, "planted device error")
            case "unwritten":
                return
        super().call(arguments)
        name = self.program.outputs[0][0]
        out = arguments.read(name)
        match self.fault:
            case "off_by_one":
                out.flat[-1] += np.asarray(1, out.dtype)
            case "zeros":
                out[...] = 0
            case "late" if self.calls > 10:
                out.flat[0] = 0
            case "input_changed":
                first = self.program.input_names[0]
                arguments.write(first, arguments.read(first) + np.asarray(1, out.dtype))
            case "nondeterministic":
                # Within the bounds of every pass, and untouched where the result is exact.
                if self.calls % 2 and bool((out != np.rint(out)).any()):
                    out[...] = np.nextafter(out, np.inf)
        arguments.write(name, out)


class FaultyRunner(NullRunner):
    def load(self, artifact: Path, launch: LaunchSpec) -> NullLoaded:
        document = self.read(artifact)
        if document["params"].get("fault") == "load_error":
            raise OSError("planted in the loader")
        return FaultyLoaded(document, launch)

    def time(self, kernels: Any, arguments: Any, batches: Any, rounds: int, **options: Any) -> Any:
        times = super().time(kernels, arguments, batches, rounds, **options)
        for column, kernel in enumerate(kernels):
            if getattr(kernel, "fault", "") == "implausible":
                times[:, column] = 1
        return times


def make(selector: str) -> FaultyRunner:
    assert selector == "null"
    return FaultyRunner()


def _widened(module: Module) -> Module:
    """The last call's window reaches past its buffer."""
    body = list(module.main.body)
    call = body[-1]
    assert isinstance(call, Call)
    first = call.operands[0]
    assert isinstance(first, Window)
    wider = replace(first, extents=tuple(extent + 1 for extent in first.extents))
    body[-1] = replace(call, operands=(wider, *call.operands[1:]))
    return Module((replace(module.main, body=tuple(body)),))


def _without_computation(module: Module) -> Module:
    """The last computing call is done on its inputs in the wrong order of magnitude: twice."""
    body = list(module.main.body)
    call = body[-1]
    assert isinstance(call, Call)
    field = call.atom.rpartition(".")[2]
    doubled = f"null.binary.add.{field}.{field}"
    body[-1] = Call(doubled, (call.operands[0], call.operands[1], call.operands[1]))
    return Module((replace(module.main, body=tuple(body)),))
