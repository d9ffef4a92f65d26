"""TIR to C-like source, one to one: no access, synchronisation or control flow is added.

What differs between C dialects (types, how tiles are named, how arguments arrive, where memory
is declared, pragmas) comes from a :class:`Dialect`; what differs between instructions comes from
the atoms' templates.
A template refers to operands by name: ``{dst}`` is a register variable, a pointer or an
integer expression; ``{src.n}`` and ``{src.step}`` are the extent and the stride (elements) of the
innermost tile dimension, ``{src.rows}`` and ``{src.ld}`` those of the one before.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol, Self

from tfsearch.atoms.contract import Atom, OperandSpec
from tfsearch.codegen.storage import StoragePlan
from tfsearch.core.errors import InternalError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var, evaluate, substitute
from tfsearch.ir.tir.nodes import (
    UNIT,
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Io,
    Kernel,
    Let,
    LoopKind,
    MemorySpace,
    Operand,
    Role,
    Scalar,
    Stmt,
    Window,
    tile_dims,
)

WORKSPACE = "tfs_workspace"


class Dialect(Protocol):
    """What a C-like language spells in its own way."""

    def element(self, dtype: DType) -> str:
        """Storage type of one element in memory."""
        ...

    def register(self, dtype: DType, shape: tuple[int, ...]) -> str | None:
        """Type of a register fragment; None where fragments are numbered, not declared."""
        ...

    def literal(self, value: float) -> str:
        """A floating-point literal that keeps every bit, inf and NaN included."""
        ...

    def argument(self, index: int) -> str | None:
        """The address that argument ``index`` of an entry holds, as an expression.

        None where the entry's signature declares the arguments by the names that
        :meth:`KernelEmitter.parameters` gives them. The workspace comes after the arguments.
        """
        ...

    def pointer(self, element: str, name: str, address: str) -> str:
        """Declaration of a pointer to elements that nothing else points to."""
        ...

    def array(self, buffer: Buffer) -> str:
        """Declaration of a buffer that is not in the workspace, in the memory that it names.

        ``InternalError`` (``codegen.space``) for memory that the language has not.
        """
        ...

    def unroll(self, count: int) -> str:
        """The line before a loop whose body is to be repeated ``count`` times."""
        ...


class Rendered(str):
    """Text of an operand, with its extents and leading stride for templates."""

    n: str
    rows: str
    ld: str
    step: str

    def __new__(cls, text: str, n: str = "", rows: str = "", ld: str = "", step: str = "1") -> Self:
        self = super().__new__(cls, text)
        self.n, self.rows, self.ld, self.step = n, rows, ld, step
        return self


@dataclass(frozen=True)
class Scope:
    """Values of unrolled variables while a body is expanded."""

    values: Mapping[str, Expr]

    def bind(self, name: str, value: int) -> Scope:
        """With one more value."""
        return Scope({**self.values, name: Const(value)})

    def resolve(self, expr: Expr) -> Expr:
        """An expression with the values in it."""
        return substitute(expr, self.values) if self.values else expr


class KernelEmitter:
    """Emits the body of one kernel as C statements."""

    def __init__(
        self, kernel: Kernel, atoms: Mapping[str, Atom], dialect: Dialect, plan: StoragePlan
    ) -> None:
        self.kernel = kernel
        self.atoms = atoms
        self.dialect = dialect
        self.plan = plan
        self._lines: list[str] = []
        self._depth = 1
        self._tile_numbers: dict[str, int] = {}
        self._free_tiles = itertools.count()
        self._constant: dict[str, bool] = {
            param.buffer.name: param.io in (Io.IN, Io.PREPARED) for param in kernel.params
        }

    def parameters(self) -> list[tuple[str, str]]:
        """(element type, name) of every pointer the body works on: arguments, then workspace."""
        found: list[tuple[str, str]] = []
        for param in self.kernel.params:
            const = "const " if self._constant[param.buffer.name] else ""
            element = self.dialect.element(param.buffer.dtype)
            found.append((f"{const}{element}", self.pointer(param.buffer)))
        if self.plan.workspace_bytes:
            found.append(("char", WORKSPACE))
        return found

    def lines(self) -> list[str]:
        """Statements of the body, the declarations of its parameters first where it has them."""
        for index, (element, name) in enumerate(self.parameters()):
            address = self.dialect.argument(index)
            if address is not None:
                self.line(self.dialect.pointer(element, name, address))
        self.block(self.kernel.body, Scope({}))
        return self._lines

    def pointer(self, buffer: Buffer) -> str:
        """C name of a memory buffer; a suffix keeps users' names off keywords and locals.

        Names that start with an underscore get one under which no compiler has a macro.
        """
        if buffer.space is not MemorySpace.GLOBAL:
            return buffer.name
        return f"{buffer.name}_p" if buffer.name.startswith("_") else f"{buffer.name}_"

    def line(self, text: str) -> None:
        """Add a line."""
        self._lines.append("  " * self._depth + text)

    def block(self, block: Block, scope: Scope) -> None:
        """Add the statements of a block."""
        for statement in block:
            self.statement(statement, scope)

    def _braced(self, head: str, block: Block, scope: Scope) -> None:
        self.line(f"{head} {{" if head else "{")
        self.nested(block, scope)
        self.line("}")

    def nested(self, block: Block, scope: Scope) -> None:
        """The statements of a block, indented."""
        self._depth += 1
        self.block(block, scope)
        self._depth -= 1

    def statement(self, statement: Stmt, scope: Scope) -> None:
        """Add one statement."""
        match statement:
            case Alloc(buffer):
                self._alloc(buffer)
            case Let(name, value):
                self.line(f"const long {name} = {self.expression(scope.resolve(value))};")
            case For():
                self._loop(statement, scope)
            case If(condition, then, orelse):
                self._if(scope.resolve(condition), then, orelse, scope)
            case Role(_, first, last, body, 0):
                self._braced(f"if ({UNIT} >= {first} && {UNIT} < {last})", body, scope)
            case Call(atom, operands):
                self._call(self.atoms[atom], operands, scope)
            case _:
                raise InternalError("codegen.statement", f"cannot emit {statement!r}")

    def _if(self, condition: Expr, then: Block, orelse: Block, scope: Scope) -> None:
        if isinstance(condition, Const):
            self._braced("", then if condition.value else orelse, scope)
            return
        self._braced(f"if ({self.expression(condition)})", then, scope)
        if orelse:
            self._braced("else", orelse, scope)

    def _alloc(self, buffer: Buffer) -> None:
        if buffer.space.is_register:
            for index in _fragments(buffer, _fragment_rank(buffer)):
                name = _fragment_name(buffer, index)
                shape = buffer.shape[len(index) :]
                declared = self.dialect.register(buffer.dtype, shape)
                if declared is None:
                    self._tile_numbers[name] = next(self._free_tiles)
                else:
                    self.line(f"{declared} {name};")
        elif buffer.name not in self.plan.offsets:
            self.line(self.dialect.array(buffer))
        else:
            offset = str(self.plan.offsets[buffer.name])
            if buffer.space is MemorySpace.LOCAL and self.plan.per_unit:
                offset += f" + {UNIT} * {self.plan.per_unit}L"
            element = self.dialect.element(buffer.dtype)
            self.line(self.dialect.pointer(element, buffer.name, f"({WORKSPACE} + {offset})"))

    def _loop(self, loop: For, scope: Scope) -> None:
        start, stop = scope.resolve(loop.start), scope.resolve(loop.stop)
        if loop.kind is LoopKind.UNROLLED:
            if not (isinstance(start, Const) and isinstance(stop, Const)):
                raise InternalError(
                    "codegen.unrolled", f"unrolled loop {loop.name} has bounds that are not literal"
                )
            for value in range(start.value, stop.value, loop.step):
                self._braced("", loop.body, scope.bind(loop.name, value))
            return
        if loop.unroll > 1:
            self.line(self.dialect.unroll(loop.unroll))
        step = f"{loop.name} += {loop.step}" if loop.step != 1 else f"++{loop.name}"
        head = (
            f"for (long {loop.name} = {self.expression(start)}; "
            f"{loop.name} < {self.expression(stop)}; {step})"
        )
        self._braced(head, loop.body, scope)

    def _call(self, atom: Atom, operands: tuple[Operand, ...], scope: Scope) -> None:
        rendered = {
            spec.name: self._operand(operand, spec, scope)
            for spec, operand in zip(atom.operands, operands, strict=True)
        }
        self.line(atom.template.format(**rendered))

    def _operand(self, operand: Operand, spec: OperandSpec, scope: Scope) -> Rendered:
        match operand:
            case Scalar(value):
                return Rendered(self.dialect.literal(value))
            case Window():
                return self.window(operand, spec, scope)
            case _:
                return Rendered(self.expression(scope.resolve(operand)))

    def window(self, operand: Window, spec: OperandSpec, scope: Scope) -> Rendered:
        """A window as a register, a number of a tile or a pointer."""
        buffer = operand.buffer
        starts = [scope.resolve(start) for start in operand.starts]
        extents = [self.expression(scope.resolve(extent)) for extent in operand.extents]
        strides = buffer.dense_strides
        dims = tile_dims(operand, len(spec.shape))
        n, step = (extents[dims[-1]], str(strides[dims[-1]])) if dims else ("1", "1")
        rows, ld = (extents[dims[-2]], str(strides[dims[-2]])) if len(dims) > 1 else ("1", "0")
        if buffer.space.is_register:
            leading = len(buffer.shape) - _fragment_rank(buffer)
            index = tuple(evaluate(start, {}) for start in starts[:leading])
            name = _fragment_name(buffer, index)
            text = str(self._tile_numbers[name]) if name in self._tile_numbers else name
            return Rendered(text, n, rows, ld, step)
        offset: Expr = Const(0)
        for start, stride in zip(starts, strides, strict=True):
            offset = offset + start * stride
        base = self.pointer(buffer)
        text = base if offset == Const(0) else f"{base} + {self.expression(offset)}"
        return Rendered(f"({text})", n, rows, ld, step)

    def expression(self, expr: Expr) -> str:
        """An integer expression in C. Operands are never negative where ``//`` or ``%`` occur."""
        match expr:
            case Const(value):
                return str(value) if -(2**31) < value < 2**31 else f"{value}L"
            case Var(name):
                return name
            case Binary(op, left, right):
                a, b = self.expression(left), self.expression(right)
                if op in (Operator.MIN, Operator.MAX):
                    comparison = "<" if op is Operator.MIN else ">"
                    return f"({a} {comparison} {b} ? {a} : {b})"
                return f"({a} {_C_OPERATORS[op]} {b})"
            case _:
                raise InternalError("codegen.expression", f"cannot emit {expr!r}")


_C_OPERATORS: Mapping[Operator, str] = {
    Operator.ADD: "+",
    Operator.SUB: "-",
    Operator.MUL: "*",
    Operator.FLOORDIV: "/",
    Operator.MOD: "%",
    Operator.LT: "<",
    Operator.LE: "<=",
    Operator.EQ: "==",
    Operator.NE: "!=",
    Operator.AND: "&&",
    Operator.OR: "||",
}


def _fragment_rank(buffer: Buffer) -> int:
    return 2 if buffer.space is MemorySpace.TILE else 1


def _fragments(buffer: Buffer, rank: int) -> Iterable[tuple[int, ...]]:
    leading = buffer.shape[: len(buffer.shape) - rank]
    return itertools.product(*(range(extent) for extent in leading))


def _fragment_name(buffer: Buffer, index: tuple[int, ...]) -> str:
    return "_".join((buffer.name, *(str(i) for i in index)))
