"""Matching a program as a contraction: iteration domain, access maps, prologues, epilogue."""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.ops import ELEMENTWISE, ContractAttrs, OpKind, TransposeAttrs
from tfsearch.ir.hir.program import Program
from tfsearch.recipes.fragments import Labels, operand_labels

M, N, K = "m", "n", "k"
_SHAPE_MOVING = frozenset({OpKind.BROADCAST, OpKind.TRANSPOSE, OpKind.RESHAPE})


@dataclass(frozen=True)
class Side:
    """One factor: the value that is multiplied and the axis of each of its dimensions.

    ``source`` is the INPUT behind it when nothing but casts and transposes lie between (labels
    are then those of the input), else None: the factor has to be computed while packing.
    """

    value: int
    labels: Labels
    source: int | None
    source_labels: Labels
    dtype: DType


@dataclass(frozen=True)
class Output:
    """A result of the program: its value and the axis of each of its dimensions."""

    name: str
    value: int
    labels: Labels


@dataclass(frozen=True)
class Contraction:
    """``out[outer, m, n] = epilogue(sum over k of a[outer, m, k] * b[outer, k, n])``.

    ``extents`` has ``m``, ``n``, ``k`` and every outer axis. ``n`` is the axis along which the
    first output is contiguous, so the factors may have been exchanged to make it so.
    """

    program: Program
    value: int
    outer: tuple[str, ...]
    extents: dict[str, int]
    a: Side
    b: Side
    acc: DType
    outputs: tuple[Output, ...]
    labels: Labels

    @property
    def m(self) -> int:
        """Rows of the result."""
        return self.extents[M]

    @property
    def n(self) -> int:
        """Columns of the result."""
        return self.extents[N]

    @property
    def k(self) -> int:
        """Length of the sums."""
        return self.extents[K]


def match(program: Program) -> Contraction:
    """The program as a contraction; ``RequestError`` with the reason when it is none."""
    found = [i for i, op in enumerate(program.ops) if op.kind is OpKind.CONTRACT]
    if len(found) != 1:
        raise _no(f"it has {len(found)} contractions, this recipe takes exactly one")
    if any(op.kind is OpKind.REDUCE for op in program.ops):
        raise _no("it has reductions beside the contraction")
    value = found[0]
    op = program.ops[value]
    attrs = op.attrs
    assert isinstance(attrs, ContractAttrs)
    if len(attrs.contracted) != 1:
        raise _no(f"{attrs.dims!r} sums over {len(attrs.contracted)} axes, this recipe over one")
    lhs, rhs = op.operands
    outputs = [
        (name, v, _labels_from_root(program, value, tuple(attrs.out), v))
        for name, v in program.outputs
    ]
    swap = _innermost(outputs[0][2], attrs) in attrs.lhs_free
    sides = ((rhs, attrs.rhs), (lhs, attrs.lhs)) if swap else ((lhs, attrs.lhs), (rhs, attrs.rhs))
    rename, outer = _rename(attrs, swap)
    sizes: dict[str, int] = {K: 1, M: 1, N: 1}
    for index, labels in sides:
        for label, extent in zip(labels, program.ops[index].type.sizes, strict=True):
            sizes[rename[label]] = extent
    a, b = (_side(program, index, tuple(rename[c] for c in labels)) for index, labels in sides)
    for side in (a, b):
        if value in _below(program, side.value):
            raise _no("a factor depends on the contraction itself")
    renamed = tuple(
        Output(name, v, tuple(None if c is None else rename[c] for c in labels))
        for name, v, labels in outputs
    )
    own = tuple(rename[c] for c in attrs.out)
    return Contraction(program, value, outer, sizes, a, b, attrs.acc, renamed, own)


def _no(why: str) -> RequestError:
    return RequestError("recipe.contraction", f"the program is no single contraction: {why}")


def _innermost(labels: Labels, attrs: ContractAttrs) -> str:
    for label in reversed(labels):
        if label is not None and label not in attrs.batch:
            return label
    return (attrs.rhs_free or attrs.lhs_free or " ")[-1]


def _rename(attrs: ContractAttrs, swap: bool) -> tuple[dict[str, str], tuple[str, ...]]:
    """Canonical axis names; free labels beyond the innermost become outer axes."""
    rows, columns = (attrs.rhs_free, attrs.lhs_free) if swap else (attrs.lhs_free, attrs.rhs_free)
    rename = {attrs.contracted: K}
    if rows:
        rename[rows[-1]] = M
    if columns:
        rename[columns[-1]] = N
    outer: list[str] = []
    for label in attrs.out:
        if label not in rename:
            rename[label] = f"o{len(outer)}"
            outer.append(rename[label])
    return rename, tuple(outer)


def _below(program: Program, value: int) -> set[int]:
    seen: set[int] = set()
    stack = [value]
    while stack:
        current = stack.pop()
        if current not in seen:
            seen.add(current)
            stack.extend(program.ops[current].operands)
    return seen


def _side(program: Program, value: int, labels: Labels) -> Side:
    """Follow casts and transposes down to an input where nothing else is in the way."""
    current, axes = value, labels
    while True:
        op = program.ops[current]
        if op.kind is OpKind.INPUT:
            return Side(value, labels, current, axes, op.type.dtype)
        if op.kind is OpKind.CAST and _exact_cast(program, current):
            current = op.operands[0]
        elif op.kind is OpKind.TRANSPOSE:
            axes = operand_labels(program, current, axes)[0]
            current = op.operands[0]
        else:
            return Side(value, labels, None, labels, program.ops[value].type.dtype)


def _exact_cast(program: Program, value: int) -> bool:
    """A cast that changes no number can happen on the way into a register."""
    op = program.ops[value]
    return program.ops[op.operands[0]].type.dtype.widens_to(op.type.dtype)


def _labels_from_root(program: Program, root: int, root_labels: Labels, output: int) -> Labels:
    """Labels of an output such that walking down from it meets the root under its own labels.

    An output must be elementwise in the contraction's result, up to one permutation of axes.
    """
    labels = _labels_above(program, root, root_labels).get(output)
    if labels is not None and _labels_met(program, output, labels, root) == {root_labels}:
        return labels
    raise _no("an output is not elementwise in the contraction's result")


def _labels_above(program: Program, root: int, root_labels: Labels) -> dict[int, Labels]:
    """Labels of every value above the root, following one path of elementwise ops up."""
    labels: dict[int, Labels] = {root: root_labels}
    for index in range(root + 1, len(program.ops)):
        op = program.ops[index]
        source = next((o for o in op.operands if o in labels), None)
        if source is None:
            continue
        if isinstance(op.attrs, TransposeAttrs):
            labels[index] = tuple(labels[source][p] for p in op.attrs.perm)
        elif op.kind in ELEMENTWISE:
            labels[index] = labels[source]
    return labels


def _labels_met(program: Program, output: int, labels: Labels, root: int) -> set[Labels]:
    """Labels under which a walk from an output meets the root; every other leaf is an input."""
    met: set[Labels] = set()
    seen: set[tuple[int, Labels]] = set()
    stack = [(output, labels)]
    while stack:
        value, axes = stack.pop()
        op = program.ops[value]
        if (value, axes) in seen or not (op.operands or value == root):
            continue
        seen.add((value, axes))
        if value == root:
            met.add(axes)
            continue
        if op.kind not in ELEMENTWISE | _SHAPE_MOVING:
            raise _no(f"a {op.kind.value} stands between the contraction and an output")
        stack.extend(zip(op.operands, operand_labels(program, value, axes), strict=True))
    return met
