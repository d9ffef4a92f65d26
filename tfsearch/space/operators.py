"""Arithmetic of compiled expressions: types, ranges, widths and guarded division."""

from __future__ import annotations

import ast
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.space import grammar, ranges
from tfsearch.space.code import (
    INT32,
    INT64,
    Code,
    Env,
    Pair,
    Scope,
    Type,
    either,
    inside,
    truth_of,
)
from tfsearch.space.ranges import Range

_ARITHMETIC: dict[type[ast.operator], tuple[Any, Callable[[Range, Range], Range]]] = {
    ast.Add: (np.add, ranges.add),
    ast.Sub: (np.subtract, ranges.subtract),
    ast.Mult: (np.multiply, ranges.multiply),
}
_DIVISION: dict[type[ast.operator], tuple[Any, Callable[[Range, Range, bool], Range]]] = {
    ast.FloorDiv: (np.floor_divide, ranges.floor_divide),
    ast.Mod: (np.remainder, ranges.modulo),
    ast.Div: (np.true_divide, ranges.divide),
}

_BITWISE: dict[type[ast.operator], Any] = {
    ast.BitAnd: np.bitwise_and,
    ast.BitOr: np.bitwise_or,
    ast.BitXor: np.bitwise_xor,
}


class Operators(ABC):
    """Compiles arithmetic operators; operands through :meth:`compile`."""

    def __init__(self, scope: Scope) -> None:
        self.scope = scope

    def error(self, node: ast.expr, what: str, code: str) -> RequestError:
        return grammar.refusal(self.scope.text, node.col_offset + 1, what, code)

    @abstractmethod
    def compile(self, node: ast.expr) -> Code:
        """Compile any node."""

    def overflow(self, node: ast.expr, span: Range) -> RequestError:
        return self.error(
            node,
            f"values from {span.lo} to {span.hi} do not fit 64-bit integers; "
            "use smaller values or / for floating point",
            "space.expression-overflow",
        )

    def number(self, node: ast.expr) -> Code:
        code = self.compile(node)
        if not code.numeric:
            raise self.error(node, "a string where a number is needed", "space.expression-type")
        return code

    def integer(self, node: ast.expr, what: str) -> Code:
        code = self.number(node)
        if code.type is Type.FLOAT:
            raise self.error(
                node, f"{what} needs integers, not floats; use // or int()", "space.expression-type"
            )
        return code

    def arithmetic(self, node: ast.expr, span: Range, *operands: Code) -> tuple[Type, bool, Any]:
        """Type, width and NumPy dtype of a result in ``span`` computed from ``operands``."""
        if any(operand.type is Type.FLOAT for operand in operands):
            return Type.FLOAT, False, np.float64
        if not inside(span, INT64):
            raise self.overflow(node, span)
        wide = any(operand.wide for operand in operands) or not inside(span, INT32)
        return Type.INT, wide, np.int64 if wide else np.int32

    def binary(self, node: ast.BinOp) -> Code:
        left, right = self.number(node.left), self.number(node.right)
        if isinstance(node.op, ast.Pow):
            return self.power(node, left, right)
        if type(node.op) in _DIVISION:
            return self.division(node, left, right, *_DIVISION[type(node.op)])
        if type(node.op) in _BITWISE:
            return self.bitwise(node, left, right)
        if isinstance(node.op, (ast.LShift, ast.RShift)):
            return self.shift(node, left, right)
        ufunc, reach = _ARITHMETIC[type(node.op)]
        span = reach(left.range, right.range)
        kind, wide, dtype = self.arithmetic(node, span, left, right)
        first, second = left.run, right.run

        def run(env: Env) -> Pair:
            a, ea = first(env)
            b, eb = second(env)
            return ufunc(a, b, dtype=dtype), either(ea, eb)

        return Code(kind, span, wide, left.parameters | right.parameters, run)

    def division(
        self,
        node: ast.expr,
        left: Code,
        right: Code,
        ufunc: Any,
        reach: Callable[[Range, Range, bool], Range],
    ) -> Code:
        span = reach(left.range, right.range, right.type is not Type.FLOAT)
        if ufunc is np.true_divide:
            kind, wide, dtype = Type.FLOAT, False, np.float64
        else:
            kind, wide, dtype = self.arithmetic(node, span, left, right)
        first, second = left.run, right.run
        guarded = right.range.has_zero

        def run(env: Env) -> Pair:
            a, ea = first(env)
            b, eb = second(env)
            if not guarded:
                return ufunc(a, b, dtype=dtype), either(ea, eb)
            zero = np.equal(b, 0)
            value = np.where(zero, 0, ufunc(a, np.where(zero, 1, b), dtype=dtype))
            return value, either(either(ea, eb), zero)

        return Code(kind, span, wide, left.parameters | right.parameters, run)

    def bitwise(self, node: ast.BinOp, left: Code, right: Code) -> Code:
        """``&``, ``|``, ``^``: of two booleans a boolean, else an integer."""
        self.integers(node, left, right)
        ufunc = _BITWISE[type(node.op)]
        first, second = left.run, right.run
        boolean = left.type is Type.BOOL and right.type is Type.BOOL
        span = Range(0, 1) if boolean else ranges.bitwise(left.range, right.range)
        kind, wide, dtype = self.arithmetic(node, span, left, right)

        def run(env: Env) -> Pair:
            a, ea = first(env)
            b, eb = second(env)
            return ufunc(a, b, dtype=np.bool_ if boolean else dtype), either(ea, eb)

        kind = Type.BOOL if boolean else kind
        return Code(kind, span, wide, left.parameters | right.parameters, run)

    def shift(self, node: ast.BinOp, left: Code, right: Code) -> Code:
        self.integers(node, left, right)
        if right.range.lo < 0 or right.range.hi > grammar.MAX_EXPONENT:
            raise self.error(
                node.right,
                f"shifts are by 0 to {grammar.MAX_EXPONENT} bits, "
                f"not {right.range.lo} to {right.range.hi}",
                "space.expression-overflow",
            )
        scale = Range(1 << int(right.range.lo), 1 << int(right.range.hi))
        if isinstance(node.op, ast.LShift):
            ufunc: Any = np.left_shift
            span = ranges.multiply(left.range, scale)
        else:
            ufunc = np.right_shift
            span = ranges.floor_divide(left.range, scale, True)
        # NumPy leaves shifts by a type's whole width undefined.
        kind, wide, dtype = self.arithmetic(node, span, left, right)
        wide = wide or right.range.hi > 31
        dtype = np.int64 if wide else dtype
        first, second = left.run, right.run

        def run(env: Env) -> Pair:
            a, ea = first(env)
            b, eb = second(env)
            # An undefined count holds any number.
            return ufunc(a, np.clip(b, 0, 63), dtype=dtype), either(ea, eb)

        return Code(kind, span, wide, left.parameters | right.parameters, run)

    def integers(self, node: ast.BinOp, left: Code, right: Code) -> None:
        if Type.FLOAT in (left.type, right.type):
            sign = grammar.ARITHMETIC[type(node.op)]
            raise self.error(
                node, f"{sign} needs integers, not floats; use int()", "space.expression-type"
            )

    def power(self, node: ast.expr, left: Code, right: Code) -> Code:
        if right.type is Type.FLOAT or right.range.lo < 0 or right.range.hi > grammar.MAX_EXPONENT:
            raise self.error(
                node,
                f"exponents are integers from 0 to {grammar.MAX_EXPONENT}, "
                f"not {right.range.lo} to {right.range.hi}",
                "space.expression-overflow",
            )
        span = ranges.power(left.range, right.range, grammar.MAX_EXPONENT)
        kind, wide, dtype = self.arithmetic(node, span, left, right)
        first, second = left.run, right.run

        def run(env: Env) -> Pair:
            a, ea = first(env)
            b, eb = second(env)
            # An undefined exponent holds any number, and NumPy raises for negative ones.
            return np.power(a, np.maximum(b, 0), dtype=dtype), either(ea, eb)

        return Code(kind, span, wide, left.parameters | right.parameters, run)

    def unary(self, node: ast.UnaryOp) -> Code:
        operand = self.number(node.operand)
        inner = operand.run
        if isinstance(node.op, ast.Not):
            truth = truth_of(operand)

            def negate(env: Env) -> Pair:
                value, error = truth(env)
                return np.logical_not(value), error

            return Code(Type.BOOL, Range(0, 1), False, operand.parameters, negate)
        if isinstance(node.op, ast.Invert):
            if operand.type is Type.FLOAT:
                raise self.error(
                    node, "~ needs an integer, not a float; use int()", "space.expression-type"
                )
            # -x - 1, of booleans too, as in Python.
            ufunc, span = np.invert, ranges.subtract(Range(-1, -1), operand.range)
            inner = self.widened(operand).run
        elif isinstance(node.op, ast.USub):
            ufunc, span = np.negative, ranges.subtract(Range(0, 0), operand.range)
        else:
            ufunc, span = np.positive, operand.range
        kind, wide, dtype = self.arithmetic(node, span, operand)

        def run(env: Env) -> Pair:
            value, error = inner(env)
            return ufunc(value, dtype=dtype), error

        return Code(kind, span, wide, operand.parameters, run)

    def widened(self, code: Code) -> Code:
        """A boolean as 0 or 1, others as they are."""
        if code.type is not Type.BOOL:
            return code
        inner = code.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            return np.asarray(value, dtype=np.int32), error

        return Code(Type.INT, code.range, False, code.parameters, run)

    def negated(self, node: ast.expr, code: Code) -> Code:
        span = ranges.subtract(Range(0, 0), code.range)
        kind, wide, dtype = self.arithmetic(node, span, code)
        inner = code.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            return np.negative(value, dtype=dtype), error

        return Code(kind, span, wide, code.parameters, run)
