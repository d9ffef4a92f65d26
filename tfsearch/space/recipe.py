"""A recipe's space: parameters, derived columns, constraints, constants."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.space.code import Env, Type, evaluate
from tfsearch.space.compiled import Compiled, compile_recipe
from tfsearch.space.grammar import INT_MAX, shorten
from tfsearch.space.parameters import Constraint, Definition, Kind, Parameter


@dataclass(frozen=True, eq=False)
class RecipeSpace:
    """The points of one recipe. Everything is checked and compiled on construction.

    A point's index is mixed-radix over the parameters in declared order, the first one most
    significant. Raises ``RequestError`` naming the part at fault: ``space.duplicate-name``,
    ``space.name``, ``space.unknown-name``, ``space.expression-type``,
    ``space.expression-overflow``, ``space.reason``.
    """

    name: str
    version: int
    parameters: tuple[Parameter, ...]
    definitions: tuple[Definition, ...] = ()
    constraints: tuple[Constraint, ...] = ()
    constants: Mapping[str, ParamValue] = field(default_factory=dict[str, ParamValue])

    def __post_init__(self) -> None:
        for name in ("parameters", "definitions", "constraints"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        object.__setattr__(self, "constants", dict(self.constants))
        _ = self.compiled

    def __getstate__(self) -> dict[str, Any]:
        """Without what is compiled or cached, which is rebuilt on demand."""
        names = ("name", "version", "parameters", "definitions", "constraints", "constants")
        return {name: getattr(self, name) for name in names}

    @cached_property
    def compiled(self) -> Compiled:
        """The expressions, ready to run."""
        return compile_recipe(
            f"recipe {self.name!r}",
            self.parameters,
            self.definitions,
            self.constraints,
            self.constants,
        )

    @cached_property
    def by_name(self) -> dict[str, Parameter]:
        """Parameters by name, in declared order."""
        return {parameter.name: parameter for parameter in self.parameters}

    @cached_property
    def points(self) -> int:
        """Size of the Cartesian product."""
        return math.prod(len(parameter) for parameter in self.parameters)

    @cached_property
    def strides(self) -> dict[str, int]:
        """What one step of each parameter adds to a point's index."""
        out: dict[str, int] = {}
        stride = self.points
        for parameter in self.parameters:
            stride //= len(parameter)
            out[parameter.name] = stride
        return out

    def require_index(self) -> None:
        """``space.too-large`` unless every index fits a signed 64-bit integer."""
        if self.points > INT_MAX:
            raise RequestError(
                "space.too-large",
                f"recipe {self.name!r} has {self.points} points, more than the 2**63-1 that can "
                "be enumerated; fix some parameters or shorten their domains",
            )

    def decode(self, index: int) -> dict[str, ParamValue]:
        """Parameter values of the point with this index (of any size)."""
        if not 0 <= index < self.points:
            raise RequestError(
                "space.index",
                f"recipe {self.name!r} has no point {index}; it has {self.points}, from 0",
            )
        out: dict[str, ParamValue] = {}
        for parameter in self.parameters:
            code, index = divmod(index, self.strides[parameter.name])
            out[parameter.name] = parameter.values[code]
        return out

    def codes_of(self, params: Mapping[str, ParamValue]) -> dict[str, int]:
        """Value positions of a full assignment; the first problem is a ``RequestError``."""
        problems = self.domain_refusals(params)
        if problems:
            raise RequestError(problems[0].code, f"recipe {self.name!r}: {problems[0].message}")
        return {p.name: p.encode(params[p.name]) for p in self.parameters}

    def encode(self, params: Mapping[str, ParamValue]) -> int:
        """Index of a full assignment."""
        codes = self.codes_of(params)
        return sum(codes[name] * stride for name, stride in self.strides.items())

    def domain_refusals(self, params: Mapping[str, object]) -> tuple[Refusal, ...]:
        """Unknown and missing parameters, and values outside their domains."""
        out: list[Refusal] = []
        known = ", ".join(self.by_name) or "none"
        for name in params:
            if name not in self.by_name:
                out.append(
                    Refusal(
                        "space.unknown-parameter",
                        f"params.{name}",
                        f"unknown parameter {shorten(name)!r}; recipe {self.name!r} has: {known}",
                    )
                )
        for parameter in self.parameters:
            where = f"params.{parameter.name}"
            if parameter.name not in params:
                message = f"missing parameter {parameter.name!r}; allowed: {parameter.allowed}"
                out.append(Refusal("space.missing-parameter", where, message))
            elif params[parameter.name] not in parameter:
                message = parameter.outside(params[parameter.name])
                out.append(Refusal("space.value-outside-domain", where, message))
        return tuple(out)

    def check(self, params: Mapping[str, ParamValue]) -> tuple[Refusal, ...]:
        """Everything wrong with an assignment: its names and values, else failing constraints.

        Constraints appear in declared order with their reasons rendered for this point.
        """
        problems = self.domain_refusals(params)
        if problems:
            return problems
        codes = self.codes_of(params)
        env = self.compiled.env({name: np.array([code]) for name, code in codes.items()})
        failing: list[int] = []
        with np.errstate(all="ignore"):
            for check in self.compiled.checks:
                if check.constraint not in failing and not np.all(check.test(env)):
                    failing.append(check.constraint)
        if not failing:
            return ()
        values: dict[str, object] = {**self.constants, **params, **self._defined(codes)}
        return tuple(
            Refusal(
                constraint.code,
                f"{self.name}: {shorten(constraint.expression.text, 120)}",
                constraint.render(values),
            )
            for constraint in (self.constraints[position] for position in failing)
        )

    def _defined(self, codes: Mapping[str, int]) -> dict[str, object]:
        env = self.compiled.env({name: np.array([code]) for name, code in codes.items()})
        out: dict[str, object] = {}
        for name, code in self.compiled.definitions.items():
            value, error = evaluate(code, env)
            if error is not None and bool(np.any(error)):
                out[name] = "undefined"
                continue
            item: Any = np.asarray(value).reshape(-1).item(0)
            out[name] = self.compiled.strings[item] if code.type is Type.TEXT else item
        return out

    def mask(self, codes: Mapping[str, Any]) -> Any:
        """Which rows of equally long columns of value positions are legal (booleans)."""
        length = len(next(iter(codes.values()))) if codes else 1
        alive: Any = np.ones(length, np.bool_)
        env = self.compiled.env(codes)
        with np.errstate(all="ignore"):
            for check in self.compiled.checks:
                alive &= check.test(env)
        return alive

    def column_from(self, codes: Mapping[str, Any], env: Env, length: int, name: str) -> Any:
        """See :meth:`tfsearch.space.points.Points.column`; ``env`` is one over ``codes``."""
        if name in self.by_name:
            parameter = self.by_name[name]
            if parameter.kind is Kind.DECIMAL:
                return self.compiled.tables[name].take(codes[name])
            if isinstance(parameter.values[0], str):
                return codes[name].astype(np.int64)
            return self.compiled.tables[name].astype(np.int64).take(codes[name])
        if name in self.constants:
            value = self.constants[name]
            if isinstance(value, str):
                return np.full(length, value)
            return np.full(length, value, np.int64)
        code = self.compiled.definitions.get(name)
        if code is None:
            known = ", ".join([*self.by_name, *self.compiled.definitions, *self.constants])
            raise RequestError(
                "space.unknown-name", f"recipe {self.name!r} has no column {name!r}; it has {known}"
            )
        value, error = evaluate(code, env)
        if error is not None:
            value = np.where(error, 0, value)
        value = np.broadcast_to(value, (length,))
        if code.type is Type.TEXT:
            return np.array(self.compiled.strings)[value]
        return value.astype(np.float64 if code.type is Type.FLOAT else np.int64)

    def fix(self, values: Mapping[str, ParamValue]) -> RecipeSpace:
        """The same recipe with some domains reduced to one value; all must be in the domains."""
        parameters = tuple(
            replace(p, values=(p.decode(p.encode(values[p.name])),)) if p.name in values else p
            for p in self.parameters
        )
        return replace(self, parameters=parameters)

    def fingerprint_fields(self) -> dict[str, object]:
        """What makes this space what it is; reasons are for people and left out."""
        return {
            "name": self.name,
            "version": self.version,
            "parameters": [
                {"name": p.name, "values": list(p.values), "kind": p.kind} for p in self.parameters
            ],
            "definitions": [[d.name, d.expression.canonical] for d in self.definitions],
            "constraints": [[c.code, c.expression.canonical] for c in self.constraints],
            "constants": self.constants,
        }

    @cached_property
    def fingerprint(self) -> str:
        """Digest of :meth:`fingerprint_fields`, equal in every process."""
        return keys.digest("recipe-space", self.fingerprint_fields())
