"""Building programs: one op at a time, merged and numbered canonically at the end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tfsearch.ir.hir.ops import (
    Attrs,
    BroadcastAttrs,
    ContractAttrs,
    InputAttrs,
    NoAttrs,
    OpKind,
    TransposeAttrs,
)
from tfsearch.ir.hir.program import Input, Op, Program
from tfsearch.ir.hir.rules import result_type
from tfsearch.ir.hir.types import Shape, TensorType

# Canonical labels of contractions, by role; ranks are at most 8.
_BATCH = "bcdefghz"
_LHS_FREE = "mopqrBCD"
_RHS_FREE = "nstuvEFG"
_CONTRACTED = "klijwxya"


class Builder:
    """Appends checked ops; an op equal to an earlier one is that one.

    Casts, reshapes, transposes and broadcasts that change nothing are not appended, chains of
    them are merged, and a transposed operand of a contraction becomes an order of labels.
    """

    def __init__(self, name: str, inputs: Mapping[str, TensorType]) -> None:
        self.name = name
        self.inputs = tuple(Input(n, t) for n, t in inputs.items())
        self.ops: list[Op] = []
        self._known: dict[Op, int] = {}
        for index, item in enumerate(self.inputs):
            declared = result_type(OpKind.INPUT, InputAttrs(index), (), item.type)
            self._append(Op(OpKind.INPUT, (), InputAttrs(index), declared))

    def type_of(self, value: int) -> TensorType:
        """Type of a value built so far."""
        return self.ops[value].type

    def add(
        self,
        kind: OpKind,
        operands: Sequence[int],
        attrs: Attrs | None = None,
        declared: TensorType | None = None,
    ) -> int:
        """Append an op and return its value; see :func:`rules.result_type` for ``declared``.

        Raises ``RequestError`` when the type rule does not hold.
        """
        attrs = attrs if attrs is not None else NoAttrs()
        types = [self.ops[o].type for o in operands]
        op = Op(kind, tuple(operands), attrs, result_type(kind, attrs, types, declared))
        simpler = _SIMPLIFY.get(kind)
        merged = simpler(self, op) if simpler else op
        return merged if isinstance(merged, int) else self._append(merged)

    def _append(self, op: Op) -> int:
        if op not in self._known:
            self._known[op] = len(self.ops)
            self.ops.append(op)
        return self._known[op]

    def finish(self, outputs: Sequence[tuple[str, int]]) -> Program:
        """The canonical program: dead values dropped, numbered depth first from the outputs."""
        return canonicalise(Program(self.name, self.inputs, tuple(self.ops), tuple(outputs)))


def _simplify_cast(builder: Builder, op: Op) -> Op | int:
    (operand,) = op.operands
    if builder.type_of(operand).dtype is op.type.dtype:
        return operand
    return _simplify_elementwise(builder, op)


def _simplify_transpose(builder: Builder, op: Op) -> Op | int:
    assert isinstance(op.attrs, TransposeAttrs)
    (operand,), perm = op.operands, op.attrs.perm
    below = builder.ops[operand]
    if isinstance(below.attrs, TransposeAttrs):
        perm = tuple(below.attrs.perm[p] for p in perm)
        operand = below.operands[0]
    if perm == tuple(range(len(perm))):
        return operand
    return Op(op.kind, (operand,), TransposeAttrs(perm), op.type)


def _simplify_reshape(builder: Builder, op: Op) -> Op | int:
    (operand,) = op.operands
    below = builder.ops[operand]
    if below.kind is OpKind.RESHAPE:
        (operand,) = below.operands
    if builder.type_of(operand).shape == op.type.shape:
        return operand
    return Op(op.kind, (operand,), op.attrs, op.type)


def _simplify_broadcast(builder: Builder, op: Op) -> Op | int:
    assert isinstance(op.attrs, BroadcastAttrs)
    (operand,), dims = op.operands, op.attrs.dims
    below = builder.ops[operand]
    if isinstance(below.attrs, BroadcastAttrs):
        dims = tuple(dims[d] for d in below.attrs.dims)
        (operand,) = below.operands
    if dims == tuple(range(op.type.rank)):
        return operand
    return Op(op.kind, (operand,), BroadcastAttrs(dims), op.type)


def _simplify_contract(builder: Builder, op: Op) -> Op | int:
    assert isinstance(op.attrs, ContractAttrs)
    attrs = op.attrs
    labels, operands = [attrs.lhs, attrs.rhs], list(op.operands)
    for side in (0, 1):
        below = builder.ops[operands[side]]
        if isinstance(below.attrs, TransposeAttrs):
            order = {p: labels[side][i] for i, p in enumerate(below.attrs.perm)}
            labels[side] = "".join(order[i] for i in range(len(order)))
            (operands[side],) = below.operands
    moved = ContractAttrs(f"{labels[0]},{labels[1]}->{attrs.out}", attrs.acc)
    return Op(op.kind, tuple(operands), canonical_labels(moved), op.type)


def _simplify_elementwise(builder: Builder, op: Op) -> Op | int:
    """Dimensions of size one that only a reshape added are added after the op instead.

    So a reduction with ``keepdims`` leaves no trace in the row-wise arithmetic that follows it.
    """
    squeezed = tuple(d for d in op.type.shape if d != 1)
    moved = [_squeezed(builder, o, squeezed) for o in op.operands]
    if squeezed == op.type.shape or None in moved:
        return op
    if all(builder.ops[o].kind is OpKind.BROADCAST for o in op.operands):
        return op
    operands = [_materialise(builder, m, squeezed) for m in moved if m is not None]
    inner = builder.add(op.kind, operands, op.attrs, op.type.with_shape(squeezed))
    return builder.add(OpKind.RESHAPE, [inner], NoAttrs(), op.type)


_Moved = tuple[int, tuple[int, ...] | None]


def _squeezed(builder: Builder, value: int, squeezed: Shape) -> _Moved | None:
    """(source, dims of a broadcast or None) that gives the value without its unit dimensions."""
    op = builder.ops[value]
    if op.kind is OpKind.RESHAPE and builder.type_of(op.operands[0]).shape == squeezed:
        return op.operands[0], None
    if isinstance(op.attrs, BroadcastAttrs):
        kept = [i for i, d in enumerate(op.type.shape) if d != 1]
        if all(d in kept for d in op.attrs.dims):
            return op.operands[0], tuple(kept.index(d) for d in op.attrs.dims)
    return None


def _materialise(builder: Builder, moved: _Moved, squeezed: Shape) -> int:
    source, dims = moved
    if dims is None:
        return source
    declared = builder.type_of(source).with_shape(squeezed)
    return builder.add(OpKind.BROADCAST, [source], BroadcastAttrs(dims), declared)


_SIMPLIFY: dict[OpKind, Callable[[Builder, Op], Op | int]] = {
    OpKind.UNARY: _simplify_elementwise,
    OpKind.BINARY: _simplify_elementwise,
    OpKind.COMPARE: _simplify_elementwise,
    OpKind.SELECT: _simplify_elementwise,
    OpKind.CAST: _simplify_cast,
    OpKind.TRANSPOSE: _simplify_transpose,
    OpKind.RESHAPE: _simplify_reshape,
    OpKind.BROADCAST: _simplify_broadcast,
    OpKind.CONTRACT: _simplify_contract,
}


def canonical_labels(attrs: ContractAttrs) -> ContractAttrs:
    """The same contraction with labels that say their role.

    Batch labels are b, c, …; free ones m, o, … (first operand) and n, s, … (second); contracted
    ones k, l, …, each in order of appearance in the result or the first operand.
    """
    names: dict[str, str] = {}
    for group, pool in (
        (attrs.batch, _BATCH),
        (attrs.lhs_free, _LHS_FREE),
        (attrs.rhs_free, _RHS_FREE),
        (attrs.contracted, _CONTRACTED),
    ):
        names.update(zip(group, pool, strict=False))
    lhs, rhs, out = ("".join(names[c] for c in part) for part in (attrs.lhs, attrs.rhs, attrs.out))
    return ContractAttrs(f"{lhs},{rhs}->{out}", attrs.acc)


def canonicalise(program: Program) -> Program:
    """The canonical form: simplified as :class:`Builder` does, dead values dropped, equal values
    merged, numbered depth first from the outputs. Inputs keep their order and names.
    """
    once = _renumbered(program)
    while (again := _renumbered(once)) != once:
        once = again
    return once


def _renumbered(program: Program) -> Program:
    builder = Builder(program.name, {i.name: i.type for i in program.inputs})
    new: dict[int, int] = {i: i for i in range(len(program.inputs))}
    for _, root in program.outputs:
        for index in _depth_first(program, root, new):
            op = program.ops[index]
            new[index] = builder.add(op.kind, [new[o] for o in op.operands], op.attrs, op.type)
    outputs = tuple((name, new[index]) for name, index in program.outputs)
    return Program(program.name, builder.inputs, tuple(builder.ops), outputs)


def _depth_first(program: Program, root: int, done: Mapping[int, int]) -> list[int]:
    order: list[int] = []
    seen = set(done)
    stack: list[tuple[int, bool]] = [(root, False)]
    while stack:
        index, expanded = stack.pop()
        if expanded:
            order.append(index)
        elif index not in seen:
            seen.add(index)
            stack.append((index, True))
            stack.extend((o, False) for o in reversed(program.ops[index].operands))
    return order
