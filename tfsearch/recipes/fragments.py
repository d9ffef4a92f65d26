"""Fused elementwise HIR as register code: one fragment of lanes at a time.

A fragment is ``lanes.count`` neighbours along one axis of a recipe's iteration domain. Values
of the program are evaluated at a place of that domain by walking their definitions down to
inputs, constants and the leaves that the recipe has computed itself (a contraction's
accumulator, a row's reduction). Which dimension of a value runs along which axis of the domain
follows from the broadcasts and transposes on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.facts import unit_reshape
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    BroadcastAttrs,
    CompareAttrs,
    CompareFn,
    ConstAttrs,
    OpKind,
    TransposeAttrs,
    UnaryAttrs,
)
from tfsearch.ir.hir.program import Program
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, as_expr, multiple_of
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, Scalar, Window, window

_MOVES = frozenset({OpKind.BROADCAST, OpKind.TRANSPOSE, OpKind.RESHAPE})
_FUSED = _MOVES | {OpKind.UNARY, OpKind.BINARY, OpKind.CAST}
Axis = str | None
Labels = tuple[Axis, ...]
"""Per dimension of a value: the axis of the domain it runs along; None for extent one."""


def compute_dtype(dtype: DType) -> DType:
    """The type in which registers hold values: 16-bit floats as f32, i8 as i32."""
    narrow = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.I8: DType.I32}
    return narrow.get(dtype, dtype)


def operand_labels(program: Program, value: int, labels: Labels) -> tuple[Labels, ...]:
    """Labels of the operands of an elementwise or shape-moving op, from those of its result.

    Raises ``RequestError`` for an op that moves elements in no such way (a RESHAPE that regroups
    them).
    """
    op = program.ops[value]
    match op.attrs:
        case BroadcastAttrs(dims):
            source = program.ops[op.operands[0]].type.sizes
            return (
                tuple(
                    None if extent == 1 else labels[d]
                    for d, extent in zip(dims, source, strict=True)
                ),
            )
        case TransposeAttrs(perm):
            inverse: list[Axis] = [None] * len(perm)
            for i, p in enumerate(perm):
                inverse[p] = labels[i]
            return (tuple(inverse),)
        case _:
            if op.kind is OpKind.RESHAPE:
                return (_reshaped_labels(program, value, labels),)
            return tuple(labels for _ in op.operands)


def _reshaped_labels(program: Program, value: int, labels: Labels) -> Labels:
    """A reshape that only adds or drops dimensions of size one moves no element."""
    op = program.ops[value]
    source, target = program.ops[op.operands[0]].type.shape, op.type.shape
    pairs = unit_reshape(source, target)
    if len(pairs) < sum(1 for extent in source if extent != 1):
        raise RequestError("recipe.reshape", "a reshape that regroups elements cannot be fused")
    found: list[Axis] = [None] * len(source)
    for to, come in pairs:
        found[come] = labels[to]
    return tuple(found)


def _comparison(program: Program, value: int, labels: Labels) -> tuple[int, Labels]:
    """What a condition compares, under the moves around it, and the labels there."""
    while program.ops[value].kind in _MOVES:
        labels = operand_labels(program, value, labels)[0]
        value = program.ops[value].operands[0]
    return value, labels


def alignment_of(memory: Window) -> int:
    """Bytes that a window's address is a multiple of, as far as its starts show."""
    buffer = memory.buffer
    found = buffer.alignment
    for start, stride in zip(memory.starts, buffer.dense_strides, strict=True):
        found = gcd(found, multiple_of(start) * stride * buffer.dtype.bytes)
    return found


@dataclass(frozen=True)
class Lanes:
    """A fragment's extent: ``count`` lanes along ``axis``, of which ``valid`` exist."""

    count: int
    axis: str
    valid: Expr = field(default_factory=lambda: Const(0))

    @staticmethod
    def of(count: int, axis: str, valid: ExprLike | None = None) -> Lanes:
        """Lanes of which all, or the first ``valid``, exist."""
        return Lanes(count, axis, as_expr(count if valid is None else valid))

    @property
    def whole(self) -> bool:
        """True when every lane exists."""
        return self.valid == Const(self.count)


Place = Mapping[str, Expr]
"""Start of the fragment along every axis of the domain, in elements."""


class Fragments:
    """Evaluates values of a program into registers.

    ``buffers`` maps INPUT values to their kernel arguments. Raises ``RequestError`` with the
    atoms' reasons when the target lacks an instruction for an op.
    """

    def __init__(
        self,
        builder: Builder,
        program: Program,
        atoms: AtomTable,
        accuracy: Accuracy,
        buffers: Mapping[int, Buffer],
    ) -> None:
        self.builder = builder
        self.program = program
        self.atoms = atoms
        self.accuracy = accuracy
        self.buffers = buffers

    def at(
        self, place: Place, lanes: Lanes, leaves: Mapping[int, Window] | None = None
    ) -> FragmentTile:
        """Evaluation at one place; values computed there are shared between calls on it."""
        return FragmentTile(self, place, lanes, dict(leaves or {}))

    def atom(self, computes: Computation) -> str:
        """Id of an atom that computes this; a fast class may be served by a precise atom."""
        found = self.atoms.usable(computes)
        if found is None and computes.accuracy != Accuracy.PRECISE.value:
            relaxed = Computation(
                computes.kind,
                computes.fn,
                computes.shape,
                computes.dtypes,
                partial=computes.partial,
            )
            found = self.atoms.usable(relaxed)
        if found is None:
            reasons = [f"{m.atom.id}: {m.reason}" for m in self.atoms.candidates(computes)]
            raise RequestError(
                "recipe.no-atom",
                f"no instruction for {computes.kind.value} {computes.fn} "
                f"{'x'.join(map(str, computes.shape))} "
                f"{'/'.join(d.value for d in computes.dtypes)}; "
                f"considered {len(reasons)}" + (f", e.g. {reasons[0]}" if reasons else ""),
            )
        return found.id


class FragmentTile:
    """Values at one place of the domain."""

    def __init__(
        self, owner: Fragments, place: Place, lanes: Lanes, leaves: dict[int, Window]
    ) -> None:
        self.owner = owner
        self.place = place
        self.lanes = lanes
        self.leaves = leaves
        self._known: dict[tuple[int, Labels], Window] = {}

    def value(self, value: int, labels: Labels) -> Window:
        """Register window of a value whose dimensions run along ``labels``."""
        # A list instead of recursion: programs may be deeper than Python's stack.
        wanted = [(value, labels)]
        while wanted:
            key = wanted[-1]
            missing = () if self._found(*key) else self._missing(*key)
            if missing:
                wanted.extend(reversed(missing))
                continue
            wanted.pop()
            if not self._found(*key):
                self._known[key] = self._evaluate(*key)
        return self.leaves[value] if value in self.leaves else self._known[value, labels]

    def _found(self, value: int, labels: Labels) -> bool:
        return value in self.leaves or (value, labels) in self._known

    def _missing(self, value: int, labels: Labels) -> list[tuple[int, Labels]]:
        """Operands that :meth:`_evaluate` will ask for and nothing has computed, in its order."""
        program = self.owner.program
        op = program.ops[value]
        if op.kind is OpKind.SELECT:
            needed = [(o, labels) for o in op.operands[1:]]
            compare, along = _comparison(program, op.operands[0], labels)
            needed += [(o, along) for o in program.ops[compare].operands]
        elif op.kind in _FUSED:
            needed = list(zip(op.operands, operand_labels(program, value, labels), strict=True))
        else:
            needed = []
        return [key for key in needed if not self._found(*key)]

    def know(self, value: int, labels: Labels, window: Window) -> None:
        """Say where a value that runs along ``labels`` is already."""
        self._known[value, labels] = window

    def register(self, stem: str, dtype: DType) -> Window:
        """A fresh register fragment."""
        count = self.lanes.count
        buffer = self.owner.builder.alloc(stem, dtype, (count,), MemorySpace.REGISTER)
        return window(buffer, (0, count))

    def call(
        self,
        kind: Kind,
        fn: str,
        dtypes: tuple[DType, ...],
        *operands: Window | Scalar,
        partial: bool = False,
    ) -> None:
        """Call the atom that computes this on whole fragments."""
        computes = Computation(
            kind, fn, (self.lanes.count,), dtypes, self.owner.accuracy.value, partial
        )
        self.owner.builder.call(self.owner.atom(computes), *operands)

    def load(self, buffer: Buffer, labels: Labels) -> Window:
        """Load a fragment of a memory buffer whose dimensions run along ``labels``."""
        dtype = compute_dtype(buffer.dtype)
        out = self.register("x", dtype)
        along = self.lanes.axis in labels
        source = self.memory(buffer, labels)
        if not along:
            self.call(Kind.SPLAT, "", (dtype, buffer.dtype), out, source)
            return out
        strided = buffer.dense_strides[labels.index(self.lanes.axis)] != 1
        partial = not self.lanes.whole
        fn = "strided" if strided else self._aligned(Kind.LOAD, (dtype, buffer.dtype), source)
        self.call(Kind.LOAD, fn, (dtype, buffer.dtype), out, source, partial=partial or strided)
        return out

    def store(
        self, source: Window, buffer: Buffer, labels: Labels, *, stream: bool = False
    ) -> None:
        """Store a fragment into a memory buffer whose dimensions run along ``labels``.

        A buffer without the lane axis receives the first lane.
        """
        dtype = source.buffer.dtype
        target = self.memory(buffer, labels)
        if self.lanes.axis not in labels:
            self.call(Kind.STORE, "", (buffer.dtype, dtype), target, source, partial=True)
            return
        strided = buffer.dense_strides[labels.index(self.lanes.axis)] != 1
        partial = not self.lanes.whole
        dtypes = (buffer.dtype, dtype)
        fn = "strided" if strided else self._aligned(Kind.STORE, dtypes, target)
        if stream and not strided and not partial and self._streams(dtypes, target):
            fn = "stream"
        self.call(Kind.STORE, fn, (buffer.dtype, dtype), target, source, partial=partial or strided)

    def _aligned(self, kind: Kind, dtypes: tuple[DType, ...], memory: Window) -> str:
        """``aligned`` where the target has such an access and the place is aligned for it."""
        fits = self._fits(kind, "aligned", dtypes, memory)
        return "aligned" if fits else ""

    def _streams(self, dtypes: tuple[DType, ...], memory: Window) -> bool:
        """Whether a streamed store may go there; one that asks for no alignment always may."""
        computes = Computation(Kind.STORE, "stream", (self.lanes.count,), dtypes)
        found = self.owner.atoms.usable(computes)
        return found is None or self._fits(Kind.STORE, "stream", dtypes, memory)

    def _fits(self, kind: Kind, fn: str, dtypes: tuple[DType, ...], memory: Window) -> bool:
        partial = not self.lanes.whole and fn != "stream"
        computes = Computation(kind, fn, (self.lanes.count,), dtypes, partial=partial)
        found = self.owner.atoms.usable(computes)
        if found is None:
            return False
        spec = next(s for s in found.operands if s.spaces and MemorySpace.GLOBAL in s.spaces)
        return alignment_of(memory) % spec.alignment == 0

    def prefetch(self, buffer: Buffer, labels: Labels) -> None:
        """Ask for the cache line of this fragment's first element ahead of its use."""
        first = FragmentTile(self.owner, self.place, Lanes.of(1, self.lanes.axis), {})
        computes = Computation(Kind.HINT, "prefetch", (1,), (buffer.dtype,))
        self.owner.builder.call(self.owner.atom(computes), first.memory(buffer, labels))

    def memory(self, buffer: Buffer, labels: Labels) -> Window:
        """The memory window of this fragment."""
        # A scalar argument is an array of one element.
        dims: list[tuple[ExprLike, ExprLike]] = [(0, 1)] * (len(buffer.shape) - len(labels))
        for axis in labels:
            if axis is None:
                dims.append((0, 1))
            elif axis == self.lanes.axis:
                dims.append((self.place[axis], self.lanes.valid))
            else:
                dims.append((self.place[axis], 1))
        return window(buffer, *dims)

    def _evaluate(self, value: int, labels: Labels) -> Window:
        program = self.owner.program
        op = program.ops[value]
        if op.kind is OpKind.INPUT:
            return self.load(self.owner.buffers[value], labels)
        dtype = compute_dtype(op.type.dtype)
        if isinstance(op.attrs, ConstAttrs):
            return self._constant(dtype, float(op.attrs.value))
        if op.kind in _MOVES:
            return self.value(op.operands[0], operand_labels(program, value, labels)[0])
        match op.attrs:
            case UnaryAttrs(fn):
                return self._map(fn.value, dtype, (self.value(op.operands[0], labels),))
            case BinaryAttrs(fn):
                pair = tuple(self.value(o, labels) for o in op.operands)
                return self._map(fn.value, dtype, pair)
            case _:
                pass
        if op.kind is OpKind.CAST:
            return self._cast(op.operands[0], op.type.dtype, labels)
        if op.kind is OpKind.SELECT:
            return self._select(value, dtype, labels)
        raise RequestError("recipe.op", f"a {op.kind.value} cannot be fused into a fragment")

    def _map(self, fn: str, dtype: DType, operands: tuple[Window, ...]) -> Window:
        out = self.register("t", dtype)
        self.call(Kind.MAP, fn, (dtype,), out, *operands)
        return out

    def _select(self, value: int, dtype: DType, labels: Labels) -> Window:
        """Comparison and choice are one instruction pair: masks never live in registers."""
        program = self.owner.program
        condition, yes, no = program.ops[value].operands
        x, y = self.value(yes, labels), self.value(no, labels)
        condition, labels = _comparison(program, condition, labels)
        compare = program.ops[condition]
        if not isinstance(compare.attrs, CompareAttrs):
            raise RequestError("recipe.select", "a select must choose by a comparison")
        a, b = (self.value(o, labels) for o in compare.operands)
        fn = f"select_{compare.attrs.fn.value}"
        have = a.buffer.dtype
        if have is not dtype and not self._has(Kind.MAP, fn, (dtype, have)):
            # No instruction chooses by a comparison of another type: through a flag of 1 or 0.
            flag = self._choose(fn, have, (a, b, self._constant(have, 1), self._constant(have, 0)))
            moved = self.register("f", dtype)
            self.call(Kind.CONVERT, "", (dtype, have), moved, flag)
            a, b, fn = moved, self._constant(dtype, 0), f"select_{CompareFn.NE.value}"
        return self._choose(fn, dtype, (a, b, x, y))

    def _choose(self, fn: str, dtype: DType, operands: tuple[Window, ...]) -> Window:
        out = self.register("s", dtype)
        self.call(Kind.MAP, fn, (dtype, operands[0].buffer.dtype), out, *operands)
        return out

    def _constant(self, dtype: DType, value: float) -> Window:
        out = self.register("c", dtype)
        self.call(Kind.FILL, "", (dtype,), out, Scalar(float(value)))
        return out

    def _has(self, kind: Kind, fn: str, dtypes: tuple[DType, ...]) -> bool:
        computes = Computation(kind, fn, (self.lanes.count,), dtypes)
        return self.owner.atoms.usable(computes) is not None

    def _cast(self, operand: int, target: DType, labels: Labels) -> Window:
        source = self.value(operand, labels)
        have, want = source.buffer.dtype, compute_dtype(target)
        narrows = target is DType.I8 and self.owner.program.ops[operand].type.dtype is not DType.I8
        if have is want and not narrows:
            # Registers keep more precision than the cast asks for: a store rounds once.
            return source
        out = self.register("v", want)
        self.call(Kind.CONVERT, "", (target if narrows else want, have), out, source)
        return out
