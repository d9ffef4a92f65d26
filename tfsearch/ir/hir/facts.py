"""Facts of a program, computed once per program and shared by every analysis.

A *projection* of a value onto a domain (another value's shape) is a tuple with one domain
dimension per dimension of the value, e.g. ``(1,)`` for ``bias[n]`` in the domain ``c[m,n]``.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar, cast

from tfsearch.ir.hir.ops import (
    ELEMENTWISE,
    BroadcastAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    TransposeAttrs,
)
from tfsearch.ir.hir.program import Op, Program
from tfsearch.ir.hir.types import Range, Shape

Projection = tuple[int, ...]
T = TypeVar("T")
MAPPED = ELEMENTWISE | {OpKind.BROADCAST, OpKind.TRANSPOSE}
REDUCING = frozenset({OpKind.REDUCE, OpKind.CONTRACT})


class VisitContext:
    """One visit of a program: an analysis asked for twice is computed once.

    An analysis is a function of a context (it may ask for others); it is identified by itself.
    """

    def __init__(self, program: Program) -> None:
        self.program = program
        self._known: dict[Callable[[VisitContext], Any], Any] = {}

    def get(self, analysis: Callable[[VisitContext], T]) -> T:
        """The result of an analysis of this program."""
        if analysis not in self._known:
            self._known[analysis] = analysis(self)
        return cast("T", self._known[analysis])


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of a program. Indices are value indices.

    ``users`` lists for each value the ops that read it; ``depth`` counts the REDUCE and CONTRACT
    ops on the deepest path that ends in (and includes) each value; ``order`` are the non-input
    values in topological order.
    """

    context: VisitContext

    @property
    def program(self) -> Program:
        """The program these facts are of."""
        return self.context.program

    @cached_property
    def users(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the values computed from it, increasing."""
        found: list[list[int]] = [[] for _ in self.program.ops]
        for index, op in enumerate(self.program.ops):
            for operand in sorted(set(op.operands)):
                found[operand].append(index)
        return tuple(tuple(u) for u in found)

    @cached_property
    def depth(self) -> tuple[int, ...]:
        """For each value, reductions and contractions on the deepest path up to it."""
        found: list[int] = []
        for op in self.program.ops:
            below = max((found[o] for o in op.operands), default=0)
            found.append(below + (op.kind in REDUCING))
        return tuple(found)

    @cached_property
    def order(self) -> tuple[int, ...]:
        """Values that are computed, in topological order."""
        return tuple(i for i, op in enumerate(self.program.ops) if op.kind is not OpKind.INPUT)

    @cached_property
    def reductions(self) -> tuple[int, ...]:
        """REDUCE values, in topological order."""
        return tuple(i for i in self.order if self.program.ops[i].kind is OpKind.REDUCE)

    @cached_property
    def contractions(self) -> tuple[int, ...]:
        """CONTRACT values, in topological order."""
        return tuple(i for i in self.order if self.program.ops[i].kind is OpKind.CONTRACT)

    @cached_property
    def outputs(self) -> frozenset[int]:
        """Values that are outputs."""
        return frozenset(i for _, i in self.program.outputs)

    @cached_property
    def used_inputs(self) -> tuple[int, ...]:
        """Inputs that some output depends on, in call order."""
        reached = self.ancestors(self.outputs)
        return tuple(i for i in range(len(self.program.inputs)) if i in reached)

    @cached_property
    def axes(self) -> tuple[tuple[int, ...], ...]:
        """For each value, the iteration axis of each dimension.

        Two dimensions share an axis when the program forces them to be iterated together:
        across elementwise ops, broadcasts, transposes, reductions and the labels of contractions.
        Axes are numbered in order of first appearance. A reshape starts new axes, except for
        dimensions that it only surrounds with ones. Where a value is contracted with itself its
        dimensions can collapse into one axis: compare :meth:`accesses` before relying on it.
        """
        return _axes(self.program)

    def ancestors(self, values: Iterable[int]) -> frozenset[int]:
        """The values and everything they depend on."""
        seen = set(values)
        for index in sorted(range(len(self.program.ops)), reverse=True):
            if index in seen:
                seen.update(self.program.ops[index].operands)
        return frozenset(seen)

    def accesses(self, value: int, domain: int) -> frozenset[Projection]:
        """The projections by which ``domain`` reads ``value`` through maps alone.

        Empty when it does not, or only through a reduction, contraction or reshape. One
        projection is the usual case; more mean that the value is read at several places at once.
        """
        known = self._projections
        if domain not in known:
            known[domain] = _projections(self.program, domain)
        return known[domain].get(value, frozenset())

    @cached_property
    def _projections(self) -> dict[int, dict[int, frozenset[Projection]]]:
        return {}

    @cached_property
    def flops(self) -> int:
        """Arithmetic operations at full sizes: 2 per product of a contraction, 1 per element of an
        elementwise op or reduction (casts, selections and data movement are free).
        """
        return sum(_flops(self.program, op) for op in self.program.ops)

    @cached_property
    def bytes_read(self) -> int:
        """Compulsory reads: the bytes of every input that is used, once."""
        return sum(self.program.inputs[i].type.bytes for i in self.used_inputs)

    @cached_property
    def bytes_written(self) -> int:
        """Compulsory writes: the bytes of every output."""
        return sum(t.bytes for t in self.program.output_types)


_CACHE: dict[int, tuple[weakref.ref[Program], Facts]] = {}


def facts_of(program: Program) -> Facts:
    """The facts of a program object; asked for again, the same facts (kept while it lives).

    Counts (flops, bytes) need every dimension bound and raise ``RequestError`` otherwise.
    """
    found = _CACHE.get(id(program))
    if found is not None and found[0]() is program:
        return found[1]
    # The facts hold an equal copy, so that the cache does not keep the program alive.
    copy = Program(program.name, program.inputs, program.ops, program.outputs)
    facts = Facts(VisitContext(copy))
    _CACHE[id(program)] = (weakref.ref(program), facts)
    weakref.finalize(program, _CACHE.pop, id(program), None)
    return facts


def _flops(program: Program, op: Op) -> int:
    match op.attrs:
        case ContractAttrs():
            lhs = program.ops[op.operands[0]].type.sizes
            summed = math.prod(
                size
                for label, size in zip(op.attrs.lhs, lhs, strict=True)
                if label in op.attrs.contracted
            )
            return 2 * op.type.count * summed
        case ReduceAttrs():
            return program.ops[op.operands[0]].type.count
        case _:
            counted = op.kind in (OpKind.UNARY, OpKind.BINARY, OpKind.COMPARE)
            return op.type.count if counted else 0


def operand_projections(op: Op, rank: int) -> tuple[Projection, ...]:
    """For a mapped op with a result of ``rank`` dimensions, each operand's projection onto it."""
    match op.attrs:
        case BroadcastAttrs(dims):
            return (dims,)
        case TransposeAttrs(perm):
            return (tuple(perm.index(i) for i in range(rank)),)
        case _:
            return tuple(tuple(range(rank)) for _ in op.operands)


def _projections(program: Program, domain: int) -> dict[int, frozenset[Projection]]:
    found: dict[int, set[Projection]] = {domain: {tuple(range(program.ops[domain].type.rank))}}
    for index in range(domain, -1, -1):
        op = program.ops[index]
        if index not in found or op.kind not in MAPPED:
            continue
        own = operand_projections(op, op.type.rank)
        for operand, inner in zip(op.operands, own, strict=True):
            outer = found[index]
            composed = {tuple(p[d] for d in inner) for p in outer}
            found.setdefault(operand, set()).update(composed)
    return {value: frozenset(p) for value, p in found.items()}


class _Axes:
    def __init__(self) -> None:
        self.parent: list[int] = []

    def fresh(self, count: int) -> list[int]:
        start = len(self.parent)
        self.parent.extend(range(start, start + count))
        return list(range(start, start + count))

    def find(self, axis: int) -> int:
        while self.parent[axis] != axis:
            axis = self.parent[axis]
        return axis

    def join(self, a: int, b: int) -> None:
        low, high = sorted((self.find(a), self.find(b)))
        self.parent[high] = low


def _axes(program: Program) -> tuple[tuple[int, ...], ...]:
    union = _Axes()
    axes: list[list[int]] = []
    for op in program.ops:
        own = union.fresh(op.type.rank)
        for mine, operand, theirs in _shared_dims(program, op):
            union.join(own[mine], axes[operand][theirs])
        if isinstance(op.attrs, ContractAttrs):
            lhs, rhs = (axes[o] for o in op.operands)
            for label in op.attrs.contracted:
                union.join(lhs[op.attrs.lhs.index(label)], rhs[op.attrs.rhs.index(label)])
        axes.append(own)
    numbers: dict[int, int] = {}
    return tuple(
        tuple(numbers.setdefault(union.find(a), len(numbers)) for a in own) for own in axes
    )


def _shared_dims(program: Program, op: Op) -> list[tuple[int, int, int]]:
    """(result dimension, operand value, operand dimension) that are iterated together."""
    if op.kind in MAPPED:
        return [
            (target, operand, source)
            for operand, projection in zip(
                op.operands, operand_projections(op, op.type.rank), strict=True
            )
            for source, target in enumerate(projection)
        ]
    match op.attrs:
        case ReduceAttrs(_, axes, _):
            rank = program.ops[op.operands[0]].type.rank
            kept = [i for i in range(rank) if i not in axes]
            return [(target, op.operands[0], source) for target, source in enumerate(kept)]
        case ContractAttrs():
            return [
                (target, operand, labels.index(label))
                for labels, operand in zip((op.attrs.lhs, op.attrs.rhs), op.operands, strict=True)
                for target, label in enumerate(op.attrs.out)
                if label in labels
            ]
        case _:
            if op.kind is not OpKind.RESHAPE:
                return []
            source = op.operands[0]
            return [
                (target, source, dim)
                for target, dim in unit_reshape(program.ops[source].type.shape, op.type.shape)
            ]


def unit_reshape(source: Shape, target: Shape) -> list[tuple[int, int]]:
    """(target dimension, source dimension) pairs when a reshape only adds or drops ones."""

    def real(shape: Shape) -> list[tuple[int, int | Range]]:
        return [(i, d) for i, d in enumerate(shape) if d != 1]

    a, b = real(source), real(target)
    if [d for _, d in a] != [d for _, d in b]:
        return []
    return [(t, s) for (s, _), (t, _) in zip(a, b, strict=True)]
