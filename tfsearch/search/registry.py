"""Policies by name; options follow a colon (see ``docs/policies.md``).

A policy text is ``name`` or ``name:key=value,key=value``, for example
``ranked:explore=0.25,pool=4096``; a bare word after the colon is the option ``variant``. Where
everything after the colon is one text, as in ``agent:./my-agent --fast``, it is the option that the
entry names.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.search.agent import Agent
from tfsearch.search.evolutionary import Evolutionary, EvolutionaryOptions
from tfsearch.search.local import Local
from tfsearch.search.portfolio import Portfolio
from tfsearch.search.problem import Policy, Problem, correcting
from tfsearch.search.ranked import CORRECTED, Ranked, RankedOptions
from tfsearch.search.scan import Scan, scan
from tfsearch.search.surrogate import Surrogate, SurrogateOptions
from tfsearch.search.uniform import Exhaustive, Random
from tfsearch.space import Point


def _unseen(code: str, message: str) -> None:
    del code, message


@dataclass(frozen=True)
class PolicyContext:
    """What a policy is made from.

    ``incumbent_us`` is the time to beat; ``first`` a scan against that incumbent, where one
    was made already; ``hints`` are points worth trying first. ``facts`` and ``budget`` are what a
    searcher outside of this process is told; ``notice`` is called with a code and a line when the
    user should see something.
    """

    problem: Problem
    seed: int = 0
    incumbent_us: float | None = None
    first: Scan | None = None
    hints: Sequence[Point] = ()
    options: Mapping[str, str] = field(default_factory=dict[str, str])
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    budget: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notice: Callable[[str, str], None] = _unseen


Factory = Callable[[PolicyContext], Policy]


@dataclass(frozen=True)
class PolicyEntry:
    """A policy: how it is made, and the names of its options.

    ``text`` names the option that everything after the colon is, where it is one text.
    """

    make: Factory
    options: tuple[str, ...] = ()
    text: str = ""


def _ranked(context: PolicyContext) -> Policy:
    default = RankedOptions()
    tolerance = default.tolerance if correcting(context.problem) is None else CORRECTED
    options = RankedOptions(
        explore=_number(context, "explore", default.explore, 0.0, 1.0),
        exploit=_number(context, "exploit", default.exploit, 0.0, 1.0),
        tolerance=_number(context, "tolerance", tolerance, 0.0, 10.0),
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


def _agent(context: PolicyContext) -> Policy:
    return Agent(
        context.problem,
        context.options["command"],
        lambda: _ranked(replace(context, options={})),
        incumbent_us=context.incumbent_us,
        facts=context.facts,
        budget=context.budget,
        notice=context.notice,
    )


def _optuna(context: PolicyContext) -> Policy:
    try:
        from tfsearch.search.studies import OptunaPolicy
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "optuna":
            raise
        raise UnavailableError(
            "policy.optuna-missing",
            "the policy optuna needs Optuna: pip install 'tfsearch[optuna]'",
        ) from None
    return OptunaPolicy(
        context.problem,
        variant=context.options.get("variant") or "tpe",
        seed=context.seed,
        incumbent_us=context.incumbent_us,
        hints=context.hints,
        second=context.options.get("second", ""),
    )


def _auto(context: PolicyContext) -> Policy:
    return (_ranked if _predicts(context) else _portfolio)(context)


def _predicts(context: PolicyContext) -> bool:
    """Whether the model tells points apart."""
    pool = (context.first or scan(context.problem, keep=64)).pool
    known = pool.estimate_us[np.isfinite(pool.estimate_us) & (pool.estimate_us > 0)]
    return len(known) * 2 > len(pool) and float(np.ptp(known)) > 0


_EVOLUTIONARY = ("population", "mutation")
_SURROGATE = ("explore", "slow", "trust")

POLICIES: dict[str, PolicyEntry] = {
    "agent": PolicyEntry(_agent, text="command"),
    "auto": PolicyEntry(_auto),
    "ranked": PolicyEntry(_ranked, ("explore", "exploit", "tolerance", "pool")),
    "random": PolicyEntry(_random),
    "exhaustive": PolicyEntry(_exhaustive, ("prune",)),
    "local": PolicyEntry(_local),
    "evolutionary": PolicyEntry(_evolutionary, _EVOLUTIONARY),
    "optuna": PolicyEntry(_optuna, ("variant", "second")),
    "portfolio": PolicyEntry(_portfolio, (*_SURROGATE, *_EVOLUTIONARY)),
    "surrogate": PolicyEntry(_surrogate, _SURROGATE),
}


def parse_policy(text: str) -> tuple[str, dict[str, str]]:
    """(name, options) of a policy text.

    ``RequestError`` for an unknown policy or option, listing the known ones.
    """
    name, _, rest = str(text).partition(":")
    if name not in POLICIES:
        raise RequestError(
            "policy.unknown", f"unknown policy {name!r}; known policies: {', '.join(POLICIES)}"
        )
    options: dict[str, str] = {}
    known, text_of = POLICIES[name].options, POLICIES[name].text
    if text_of:
        return name, {text_of: rest}
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
    facts: Mapping[str, Any] | None = None,
    budget: Mapping[str, Any] | None = None,
    notice: Callable[[str, str], None] = _unseen,
) -> Policy:
    """The policy that a text names. Errors as in :func:`parse_policy`, and for bad values.

    ``UnavailableError`` when a process that it needs cannot be started.
    """
    name, options = parse_policy(text)
    context = PolicyContext(
        problem, seed, incumbent_us, first, hints, options, facts or {}, budget or {}, notice
    )
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
