"""Policies by name; options follow a colon (see ``docs/policies.md``).

A policy text is ``name`` or ``name:key=value,key=value``, for example
``ranked:explore=0.25,pool=4096``; a bare word after the colon is the option ``variant``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from tfsearch.core.errors import RequestError
from tfsearch.search.evolutionary import Evolutionary, EvolutionaryOptions
from tfsearch.search.local import Local
from tfsearch.search.portfolio import Portfolio
from tfsearch.search.problem import Policy, Problem
from tfsearch.search.ranked import Ranked, RankedOptions
from tfsearch.search.scan import Scan
from tfsearch.search.surrogate import Surrogate, SurrogateOptions
from tfsearch.search.uniform import Exhaustive, Random
from tfsearch.space import Point


@dataclass(frozen=True)
class PolicyContext:
    """What a policy is made from.

    ``incumbent_us`` is the time to beat; ``first`` a scan against that incumbent, where one
    was made already; ``hints`` are points worth trying first.
    """

    problem: Problem
    seed: int = 0
    incumbent_us: float | None = None
    first: Scan | None = None
    hints: Sequence[Point] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])


Factory = Callable[[PolicyContext], Policy]


@dataclass(frozen=True)
class PolicyEntry:
    """A policy: how it is made, and the names of its options."""

    make: Factory
    options: tuple[str, ...] = ()


def _ranked(context: PolicyContext) -> Policy:
    default = RankedOptions()
    options = RankedOptions(
        explore=_number(context, "explore", default.explore, 0.0, 1.0),
        exploit=_number(context, "exploit", default.exploit, 0.0, 1.0),
        tolerance=_number(context, "tolerance", default.tolerance, 0.0, 10.0),
        pool=int(_number(context, "pool", default.pool, 1, 1_000_000)),
    )
    return Ranked(
        context.problem,
        seed=context.seed,
        incumbent_us=context.incumbent_us,
        options=options,
        first=context.first,
        hints=context.hints,
    )


def _random(context: PolicyContext) -> Policy:
    return Random(context.problem, seed=context.seed, incumbent_us=context.incumbent_us)


def _exhaustive(context: PolicyContext) -> Policy:
    text = context.options.get("prune", "false")
    if text not in ("true", "false"):
        raise _bad_value("prune", text, "true or false")
    return Exhaustive(context.problem, prune=text == "true", incumbent_us=context.incumbent_us)


def _surrogate(context: PolicyContext) -> Surrogate:
    default = SurrogateOptions()
    options = SurrogateOptions(
        explore=_number(context, "explore", default.explore, 0.0, 1.0),
        slow=_number(context, "slow", default.slow, 0.0, 1.0),
        trust=_number(context, "trust", default.trust, 0.0, 1e6),
    )
    return Surrogate(
        context.problem,
        seed=context.seed,
        incumbent_us=context.incumbent_us,
        options=options,
        hints=context.hints,
    )


def _local(context: PolicyContext) -> Policy:
    return Local(
        context.problem,
        seed=context.seed,
        incumbent_us=context.incumbent_us,
        hints=context.hints,
    )


def _evolutionary(context: PolicyContext) -> Policy:
    default = EvolutionaryOptions()
    options = EvolutionaryOptions(
        population=int(_number(context, "population", default.population, 2, 10_000)),
        mutation=_number(context, "mutation", default.mutation, 0.0, 100.0),
    )
    return Evolutionary(
        context.problem,
        seed=context.seed,
        incumbent_us=context.incumbent_us,
        options=options,
        hints=context.hints,
    )


def _portfolio(context: PolicyContext) -> Policy:
    surrogate = _surrogate(context)
    members = {
        "surrogate": surrogate,
        "evolutionary": _evolutionary(context),
        "local": _local(context),
    }
    return Portfolio(
        context.problem, members, incumbent_us=context.incumbent_us, opening=surrogate.opening
    )


POLICIES: dict[str, PolicyEntry] = {
    "ranked": PolicyEntry(_ranked, ("explore", "exploit", "tolerance", "pool")),
    "random": PolicyEntry(_random),
    "exhaustive": PolicyEntry(_exhaustive, ("prune",)),
    "local": PolicyEntry(_local),
    "evolutionary": PolicyEntry(_evolutionary, ("population", "mutation")),
    "portfolio": PolicyEntry(_portfolio),
    "surrogate": PolicyEntry(_surrogate, ("explore", "slow", "trust")),
}


def parse_policy(text: str) -> tuple[str, dict[str, str]]:
    """(name, options) of a policy text.

    ``RequestError`` for an unknown policy or option, listing the known ones.
    """
    name, _, rest = text.partition(":")
    if name not in POLICIES:
        raise RequestError(
            "policy.unknown", f"unknown policy {name!r}; known policies: {', '.join(POLICIES)}"
        )
    options: dict[str, str] = {}
    known = POLICIES[name].options
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            key, value = "variant", part
        if key not in known:
            allowed = ", ".join(known) or "none"
            raise RequestError(
                "policy.option", f"policy {name} has no option {key!r}; its options: {allowed}"
            )
        options[key] = value
    return name, options


def make_policy(
    text: str,
    problem: Problem,
    *,
    seed: int = 0,
    incumbent_us: float | None = None,
    first: Scan | None = None,
    hints: Sequence[Point] = (),
) -> Policy:
    """The policy that a text names. Errors as in :func:`parse_policy`, and for bad values."""
    name, options = parse_policy(text)
    context = PolicyContext(problem, seed, incumbent_us, first, hints, options)
    return POLICIES[name].make(context)


def _number(context: PolicyContext, name: str, default: float, low: float, high: float) -> float:
    text = context.options.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        raise _bad_value(name, text, f"a number from {low:g} to {high:g}") from None
    if not low <= value <= high:
        raise _bad_value(name, text, f"a number from {low:g} to {high:g}")
    return value


def _bad_value(name: str, text: str, wanted: str) -> RequestError:
    return RequestError("policy.option", f"policy option {name} is {wanted}, not {text!r}")
