"""Integer expressions in a normal form: a constant plus multiples of symbols.

A symbol is a variable or a term that is not linear (minimum, quotient, remainder, product,
comparison). Terms are interned, so that the same quotient in two places is the same symbol and
cancels. Symbols carry a rank: four times the depth of the innermost variable in them, plus one
for a term, plus two for a minimum or maximum; eliminating symbols by falling rank splits
minima first, and removes inner variables before those that their bounds depend on.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from math import gcd

import numpy as np

from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var

Form = tuple[int, tuple[tuple[int, int], ...]]
"""``(constant, ((symbol, coefficient), …))`` with symbols in order and no zero coefficient."""

Column = np.ndarray[tuple[int], np.dtype[np.int64]]


class Term(Enum):
    """What a symbol stands for; arguments are forms, ``d`` a positive literal.

    ``VAR``: a variable. ``MIN``, ``MAX``: of its arguments. ``QUOTIENT``, ``REMAINDER``: of
    (x, d). ``PRODUCT``, ``DIVIDE``, ``MODULO``: of two forms. ``NEGATIVE``: x < 0. ``ZERO``:
    x == 0. ``AND``, ``OR``: of truth values. ``NOT``: 1 where x is 0.
    """

    VAR = "var"
    MIN = "min"
    MAX = "max"
    QUOTIENT = "quotient"
    REMAINDER = "remainder"
    PRODUCT = "product"
    DIVIDE = "divide"
    MODULO = "modulo"
    NEGATIVE = "negative"
    ZERO = "zero"
    AND = "and"
    OR = "or"
    NOT = "not"


ZERO: Form = (0, ())


def constant(value: int) -> Form:
    """The form of a literal."""
    return (value, ())


def combine(left: Form, right: Form, factor: int = 1) -> Form:
    """``left + factor * right``."""
    if not right[1]:
        return (left[0] + factor * right[0], left[1])
    out = dict(left[1])
    for symbol, coefficient in right[1]:
        value = out.get(symbol, 0) + factor * coefficient
        if value:
            out[symbol] = value
        elif symbol in out:
            del out[symbol]
    return (left[0] + factor * right[0], tuple(sorted(out.items())))


def scale(form: Form, factor: int) -> Form:
    """``factor * form``."""
    if factor == 1:
        return form
    if factor == 0:
        return ZERO
    return (form[0] * factor, tuple((s, c * factor) for s, c in form[1]))


class UnboundError(Exception):
    """A variable without a value; ``str`` is its name."""


class Algebra:
    """The symbols of one kernel."""

    def __init__(self) -> None:
        self.kinds: list[Term] = []
        self.arguments: list[tuple[Form, ...]] = []
        self.ranks: list[int] = []
        self.names: list[str] = []
        self.variables: list[frozenset[int]] = []
        self.zero_divisors: list[Form] = []
        self.dividends: list[Form] = []
        self._interned: dict[tuple[Term, tuple[Form, ...]], int] = {}
        self._depth = 0

    def declare(self, name: str) -> int:
        """A new variable, deeper than those before it; its symbol."""
        symbol = self._append(Term.VAR, (), 4 * self._depth, name)
        self.variables.append(frozenset((symbol,)))
        self._depth += 1
        return symbol

    def variable(self, symbol: int) -> Form:
        """The form that is one symbol."""
        return (0, ((symbol, 1),))

    def variables_of(self, form: Form) -> frozenset[int]:
        """Variables in a form, those inside its terms included."""
        if len(form[1]) == 1:
            return self.variables[form[1][0][0]]
        out: frozenset[int] = frozenset()
        for symbol, _ in form[1]:
            out |= self.variables[symbol]
        return out

    def form(self, expr: Expr, scope: Mapping[str, Form]) -> Form:
        """The normal form of an expression; ``UnboundError`` for a name outside ``scope``.

        Divisors met on the way that are not positive literals are added to ``zero_divisors``,
        what they and others divide, unless it is a literal that is not negative, to ``dividends``.
        """
        if isinstance(expr, Const):
            return (expr.value, ())
        if isinstance(expr, Var):
            found = scope.get(expr.name)
            if found is None:
                raise UnboundError(expr.name)
            return found
        if not isinstance(expr, Binary):
            raise TypeError(f"not an expression: {expr!r}")
        left, right = self.form(expr.left, scope), self.form(expr.right, scope)
        op = expr.op
        if op is Operator.ADD:
            return combine(left, right)
        if op is Operator.SUB:
            return combine(left, right, -1)
        if op is Operator.MUL:
            return self.product(left, right)
        return self._other(op, left, right)

    def _other(self, op: Operator, left: Form, right: Form) -> Form:
        match op:
            case Operator.MIN:
                return self.extreme(Term.MIN, (left, right))
            case Operator.MAX:
                return self.extreme(Term.MAX, (left, right))
            case Operator.FLOORDIV:
                return self._divide(left, right, Term.DIVIDE)
            case Operator.MOD:
                return self._divide(left, right, Term.MODULO)
            case Operator.LT:
                return self.negative(combine(left, right, -1))
            case Operator.LE:
                return self.negative(combine(combine(left, right, -1), (-1, ())))
            case Operator.EQ:
                return self.zero(combine(left, right, -1))
            case Operator.NE:
                return self.negate(self.zero(combine(left, right, -1)))
            case Operator.AND | Operator.OR:
                return self._logic(Term.AND if op is Operator.AND else Term.OR, left, right)
            case _:
                raise TypeError(f"not an operator: {op!r}")

    def product(self, left: Form, right: Form) -> Form:
        """``left * right``."""
        if not right[1]:
            return scale(left, right[0])
        if not left[1]:
            return scale(right, left[0])
        return self._term(Term.PRODUCT, tuple(sorted((left, right))))

    def extreme(self, kind: Term, forms: tuple[Form, ...]) -> Form:
        """The minimum or maximum of forms; those that a literal distance decides are dropped."""
        flat: list[Form] = []
        for form in forms:
            inner = self._only(form, kind)
            flat.extend(inner if inner else (form,))
        kept: list[Form] = []
        for form in flat:
            for index, other in enumerate(kept):
                if form[1] == other[1]:
                    value = (min if kind is Term.MIN else max)(form[0], other[0])
                    kept[index] = (value, form[1])
                    break
            else:
                kept.append(form)
        return kept[0] if len(kept) == 1 else self._term(kind, tuple(sorted(kept)))

    def quotient(self, form: Form, divisor: int) -> Form:
        """``form // divisor`` for a positive literal; multiples of it come out exactly."""
        whole = tuple((s, c // divisor) for s, c in form[1] if c % divisor == 0)
        rest = tuple((s, c) for s, c in form[1] if c % divisor)
        base = (form[0] // divisor, whole)
        if not rest:
            return base
        inner: Form = (form[0] % divisor, rest)
        common = gcd(divisor, *(c for _, c in rest))
        if common > 1:
            inner = (inner[0] // common, tuple((s, c // common) for s, c in rest))
        return combine(base, self._term(Term.QUOTIENT, (inner, (divisor // common, ()))))

    def remainder(self, form: Form, divisor: int) -> Form:
        """``form % divisor`` for a positive literal; multiples of it drop out."""
        rest = tuple((s, c) for s, c in form[1] if c % divisor)
        if not rest:
            return (form[0] % divisor, ())
        inner: Form = (form[0] % divisor, rest)
        return self._term(Term.REMAINDER, (inner, (divisor, ())))

    def negative(self, form: Form) -> Form:
        """1 where the form is below zero, else 0."""
        if not form[1]:
            return (int(form[0] < 0), ())
        return self._term(Term.NEGATIVE, (form,))

    def zero(self, form: Form) -> Form:
        """1 where the form is zero, else 0."""
        if not form[1]:
            return (int(form[0] == 0), ())
        return self._term(Term.ZERO, (form,))

    def negate(self, form: Form) -> Form:
        """1 where the form is zero, else 0, pushed into comparisons."""
        if not form[1]:
            return (int(form[0] == 0), ())
        symbol = self.single(form)
        if symbol is not None:
            kind, arguments = self.kinds[symbol], self.arguments[symbol]
            if kind is Term.NEGATIVE:
                return self.negative(combine((-1, ()), arguments[0], -1))
            if kind is Term.NOT:
                return self.truth(arguments[0])
            if kind in (Term.AND, Term.OR):
                other = Term.OR if kind is Term.AND else Term.AND
                return self._logic(other, self.negate(arguments[0]), self.negate(arguments[1]))
        return self._term(Term.NOT, (form,))

    def truth(self, form: Form) -> Form:
        """The form as 0 or 1."""
        symbol = self.single(form)
        logical = (Term.NEGATIVE, Term.ZERO, Term.AND, Term.OR, Term.NOT)
        if symbol is not None and self.kinds[symbol] in logical:
            return form
        return self.negate(self.zero(form)) if form[1] else (int(form[0] != 0), ())

    def single(self, form: Form) -> int | None:
        """The symbol, where the form is exactly one symbol."""
        if form[0] == 0 and len(form[1]) == 1 and form[1][0][1] == 1:
            return form[1][0][0]
        return None

    def clipped(self, form: Form) -> Form:
        """``x`` where the form is ``max(x, c)`` with a literal ``c <= 0``; else the form."""
        symbol = self.single(form)
        if symbol is None or self.kinds[symbol] is not Term.MAX:
            return form
        rest = [arg for arg in self.arguments[symbol] if arg[1] or arg[0] > 0]
        return rest[0] if len(rest) == 1 else form

    def value(self, form: Form, columns: Mapping[int, Column]) -> Column | int:
        """The form on columns of variable values (one number a point)."""
        out: Column | int = form[0]
        for symbol, coefficient in form[1]:
            value = columns.get(symbol)
            out = out + coefficient * (self._value(symbol, columns) if value is None else value)
        return out

    def _value(self, symbol: int, columns: Mapping[int, Column]) -> Column:
        values = [self.value(form, columns) for form in self.arguments[symbol]]
        match self.kinds[symbol]:
            case Term.MIN | Term.MAX as kind:
                out = np.asarray(values[0])
                for value in values[1:]:
                    out = (np.minimum if kind is Term.MIN else np.maximum)(out, value)
            case Term.QUOTIENT | Term.DIVIDE:
                out = np.floor_divide(values[0], values[1])
            case Term.REMAINDER | Term.MODULO:
                out = np.mod(values[0], values[1])
            case Term.PRODUCT:
                out = np.multiply(values[0], values[1])
            case Term.NEGATIVE:
                out = np.less(values[0], 0).astype(np.int64)
            case Term.ZERO | Term.NOT:
                out = np.equal(values[0], 0).astype(np.int64)
            case Term.AND:
                out = np.logical_and(values[0], values[1]).astype(np.int64)
            case Term.OR:
                out = np.logical_or(values[0], values[1]).astype(np.int64)
            case Term.VAR:
                raise UnboundError(self.names[symbol])
        return out

    def text(self, form: Form) -> str:
        """The form for people."""
        parts: list[str] = []
        for symbol, coefficient in form[1]:
            name = self._name(symbol)
            sign = "-" if coefficient < 0 else "+"
            size = "" if abs(coefficient) == 1 else f"{abs(coefficient)}*"
            parts.append(f" {sign} {size}{name}" if parts else f"{'-' * (sign == '-')}{size}{name}")
        if form[0] or not parts:
            sign = "-" if form[0] < 0 else "+"
            parts.append(f" {sign} {abs(form[0])}" if parts else str(form[0]))
        return "".join(parts)

    def _name(self, symbol: int) -> str:
        kind = self.kinds[symbol]
        if kind is Term.VAR:
            return self.names[symbol]
        inner = [self.text(form) for form in self.arguments[symbol]]
        match kind:
            case Term.QUOTIENT | Term.DIVIDE:
                return f"(({inner[0]}) // ({inner[1]}))"
            case Term.REMAINDER | Term.MODULO:
                return f"(({inner[0]}) % ({inner[1]}))"
            case Term.PRODUCT:
                return f"({inner[0]}) * ({inner[1]})"
            case Term.NEGATIVE:
                return f"({inner[0]} < 0)"
            case Term.ZERO:
                return f"({inner[0]} == 0)"
            case _:
                return f"{kind.value}({', '.join(inner)})"

    def _logic(self, kind: Term, left: Form, right: Form) -> Form:
        for form, other in ((left, right), (right, left)):
            if not form[1]:
                decided = bool(form[0]) == (kind is Term.OR)
                return (int(kind is Term.OR), ()) if decided else self.truth(other)
        return self._term(kind, (left, right))

    def _divide(self, left: Form, right: Form, kind: Term) -> Form:
        if left[1] or left[0] < 0:
            self.dividends.append(left)
        if not right[1] and right[0] > 0:
            simple = self.quotient if kind is Term.DIVIDE else self.remainder
            return simple(left, right[0])
        self.zero_divisors.append(right)
        if not right[1] and not left[1] and right[0]:
            value = left[0] // right[0] if kind is Term.DIVIDE else left[0] % right[0]
            return (value, ())
        return self._term(kind, (left, right))

    def _only(self, form: Form, kind: Term) -> tuple[Form, ...]:
        symbol = self.single(form)
        if symbol is not None and self.kinds[symbol] is kind:
            return self.arguments[symbol]
        return ()

    def _term(self, kind: Term, arguments: tuple[Form, ...]) -> Form:
        key = (kind, arguments)
        symbol = self._interned.get(key)
        if symbol is None:
            variables: frozenset[int] = frozenset()
            for form in arguments:
                variables |= self.variables_of(form)
            rank = max((self.ranks[v] for v in variables), default=-4)
            rank += 2 if kind in (Term.MIN, Term.MAX) else 1
            symbol = self._append(kind, arguments, rank, "")
            self.variables.append(variables)
            self._interned[key] = symbol
        return (0, ((symbol, 1),))

    def _append(self, kind: Term, arguments: tuple[Form, ...], rank: int, name: str) -> int:
        self.kinds.append(kind)
        self.arguments.append(arguments)
        self.ranks.append(rank)
        self.names.append(name)
        return len(self.kinds) - 1
