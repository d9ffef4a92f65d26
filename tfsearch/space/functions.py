"""The functions that expressions may call."""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import reduce

import numpy as np

from tfsearch.space import grammar, ranges
from tfsearch.space.code import (
    FLOAT_EXACT,
    Code,
    Env,
    Pair,
    Type,
    either,
    truth_of,
    union,
)
from tfsearch.space.operators import Operators
from tfsearch.space.ranges import Range


class Functions(Operators):
    """Compiles calls."""

    def call(self, node: ast.Call) -> Code:
        builders: dict[str, Callable[[ast.Call], Code]] = {
            "abs": self.absolute,
            "all": self.quantified,
            "any": self.quantified,
            "bool": self.truth,
            "ceil": self.to_integer,
            "ceil_div": self.ceil_div,
            "float": self.to_float,
            "floor": self.to_integer,
            "gcd": self.common_divisor,
            "int": self.to_integer,
            "is_pow2": self.is_pow2,
            "log2": self.log2,
            "max": self.extreme,
            "min": self.extreme,
            "pow": lambda call: self.power(call, *map(self.number, call.args)),
            "round": self.to_integer,
            "round_up": self.round_up,
            "sqrt": self.sqrt,
            "sum": self.sum,
        }
        return builders[grammar.function_name(node.func)](node)

    def extreme(self, node: ast.Call) -> Code:
        largest = grammar.function_name(node.func) == "max"
        ufunc = np.maximum if largest else np.minimum
        pick = max if largest else min
        codes = [self.number(arg) for arg in grammar.arguments(node)]
        span = Range(pick(code.range.lo for code in codes), pick(code.range.hi for code in codes))
        kind, wide, dtype = self.arithmetic(node, span, *codes)
        runs = [code.run for code in codes]

        def run(env: Env) -> Pair:
            pairs = [inner(env) for inner in runs]
            value = reduce(lambda a, b: ufunc(a, b, dtype=dtype), [pair[0] for pair in pairs])
            return value, reduce(either, [pair[1] for pair in pairs])

        return Code(kind, span, wide, union(codes), run)

    def absolute(self, node: ast.Call) -> Code:
        operand = self.number(node.args[0])
        ends = (abs(operand.range.lo), abs(operand.range.hi))
        span = Range(0 if operand.range.has_zero else min(ends), max(ends))
        kind, wide, dtype = self.arithmetic(node, span, operand)
        inner = operand.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            return np.absolute(value, dtype=dtype), error

        return Code(kind, span, wide, operand.parameters, run)

    def ceil_div(self, node: ast.Call) -> Code:
        """-((-a) // b)."""
        a, b = self.integer(node.args[0], "ceil_div"), self.integer(node.args[1], "ceil_div")
        return self.negated(
            node,
            self.division(node, self.negated(node, a), b, np.floor_divide, ranges.floor_divide),
        )

    def round_up(self, node: ast.Call) -> Code:
        """ceil_div(a, b) * b."""
        quotient = self.ceil_div(node)
        b = self.integer(node.args[1], "round_up")
        a = self.compile(node.args[0])
        reach = max(abs(b.range.lo), abs(b.range.hi))
        span = Range(min(a.range.lo - reach, 0), max(a.range.hi + reach, 0))
        kind, wide, dtype = self.arithmetic(node, span, quotient, b)
        first, second = quotient.run, b.run

        def run(env: Env) -> Pair:
            q, eq = first(env)
            value, eb = second(env)
            return np.multiply(q, value, dtype=dtype), either(eq, eb)

        return Code(kind, span, wide, quotient.parameters | b.parameters, run)

    def common_divisor(self, node: ast.Call) -> Code:
        a, b = self.integer(node.args[0], "gcd"), self.integer(node.args[1], "gcd")
        most = max(abs(end) for code in (a, b) for end in (code.range.lo, code.range.hi))
        span = Range(0, most)
        kind, wide, dtype = self.arithmetic(node, span, a, b)
        first, second = a.run, b.run

        def run(env: Env) -> Pair:
            x, ex = first(env)
            y, ey = second(env)
            return np.gcd(x, y, dtype=dtype), either(ex, ey)

        return Code(kind, span, wide, a.parameters | b.parameters, run)

    def is_pow2(self, node: ast.Call) -> Code:
        operand = self.integer(node.args[0], "is_pow2")
        inner = operand.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            wide = np.asarray(value, dtype=np.int64)
            return np.logical_and(wide > 0, (wide & (wide - 1)) == 0), error

        return Code(Type.BOOL, Range(0, 1), False, operand.parameters, run)

    def log2(self, node: ast.Call) -> Code:
        """A float; undefined for numbers that are not positive."""
        operand = self.number(node.args[0])
        inner = operand.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            bad = np.less_equal(value, 0)
            result = np.log2(np.where(bad, 1, value), dtype=np.float64)
            return result, either(error, bad)

        return Code(Type.FLOAT, Range(-1075.0, 1024.0), False, operand.parameters, run)

    def sqrt(self, node: ast.Call) -> Code:
        """A float; undefined for negative numbers."""
        operand = self.number(node.args[0])
        inner = operand.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            bad = np.less(value, 0)
            result = np.sqrt(np.where(bad, 0, value), dtype=np.float64)
            return result, either(error, bad)

        return Code(Type.FLOAT, Range(0.0, 1.4e154), False, operand.parameters, run)

    def to_integer(self, node: ast.Call) -> Code:
        """``int`` (towards zero), ``floor``, ``ceil``, ``round`` (ties to even).

        Undefined for floats beyond ±2**53, where not every integer exists.
        """
        operand = self.number(node.args[0])
        if operand.type is Type.INT:
            return operand
        if operand.type is Type.BOOL:
            return self.widened(operand)
        rounded = {"int": np.trunc, "floor": np.floor, "ceil": np.ceil, "round": np.rint}
        ufunc = rounded[grammar.function_name(node.func)]
        lo = int(max(operand.range.lo, -FLOAT_EXACT)) - 1
        hi = int(min(operand.range.hi, FLOAT_EXACT)) + 1
        inner = operand.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            bad = np.logical_not(np.less_equal(np.absolute(value), FLOAT_EXACT))
            return ufunc(np.where(bad, 0, value)).astype(np.int64), either(error, bad)

        span = Range(min(lo, 0), max(hi, 0))
        return Code(Type.INT, span, True, operand.parameters, run)

    def to_float(self, node: ast.Call) -> Code:
        operand = self.number(node.args[0])
        inner = operand.run

        def run(env: Env) -> Pair:
            value, error = inner(env)
            return np.asarray(value, dtype=np.float64), error

        return Code(Type.FLOAT, operand.range, False, operand.parameters, run)

    def truth(self, node: ast.Call) -> Code:
        operand = self.number(node.args[0])
        return Code(Type.BOOL, Range(0, 1), False, operand.parameters, truth_of(operand))

    def quantified(self, node: ast.Call) -> Code:
        """``all`` and ``any``: booleans. The list is made first, so every operand counts."""
        ufunc = np.logical_and if grammar.function_name(node.func) == "all" else np.logical_or
        codes = [self.number(arg) for arg in grammar.arguments(node)]
        runs = [truth_of(code) for code in codes]

        def run(env: Env) -> Pair:
            pairs = [inner(env) for inner in runs]
            value = reduce(ufunc, [pair[0] for pair in pairs])
            return value, reduce(either, [pair[1] for pair in pairs])

        return Code(Type.BOOL, Range(0, 1), False, union(codes), run)

    def sum(self, node: ast.Call) -> Code:
        codes = [self.number(arg) for arg in grammar.arguments(node)]
        span = reduce(ranges.add, [code.range for code in codes])
        kind, wide, dtype = self.arithmetic(node, span, *codes)
        runs = [code.run for code in codes]

        def run(env: Env) -> Pair:
            pairs = [inner(env) for inner in runs]
            value = reduce(lambda a, b: np.add(a, b, dtype=dtype), [pair[0] for pair in pairs])
            return value, reduce(either, [pair[1] for pair in pairs])

        return Code(kind, span, wide, union(codes), run)
