"""The Optuna policy: any sampler by name, and a study that holds legal points only."""

from __future__ import annotations

import importlib.util
import logging
import sys
from typing import Any

import numpy as np
import pytest

from tests.search.problems import FakeProblem, by_product, legal_points, two_recipes
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.search import Result, make_policy
from tfsearch.space import Point

optuna = pytest.importorskip("optuna")
from tfsearch.search import studies  # noqa: E402

NEEDS = {"gp": ("torch", "scipy"), "cmaes": ("cmaes",), "qmc": ("scipy",)}


def _problem() -> FakeProblem:
    return FakeProblem(two_recipes(), by_product)


def _policy(text: str, **options: Any) -> Any:
    return make_policy(text, _problem(), **options)


def _time(point: Point) -> float:
    return 5.0 + abs(int(point.params["a"]) - 6) + int(point.params.get("b", 7))


@pytest.mark.parametrize(
    "name", ["tpe", "gp", "cmaes", "nsgaii", "random", "NSGAIIISampler", "qmc"]
)
def test_any_sampler_by_name_proposes_legal_points_once(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for package in NEEDS.get(name, ()):
        pytest.importorskip(package)
    said: list[logging.LogRecord] = []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", said.append)
    monkeypatch.setattr(logging.getLogger("optuna"), "handlers", [handler])
    policy = _policy(f"optuna:{name}", seed=1)
    legal = set(legal_points(_problem().space))
    tried: list[Point] = []
    for _ in range(40):
        (point,) = policy.ask(1)
        tried.append(point)
        policy.tell([Result(point, Status.OK, _time(point))])
    assert len(set(tried)) == 40
    assert set(tried) <= legal
    assert policy.name == f"optuna:{name}"
    assert said == []


def test_the_study_sees_legal_points_with_their_times_only() -> None:
    policy = _policy("optuna:tpe", seed=2)
    encoding = studies.Encoding(_problem().space)
    for number in range(60):
        (point,) = policy.ask(1)
        failed = number % 6 == 5
        policy.tell(
            [Result(point, Status.CRASH) if failed else Result(point, Status.OK, _time(point))]
        )
    trials = policy.study.get_trials()
    assert len(trials) == 60
    for trial in trials:
        point = encoding.point(trial.params)
        assert not _problem().space.check(point)
        assert trial.value in (None, _time(point))
    assert sum(t.state is optuna.trial.TrialState.FAIL for t in trials) == 10
    assert policy.projected > 0


def test_every_suggestion_that_is_moved_is_counted() -> None:
    """Of points that are all legal only those known already are moved."""
    whole = FakeProblem(_problem().space.only("narrow"), by_product)
    policy: Any = make_policy("optuna:random", whole, seed=1)
    policy.ask(1)
    assert policy.projected == 0
    assert len(policy.ask(20)) == 7
    assert 0 < policy.projected <= 7
    assert policy.finished


def test_tpe_finds_more_than_chance() -> None:
    def best(text: str, seed: int) -> float:
        policy = _policy(text, seed=seed)
        found = []
        for _ in range(40):
            (point,) = policy.ask(1)
            found.append(_time(point) + 3 * (point.recipe_name == "narrow"))
            policy.tell([Result(point, Status.OK, found[-1])])
        return float(np.mean(sorted(found)[:10]))

    seeds = range(6)
    assert np.mean([best("optuna:tpe", s) for s in seeds]) < np.mean(
        [best("random", s) for s in seeds]
    )


def test_results_of_an_earlier_session_are_in_the_study() -> None:
    policy = _policy("optuna:tpe")
    known = legal_points(_problem().space)[:5]
    policy.tell([Result(point, Status.OK, _time(point)) for point in known])
    assert [t.value for t in policy.study.get_trials()] == [_time(point) for point in known]


@pytest.mark.parametrize(
    ("text", "error", "code", "words"),
    [
        ("optuna:tqe", RequestError, "policy.optuna-sampler", "tpe"),
        ("optuna:Grid", RequestError, "policy.optuna-sampler", "search_space"),
        ("optuna:bruteforce", RequestError, "policy.optuna-sampler", "exhaustive"),
        ("optuna:BaseSampler", RequestError, "policy.optuna-sampler", "no sampler"),
    ],
)
def test_a_sampler_that_cannot_be_made_is_one_clear_error(
    text: str, error: Any, code: str, words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        _policy(text)
    assert caught.value.code == code


def test_a_sampler_whose_package_is_missing_says_which(monkeypatch: pytest.MonkeyPatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "torch" else real(name)
    )
    with pytest.raises(UnavailableError, match="torch") as caught:
        _policy("optuna:gp")
    assert (caught.value.code, caught.value.exit_code) == ("policy.optuna-missing", 5)


def test_without_optuna_the_policy_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "tfsearch.search.studies")
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UnavailableError, match=r"tfsearch\[optuna\]") as caught:
        _policy("optuna:tpe")
    assert caught.value.code == "policy.optuna-missing"


class Roomy(FakeProblem):
    """A problem whose points take memory: less of it the slower they are."""

    def point_facts(self, points: Any) -> Any:
        return {"bytes": 1000 - 7 * points.column("a")}


def test_two_objectives_give_a_front_of_legal_points() -> None:
    problem = Roomy(two_recipes(), by_product)
    policy: Any = make_policy("optuna:nsgaii,second=bytes", problem, seed=3)
    assert policy.name == "optuna:nsgaii,second=bytes"
    told: dict[Point, tuple[float, float]] = {}
    for number in range(60):
        (point,) = policy.ask(1)
        assert not problem.space.check(point)
        if number % 10 == 9:
            policy.tell([Result(point, Status.CRASH)])
            continue
        value = 5.0 + int(point.params["a"])
        told[point] = value, 1000.0 - 7 * int(point.params["a"])
        policy.tell([Result(point, Status.OK, value)])
    assert len(policy.study.directions) == 2
    beaten = {
        point
        for point, (time, size) in told.items()
        if any(t <= time and s <= size and (t, s) != (time, size) for t, s in told.values())
    }
    assert {point for point, _ in policy.front} <= set(told) - beaten
    assert len({values for _, values in policy.front}) > 1
    assert all(told[point] == values for point, values in policy.front)


def test_energy_is_an_objective_where_it_was_measured() -> None:
    policy: Any = make_policy("optuna:nsgaii,second=energy_uj", _problem(), seed=3)
    (point,) = policy.ask(1)
    policy.tell([Result(point, Status.OK, 2.0, measured={"energy_uj": 7.0})])
    assert policy.front == [(point, (2.0, 7.0))]
    (point,) = policy.ask(1)
    with pytest.raises(RequestError, match="'energy_uj' is not known") as caught:
        policy.tell([Result(point, Status.OK, 2.0, measured={"registers": 7.0})])
    assert caught.value.code == "policy.objective"
    assert "registers" in caught.value.message


def test_a_sampler_of_one_objective_says_so() -> None:
    pytest.importorskip("cmaes")
    policy: Any = make_policy("optuna:cmaes,second=bytes", Roomy(two_recipes(), by_product))

    def asked() -> None:
        for _ in range(8):
            (point,) = policy.ask(1)
            policy.tell([Result(point, Status.OK, 5.0 + int(point.params["a"]))])

    with pytest.raises(RequestError, match="no second objective") as caught:
        asked()
    assert caught.value.code == "policy.optuna-sampler"
