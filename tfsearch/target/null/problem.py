"""One workload on the null device: its space, predictions, lowering and emission."""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import Refusal
from tfsearch.cost.model import Prediction
from tfsearch.ir.hir.ops import ConstAttrs, OpKind
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.text import print_program
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.nodes import Buffer, Io, MemorySpace, Module, Param, Scalar, whole
from tfsearch.ir.workload import Workload
from tfsearch.measure.compare import Baseline
from tfsearch.plugin.target import Device, Source
from tfsearch.recipes.resize import DimensionClasses
from tfsearch.space import Constraint, Kind, Parameter, Point, Points, RecipeSpace, Space
from tfsearch.target.null import model
from tfsearch.target.null.atoms import CONFIGURE, copy_atom, fill_atom, op_atom

RECIPE = "whole"
RECIPE_VERSION = 1
REDUCED_SIZES = (3, 5, 7, 4, 6, 2)
"""Sizes that dimensions are reduced to, one for each size of the program."""

MAIN = "null_main"


class NullProblem:
    """Evaluates any program whose dimensions are constants."""

    def __init__(self, workload: Workload, device: Device) -> None:
        if workload.program.ranges:
            names = ", ".join(workload.program.ranges)
            raise RequestError(
                "null.dynamic", f"the null target needs every dimension bound; open: {names}"
            )
        self.workload = workload
        self.device = device
        self.refusals: Sequence[Refusal] = ()
        self.space = Space((_recipe(),))
        program = workload.program
        self._facts = {"work": model.work(program), "bytes": model.traffic(program)}

    @cached_property
    def _small(self) -> Workload:
        return replace(self.workload, program=reduce_program(self.workload.program))

    @cached_property
    def _text(self) -> str:
        return print_program(self.workload.program)

    def predict(self, points: Points, *, cold: bool = False) -> Prediction:
        """Estimates by the simulated model without its hidden terms; one bound for all.

        The simulated clock knows no caches, so ``cold`` changes nothing.
        """
        del cold
        columns = {name: points.column(name) for name in ("block", "lanes", "unroll", "stages")}
        return Prediction(
            estimate_us=model.estimate_us(self._facts, columns),
            bound_us=np.full(len(points), model.bound_us(self._facts)),
            calibrated=True,
            document="",
        )

    def facts(self, points: Points) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
        """``work`` (operations) and ``bytes`` of the program, the same for every point."""
        return {name: np.full(len(points), value) for name, value in self._facts.items()}

    def lower(self, point: Point, trace: MutableMapping[str, str] | None = None) -> Module:
        """One atom per op on whole buffers, after one that states the parameters."""
        if trace is not None:
            trace["program"] = print_program(self.workload.program)
        return lower(self.workload, point)

    def reduced(self, point: Point) -> tuple[Workload, Module]:
        """The program with every size made small, equal sizes staying equal.

        Numeric parameters are stated as 1, for they change nothing that is computed. Programs
        whose sizes cannot be changed (reshapes that split a dimension) stay whole.
        """
        workload = self._small
        numeric = dict.fromkeys(("block", "lanes", "unroll", "stages"), 1)
        return workload, lower(workload, Point(RECIPE, {**point.params, **numeric}))

    def emit(self, module: Module, point: Point) -> Source:
        """A JSON document: the program's text and the parameters."""
        document = {
            "program": self._text,
            "params": dict(point.params),
        }
        arguments = tuple(_argument(param, self.workload) for param in module.main.params)
        return Source(
            text=json.dumps(document, sort_keys=True, indent=1) + "\n",
            language="json",
            launch=LaunchSpec(EntrySpec(MAIN, arguments, units=1, workspace_bytes=0)),
            features=(),
            flags=(),
        )

    def probes(self, point: Point) -> tuple[str, ...]:
        """None: a simulated machine does not drift."""
        del point
        return ()

    def baseline(self) -> Baseline | None:
        """A simulated kernel that nobody tuned."""
        return Baseline("simulated", "tfsearch.target.null.runner:baseline")


def lower(workload: Workload, point: Point) -> Module:
    """TIR of a bound program at a point."""
    program, build = workload.program, Builder()
    inputs = [
        Param(_global(item.name, item.type, workload.alignment), Io.IN) for item in program.inputs
    ]
    outputs = [
        Param(_global(name, kind, workload.alignment), Io.OUT)
        for (name, _), kind in zip(program.outputs, program.output_types, strict=True)
    ]
    params = point.params
    build.call(
        CONFIGURE,
        *(int(params[name]) for name in ("block", "lanes", "unroll", "stages")),
        int(params["order"] == "backward"),
    )
    values: dict[int, Buffer] = {i: param.buffer for i, param in enumerate(inputs)}
    for index in _order(program, backward=params["order"] == "backward"):
        op = program.ops[index]
        sizes = op.type.sizes or (1,)
        buffer = build.alloc(f"v{index}", op.type.dtype, sizes, MemorySpace.LOCAL)
        values[index] = buffer
        if isinstance(op.attrs, ConstAttrs):
            build.call(fill_atom(op.type.dtype), whole(buffer), Scalar(float(op.attrs.value)))
        else:
            sources = (whole(values[o]) for o in op.operands)
            build.call(op_atom(program, index), whole(buffer), *sources)
    for (_, index), param in zip(program.outputs, outputs, strict=True):
        atom = copy_atom(program.ops[index].type)
        build.call(atom, whole(param.buffer), whole(values[index]))
    return Module((build.kernel(MAIN, (*inputs, *outputs), units=1),))


def reduce_program(program: Program) -> Program:
    """The program at small sizes; the program itself where that is not possible."""
    sizes = sorted({n for op in program.ops for n in op.type.sizes if n > 1})
    small = {1: 1}
    for position, size in enumerate(sizes):
        small[size] = min(size, REDUCED_SIZES[position % len(REDUCED_SIZES)])
    try:
        return DimensionClasses(program).resized(
            {
                (value, dim): small[size]
                for value, op in enumerate(program.ops)
                for dim, size in enumerate(op.type.sizes)
            }
        )
    except RequestError:
        return program


def _order(program: Program, *, backward: bool) -> list[int]:
    """Values in the program's order, or each as late as its first use allows."""
    computed = [i for i, op in enumerate(program.ops) if op.kind is not OpKind.INPUT]
    if not backward:
        return computed
    order: list[int] = []
    pending = set(computed)

    def visit(index: int) -> None:
        stack = [(index, False)]
        while stack:
            value, ready = stack.pop()
            if value not in pending:
                continue
            if ready:
                pending.discard(value)
                order.append(value)
            else:
                stack.append((value, True))
                stack.extend((o, False) for o in program.ops[value].operands)

    for _, index in reversed(program.outputs):
        visit(index)
    return order


def _global(name: str, kind: TensorType, alignment: int) -> Buffer:
    if not kind.sizes:
        return Buffer(name, kind.dtype, (1,), MemorySpace.GLOBAL, None, alignment)
    return Buffer(name, kind.dtype, kind.sizes, MemorySpace.GLOBAL, kind.strides, alignment)


def _argument(param: Param, workload: Workload) -> ArgumentSpec:
    program, name = workload.program, param.buffer.name
    types = {item.name: item.type for item in program.inputs}
    names = [output for output, _ in program.outputs]
    types.update(zip(names, program.output_types, strict=True))
    kind = types[name]
    return ArgumentSpec(
        name=name,
        dtype=kind.dtype.value,
        shape=kind.sizes,
        strides=kind.element_strides,
        io=param.io.value,
        alignment=workload.alignment,
    )


def _recipe() -> RecipeSpace:
    return RecipeSpace(
        RECIPE,
        RECIPE_VERSION,
        (
            Parameter("block", model.BLOCKS, Kind.ORDINAL),
            Parameter("lanes", model.LANES, Kind.ORDINAL),
            Parameter("unroll", model.UNROLLS, Kind.ORDINAL),
            Parameter("stages", model.STAGES, Kind.ORDINAL),
            Parameter("order", model.ORDERS, Kind.CATEGORICAL),
        ),
        constraints=(
            Constraint(
                "null.lanes", "lanes <= block", "{lanes} lanes do not fit a block of {block}"
            ),
            Constraint(
                "null.capacity",
                "block * unroll * stages <= 2048",
                "block {block} · unroll {unroll} · stages {stages} exceeds 2048 elements",
            ),
        ),
    )
