"""Compiles checked expression trees to closures of NumPy calls.

Types, ranges and integer widths are settled once, at compile time.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from tfsearch.space.code import (
    INT32,
    INT64,
    Code,
    Env,
    Pair,
    Scope,
    Type,
    Value,
    after,
    either,
    evaluate,
    inside,
    truth_of,
    union,
)
from tfsearch.space.functions import Functions
from tfsearch.space.ranges import Range

_COMPARE: dict[type[ast.cmpop], Any] = {
    ast.Eq: np.equal,
    ast.NotEq: np.not_equal,
    ast.Lt: np.less,
    ast.LtE: np.less_equal,
    ast.Gt: np.greater,
    ast.GtE: np.greater_equal,
}


def compile_tree(tree: ast.expr, scope: Scope) -> Code:
    """Compile a checked tree.

    Raises ``RequestError``: ``space.unknown-name``, ``space.expression-type`` (strings in
    arithmetic, a string compared with a number), ``space.expression-overflow``.
    """
    return _Compiler(scope).compile(tree)


class _Compiler(Functions):
    def compile(self, node: ast.expr) -> Code:
        match node:
            case ast.Constant():
                return self.constant(node.value)
            case ast.Name():
                return self.name(node)
            case ast.BinOp():
                code = self.binary(node)
            case ast.UnaryOp():
                code = self.unary(node)
            case ast.BoolOp():
                code = self.boolean(node)
            case ast.IfExp():
                code = self.choice(node)
            case ast.Compare():
                code = self.comparison(node)
            case ast.Call():
                code = self.call(node)
            case _:
                raise TypeError(f"{type(node).__name__} is outside the grammar")
        return code if code.parameters else self.fold(code)

    def constant(self, value: Any) -> Code:
        if isinstance(value, str):
            number = self.scope.intern(value)
            return Code(Type.TEXT, Range(0, 0), False, frozenset(), lambda _env: (number, None))
        kinds = {bool: Type.BOOL, int: Type.INT, float: Type.FLOAT}
        kind = kinds[type(value)]
        span = Range(value, value) if kind is not Type.BOOL else Range(int(value), int(value))
        wide = kind is Type.INT and not inside(span, INT32)
        held: Value = np.int64(value) if wide else value
        return Code(kind, span, wide, frozenset(), lambda _env: (held, None))

    def fold(self, code: Code) -> Code:
        """Evaluate what depends on no parameter once, unless it is undefined."""

        def no_names(name: str) -> Pair:
            raise KeyError(name)

        if code.type is Type.TEXT:
            return code
        value, error = evaluate(code, no_names)
        if error is not None and bool(error):
            return code
        item = np.asarray(value).item()
        return self.constant({Type.BOOL: bool, Type.INT: int, Type.FLOAT: float}[code.type](item))

    def name(self, node: ast.Name) -> Code:
        name = node.id
        if name in self.scope.constants:
            return self.constant(self.scope.constants[name])
        if name not in self.scope.domains:
            known = ", ".join(sorted({*self.scope.domains, *self.scope.constants})) or "none"
            raise self.error(
                node, f"unknown name {name!r}; known names: {known}", "space.unknown-name"
            )
        domain = self.scope.domains[name]
        span = Range(domain.lo, domain.hi)
        wide = domain.type is Type.INT and not inside(span, INT32)
        if wide and not inside(span, INT64):
            raise self.overflow(node, span)
        parameters = frozenset({name}) if domain.parameters is None else domain.parameters

        def read(env: Env) -> Pair:
            return env(name)

        return Code(domain.type, span, wide, parameters, domain.inline or read)

    def boolean(self, node: ast.BoolOp) -> Code:
        """``and``, ``or``: the operand that decides, which of booleans is a boolean."""
        codes = [self.number(value) for value in node.values]
        conjunction = isinstance(node.op, ast.And)
        if any(code.type is not Type.BOOL for code in codes):
            return self.deciding(codes, conjunction)
        tests = [code.run for code in codes]
        join = np.logical_and if conjunction else np.logical_or

        def run(env: Env) -> Pair:
            value, error = tests[0](env)
            for test in tests[1:]:
                other, missing = test(env)
                reached = value if conjunction else np.logical_not(value)
                error = either(error, after(missing, reached))
                value = join(value, other)
            return value, error

        return Code(Type.BOOL, Range(0, 1), False, union(codes), run)

    def deciding(self, codes: Sequence[Code], conjunction: bool) -> Code:
        """The first operand that is false (true for ``or``), else the last one."""
        kind = Type.FLOAT if any(code.type is Type.FLOAT for code in codes) else Type.INT
        span = reduce(lambda a, b: a.join(b), [code.range for code in codes])
        runs = [code.run for code in codes]
        select: Any = np.where

        def run(env: Env) -> Pair:
            value, error = runs[0](env)
            for inner in runs[1:]:
                other, missing = inner(env)
                reached = np.not_equal(value, 0) if conjunction else np.equal(value, 0)
                error = either(error, after(missing, reached))
                value = select(reached, other, value)
            return value, error

        return Code(kind, span, any(code.wide for code in codes), union(codes), run)

    def choice(self, node: ast.IfExp) -> Code:
        test = self.number(node.test)
        left, right = self.compile(node.body), self.compile(node.orelse)
        if left.numeric != right.numeric:
            raise self.error(
                node, "one branch is a string, the other a number", "space.expression-type"
            )
        kind = left.type
        if left.type is not right.type:
            kind = Type.FLOAT if Type.FLOAT in (left.type, right.type) else Type.INT
        truth, first, second = truth_of(test), left.run, right.run
        select: Any = np.where

        def run(env: Env) -> Pair:
            chosen, error = truth(env)
            a, ea = first(env)
            b, eb = second(env)
            error = either(error, after(ea, chosen))
            error = either(error, after(eb, np.logical_not(chosen)))
            return select(chosen, a, b), error

        return Code(
            kind,
            left.range.join(right.range),
            left.wide or right.wide,
            union([test, left, right]),
            run,
        )

    def comparison(self, node: ast.Compare) -> Code:
        left = self.compile(node.left)
        if isinstance(node.ops[0], (ast.In, ast.NotIn)):
            return self.membership(node, left)
        codes = [left]
        ufuncs: list[Any] = []
        for op, item in zip(node.ops, node.comparators, strict=True):
            right = self.compile(item)
            self.comparable(node, codes[-1], right, isinstance(op, (ast.Eq, ast.NotEq)))
            codes.append(right)
            ufuncs.append(_COMPARE[type(op)])
        runs = [code.run for code in codes]

        def run(env: Env) -> Pair:
            a, ea = runs[0](env)
            b, eb = runs[1](env)
            value, error = ufuncs[0](a, b), either(ea, eb)
            for ufunc, next_run in zip(ufuncs[1:], runs[2:], strict=True):
                a = b
                b, eb = next_run(env)
                error = either(error, after(eb, value))
                value = np.logical_and(value, ufunc(a, b))
            return value, error

        return Code(Type.BOOL, Range(0, 1), False, union(codes), run)

    def comparable(self, node: ast.expr, a: Code, b: Code, equality: bool) -> None:
        if a.numeric != b.numeric:
            raise self.error(
                node,
                "a string is compared with a number, which is never equal; "
                "strings compare with strings",
                "space.expression-type",
            )
        if not a.numeric and not equality:
            raise self.error(
                node, "strings have no order; use ==, != or in", "space.expression-type"
            )

    def membership(self, node: ast.Compare, left: Code) -> Code:
        container = node.comparators[0]
        elements = container.elts if isinstance(container, (ast.Tuple, ast.List)) else []
        items = [self.compile(element) for element in elements]
        for item in items:
            self.comparable(node, left, item, True)
        inverted = isinstance(node.ops[0], ast.NotIn)
        first, rest = left.run, [item.run for item in items]

        def run(env: Env) -> Pair:
            wanted, error = first(env)
            value: Value = np.zeros(np.shape(wanted), np.bool_)
            for item in rest:
                other, missing = item(env)
                error = either(error, missing)
                value = np.logical_or(value, np.equal(wanted, other))
            return (np.logical_not(value) if inverted else value), error

        return Code(Type.BOOL, Range(0, 1), False, union([left, *items]), run)
