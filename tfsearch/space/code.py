"""What a compiled expression is.

Its closure takes an environment (name → value and error mask) and returns its value and the mask
of elements where Python would have raised, or None where nothing can. Types, ranges and integer
widths are settled once, at compile time: int32 wherever the range allows it, else int64.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

import numpy as np

from tfsearch.space import grammar
from tfsearch.space.ranges import Number, Range

Value = Any
"""A NumPy array, or a scalar that broadcasts like one."""
Pair = tuple[Value, Value | None]
Env = Callable[[str], Pair]
Run = Callable[[Env], Pair]

INT32 = Range(-(2**31), 2**31 - 1)
INT64 = Range(grammar.INT_MIN, grammar.INT_MAX)
FLOAT_EXACT = 2**53


class Type(Enum):
    """Type of an expression."""

    INT = "integer"
    FLOAT = "float"
    BOOL = "boolean"
    TEXT = "string"


@dataclass(frozen=True)
class Domain:
    """What is known of a name: its type, its range, and the parameters it depends on.

    ``parameters`` None means that the name is itself one. ``inline`` computes a name that depends
    on none, so that whatever is built on it can be settled at compile time.
    """

    type: Type
    lo: Number
    hi: Number
    parameters: frozenset[str] | None = None
    inline: Run | None = None


@dataclass(frozen=True)
class Scope:
    """The names an expression may read. ``intern`` numbers strings, the same text equally."""

    text: str
    domains: Mapping[str, Domain]
    constants: Mapping[str, int | float | str | bool]
    intern: Callable[[str], int]


@dataclass(frozen=True)
class Code:
    """A compiled expression; ``wide`` says that some integer on the way needs 64 bits."""

    type: Type
    range: Range
    wide: bool
    parameters: frozenset[str]
    run: Run

    @property
    def numeric(self) -> bool:
        """Whether arithmetic is defined on it."""
        return self.type is not Type.TEXT

    @property
    def domain(self) -> Domain:
        """What users of this expression's name know about it."""
        inline = None if self.parameters else self.run
        return Domain(self.type, self.range.lo, self.range.hi, self.parameters, inline)


def evaluate(code: Code, env: Env) -> Pair:
    """Evaluate; the masked elements' arithmetic warnings are not for the caller."""
    with np.errstate(all="ignore"):
        return code.run(env)


def condition(code: Code) -> Callable[[Env], Value]:
    """Compile to a plain boolean: False where undefined. Call it under ``np.errstate``."""
    truth = truth_of(code)

    def test(env: Env) -> Value:
        value, error = truth(env)
        return value if error is None else np.logical_and(value, np.logical_not(error))

    return test


def either(a: Value | None, b: Value | None) -> Value | None:
    """The mask of elements that either mask marks."""
    if a is None:
        return b
    return a if b is None else np.logical_or(a, b)


def after(error: Value | None, reached: Value) -> Value | None:
    """``error`` of an operand that is evaluated only where ``reached``."""
    return None if error is None else np.logical_and(error, reached)


def truth_of(code: Code) -> Run:
    """The closure that says whether the value is true: itself, or not zero."""
    if code.type is Type.BOOL:
        return code.run

    def run(env: Env) -> Pair:
        value, error = code.run(env)
        return np.not_equal(value, 0), error

    return run


def inside(span: Range, limit: Range) -> bool:
    """Whether ``span`` lies in ``limit``."""
    return limit.lo <= span.lo and span.hi <= limit.hi


def union(codes: Iterable[Code]) -> frozenset[str]:
    """The parameters that any of ``codes`` depends on."""
    return frozenset[str]().union(*(code.parameters for code in codes))
