"""A kernel as a Python generator function: compiled once, run by every unit.

Names in the generated source are numbers, never text from the kernel, so that nothing in a
kernel can reach the interpreter's own code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from tfsearch.atoms.contract import Access, Atom, Kind, OperandSpec
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var
from tfsearch.ir.tir.nodes import (
    UNIT,
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    Let,
    Role,
    Scalar,
    Stmt,
    Window,
    tile_dims,
)
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.rules_control import BARRIER

_INFIX = {
    Operator.ADD: "+",
    Operator.SUB: "-",
    Operator.MUL: "*",
    Operator.FLOORDIV: "//",
    Operator.MOD: "%",
    Operator.LT: "<",
    Operator.LE: "<=",
    Operator.EQ: "==",
    Operator.NE: "!=",
}


@dataclass(frozen=True)
class Program:
    """A compiled kernel.

    ``make(unit, stores, hooks)`` is the coroutine of one unit; ``stores`` maps a buffer's
    number in ``buffers`` to its memory. ``paths`` and ``statements`` are by statement number;
    ``lines`` maps a line of the generated source to the number of its statement.
    """

    kernel: Kernel
    make: Callable[..., Any]
    buffers: tuple[Buffer, ...]
    paths: tuple[Path, ...]
    calls: Mapping[int, Call]
    lines: Mapping[int, int]
    filename: str


class Hooks:
    """What generated code calls on events; the interpreter's :class:`Run` fills it in."""

    def outside(self, statement: int, operand: int, box: tuple[tuple[int, int], ...]) -> None:
        """A window leaves its buffer; does not return."""
        raise NotImplementedError

    def unwritten(
        self, unit: int, statement: int, operand: int, box: tuple[tuple[int, int], ...]
    ) -> None:
        """A window holds elements that nothing has written."""
        raise NotImplementedError

    def race(
        self,
        unit: int,
        statement: int,
        operand: int,
        box: tuple[tuple[int, int], ...],
        found: tuple[int, int, int, str],
    ) -> None:
        """A conflicting access was found."""
        raise NotImplementedError


_COUNTER = itertools.count()


def compile_kernel(
    kernel: Kernel, atoms: Mapping[str, Atom], tracked: frozenset[str], yielding: frozenset[str]
) -> Program:
    """Compile a kernel whose calls satisfy their contracts.

    ``tracked`` names the buffers whose accesses the race detector sees, ``yielding`` those
    before whose accesses another unit may go on.
    """
    writer = _Writer(kernel, atoms, tracked, yielding)
    source = writer.source()
    filename = f"<tir {next(_COUNTER)}>"
    namespace: dict[str, Any] = dict(writer.constants)
    exec(compile(source, filename, "exec"), namespace)
    return Program(
        kernel,
        namespace["make"],
        tuple(writer.buffers),
        tuple(writer.paths),
        writer.calls,
        writer.line_of,
        filename,
    )


class _Writer:
    def __init__(
        self,
        kernel: Kernel,
        atoms: Mapping[str, Atom],
        tracked: frozenset[str],
        yielding: frozenset[str],
    ) -> None:
        self.kernel = kernel
        self.atoms = atoms
        self.tracked = tracked
        self.yielding = yielding
        self.constants: dict[str, Any] = {}
        self.buffers: list[Buffer] = []
        self.paths: list[Path] = []
        self.calls: dict[int, Call] = {}
        self.line_of: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self._names: dict[str, str] = {UNIT: "unit"}
        self._lines: list[str] = []
        self._fresh = itertools.count()
        self._ones: set[int] = set()

    def source(self) -> str:
        for param in self.kernel.params:
            self._buffer(param.buffer)
        self._block(self.kernel.body, (), 0, 1)
        head = ["def make(unit, stores, clock, trackers, hooks, Wait):"]
        for number, buffer in enumerate(self.buffers):
            head.append(f" S{number} = stores[{number}]")
            head.append(f" f{number}, b{number} = S{number}.flat, S{number}.values")
            head.append(f" k{number}, m{number} = S{number}.valid, S{number}.mask")
            if buffer.name in self.tracked:
                head.append(f" tf{number} = trackers[{number}].flat")
                head.append(f" ts{number} = trackers[{number}].shaped")
        head.append(" n = 0")
        head.append(" if n: yield")
        self.line_of = {line + len(head): stmt for line, stmt in self.line_of.items()}
        return "\n".join([*head, *self._lines, " return n", ""])

    def _emit(self, depth: int, text: str) -> None:
        self._lines.append(" " * depth + text)
        self.line_of[len(self._lines)] = len(self.paths) - 1

    def _buffer(self, buffer: Buffer) -> int:
        self._numbers[buffer.name] = len(self.buffers)
        self.buffers.append(buffer)
        return len(self.buffers) - 1

    def _block(self, block: Block, prefix: Path, offset: int, depth: int) -> None:
        numbers, names = dict(self._numbers), dict(self._names)
        for index, statement in enumerate(block):
            self.paths.append((*prefix, offset + index))
            self._statement(statement, (*prefix, offset + index), depth)
        if not block:
            self._emit(depth, "pass")
        self._numbers, self._names = numbers, names

    def _statement(self, statement: Stmt, path: Path, depth: int) -> None:
        match statement:
            case Call():
                self._call(statement, len(self.paths) - 1, depth)
            case For(name, start, stop, body, _, step, _):
                first, last = self._expr(start), self._expr(stop)
                outer = self._names.get(name)
                variable = self._variable(name)
                self._emit(depth, f"for {variable} in range({first}, {last}, {step}):")
                self._block(body, path, 0, depth + 1)
                self._names.pop(name)
                if outer is not None:
                    self._names[name] = outer
            case If(condition, then, orelse):
                self._emit(depth, f"if {self._expr(condition)}:")
                self._block(then, path, 0, depth + 1)
                if orelse:
                    self._emit(depth, "else:")
                    self._block(orelse, path, len(then), depth + 1)
            case Role(_, first, last, body):
                self._emit(depth, f"if {first} <= unit < {last}:")
                self._block(body, path, 0, depth + 1)
            case Let(name, value):
                text = self._expr(value)
                self._emit(depth, f"{self._variable(name)} = {text}")
            case Alloc(buffer):
                number = self._buffer(buffer)
                if buffer.space.is_private or self.kernel.units == 1:
                    self._emit(depth, f"S{number}.poison()")
            case _:
                raise TypeError(f"not a statement: {statement!r}")

    def _variable(self, name: str) -> str:
        self._names[name] = f"v{next(self._fresh)}"
        return self._names[name]

    def _call(self, call: Call, number: int, depth: int) -> None:
        atom = self.atoms[call.atom]
        self.calls[number] = call
        self._emit(depth, "n += 1")
        if atom.effects.synchronises == BARRIER:
            self._emit(depth, f"yield Wait({number})")
        before: list[str] = []
        after: list[str] = []
        views: list[str] = []
        shared = False
        for index, (operand, spec) in enumerate(zip(call.operands, atom.operands, strict=True)):
            if isinstance(operand, Window):
                hint = atom.computes.kind is Kind.HINT
                shared = shared or (operand.buffer.name in self.yielding and not hint)
                view = self._window(number, index, operand, spec, depth, before, after, hint=hint)
                views.append(view)
            elif isinstance(operand, Scalar):
                name = f"c{next(self._fresh)}"
                self.constants[name] = float(operand.value)
                views.append(name)
            else:
                views.append(self._expr(operand))
        if shared:
            self._emit(depth, "yield")
        for line in before:
            self._emit(depth, line)
        self.constants[f"a{number}"] = atom.semantics
        self._emit(depth, f"a{number}([{', '.join(views)}])")
        for line in after:
            self._emit(depth, line)

    def _window(
        self,
        statement: int,
        index: int,
        window: Window,
        spec: OperandSpec,
        depth: int,
        before: list[str],
        after: list[str],
        *,
        hint: bool,
    ) -> str:
        buffer = window.buffer
        number = self._numbers[buffer.name]
        starts = [self._part(expr, depth) for expr in window.starts]
        extents = [self._part(expr, depth) for expr in window.extents]
        box = "(" + "".join(f"({s}, {e})," for s, e in zip(starts, extents, strict=True)) + ")"
        dims = tile_dims(window, len(spec.shape))
        self._bounds(statement, index, buffer, spec, starts, extents, box, depth, dims)
        strides = buffer.dense_strides
        run = dims[-1] if dims else 0
        row = all(e == "1" for dim, e in enumerate(extents) if dim != run)
        if row and (strides[run] == 1 or extents[run] == "1"):
            offset = self._offset(starts, strides, depth)
            count = extents[run]
            place = f"{offset}:{offset} + {count}"
            view = f"f{number}[{place}]"
            if len(spec.shape) != 1:
                tail = ", ".join(["1"] * (len(spec.shape) - 1) + [count])
                view += f".reshape({tail})" if spec.shape else ".reshape(-1)"
            bad = f"k{number}.find(0, {offset}, {offset} + {count}) >= 0"
            done = f"k{number}[{place}] = {self._filled(count)}"
            codes = f"tf{number}"
        else:
            place, shape = self._slices(starts, extents, len(spec.shape), dims)
            view = f"b{number}[{place}]{shape}"
            bad = f"not m{number}[{place}].all()"
            done = f"m{number}[{place}] = 1"
            codes = f"ts{number}"
        if hint:
            return view
        reads = spec.access is not Access.WRITE
        writes = spec.access is not Access.READ
        where = f"unit, {statement}, {index}, {box}"
        if reads:
            before.append(f"if {bad}: hooks.unwritten({where})")
        if writes:
            after.append(done)
        if buffer.name in self.tracked:
            access = f"({codes}[0][{place}], {codes}[1][{place}], {codes}[2][{place}])"
            for what in ["read"] * reads + ["write"] * writes:
                call = f"clock.{what}(unit, {statement}, {access})"
                before.append(f"r = {call}")
                before.append(f"if r is not None: hooks.race({where}, r)")
        return view

    def _bounds(
        self,
        statement: int,
        index: int,
        buffer: Buffer,
        spec: OperandSpec,
        starts: list[str],
        extents: list[str],
        box: str,
        depth: int,
        dims: tuple[int, ...],
    ) -> None:
        tests: list[str] = []
        touched: list[str] = []
        offset = len(spec.shape) - len(dims)
        tiles = {dim: spec.shape[offset + place] for place, dim in enumerate(dims)}
        for dim, (start, extent, size) in enumerate(
            zip(starts, extents, buffer.shape, strict=True)
        ):
            if extent.isdigit():
                top = size - int(extent)
                if not (start.isdigit() and int(start) <= top):
                    tests.append(f"0 <= {start} <= {top}")
            else:
                tests.append(f"0 <= {start} and {start} + {extent} <= {size}")
                touched.append(f"{extent} > 0")
                tile = tiles.get(dim, 1)
                self._emit(
                    depth,
                    f"if not 0 <= {extent} <= {tile}: hooks.outside({statement}, {index}, {box})",
                )
        if tests:
            guard = "".join(f"{text} and " for text in touched)
            test = " and ".join(tests)
            self._emit(depth, f"if {guard}not ({test}): hooks.outside({statement}, {index}, {box})")
        if touched:
            # An empty window touches nothing, and its starts may lie anywhere.
            empty = " or ".join(f"{text[:-4]} == 0" for text in touched)
            names = [start for start in starts if not start.isdigit()]
            if names:
                self._emit(depth, f"if {empty}: {' = '.join(names)} = 0")

    def _offset(self, starts: list[str], strides: tuple[int, ...], depth: int) -> str:
        literal = sum(
            int(start) * stride
            for start, stride in zip(starts, strides, strict=True)
            if start.isdigit()
        )
        parts = [
            f"{start} * {stride}" if stride != 1 else start
            for start, stride in zip(starts, strides, strict=True)
            if not start.isdigit() and stride
        ]
        if not parts:
            return str(literal)
        if len(parts) == 1 and not literal and "*" not in parts[0]:
            return parts[0]
        name = f"o{next(self._fresh)}"
        self._emit(depth, f"{name} = {' + '.join([*parts, str(literal)] if literal else parts)}")
        return name

    def _slices(
        self, starts: list[str], extents: list[str], rank: int, dims: tuple[int, ...]
    ) -> tuple[str, str]:
        parts: list[str] = []
        for dim, (start, extent) in enumerate(zip(starts, extents, strict=True)):
            parts.append(f"{start}:{start} + {extent}" if dim in dims else start)
        missing = rank - len(dims)
        shape = f"[{', '.join(['None'] * missing + ['...'])}]" if missing > 0 else ""
        return ", ".join(parts), shape

    def _filled(self, count: str) -> str:
        if not count.isdigit():
            return f"b'\\x01' * {count}"
        name = f"ones{count}"
        if int(count) not in self._ones:
            self._ones.add(int(count))
            self.constants[name] = b"\x01" * int(count)
        return name

    def _part(self, expr: Expr, depth: int) -> str:
        """A literal, or a fresh name that holds the value (and may be overwritten)."""
        if isinstance(expr, Const) and expr.value >= 0:
            return str(expr.value)
        name = f"e{next(self._fresh)}"
        self._emit(depth, f"{name} = {self._expr(expr)}")
        return name

    def _expr(self, expr: Expr) -> str:
        match expr:
            case Const(value):
                return f"({value})" if value < 0 else str(value)
            case Var(name):
                return self._names[name]
            case Binary(op, left, right):
                a, b = self._expr(left), self._expr(right)
                match op:
                    case Operator.MIN:
                        return f"({a} if {a} < {b} else {b})" if _plain(a, b) else f"min({a}, {b})"
                    case Operator.MAX:
                        return f"({a} if {a} > {b} else {b})" if _plain(a, b) else f"max({a}, {b})"
                    case Operator.AND | Operator.OR:
                        return f"(1 if {a} {op.value} {b} else 0)"
                    case _:
                        return f"({a} {_INFIX[op]} {b})"
            case _:
                raise TypeError(f"not an expression: {expr!r}")


def _plain(left: str, right: str) -> bool:
    return left.isalnum() and right.isalnum()
