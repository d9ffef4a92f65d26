"""Iteration domains: arguments, axes walked as one, places, the shares of units."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from tfsearch.core.launch import LaunchSpec
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, as_expr
from tfsearch.ir.tir.nodes import Buffer, MemorySpace
from tfsearch.recipes.fragments import Labels, Place, operand_labels

Visits = Mapping[int, frozenset[Labels]]
"""For each value, the labels under which it is evaluated."""


def visits(program: Program, roots: Iterable[tuple[int, Labels]]) -> dict[int, frozenset[Labels]]:
    """Every value that the roots are computed from by maps, with its labels.

    Raises ``RequestError`` where elements move in a way that no window of a buffer follows.
    """
    found: dict[int, set[Labels]] = {}
    stack = list(roots)
    while stack:
        value, labels = stack.pop()
        known = found.setdefault(value, set())
        if labels in known:
            continue
        known.add(labels)
        op = program.ops[value]
        if op.operands:
            stack.extend(zip(op.operands, operand_labels(program, value, labels), strict=True))
    return {value: frozenset(labels) for value, labels in found.items()}


@dataclass(frozen=True)
class Argument:
    """An argument as a kernel sees it.

    ``shape`` has the rank of the program's type; where neighbouring dimensions are walked as
    one axis, the outer ones have extent 1 and the innermost of them has all elements.
    """

    name: str
    type: TensorType
    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @staticmethod
    def of(name: str, type_: TensorType) -> Argument:
        """The argument in its own shape; a scalar is an array of one element."""
        if not type_.rank:
            return Argument(name, type_, (1,), (1,))
        return Argument(name, type_, type_.sizes, type_.element_strides)

    def buffer(self, alignment: int) -> Buffer:
        """The kernel's parameter; ``alignment`` in bytes is what callers guarantee."""
        dense = Buffer(self.name, self.type.dtype, self.shape, MemorySpace.GLOBAL, None, alignment)
        if dense.dense_strides == self.strides:
            return dense
        return replace(dense, strides=self.strides)


def as_called(launch: LaunchSpec, program: Program) -> LaunchSpec:
    """The launch specification with every argument in the shape that the program's caller sees.

    Kernels walk neighbouring dimensions as one and scalars as arrays of one element; the memory
    is the same.
    """
    types = {i.name: i.type for i in program.inputs}
    names = [name for name, _ in program.outputs]
    types.update(zip(names, program.output_types, strict=True))
    arguments = tuple(
        replace(a, shape=types[a.name].sizes, strides=types[a.name].element_strides)
        if a.name in types
        else a
        for a in launch.main.arguments
    )
    return replace(launch, main=replace(launch.main, arguments=arguments))


@dataclass(frozen=True)
class Collapse:
    """Neighbouring axes walked as one: the outer axes that are gone, and the new extents."""

    gone: frozenset[str]
    extents: Mapping[str, int]

    def labels(self, labels: Labels) -> Labels:
        """Labels after the collapse: dimensions of axes that are gone have none."""
        return tuple(None if axis in self.gone else axis for axis in labels)

    def argument(self, argument: Argument, labels: Labels) -> Argument:
        """The argument with the dimensions of axes that are gone folded into their neighbours."""
        shape = list(argument.shape)
        for dim, axis in enumerate(labels):
            if axis in self.gone:
                shape[dim] = 1
            elif axis is not None and shape[dim] > 1:
                shape[dim] = self.extents[axis]
        return replace(argument, shape=tuple(shape))


def collapse(
    extents: Mapping[str, int],
    seen: Visits,
    arguments: Sequence[tuple[Argument, Labels]],
    allowed: frozenset[str],
) -> Collapse:
    """Fold each axis into the one that follows it wherever every value has them side by side
    and every argument has them side by side in memory. Only ``allowed`` axes take part.
    """
    sizes = dict(extents)
    gone: set[str] = set()
    tuples = {labels for found in seen.values() for labels in found}
    tuples |= {labels for _, labels in arguments}
    several = {a for found in seen.values() if len(found) > 1 for labels in found for a in labels}
    usable = allowed - {a for a in several if a is not None}
    while True:
        pair = _adjacent(sizes, gone, tuples, arguments, usable)
        if pair is None:
            return Collapse(frozenset(gone), {a: n for a, n in sizes.items() if a not in gone})
        outer, inner = pair
        sizes[inner] *= sizes[outer]
        gone.add(outer)


def _adjacent(
    sizes: Mapping[str, int],
    gone: set[str],
    tuples: set[Labels],
    arguments: Sequence[tuple[Argument, Labels]],
    usable: frozenset[str],
) -> tuple[str, str] | None:
    live = [tuple(a for a in labels if a is not None and a not in gone) for labels in tuples]
    for outer in sizes:
        if outer in gone or outer not in usable:
            continue
        inner = {_next(labels, outer) for labels in live if outer in labels}
        if len(inner) != 1:
            continue
        (axis,) = inner
        if axis is None or axis not in usable:
            continue
        together = all((outer in labels) == (axis in labels) for labels in live)
        if together and all(_dense(a, labels, outer, axis, sizes) for a, labels in arguments):
            return outer, axis
    return None


def _next(labels: tuple[str, ...], axis: str) -> str | None:
    at = labels.index(axis) + 1
    return labels[at] if at < len(labels) else None


def _dense(
    argument: Argument, labels: Labels, outer: str, inner: str, sizes: Mapping[str, int]
) -> bool:
    if outer not in labels:
        return True
    strides = argument.strides
    return strides[labels.index(outer)] == strides[labels.index(inner)] * sizes[inner]


def places(
    builder: Builder, index: ExprLike, axes: Sequence[str], extents: Mapping[str, int]
) -> Place:
    """The place on each of ``axes`` (outermost first) of a flat index over them."""
    place: dict[str, Expr] = {}
    below = 1
    flat = as_expr(index)
    for position, axis in reversed(list(enumerate(axes))):
        value = flat // below
        place[axis] = builder.let(axis, value % extents[axis] if position else value)
        below *= extents[axis]
    return place


def dealt(builder: Builder, total: int, parts: int, part: Expr, stem: str) -> tuple[Expr, Expr]:
    """Part ``part`` of ``parts`` of ``total`` things in a row: the first, past the last.

    Sizes differ by one at most. ``stem`` begins the names of the variables.
    """
    if parts == 1:
        return Const(0), Const(total)
    first = builder.let(f"{stem}_first", part * total // parts)
    return first, builder.let(f"{stem}_last", (part + 1) * total // parts)


def flat_size(axes: Iterable[str], extents: Mapping[str, int]) -> int:
    """Number of places over some axes."""
    return prod(extents[axis] for axis in axes)
