"""How often each call runs and how many elements its windows hold, unit by unit."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfsearch.ir.tir.expr import Const, Expr, free_variables
from tfsearch.ir.tir.nodes import (
    UNIT,
    Block,
    Call,
    For,
    If,
    Kernel,
    Let,
    Role,
    Stmt,
    Window,
)
from tfsearch.ir.tir.walk import Path, windows
from tfsearch.prove.forms import Column, Form, combine
from tfsearch.prove.points import Points, expand
from tfsearch.prove.scope import Loop, Scope

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class PointsOfUse:
    """Executions of one call by unit; by operand, elements of its windows (summed) by unit, and
    the smallest box that holds them, (first, past the last) a dimension."""

    calls: Ints
    elements: dict[int, Ints]
    boxes: dict[int, tuple[tuple[int, int], ...]]


@dataclass(frozen=True)
class _Domain:
    """Points of the variables that are still needed, how often each stands, and its unit."""

    points: Points
    weight: Column


class _TooMany(Exception):
    """The budget of points is spent."""


def count_uses(kernel: Kernel, max_points: int) -> dict[Path, PointsOfUse] | None:
    """Every call of a kernel that runs at all; None beyond ``max_points`` points at once."""
    counter = _Counter(kernel, max_points)
    try:
        counter.run()
    except _TooMany:
        return None
    return counter.uses


class _Counter:
    def __init__(self, kernel: Kernel, max_points: int) -> None:
        self.kernel = kernel
        self.max_points = max_points
        self.scope = Scope(kernel.units)
        self.uses: dict[Path, PointsOfUse] = {}
        self._needed: dict[int, frozenset[str]] = {}

    def run(self) -> None:
        units = np.arange(self.kernel.units, dtype=np.int64)
        points = Points({self.scope.unit: units}, len(units), True)
        self._require(self.kernel.body, frozenset((UNIT,)))
        self._block(self.kernel.body, (), 0, _Domain(points, np.ones_like(units)))

    def _require(self, block: Block, after: frozenset[str]) -> frozenset[str]:
        """Names that a block and what follows need; remembered by the identity of statements."""
        needed = after
        for statement in reversed(block):
            needed = self._require_one(statement, needed)
        return needed

    def _require_one(self, statement: Stmt, after: frozenset[str]) -> frozenset[str]:
        match statement:
            case Call():
                inside = _names(
                    extent for _, window in windows(statement) for extent in window.extents
                )
            case Let(name, value):
                inside = free_variables(value) if name in after else frozenset[str]()
            case For(name, start, stop, body, _, _, _):
                inner = self._require(body, frozenset())
                self._needed[id(statement)] = inner
                inside = (inner - {name}) | _names((start, stop))
            case If(condition, then, orelse):
                inside = self._require(then, frozenset()) | self._require(orelse, frozenset())
                inside |= free_variables(condition)
            case Role():
                inner = self._require(statement.body, frozenset())
                self._needed[id(statement)] = inner
                inside = inner - {statement.instance}
            case _:
                inside = frozenset[str]()
        return after | inside

    def _block(self, block: Block, prefix: Path, offset: int, domain: _Domain) -> None:
        if domain.points.count == 0:
            return
        for index, statement in enumerate(block):
            path = (*prefix, offset + index)
            match statement:
                case Call():
                    self._call(statement, path, domain)
                case Let(name, value):
                    self.scope.let(name, self.scope.form(value))
                case For():
                    self._loop(statement, path, domain)
                case If(condition, then, orelse):
                    form = self.scope.form(condition)
                    holds = domain.points.value(self.scope.algebra, form) != 0
                    self._branch(then, form, path, 0, _select(domain, holds))
                    form = self.scope.algebra.negate(form)
                    self._branch(orelse, form, path, len(then), _select(domain, ~holds))
                case Role() if statement.over_warps:
                    self._instances(statement, path, domain)
                case Role(_, first, last, body):
                    unit = domain.points.columns[self.scope.unit]
                    mark = self.scope.mark()
                    self.scope.restrict_unit(first, last)
                    inside = _select(domain, (unit >= first) & (unit < last))
                    self._block(body, path, 0, inside)
                    self.scope.reset(mark)
                case _:
                    pass

    def _branch(
        self, block: Block, condition: Form, path: Path, offset: int, domain: _Domain
    ) -> None:
        mark = self.scope.mark()
        self.scope.assume(condition)
        self._block(block, path, offset, domain)
        self.scope.reset(mark)

    def _loop(self, loop: For, path: Path, domain: _Domain, node: Stmt | None = None) -> None:
        """A loop; ``node`` is the statement it stands for where that is another one."""
        node = loop if node is None else node
        scope, algebra = self.scope, self.scope.algebra
        start, stop = scope.form(loop.start), scope.form(loop.stop)
        mark = scope.mark()
        symbol = scope.loop(loop.name, start, stop, loop.step, static=False)
        wanted = self._symbols(self._needed[id(node)])
        if symbol in wanted:
            entry = Loop(symbol, start, stop, loop.step)
            grown = expand(_weighted(domain), algebra, entry, self.max_points)
            if grown is None:
                raise _TooMany
            inner = _unweighted(grown)
        else:
            length = domain.points.value(algebra, combine(stop, start, -1))
            trips = np.maximum(0, -(-length // loop.step))
            inner = _select(replace(domain, weight=domain.weight * trips), trips > 0)
        self._block(loop.body, path, 0, _merge(inner, wanted | {scope.unit}))
        scope.reset(mark)

    def _instances(self, role: Role, path: Path, domain: _Domain) -> None:
        """A role over warps runs once an instance."""
        if role.instance:
            loop = For(role.instance, Const(0), Const(role.instances), role.body)
            self._loop(loop, path, domain, role)
        else:
            self._block(role.body, path, 0, replace(domain, weight=domain.weight * role.instances))

    def _symbols(self, names: frozenset[str]) -> frozenset[int]:
        """Variables behind names that have a value here."""
        out: frozenset[int] = frozenset()
        for name in names:
            if name in self.scope.names:
                out |= self.scope.algebra.variables_of(self.scope.names[name])
        return out

    def _call(self, call: Call, path: Path, domain: _Domain) -> None:
        unit = domain.points.columns[self.scope.unit]
        elements: dict[int, Ints] = {}
        boxes: dict[int, tuple[tuple[int, int], ...]] = {}
        for index, operand in enumerate(call.operands):
            if isinstance(operand, Window):
                size = np.ones(domain.points.count, dtype=np.int64)
                for extent in operand.extents:
                    if extent != Const(1):
                        form = self.scope.form(extent)
                        size = size * domain.points.value(self.scope.algebra, form)
                elements[index] = self._by_unit(unit, size * domain.weight)
                boxes[index] = self._box(operand)
        self.uses[path] = PointsOfUse(self._by_unit(unit, domain.weight), elements, boxes)

    def _by_unit(self, unit: Column, amount: Column) -> Ints:
        out = np.zeros(self.kernel.units, dtype=np.int64)
        np.add.at(out, unit, amount)
        return out

    def _box(self, window: Window) -> tuple[tuple[int, int], ...]:
        scope = self.scope
        out: list[tuple[int, int]] = []
        for start, extent, size in zip(
            window.starts, window.extents, window.buffer.shape, strict=True
        ):
            first = scope.form(start)
            past = combine(first, scope.algebra.clipped(scope.form(extent)))
            # Windows that hold nothing may lie outside; what is touched does not.
            out.append((max(scope.lower(first), 0), min(scope.upper(past), size)))
        return tuple(out)


_WEIGHT = -1
"""Stands for the weight among the columns of points."""


def _weighted(domain: _Domain) -> Points:
    return replace(domain.points, columns={**domain.points.columns, _WEIGHT: domain.weight})


def _unweighted(points: Points) -> _Domain:
    columns = dict(points.columns)
    weight = columns.pop(_WEIGHT)
    return _Domain(replace(points, columns=columns), weight)


def _select(domain: _Domain, keep: np.ndarray[Any, np.dtype[np.bool_]]) -> _Domain:
    columns = {symbol: column[keep] for symbol, column in domain.points.columns.items()}
    return _Domain(Points(columns, int(keep.sum()), True), domain.weight[keep])


def _merge(domain: _Domain, wanted: frozenset[int]) -> _Domain:
    """Drop the variables that nothing needs any more and add up the weights of equal points."""
    columns = domain.points.columns
    kept = [symbol for symbol in columns if symbol in wanted]
    if len(kept) == len(columns) or domain.points.count == 0:
        return domain
    table = np.stack([columns[symbol] for symbol in kept])
    unique, inverse = np.unique(table, axis=1, return_inverse=True)
    weight = np.zeros(unique.shape[1], dtype=np.int64)
    np.add.at(weight, inverse.reshape(-1), domain.weight)
    points = Points({symbol: unique[row] for row, symbol in enumerate(kept)}, unique.shape[1], True)
    return _Domain(points, weight)


def _names(exprs: Iterable[Expr]) -> frozenset[str]:
    out: frozenset[str] = frozenset()
    for expr in exprs:
        out |= free_variables(expr)
    return out
