"""Parameters, derived columns and constraints: the parts of a recipe's space."""

from __future__ import annotations

import contextlib
import math
import string
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue
from tfsearch.space.expr import Expr, parse
from tfsearch.space.grammar import INT_MAX, INT_MIN, is_name, shorten


class Kind(Enum):
    """How a parameter's values relate, which decides its one-step moves."""

    ORDINAL = "ordinal"
    DECIMAL = "decimal"
    CATEGORICAL = "categorical"
    BOOLEAN = "boolean"


@dataclass(frozen=True)
class Parameter:
    """A named choice with an ordered finite domain of one type (all int, all str, or all bool).

    A decimal parameter's values are texts, such as ``"0.25"``: expressions see the numbers, and
    records the texts, which no rounding can change.

    Raises ``RequestError``: ``space.name``, ``space.empty-domain``, ``space.duplicate-value``,
    ``space.domain-type``.
    """

    name: str
    values: tuple[ParamValue, ...]
    kind: Kind

    def __post_init__(self) -> None:
        _check_name("parameter", self.name)
        object.__setattr__(self, "values", tuple(self.values))
        if not self.values:
            raise RequestError(
                "space.empty-domain", f"parameter {self.name!r} has no values; give at least one"
            )
        types = sorted({type(value).__name__ for value in self.values})
        if len(types) > 1 or types[0] not in ("int", "str", "bool"):
            raise RequestError(
                "space.domain-type",
                f"parameter {self.name!r} mixes or holds {', '.join(types)}; "
                "its values must be all integers, all strings or all booleans",
            )
        if (self.kind is Kind.BOOLEAN) != (types[0] == "bool"):
            raise RequestError(
                "space.domain-type",
                f"parameter {self.name!r} is {self.kind.value} with values of type {types[0]}; "
                "boolean parameters, and only they, hold booleans",
            )
        if self.kind is Kind.DECIMAL:
            for value in self.values:
                _decimal(self.name, value)
        seen: set[ParamValue] = set()
        for value in self.values:
            if value in seen:
                raise RequestError(
                    "space.duplicate-value", f"parameter {self.name!r} lists {value!r} twice"
                )
            if not isinstance(value, str) and not INT_MIN <= value <= INT_MAX:
                raise RequestError(
                    "space.domain-type",
                    f"parameter {self.name!r}: {value} does not fit 64-bit integers",
                )
            seen.add(value)

    def __len__(self) -> int:
        return len(self.values)

    @property
    def seen(self) -> tuple[int | float | str | bool, ...]:
        """The values as expressions see them: those of a decimal parameter as floats."""
        if self.kind is Kind.DECIMAL:
            return tuple(float(value) for value in self.values)
        return self.values

    @cached_property
    def _codes(self) -> dict[tuple[type, ParamValue], int]:
        return {(type(value), value): code for code, value in enumerate(self.values)}

    def __contains__(self, value: object) -> bool:
        return isinstance(value, (int, str)) and (type(value), value) in self._codes

    @property
    def allowed(self) -> str:
        """The domain as a line for people."""
        shown = ", ".join(str(value) for value in self.values[:32])
        rest = len(self.values) - 32
        return shown if rest <= 0 else f"{shown}, … ({rest} more up to {self.values[-1]})"

    def encode(self, value: ParamValue) -> int:
        """Position of ``value`` in the domain; ``space.value-outside-domain`` if it is not there.

        Types count: ``True`` is not ``1``.
        """
        if value not in self:
            raise RequestError("space.value-outside-domain", self.outside(value))
        return self._codes[type(value), value]

    def decode(self, code: int) -> ParamValue:
        """The value at a position 0 … len-1."""
        if not 0 <= code < len(self.values):
            raise RequestError(
                "space.value-outside-domain",
                f"parameter {self.name!r} has no value number {code}; "
                f"its {len(self.values)} values are numbered from 0",
            )
        return self.values[code]

    def parse(self, text: str) -> ParamValue:
        """The value that prints as ``text`` (booleans in any case, decimals by their number)."""
        for value in self.values:
            if str(value) == text or (
                isinstance(value, bool) and str(value).lower() == text.lower()
            ):
                return value
        if self.kind is Kind.DECIMAL:
            with contextlib.suppress(ValueError, OverflowError):
                return self.values[self.seen.index(float(text))]
        raise RequestError("space.value-outside-domain", self.outside(text))

    def outside(self, value: object) -> str:
        """One line: ``value`` is not allowed, and what is."""
        shown = shorten(repr(value))
        return f"parameter {self.name!r} cannot be {shown}; allowed: {self.allowed}"

    def neighbours(self, code: int) -> tuple[int, ...]:
        """Positions one move away: adjacent (ordinal), or every other one."""
        if self.kind in (Kind.ORDINAL, Kind.DECIMAL):
            return tuple(c for c in (code - 1, code + 1) if 0 <= c < len(self.values))
        return tuple(c for c in range(len(self.values)) if c != code)


def _decimal(name: str, value: ParamValue) -> None:
    try:
        finite = isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        finite = False
    if not finite:
        raise RequestError(
            "space.domain-type",
            f"parameter {name!r} is decimal with the value {value!r}; its values are texts of "
            'finite numbers, such as "0.25"',
        )


@dataclass(frozen=True)
class Definition:
    """A derived column, usable in later definitions, in constraints and in reasons.

    ``expr`` may be given as text; it is kept parsed.
    """

    name: str
    expr: Expr | str

    def __post_init__(self) -> None:
        _check_name("definition", self.name)
        object.__setattr__(self, "expr", _parsed(self.expr))

    @property
    def expression(self) -> Expr:
        """The parsed expression."""
        return _parsed(self.expr)


@dataclass(frozen=True)
class Constraint:
    """A condition every legal point fulfils.

    ``code`` is stable and dotted; ``reason`` says why a point fails, with ``{name}`` for the
    values of parameters, definitions and constants, and ``{{`` for a brace. Several constraints
    may share a code.
    """

    code: str
    expr: Expr | str
    reason: str

    def __post_init__(self) -> None:
        words = self.code.split(".")
        if not all(word and word.replace("-", "").isalnum() and word.islower() for word in words):
            raise RequestError(
                "space.constraint-code",
                f"constraint code {self.code!r} must be dotted lower-case words",
            )
        object.__setattr__(self, "expr", _parsed(self.expr))

    @property
    def expression(self) -> Expr:
        """The parsed expression."""
        return _parsed(self.expr)

    @cached_property
    def fields(self) -> frozenset[str]:
        """The names that ``reason`` shows."""
        try:
            parts = list(string.Formatter().parse(self.reason))
        except ValueError as error:
            raise self._bad_reason(str(error)) from None
        fields: set[str] = set()
        for _, name, spec, conversion in parts:
            if name is None:
                continue
            if not is_name(name) or spec or conversion:
                raise self._bad_reason(f"{{{name}}} is not a plain {{name}}")
            fields.add(name)
        return frozenset(fields)

    def _bad_reason(self, what: str) -> RequestError:
        return RequestError(
            "space.reason", f"constraint {self.code!r}: reason {shorten(self.reason)!r}: {what}"
        )

    def render(self, values: Mapping[str, object]) -> str:
        """The reason with the numbers of one point."""
        return self.reason.format_map(values)


def _check_name(what: str, name: str) -> None:
    if not is_name(name):
        raise RequestError(
            "space.name",
            f"{what} name {shorten(name)!r} must be an identifier of ASCII letters, digits and _ "
            "that is no function or keyword of the expression language",
        )


def _parsed(expr: Expr | str) -> Expr:
    return parse(expr) if isinstance(expr, str) else expr
