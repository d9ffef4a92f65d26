"""Expressions over parameters, evaluated for whole arrays of candidates at once.

Integers are exact: an expression whose value could leave 64 bits for some point is refused
instead of wrapping. ``and`` and ``or`` give the operand that decides, as in Python. Evaluation
follows Python's order, so ``b != 0 and a % b == 0`` is well defined at ``b == 0``; where Python
would raise (division or remainder by zero, ``log2`` of nothing positive), a condition is False
and a number is 0.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.space import grammar, typed
from tfsearch.space.code import Domain, Pair, Scope, Type, Value, evaluate


@dataclass(frozen=True)
class Expr:
    """A checked expression. Equal texts are equal expressions; made by :func:`parse`."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    names: frozenset[str] = field(compare=False)

    @property
    def canonical(self) -> str:
        """Text of the tree, independent of spacing, parentheses and the Python version."""
        return grammar.canonical(self.tree)

    def conjuncts(self) -> tuple[Expr, ...]:
        """The operands of a top-level ``and``, flattened; the expression itself if it has none.

        All of them hold exactly where the whole holds, so each may be tested on its own.
        """
        if not (isinstance(self.tree, ast.BoolOp) and isinstance(self.tree.op, ast.And)):
            return (self,)
        out: list[Expr] = []
        for part in self.tree.values:
            expr = Expr(ast.unparse(part), part, grammar.names_of(part))
            out.extend(expr.conjuncts())
        return tuple(out)

    def evaluate(self, env: Mapping[str, Any]) -> Any:
        """The value for every element of ``env``'s columns, which broadcast.

        ``env`` maps each name to a scalar or an array of integers, floats, booleans or strings;
        others are ignored. Returns an array, or a Python scalar when every input is one. Raises
        ``RequestError``: ``space.unknown-name``, ``space.expression-type`` or
        ``space.expression-overflow`` (judged on the columns' smallest and largest values).
        """
        strings: dict[str, int] = {}
        columns = {name: _column(env, name, strings, self.text) for name in sorted(self.names)}
        domains = {name: _domain(column) for name, column in columns.items()}

        def intern(text: str) -> int:
            return strings.setdefault(text, len(strings))

        code = typed.compile_tree(self.tree, Scope(self.text, domains, {}, intern))
        pairs: dict[str, Pair] = {name: (column[1], None) for name, column in columns.items()}
        value, error = evaluate(code, pairs.__getitem__)
        if error is not None:
            value = np.where(error, np.zeros((), np.asarray(value).dtype), value)
        result = np.asarray(value)
        if code.type is Type.TEXT:
            result = np.array(list(strings))[result]
            if error is not None:
                result = np.where(error, "", result)
        elif code.type is Type.INT:
            result = result.astype(np.int64)
        elif code.type is Type.BOOL:
            result = result.astype(np.bool_)
        return result.item() if result.ndim == 0 else result


def parse(text: str) -> Expr:
    """Parse ``text``; ``RequestError("space.expression")`` for what the grammar does not allow."""
    tree, names = grammar.parse_tree(text)
    return Expr(text, tree, names)


_Column = tuple[Type, Value]


def _column(env: Mapping[str, Any], name: str, strings: dict[str, int], text: str) -> _Column:
    if name not in env:
        known = ", ".join(sorted(env)) or "none"
        raise RequestError(
            "space.unknown-name",
            f"expression {grammar.shorten(text)!r} reads {name!r}; known names: {known}",
        )
    column: Value = np.asarray(env[name])
    if column.dtype.kind in "US":
        codes = [strings.setdefault(str(item), len(strings)) for item in column.ravel().tolist()]
        return Type.TEXT, np.array(codes, np.int32).reshape(column.shape)
    kinds = {"b": Type.BOOL, "i": Type.INT, "u": Type.INT, "f": Type.FLOAT}
    if column.dtype.kind not in kinds:
        raise RequestError(
            "space.expression-type",
            f"{name!r} holds {column.dtype}; columns are integers, floats, booleans or strings",
        )
    return kinds[column.dtype.kind], column


def _domain(column: _Column) -> Domain:
    kind, values = column
    if kind is Type.BOOL:
        return Domain(kind, 0, 1)
    if kind is Type.TEXT or not values.size:
        return Domain(kind, 0, 0)
    return Domain(kind, values.min().item(), values.max().item())
