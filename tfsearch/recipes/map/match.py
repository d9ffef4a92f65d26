"""Matching a program as a map: one iteration domain, every access a projection of it."""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.core.errors import RequestError
from tfsearch.ir.hir.facts import MAPPED, facts_of
from tfsearch.ir.hir.ops import OpKind
from tfsearch.ir.hir.program import Program
from tfsearch.recipes.domain import Argument, Visits, collapse, visits
from tfsearch.recipes.fragments import Labels

SCALAR = "one"
"""The axis of a program whose outputs have a single element."""


@dataclass(frozen=True)
class Domain:
    """The iteration domain of a map: the common shape of its outputs.

    ``axes`` are outermost first, without ``lane``, the innermost axis of the first output along
    which vectors run. ``seen`` gives the labels of every value; ``positions`` for every axis
    (folded ones included) an output's value and its dimension. ``turn`` is the axis along which
    the ``turned`` inputs are contiguous although they vary along the lanes, "" if there is none.
    """

    program: Program
    extents: dict[str, int]
    axes: tuple[str, ...]
    lane: str
    labels: tuple[Labels, ...]
    seen: Visits
    inputs: tuple[Argument, ...]
    outputs: tuple[Argument, ...]
    positions: dict[str, tuple[int, int]]
    turn: str
    turned: tuple[tuple[int, Labels], ...]


def _no(why: str) -> RequestError:
    return RequestError("recipe.map", f"the program is no map: {why}")


def match(program: Program) -> Domain:
    """The program as a map; ``RequestError`` with the reason when it is none."""
    allowed = MAPPED | {OpKind.INPUT, OpKind.CONST, OpKind.RESHAPE}
    for value, op in enumerate(program.ops):
        if op.kind not in allowed:
            raise _no(f"%{value} is a {op.kind.value}")
    labels, extents = _output_labels(program)
    roots = [(v, own) for (_, v), own in zip(program.outputs, labels, strict=True)]
    seen = visits(program, roots)
    inputs = tuple(Argument.of(i.name, i.type) for i in program.inputs)
    outputs = tuple(
        Argument.of(name, t)
        for (name, _), t in zip(program.outputs, program.output_types, strict=True)
    )
    arguments = list(zip(outputs, labels, strict=True))
    arguments += [
        (a, own) for v, a in enumerate(inputs) for own in sorted(seen.get(v, ()), key=str)
    ]
    folded = collapse(extents, seen, arguments, frozenset(extents))
    order = tuple(a for a in extents if a not in folded.gone)
    new_inputs = tuple(
        folded.argument(a, min(seen[v], key=str)) if v in seen else a for v, a in enumerate(inputs)
    )
    new_seen = {v: frozenset(folded.labels(own) for own in found) for v, found in seen.items()}
    lane = order[-1] if order else SCALAR
    turn, turned = _turned(program, new_inputs, new_seen, order, lane)
    return Domain(
        program=program,
        extents=dict(folded.extents) if order else {SCALAR: 1},
        axes=order[:-1],
        lane=lane,
        labels=tuple(folded.labels(own) for own in labels),
        seen=new_seen,
        inputs=new_inputs,
        outputs=tuple(folded.argument(a, own) for a, own in zip(outputs, labels, strict=True)),
        positions=_positions(roots),
        turn=turn,
        turned=turned,
    )


def _output_labels(program: Program) -> tuple[tuple[Labels, ...], dict[str, int]]:
    """Labels of every output; axes are named after the first output's dimensions."""
    numbers = facts_of(program).axes
    first = program.outputs[0][1]
    sizes = program.ops[first].type.sizes
    own: Labels = tuple(f"d{i}" if n > 1 else None for i, n in enumerate(sizes))
    extents = {f"d{i}": n for i, n in enumerate(sizes) if n > 1}
    real = [a for a, n in zip(numbers[first], sizes, strict=True) if n > 1]
    known = {
        a: f"d{i}" for i, (a, n) in enumerate(zip(numbers[first], sizes, strict=True)) if n > 1
    }
    out: list[Labels] = []
    for name, value in program.outputs:
        shape = program.ops[value].type.sizes
        mine = [a for a, n in zip(numbers[value], shape, strict=True) if n > 1]
        if value == first:
            out.append(own)
        elif len(set(real)) == len(real) and sorted(mine) == sorted(real):
            pairs = zip(numbers[value], shape, strict=True)
            out.append(tuple(known[a] if n > 1 else None for a, n in pairs))
        elif shape == sizes:
            out.append(own)
        else:
            raise _no(
                f"output {name} has shape {list(shape)}, the first output {list(sizes)}: "
                "outputs must have a common shape"
            )
    return tuple(out), extents


def _positions(roots: list[tuple[int, Labels]]) -> dict[str, tuple[int, int]]:
    value, labels = roots[0]
    return {axis: (value, dim) for dim, axis in enumerate(labels) if axis is not None}


def _turned(
    program: Program,
    inputs: tuple[Argument, ...],
    seen: Visits,
    order: tuple[str, ...],
    lane: str,
) -> tuple[str, tuple[tuple[int, Labels], ...]]:
    """Inputs that are contiguous across the lanes, and the axis along which most bytes are."""
    found: dict[str, list[tuple[int, Labels]]] = {}
    weight: dict[str, int] = {}
    for value in range(len(program.inputs)):
        for labels in sorted(seen.get(value, ()), key=str):
            argument = inputs[value]
            if lane not in labels or argument.strides[labels.index(lane)] == 1:
                continue
            for dim, axis in enumerate(labels):
                # A transposing instruction takes rows before columns.
                inner = axis in order and dim > labels.index(lane)
                if axis is not None and inner and argument.strides[dim] == 1:
                    found.setdefault(axis, []).append((value, labels))
                    weight[axis] = weight.get(axis, 0) + argument.type.bytes
    if not found:
        return "", ()
    axis = max(weight, key=lambda a: weight[a])
    return axis, tuple(found[axis])
