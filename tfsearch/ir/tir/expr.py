"""Integer expressions of TIR: loop bounds, coordinates, predicates.

Expressions are immutable trees. The operators fold constants and drop neutral elements, so
that two lowerings which mean the same coordinate mostly print the same text.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from math import gcd


class Operator(Enum):
    """Binary operators; the value is the canonical spelling."""

    ADD = "+"
    SUB = "-"
    MUL = "*"
    FLOORDIV = "//"
    MOD = "%"
    MIN = "min"
    MAX = "max"
    LT = "<"
    LE = "<="
    EQ = "=="
    NE = "!="
    AND = "and"
    OR = "or"


_APPLY: Mapping[Operator, Callable[[int, int], int]] = {
    Operator.ADD: lambda a, b: a + b,
    Operator.SUB: lambda a, b: a - b,
    Operator.MUL: lambda a, b: a * b,
    Operator.FLOORDIV: lambda a, b: a // b,
    Operator.MOD: lambda a, b: a % b,
    Operator.MIN: min,
    Operator.MAX: max,
    Operator.LT: lambda a, b: int(a < b),
    Operator.LE: lambda a, b: int(a <= b),
    Operator.EQ: lambda a, b: int(a == b),
    Operator.NE: lambda a, b: int(a != b),
    Operator.AND: lambda a, b: int(bool(a) and bool(b)),
    Operator.OR: lambda a, b: int(bool(a) or bool(b)),
}


@dataclass(frozen=True)
class Expr:
    """Base of integer expressions; comparisons yield 0 or 1."""

    def __add__(self, other: ExprLike) -> Expr:
        return binary(Operator.ADD, self, other)

    def __radd__(self, other: int) -> Expr:
        return binary(Operator.ADD, other, self)

    def __sub__(self, other: ExprLike) -> Expr:
        return binary(Operator.SUB, self, other)

    def __rsub__(self, other: int) -> Expr:
        return binary(Operator.SUB, other, self)

    def __mul__(self, other: ExprLike) -> Expr:
        return binary(Operator.MUL, self, other)

    def __rmul__(self, other: int) -> Expr:
        return binary(Operator.MUL, other, self)

    def __floordiv__(self, other: ExprLike) -> Expr:
        return binary(Operator.FLOORDIV, self, other)

    def __mod__(self, other: ExprLike) -> Expr:
        return binary(Operator.MOD, self, other)

    def eq(self, other: ExprLike) -> Expr:
        """The predicate ``self == other``."""
        return binary(Operator.EQ, self, other)

    def lt(self, other: ExprLike) -> Expr:
        """The predicate ``self < other``."""
        return binary(Operator.LT, self, other)


ExprLike = Expr | int


@dataclass(frozen=True)
class Const(Expr):
    """An integer literal."""

    value: int


@dataclass(frozen=True)
class Var(Expr):
    """A loop variable, a ``let``, a scalar parameter, or the executing unit."""

    name: str


@dataclass(frozen=True)
class Binary(Expr):
    """``left op right``."""

    op: Operator
    left: Expr
    right: Expr


def as_expr(value: ExprLike) -> Expr:
    """An expression from an expression or an integer."""
    return value if isinstance(value, Expr) else Const(int(value))


def binary(op: Operator, left: ExprLike, right: ExprLike) -> Expr:
    """``left op right`` with constants folded. ``ZeroDivisionError`` on a literal zero divisor."""
    a, b = as_expr(left), as_expr(right)
    if isinstance(a, Const) and isinstance(b, Const):
        return Const(_APPLY[op](a.value, b.value))
    return _neutral(op, a, b) or _reassociate(op, a, b) or Binary(op, a, b)


def _neutral(op: Operator, a: Expr, b: Expr) -> Expr | None:
    zero, one = Const(0), Const(1)
    match op:
        case Operator.ADD:
            return b if a == zero else a if b == zero else None
        case Operator.SUB:
            return zero if a == b else a if b == zero else None
        case Operator.MUL:
            if zero in (a, b):
                return zero
            return b if a == one else a if b == one else None
        case Operator.FLOORDIV:
            return a if b == one else zero if a == zero else None
        case Operator.MOD:
            return zero if b == one or a == zero else None
        case Operator.MIN | Operator.MAX:
            return a if a == b else None
        case _:
            return None


def _reassociate(op: Operator, a: Expr, b: Expr) -> Expr | None:
    """Gather constants: (x + 2) + 3 → x + 5, 3 + x → x + 3, (x * 2) * 3 → x * 6."""
    if op in (Operator.ADD, Operator.MUL) and isinstance(a, Const):
        return binary(op, b, a)
    if op is Operator.SUB and isinstance(b, Const):
        return binary(Operator.ADD, a, -b.value)
    if (
        op in (Operator.ADD, Operator.MUL)
        and isinstance(b, Const)
        and isinstance(a, Binary)
        and a.op is op
        and isinstance(a.right, Const)
    ):
        return binary(op, a.left, _APPLY[op](a.right.value, b.value))
    return None


def minimum(left: ExprLike, right: ExprLike) -> Expr:
    """``min(left, right)``."""
    return binary(Operator.MIN, left, right)


def maximum(left: ExprLike, right: ExprLike) -> Expr:
    """``max(left, right)``."""
    return binary(Operator.MAX, left, right)


def ceil_div(left: ExprLike, right: int) -> Expr:
    """``ceil(left / right)`` for a positive literal ``right``."""
    return (as_expr(left) + (right - 1)) // right


def evaluate(expr: Expr, env: Mapping[str, int]) -> int:
    """Value under an environment; ``KeyError`` for an unbound name."""
    match expr:
        case Const(value):
            return value
        case Var(name):
            return env[name]
        case Binary(op, left, right):
            return _APPLY[op](evaluate(left, env), evaluate(right, env))
        case _:
            raise TypeError(f"not an expression: {expr!r}")


def substitute(expr: Expr, env: Mapping[str, ExprLike]) -> Expr:
    """Replace variables; names outside ``env`` stay."""
    match expr:
        case Var(name):
            return as_expr(env[name]) if name in env else expr
        case Binary(op, left, right):
            return binary(op, substitute(left, env), substitute(right, env))
        case _:
            return expr


def free_variables(expr: Expr) -> frozenset[str]:
    """Names of the variables in an expression."""
    match expr:
        case Var(name):
            return frozenset((name,))
        case Binary(_, left, right):
            return free_variables(left) | free_variables(right)
        case _:
            return frozenset()


def multiple_of(expr: Expr) -> int:
    """A number that divides every value of an expression; 0 for the literal 0.

    What a variable stands for is not known: its values are multiples of 1.
    """
    match expr:
        case Const(value):
            return abs(value)
        case Binary(Operator.ADD | Operator.SUB | Operator.MIN | Operator.MAX, left, right):
            return gcd(multiple_of(left), multiple_of(right))
        case Binary(Operator.MUL, left, right):
            return multiple_of(left) * multiple_of(right)
        case _:
            return 1
