"""A user's own kernel on a device: what is the same for every target.

A target that takes users' kernels has a method ``kernel_problem(workload, device)`` that gives a
:class:`KernelProblem`; it subclasses that with :meth:`~KernelProblem.source`, which turns a point
into text, macros and launch. There is no TIR, so nothing is proved: verification of the real
outputs is what stands between a wrong kernel and a record.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, MutableMapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, runtime_checkable

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec, EntrySpec
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Prediction
from tfsearch.plugin.target import Device, Problem, Source, Target
from tfsearch.space import Expr, Point, Points, Space
from tfsearch.space.file import KernelWorkload, kernel_workload

if TYPE_CHECKING:
    from tfsearch.ir.tir.nodes import Module
    from tfsearch.ir.workload import Workload
    from tfsearch.measure.compare import Baseline

ORACLE = "tfsearch.measure.reference:KernelOracle"
"""What the measuring process checks users' kernels with."""
NO_PROOF = "none: a user's own kernel has no TIR; its outputs are verified"


class KernelProblem(ABC):
    """See the module; as a :class:`~tfsearch.plugin.target.Problem` it predicts nothing."""

    def __init__(self, workload: KernelWorkload) -> None:
        self.workload: Any = workload
        self.kernel = workload
        self.space = Space((workload.file.space,))
        self.refusals: Sequence[Refusal] = ()

    @abstractmethod
    def source(self, point: Point) -> Source:
        """The kernel at a point; ``RequestError`` where the target cannot build or launch it."""

    def predict(self, points: Points, *, cold: bool = False) -> Prediction:
        """Nothing is known: no estimate ranks and no bound removes."""
        del cold
        count = len(points)
        return Prediction(np.full(count, np.nan), np.zeros(count), False, "")

    def facts(self, points: Points) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
        """None."""
        del points
        return {}

    def lower(self, point: Point, trace: MutableMapping[str, str] | None = None) -> Module:
        """``RequestError`` (``kernel.no-tir``)."""
        del point, trace
        self._no_tir()

    def reduced(self, point: Point) -> tuple[Workload, Module]:
        """``RequestError`` (``kernel.no-tir``)."""
        del point
        self._no_tir()

    def emit(self, module: Module, point: Point) -> Source:
        """``RequestError`` (``kernel.no-tir``): see :meth:`source`."""
        del module, point
        self._no_tir()

    def probes(self, point: Point) -> tuple[str, ...]:
        """None, unless the target knows better."""
        del point
        return ()

    def baseline(self) -> Baseline | None:
        """None: there is nothing to compare with."""
        return None

    def macros(self, point: Point) -> dict[str, str]:
        """Constants and parameters as the preprocessor's: booleans are 1 and 0.

        A constant that is an argument's name too is told by that argument, and is no macro.
        """
        arguments = {argument.name for argument in self.kernel.spec.arguments}
        values: dict[str, ParamValue] = {
            name: value
            for name, value in self.kernel.file.constants.items()
            if name not in arguments
        }
        # In the order of the file, whatever order a record has them in.
        values.update((p.name, point.params[p.name]) for p in self.kernel.file.space.parameters)
        return {
            name: str(int(value)) if isinstance(value, bool) else str(value)
            for name, value in values.items()
        }

    def entry(self, symbol: str) -> EntrySpec:
        """How the kernel is called: its arguments as the space file lists them."""
        arguments = tuple(
            ArgumentSpec(
                name=argument.name,
                dtype=argument.dtype.value,
                shape=argument.shape,
                strides=_dense(argument.shape),
                io=argument.io,
                alignment=self.kernel.spec.alignment,
            )
            for argument in self.kernel.spec.arguments
        )
        return EntrySpec(symbol, arguments, units=1, workspace_bytes=0)

    def geometry(self, point: Point) -> dict[str, list[int] | int]:
        """``grid``, ``block``, ``cluster`` and ``smem`` at a point, as far as they are stated.

        ``RequestError`` (``kernel.launch``) for what is no positive whole number.
        """
        launch, values = self.kernel.spec.launch, self._values(point)
        out: dict[str, list[int] | int] = {}
        for name in ("grid", "block", "cluster"):
            exprs: tuple[Expr, ...] = getattr(launch, name)
            if exprs:
                out[name] = [_whole(name, expr, values, 1) for expr in exprs]
        if launch.smem is not None:
            out["smem"] = _whole("smem", launch.smem, values, 0)
        return out

    def _values(self, point: Point) -> dict[str, Any]:
        """Everything that launch expressions may read, at a point."""
        recipe = self.kernel.file.space
        values: dict[str, Any] = dict(recipe.constants)
        for parameter in recipe.parameters:
            value = point.params[parameter.name]
            values[parameter.name] = parameter.seen[parameter.encode(value)]
        for definition in recipe.definitions:
            values[definition.name] = definition.expression.evaluate(values)
        return values

    def _no_tir(self) -> NoReturn:
        raise RequestError(
            "kernel.no-tir", f"{self.kernel.op} is a user's own kernel, which has no TIR"
        )


@runtime_checkable
class TakesKernels(Protocol):
    """A target that takes users' kernels."""

    def kernel_problem(self, workload: KernelWorkload, device: Device) -> KernelProblem:
        """Bind a kernel; ``RequestError`` for a language that the target does not build."""
        ...


def bound_problem(target: Target, workload: Workload | KernelWorkload, device: Device) -> Problem:
    """The problem of any workload on a target.

    ``RequestError`` (``target.no-kernels``) where a target takes programs only.
    """
    if not isinstance(workload, KernelWorkload):
        return target.problem(workload, device)
    if not isinstance(target, TakesKernels):
        raise RequestError(
            "target.no-kernels", f"target {target.name} takes programs, not users' own kernels"
        )
    return target.kernel_problem(workload, device)


def named_kernel(op: object, options: Mapping[str, Any]) -> KernelWorkload:
    """A kernel as Python callers name it: its source file, and keyword options.

    ``space`` is its space file, ``reference`` (``file.py:function``) wins over that file's, other
    options are constants of the file.
    """
    rest = dict(options)
    space, reference = rest.pop("space"), rest.pop("reference", None)
    if not isinstance(op, (str, Path)):
        raise RequestError("kernel.source", f"a kernel is the name of its source file, not {op!r}")
    return kernel_workload(op, space, {n: str(v) for n, v in rest.items()}, reference)


def flags_of(workload: KernelWorkload) -> tuple[str, ...]:
    """The space file's flags; relative paths among them are relative to its folder."""
    from tfsearch.toolchain.flags import absolute

    return tuple(absolute(workload.spec.flags, str(workload.file.path.parent.resolve())))


def source_of(problem: Problem, point: Point) -> Source:
    """What a point is built from: a kernel's own source, or its TIR emitted."""
    if isinstance(problem, KernelProblem):
        return problem.source(point)
    return problem.emit(problem.lower(point), point)


def _whole(what: str, expr: Expr, values: Mapping[str, Any], least: int) -> int:
    value = expr.evaluate(values)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise RequestError(
            "kernel.launch",
            f"{what} {expr.text!r} is {value!r} here; it must be a whole number from {least}",
        )
    return value


def _dense(shape: Sequence[int]) -> tuple[int, ...]:
    strides: list[int] = []
    step = 1
    for size in reversed(shape):
        strides.append(step)
        step *= size
    return tuple(reversed(strides))
