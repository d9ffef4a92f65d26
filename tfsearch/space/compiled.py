"""A recipe's expressions compiled against its parameters, and columns to run them on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue
from tfsearch.space import grammar
from tfsearch.space.code import Code, Domain, Env, Pair, Scope, Type, Value, condition
from tfsearch.space.parameters import Constraint, Definition, Parameter
from tfsearch.space.typed import compile_tree


@dataclass(frozen=True)
class Check:
    """One conjunct of a constraint. ``test`` gives booleans; run it under ``np.errstate``."""

    constraint: int
    parameters: frozenset[str]
    test: Callable[[Env], Value]


@dataclass(frozen=True)
class Compiled:
    """``tables`` hold each parameter's values as expressions see them (strings as numbers).

    ``strings`` are the texts behind those numbers; ``checks`` are in declared order.
    """

    tables: Mapping[str, Any]
    constants: Mapping[str, ParamValue]
    definitions: Mapping[str, Code]
    checks: tuple[Check, ...]
    strings: tuple[str, ...]

    def env(self, columns: Mapping[str, Any]) -> Env:
        """An environment over columns of value positions (any shapes that broadcast).

        Each value column and definition is computed at most once, when first read.
        """
        cache: dict[str, Pair] = {}

        def read(name: str) -> Pair:
            pair = cache.get(name)
            if pair is None:
                code = self.definitions.get(name)
                pair = code.run(read) if code else (self.tables[name].take(columns[name]), None)
                cache[name] = pair
            return pair

        return read


def compile_recipe(
    where: str,
    parameters: Sequence[Parameter],
    definitions: Sequence[Definition],
    constraints: Sequence[Constraint],
    constants: Mapping[str, ParamValue],
) -> Compiled:
    """Compile everything once; raises ``RequestError`` naming the recipe and the part at fault."""
    _check_names(where, parameters, definitions, constants)
    strings: dict[str, int] = {}

    def intern(text: str) -> int:
        return strings.setdefault(text, len(strings))

    tables = {p.name: _table(p, intern) for p in parameters}
    domains = {p.name: _domain(p, tables[p.name]) for p in parameters}
    fixed = {**constants, **{p.name: p.seen[0] for p in parameters if len(p) == 1}}
    codes: dict[str, Code] = {}
    for definition in definitions:
        expr = definition.expression
        with _Where(f"{where}, definition {definition.name!r}"):
            codes[definition.name] = compile_tree(
                expr.tree, Scope(expr.text, domains, fixed, intern)
            )
        domains[definition.name] = codes[definition.name].domain
    checks: list[Check] = []
    known = {*domains, *constants}
    for position, constraint in enumerate(constraints):
        with _Where(f"{where}, constraint {constraint.code!r}"):
            for expr in constraint.expression.conjuncts():
                code = compile_tree(expr.tree, Scope(expr.text, domains, fixed, intern))
                if code.type is Type.TEXT:
                    raise grammar.refusal(
                        expr.text, 1, "a string is not a condition", "space.expression-type"
                    )
                checks.append(Check(position, code.parameters, condition(code)))
            missing = sorted(constraint.fields - known)
            if missing:
                raise RequestError(
                    "space.reason",
                    f"the reason shows {{{missing[0]}}}, which is no name of this recipe",
                )
    return Compiled(tables, constants, codes, tuple(checks), tuple(strings))


class _Where:
    """Adds the place to a ``RequestError`` that passes through."""

    def __init__(self, place: str) -> None:
        self.place = place

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError):
            raise RequestError(error.code, f"{self.place}: {error.message}") from None


def _check_names(
    where: str,
    parameters: Sequence[Parameter],
    definitions: Sequence[Definition],
    constants: Mapping[str, ParamValue],
) -> None:
    seen: set[str] = set()
    for name in [*constants, *(p.name for p in parameters), *(d.name for d in definitions)]:
        if name in seen:
            raise RequestError("space.duplicate-name", f"{where}: {name!r} is declared twice")
        seen.add(name)
    for name, value in constants.items():
        fits = isinstance(value, str) or grammar.INT_MIN <= value <= grammar.INT_MAX
        if not grammar.is_name(name) or not fits:
            raise RequestError(
                "space.name",
                f"{where}: constant {name!r} must be an identifier with a 64-bit integer, "
                "string or boolean value",
            )


def _table(parameter: Parameter, intern: Callable[[str], int]) -> Any:
    values = parameter.seen
    if isinstance(values[0], bool):
        return np.array(values, np.bool_)
    if isinstance(values[0], float):
        return np.array(values, np.float64)
    if isinstance(values[0], str):
        return np.array([intern(str(value)) for value in values], np.int32)
    numbers = [int(value) for value in values]
    wide = max(numbers) > 2**31 - 1 or min(numbers) < -(2**31)
    return np.array(numbers, np.int64 if wide else np.int32)


def _domain(parameter: Parameter, table: Any) -> Domain:
    first = parameter.seen[0]
    if isinstance(first, str):
        return Domain(Type.TEXT, 0, 0)
    if isinstance(first, float):
        return Domain(Type.FLOAT, float(table.min()), float(table.max()))
    kind = Type.BOOL if isinstance(first, bool) else Type.INT
    return Domain(kind, int(table.min()), int(table.max()))
