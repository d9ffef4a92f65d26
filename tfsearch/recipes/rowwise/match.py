"""Matching a program as row-wise: one set of reduced axes, values of rows and of elements."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

from tfsearch.core.errors import RequestError
from tfsearch.ir.hir.facts import MAPPED, facts_of, unit_reshape
from tfsearch.ir.hir.ops import OpKind, ReduceAttrs
from tfsearch.ir.hir.program import Program
from tfsearch.recipes.domain import Argument, Collapse, collapse
from tfsearch.recipes.fragments import Labels


class Pipeline(Enum):
    """Where the lanes run: along the row that is reduced, or across neighbouring rows."""

    ROWS = "rows"
    COLUMNS = "columns"


@dataclass(frozen=True)
class Domain:
    """The iteration domain of a row-wise program.

    ``kept`` and ``reduced`` are axes, outermost first; a row is one place of the kept axes.
    ``lane`` is the axis that vectors run along: the innermost reduced one (ROWS) or a kept one
    (COLUMNS). ``labels`` gives for every value the axis of each dimension, ``positions`` for
    every axis a value and the dimension of it that runs along the axis, also for those that were
    folded into another one.
    """

    program: Program
    extents: dict[str, int]
    kept: tuple[str, ...]
    reduced: tuple[str, ...]
    lane: str
    pipeline: Pipeline
    labels: tuple[Labels, ...]
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    positions: dict[str, tuple[int, int]]

    def is_element(self, value: int) -> bool:
        """True where a value differs along a row."""
        return any(axis in self.reduced for axis in self.labels[value])

    def lane_stride(self, argument: Argument, value: int) -> int:
        """Elements between neighbouring lanes of an argument; 0 when it has no lanes."""
        labels = self.labels[value]
        return argument.strides[labels.index(self.lane)] if self.lane in labels else 0


def _no(why: str) -> RequestError:
    return RequestError("recipe.rowwise", f"the program is not row-wise: {why}")


def match(program: Program) -> Domain:
    """The program as a row-wise one; ``RequestError`` with the reason when it is none."""
    axes = facts_of(program).axes
    reduced = _reduced_axes(program, axes)
    names = {a: f"d{a}" for own in axes for a in own}
    extents = {
        names[a]: n
        for value, op in enumerate(program.ops)
        for a, n in zip(axes[value], op.type.sizes, strict=True)
        if n > 1 or a in reduced
    }
    labels = tuple(tuple(names[a] if names[a] in extents else None for a in own) for own in axes)
    for value, own in enumerate(labels):
        real = [a for a in own if a is not None]
        if len(set(real)) < len(real):
            raise _no(f"value %{value} runs along one axis with two dimensions")
    kept = tuple(a for a in extents if a not in {names[r] for r in reduced})
    for name, value in program.outputs:
        missing = [a for a in kept if a not in labels[value]]
        if missing:
            raise _no(f"output {name} lacks {len(missing)} of the axes that are kept")
    inputs = tuple(Argument.of(i.name, i.type) for i in program.inputs)
    outputs = tuple(
        Argument.of(name, t)
        for (name, _), t in zip(program.outputs, program.output_types, strict=True)
    )
    order = _memory_order(program, labels, inputs, outputs, extents)
    folded = _fold(program, labels, inputs, outputs, extents, {names[r] for r in reduced})
    where = [labels[v] for v in range(len(inputs))], [labels[v] for _, v in program.outputs]
    domain = Domain(
        program=program,
        extents=dict(folded.extents),
        kept=tuple(a for a in order if a in kept),
        reduced=tuple(a for a in order if a not in kept and a not in folded.gone),
        lane="",
        pipeline=Pipeline.ROWS,
        labels=tuple(folded.labels(own) for own in labels),
        inputs=tuple(folded.argument(a, own) for a, own in zip(inputs, where[0], strict=True)),
        outputs=tuple(folded.argument(a, own) for a, own in zip(outputs, where[1], strict=True)),
        positions={
            axis: (value, dim)
            for value, own in reversed(list(enumerate(labels)))
            for dim, axis in enumerate(own)
            if axis is not None
        },
    )
    return _with_lanes(domain)


def _reduced_axes(program: Program, axes: tuple[tuple[int, ...], ...]) -> frozenset[int]:
    found: set[frozenset[int]] = set()
    for value, op in enumerate(program.ops):
        if op.kind is OpKind.CONTRACT:
            raise _no("it has a contraction")
        if op.kind is OpKind.RESHAPE:
            source = program.ops[op.operands[0]].type.shape
            pairs = unit_reshape(source, op.type.shape)
            if len(pairs) < sum(1 for extent in source if extent != 1):
                raise _no(f"reshape %{value} regroups elements")
        elif op.kind not in MAPPED | {OpKind.INPUT, OpKind.CONST, OpKind.REDUCE}:
            raise _no(f"%{value} is a {op.kind.value}")
        if isinstance(op.attrs, ReduceAttrs):
            own = axes[op.operands[0]]
            found.add(frozenset(own[a] for a in op.attrs.axes))
    if not found:
        raise _no("it has no reduction")
    sizes = {
        a: n
        for value, op in enumerate(program.ops)
        for a, n in zip(axes[value], op.type.sizes, strict=True)
    }
    real = {frozenset(a for a in one if sizes[a] > 1) for one in found}
    if len(real) > 1:
        raise _no(f"its reductions run over {len(real)} different sets of axes")
    (together,) = real
    return together or frozenset(next(iter(found)))


def _memory_order(
    program: Program,
    labels: tuple[Labels, ...],
    inputs: tuple[Argument, ...],
    outputs: tuple[Argument, ...],
    extents: dict[str, int],
) -> list[str]:
    """All axes, outermost in memory first, as the largest arguments have them."""
    found = [(a, labels[value]) for a, (_, value) in zip(outputs, program.outputs, strict=True)]
    found += [(a, labels[value]) for value, a in enumerate(inputs)]
    found.sort(key=lambda pair: -sum(1 for axis in pair[1] if axis is not None))
    order: list[str] = []
    for argument, own in found:
        strides = dict(zip(own, argument.strides, strict=False))
        more = [a for a in own if a is not None and a not in order]
        order += sorted(more, key=lambda a: -strides[a])
    return order + [a for a in extents if a not in order]


def _fold(
    program: Program,
    labels: tuple[Labels, ...],
    inputs: tuple[Argument, ...],
    outputs: tuple[Argument, ...],
    extents: dict[str, int],
    reduced: set[str],
) -> Collapse:
    """Reduced axes that lie side by side everywhere are one row."""
    seen = {value: frozenset((own,)) for value, own in enumerate(labels)}
    arguments = [(a, labels[value]) for value, a in enumerate(inputs)]
    arguments += [(a, labels[v]) for a, (_, v) in zip(outputs, program.outputs, strict=True)]
    return collapse(extents, seen, arguments, frozenset(reduced))


def _with_lanes(domain: Domain) -> Domain:
    """Choose the lanes: the axis along which most bytes are contiguous; of equals, the row."""
    weight = dict.fromkeys((*domain.reduced, *domain.kept), 0)
    pairs = [(a, v) for v, a in enumerate(domain.inputs)]
    pairs += [(a, v) for a, (_, v) in zip(domain.outputs, domain.program.outputs, strict=True)]
    for argument, value in pairs:
        for axis, stride in zip(domain.labels[value], argument.strides, strict=False):
            if axis is not None and stride == 1:
                weight[axis] += argument.type.bytes
    lane = max((*reversed(domain.reduced), *reversed(domain.kept)), key=lambda a: weight[a])
    rows = lane in domain.reduced
    others = tuple(a for a in domain.reduced if a != lane)
    return replace(
        domain,
        reduced=(*others, lane) if rows else domain.reduced,
        lane=lane,
        pipeline=Pipeline.ROWS if rows else Pipeline.COLUMNS,
    )
