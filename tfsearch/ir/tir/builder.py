"""A small builder: lowering writes statements in order, blocks nest with ``with``."""

from __future__ import annotations

from collections.abc import Generator, Iterable
from contextlib import contextmanager

from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout, SwizzledLayout
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Var, as_expr
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
    LoopKind,
    MemorySpace,
    Operand,
    Param,
    Role,
    Scalar,
    Stmt,
)


class Builder:
    """Collects the statements of one kernel. Names are made unique by a counter per stem.

    ``reserved`` names (those of the arguments) are never handed out.
    """

    def __init__(self, reserved: Iterable[str] = ()) -> None:
        self._blocks: list[list[Stmt]] = [[]]
        self._counts: dict[str, int] = {}
        self._taken = {UNIT, *reserved}

    def fresh(self, stem: str) -> str:
        """A name not handed out before and not reserved: ``stem``, ``stem1``, ``stem2`` …"""
        while True:
            count = self._counts.get(stem, 0)
            self._counts[stem] = count + 1
            name = stem if count == 0 else f"{stem}{count}"
            if name not in self._taken:
                self._taken.add(name)
                return name

    def append(self, statement: Stmt) -> None:
        """Add a statement to the current block."""
        self._blocks[-1].append(statement)

    def extend(self, statements: Iterable[Stmt]) -> None:
        """Add statements built elsewhere, such as a captured block, to the current block."""
        self._blocks[-1].extend(statements)

    def alloc(
        self,
        stem: str,
        dtype: DType,
        shape: tuple[int, ...],
        space: MemorySpace,
        *,
        strides: tuple[int, ...] | None = None,
        alignment: int = 64,
        layout: Layout | SwizzledLayout | None = None,
        fragment: str = "",
        over: Buffer | None = None,
        at: int = 0,
    ) -> Buffer:
        """Allocate a buffer for the rest of the current block.

        ``over``: it shares the storage of another, from byte ``at`` on.
        """
        name = self.fresh(stem)
        base = "" if over is None else over.name
        buffer = Buffer(name, dtype, shape, space, strides, alignment, layout, fragment, base, at)
        self.append(Alloc(buffer))
        return buffer

    def let(self, stem: str, value: ExprLike) -> Expr:
        """Name a value; literals and plain variables are returned as they are."""
        expr = as_expr(value)
        if isinstance(expr, (Const, Var)):
            return expr
        name = self.fresh(stem)
        self.append(Let(name, expr))
        return Var(name)

    def call(self, atom: str, *operands: Operand | int | float) -> None:
        """Call an atom; a Python int becomes an expression, a float a scalar literal."""
        self.append(Call(atom, tuple(_operand(value) for value in operands)))

    @contextmanager
    def loop(
        self,
        stem: str,
        stop: ExprLike,
        *,
        start: ExprLike = 0,
        step: int = 1,
        unrolled: bool = False,
        unroll: int = 1,
    ) -> Generator[Expr, None, None]:
        """A loop around what is built inside; yields its variable.

        A loop of exactly one iteration with literal bounds is not emitted: its variable is the
        literal start.
        """
        first, last = as_expr(start), as_expr(stop)
        if (
            isinstance(first, Const)
            and isinstance(last, Const)
            and first.value < last.value <= first.value + step
        ):
            yield first
            return
        name = self.fresh(stem)
        self._blocks.append([])
        yield Var(name)
        body = tuple(self._blocks.pop())
        kind = LoopKind.UNROLLED if unrolled else LoopKind.SERIAL
        if body and not (
            isinstance(first, Const) and isinstance(last, Const) and first.value >= last.value
        ):
            self.append(For(name, first, last, body, kind, step, unroll))

    @contextmanager
    def role(
        self, stem: str, first: int, last: int, *, width: int = 0, instance: str = ""
    ) -> Generator[Expr, None, None]:
        """A role around what is built inside; yields the number of the instance.

        With a ``width``, ``first`` and ``last`` count warps, and with ``instance`` (a stem) the
        instances have a variable; where there is one instance, its number is the literal 0.
        """
        name = self.fresh(stem)
        variable = self.fresh(instance) if instance and last - first > width else ""
        self._blocks.append([])
        yield Var(variable) if variable else Const(0)
        body = tuple(self._blocks.pop())
        self.append(Role(name, first, last, body, width, variable))

    @contextmanager
    def when(self, condition: ExprLike) -> Generator[None, None, None]:
        """Statements under a predicate; a literal predicate leaves no ``if`` behind."""
        predicate = as_expr(condition)
        self._blocks.append([])
        yield
        body = self._blocks.pop()
        if isinstance(predicate, Const):
            if predicate.value:
                self._blocks[-1].extend(body)
        elif body:
            self.append(If(predicate, tuple(body)))

    def choose(self, condition: ExprLike, then: Block, orelse: Block) -> None:
        """``if condition then … else …`` of blocks captured with :meth:`capture`."""
        predicate = as_expr(condition)
        if isinstance(predicate, Const):
            self._blocks[-1].extend(then if predicate.value else orelse)
        else:
            self.append(If(predicate, then, orelse))

    @contextmanager
    def capture(self) -> Generator[list[Stmt], None, None]:
        """Build statements into a list instead of the current block."""
        block: list[Stmt] = []
        self._blocks.append(block)
        yield block
        self._blocks.pop()

    def kernel(
        self,
        name: str,
        params: tuple[Param, ...],
        units: int,
        *,
        warps: int = 1,
        lanes: int = 1,
        registers: int = 0,
        cluster: tuple[int, ...] = (),
    ) -> Kernel:
        """The finished kernel."""
        if len(self._blocks) != 1:
            raise ValueError("a block is still open")
        body = tuple(self._blocks[0])
        return Kernel(name, params, units, body, warps, lanes, registers, cluster)


def _operand(value: Operand | int | float) -> Operand:
    if isinstance(value, bool):
        raise TypeError("a boolean is not an operand")
    if isinstance(value, int):
        return Const(value)
    if isinstance(value, float):
        return Scalar(value)
    return value
