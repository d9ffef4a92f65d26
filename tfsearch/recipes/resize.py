"""The same program at other sizes.

Two dimensions belong to one class when the program only makes sense if they have one size: the
rows of both operands of a sum, the contracted axes of a product, a reduction's kept axes. A
program is resized class by class, so that a recipe shape can be interpreted at sizes small
enough to be quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tfsearch.core.errors import RequestError
from tfsearch.ir.hir.ops import (
    ELEMENTWISE,
    BroadcastAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    TransposeAttrs,
)
from tfsearch.ir.hir.program import Input, Op, Program
from tfsearch.ir.hir.types import TensorType

Position = tuple[int, int]
"""A value's index and one of its dimensions."""

GAP = 3
"""Elements between rows of a resized input whose original rows have a gap."""


class DimensionClasses:
    """Which dimensions of a program must have one size.

    ``RequestError`` for a program with a reshape that splits or joins dimensions.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._parent: dict[Position, Position] = {}
        for index, op in enumerate(program.ops):
            self._unify_op(index, op)

    def of(self, value: int, dim: int) -> Position:
        """The representative of a dimension's class."""
        position = (value, dim)
        while self._parent.get(position, position) != position:
            position = self._parent[position]
        return position

    def resized(self, sizes: Mapping[Position, int]) -> Program:
        """The program with new sizes for the classes of the given positions.

        ``RequestError`` when a class is given two sizes.
        """
        wanted: dict[Position, int] = {}
        for position, size in sizes.items():
            root = self.of(*position)
            if wanted.setdefault(root, size) != size:
                raise RequestError("resize.conflict", "one class of dimensions, two sizes")
        ops: list[Op] = []
        for index, op in enumerate(self.program.ops):
            shape = tuple(
                wanted.get(self.of(index, dim), size) for dim, size in enumerate(op.type.sizes)
            )
            ops.append(replace(op, type=_resized_type(op.type, shape)))
        inputs = tuple(
            Input(item.name, ops[index].type) for index, item in enumerate(self.program.inputs)
        )
        return Program(self.program.name, inputs, tuple(ops), self.program.outputs)

    def _unify(self, a: Position, b: Position) -> None:
        roots = sorted((self.of(*a), self.of(*b)))
        self._parent[roots[1]] = roots[0]

    def _unify_op(self, index: int, op: Op) -> None:
        match op.attrs:
            case BroadcastAttrs(dims):
                source = op.operands[0]
                for i, dim in enumerate(dims):
                    if self.program.ops[source].type.sizes[i] == op.type.sizes[dim]:
                        self._unify((source, i), (index, dim))
            case TransposeAttrs(perm):
                for i, p in enumerate(perm):
                    self._unify((op.operands[0], p), (index, i))
            case ReduceAttrs(_, axes):
                kept = [d for d in range(len(self._sizes(op.operands[0]))) if d not in axes]
                for i, dim in enumerate(kept):
                    self._unify((op.operands[0], dim), (index, i))
            case ContractAttrs():
                self._unify_contraction(index, op, op.attrs)
            case _:
                if op.kind is OpKind.RESHAPE:
                    self._unify_reshape(index, op)
                if op.kind in ELEMENTWISE:
                    for operand in op.operands:
                        for dim in range(len(op.type.shape)):
                            self._unify((operand, dim), (index, dim))

    def _unify_reshape(self, index: int, op: Op) -> None:
        source = op.operands[0]
        before = [d for d, n in enumerate(self._sizes(source)) if n != 1]
        after = [d for d, n in enumerate(op.type.sizes) if n != 1]
        if [self._sizes(source)[d] for d in before] != [op.type.sizes[d] for d in after]:
            raise RequestError("resize.reshape", "a reshape that splits or joins pins its sizes")
        for a, b in zip(before, after, strict=True):
            self._unify((source, a), (index, b))

    def _unify_contraction(self, index: int, op: Op, attrs: ContractAttrs) -> None:
        places: dict[str, Position] = {}
        sides = ((op.operands[0], attrs.lhs), (op.operands[1], attrs.rhs), (index, attrs.out))
        for value, labels in sides:
            for dim, label in enumerate(labels):
                if label in places:
                    self._unify(places[label], (value, dim))
                else:
                    places[label] = (value, dim)

    def _sizes(self, value: int) -> tuple[int, ...]:
        return self.program.ops[value].type.sizes


def _resized_type(old: TensorType, shape: tuple[int, ...]) -> TensorType:
    """The type with a new shape; the order of strides and the presence of gaps stay."""
    if old.strides is None or shape == old.sizes:
        return TensorType(old.dtype, shape, old.strides)
    order = sorted(range(len(shape)), key=lambda d: (old.element_strides[d], -d))
    strides = [0] * len(shape)
    step = reach = 1
    for position, dim in enumerate(order):
        gap = old.element_strides[dim] != reach
        step += (old.element_strides[dim] - 1 if position == 0 else GAP) if gap else 0
        strides[dim] = step
        step *= shape[dim]
        reach = old.element_strides[dim] * old.sizes[dim]
    return TensorType(old.dtype, shape, tuple(strides))
