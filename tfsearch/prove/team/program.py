"""Statements prepared for the team interpreter: expressions compiled, contracts looked up.

Expressions become Python functions of an environment; names reach the source as quoted keys only,
so that nothing in a kernel can reach the interpreter's own code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from tfsearch.atoms.contract import Atom, Kind, OperandSpec, Part, Sync
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var
from tfsearch.ir.tir.nodes import Alloc, Block, Buffer, Call, Kernel, Let, Scalar, Window, tile_dims
from tfsearch.ir.tir.walk import Path, children, walk

Env = dict[str, int]
Value = Callable[[Env], int]

_INFIX = {
    Operator.ADD: "+", Operator.SUB: "-", Operator.MUL: "*", Operator.FLOORDIV: "//",
    Operator.MOD: "%", Operator.LT: "<", Operator.LE: "<=", Operator.EQ: "==", Operator.NE: "!=",
}  # fmt: skip


def compiled(expr: Expr) -> Value:
    """The expression as a function of an environment; comparisons yield 0 or 1."""
    namespace: dict[str, Any] = {}
    exec(f"def value(e):\n return {_source(expr)}\n", namespace)
    return namespace["value"]


def _source(expr: Expr) -> str:
    match expr:
        case Const(value):
            return f"({value})"
        case Var(name):
            return f"e[{name!r}]"
        case Binary(op, left, right):
            a, b = _source(left), _source(right)
            if op in (Operator.MIN, Operator.MAX):
                return f"{op.value}({a}, {b})"
            if op in (Operator.AND, Operator.OR):
                return f"(1 if ({a}) {op.value} ({b}) else 0)"
            text = f"({a} {_INFIX[op]} {b})"
            return text if op not in _TRUTH else f"(1 if {text} else 0)"
        case _:
            raise TypeError(f"not an expression: {expr!r}")


_TRUTH = frozenset({Operator.LT, Operator.LE, Operator.EQ, Operator.NE})


@dataclass(slots=True)
class Place:
    """A window operand of a call: its contract and where it lies.

    ``dims`` make up the tile; ``missing`` tile dimensions the buffer does not have. ``box`` gives
    (start, extent) a dimension. ``limits`` are the most elements of each dimension.
    """

    position: int
    spec: OperandSpec
    buffer: Buffer
    starts: tuple[Value, ...]
    extents: tuple[Value, ...]
    dims: tuple[int, ...]
    missing: int
    limits: tuple[int, ...]
    proxy: str

    def box(self, env: Env) -> tuple[tuple[int, int], ...]:
        """(start, extent) of every dimension."""
        return tuple([(s(env), e(env)) for s, e in zip(self.starts, self.extents, strict=True)])

    @property
    def tile_bytes(self) -> int:
        """Bytes of the whole tile, over-hanging parts included."""
        return prod(self.spec.shape) * self.buffer.dtype.bytes


@dataclass(slots=True)
class Prepared:
    """A call with everything about it that does not change from one execution to the next.

    ``places``: window operands that are tiles, in order; ``operands``: how each operand of the
    semantics is made (an index into ``places`` or a function). ``parts``: operands that are parts
    of synchronisation. ``barrier``: the barrier operand. ``quiet``: touches no memory that others
    see.
    """

    number: int
    call: Call
    atom: Atom
    places: tuple[Place, ...]
    operands: tuple[int | Value | float, ...]
    parts: Mapping[Part, Value]
    barrier: Place | None
    single: bool
    sync: Sync
    quiet: bool


class Program:
    """A kernel's calls by identity, and its statements by number."""

    def __init__(self, kernel: Kernel, atoms: Mapping[str, Atom]) -> None:
        self.kernel = kernel
        self.paths: list[Path] = []
        self.numbers: dict[int, int] = {}
        self.calls: dict[int, Prepared] = {}
        self.by_number: dict[int, Prepared] = {}
        self._values: dict[Expr, Value] = {}
        self._keep: list[Any] = []
        for path, statement in walk(kernel.body):
            number = len(self.paths)
            self.paths.append(path)
            # One object may stand in several places; the first one's number is then shown.
            self.numbers.setdefault(id(statement), number)
            if isinstance(statement, Call) and id(statement) not in self.calls:
                prepared = self._prepare(number, statement, atoms[statement.atom])
                self.calls[id(statement)] = self.by_number[number] = prepared

    def value(self, expr: Expr) -> Value:
        """A compiled expression."""
        found = self._values.get(expr)
        if found is None:
            found = self._values[expr] = compiled(expr)
        return found

    def _prepare(self, number: int, call: Call, atom: Atom) -> Prepared:
        places: list[Place] = []
        operands: list[int | Value | float] = []
        parts: dict[Part, Value] = {}
        barrier: Place | None = None
        for position, (operand, spec) in enumerate(zip(call.operands, atom.operands, strict=True)):
            if isinstance(operand, Window):
                place = self._place(position, operand, spec, atom)
                if spec.part is Part.BARRIER:
                    barrier = place
                else:
                    operands.append(len(places))
                    places.append(place)
            elif isinstance(operand, Scalar):
                operands.append(float(operand.value))
            else:
                value = self.value(operand)
                if spec.part is not Part.TILE:
                    parts[spec.part] = value
                else:
                    operands.append(value)
        quiet = all(p.buffer.space.is_register for p in places) or atom.computes.kind is Kind.HINT
        return Prepared(
            number, call, atom, tuple(places), tuple(operands), parts, barrier,
            atom.issuer == "thread", Sync(atom.effects.synchronises), quiet,
        )  # fmt: skip

    def _place(self, position: int, window: Window, spec: OperandSpec, atom: Atom) -> Place:
        dims = tile_dims(window, len(spec.shape))
        missing = len(spec.shape) - len(dims)
        limits = [1] * len(window.extents)
        for at, dim in enumerate(dims):
            limits[dim] = spec.shape[at + missing] if at + missing < len(spec.shape) else 1
        proxy = spec.proxy or atom.effects.proxy
        return Place(
            position, spec, window.buffer, tuple(map(self.value, window.starts)),
            tuple(map(self.value, window.extents)), dims, missing, tuple(limits), proxy,
        )  # fmt: skip


def needs_team(kernel: Kernel, atoms: Mapping[str, Atom]) -> bool:
    """Whether units of a kernel are more than one agent that does one thing after another."""
    if kernel.warps * kernel.lanes != 1 or kernel.cluster_size > 1:
        return True
    if any(not atoms[name].is_plain for name in called(kernel.body) if name in atoms):
        return True
    return any(isinstance(s, Alloc) and s.buffer.over for _, s in walk(kernel.body))


def called(block: Block) -> set[str]:
    """The atoms that a block calls."""
    out: set[str] = set()
    for statement in block:
        if isinstance(statement, Call):
            out.add(statement.atom)
        elif not isinstance(statement, (Alloc, Let)):
            out |= called(children(statement))
    return out
