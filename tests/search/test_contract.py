"""What every policy keeps to."""

from __future__ import annotations

import math
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest

from tests.search import agents
from tests.search.problems import Corrected, FakeProblem, by_product, legal_points, two_recipes
from tfsearch.core.records import Status
from tfsearch.search import POLICIES, Policy, Result, make_policy
from tfsearch.space import Kind, Parameter, Point, RecipeSpace, Space

AGENT = f"agent:{sys.executable} {Path(agents.__file__)} honest"
_TEXTS = {"agent": AGENT}
NAMES = [_TEXTS.get(name, name) for name in sorted(POLICIES)]
OWN_MIND = {AGENT}
"""Decide elsewhere: a resumed session need not go on with the same point."""


def _ok(points: list[Point], start: float = 10.0) -> list[Result]:
    return [Result(point, Status.OK, start + i) for i, point in enumerate(points)]


def _drain(policy: Policy, step: int = 7) -> list[Point]:
    out: list[Point] = []
    while batch := policy.ask(step):
        out.extend(batch)
        policy.tell(_ok(batch, 1000.0 + len(out)))
    return out


@pytest.fixture(params=NAMES, ids=lambda text: text.partition(":")[0])
def name(request: pytest.FixtureRequest) -> str:
    if request.param == "optuna":
        pytest.importorskip("optuna")
    return str(request.param)


@pytest.fixture(params=["estimated", "corrected"])
def problem(request: pytest.FixtureRequest) -> FakeProblem:
    if request.param == "estimated":
        return FakeProblem(two_recipes(), by_product)
    return Corrected(two_recipes(), by_product, lambda points: 1.0 + points.column("a") % 3)


def test_every_legal_point_is_proposed_exactly_once(name: str, problem: FakeProblem) -> None:
    proposed = _drain(make_policy(name, problem, seed=3))
    assert len(proposed) == len(set(proposed))
    assert set(proposed) == set(legal_points(problem.space))


def test_the_policy_is_finished_exactly_when_it_gives_less_than_asked(
    name: str, problem: FakeProblem
) -> None:
    policy = make_policy(name, problem)
    legal = problem.space.count().legal
    assert len(policy.ask(legal - 1)) == legal - 1
    assert not policy.finished
    assert len(policy.ask(5)) == 1
    assert policy.finished
    assert policy.ask(5) == []


def test_equal_seeds_and_tells_give_equal_proposals(name: str, problem: FakeProblem) -> None:
    runs = []
    for _ in range(2):
        policy = make_policy(name, problem, seed=11)
        asked = []
        for _ in range(6):
            batch = policy.ask(4)
            policy.tell(_ok(batch, 50.0 + len(asked)))
            asked.extend(batch)
        runs.append(asked)
    assert runs[0] == runs[1]


def test_the_seed_matters_where_chance_does(name: str, problem: FakeProblem) -> None:
    orders = [make_policy(name, problem, seed=seed).ask(40) for seed in (1, 2)]
    assert (orders[0] == orders[1]) == (name in ("exhaustive", AGENT))


def test_results_of_an_earlier_session_are_never_proposed_again(
    name: str, problem: FakeProblem
) -> None:
    first = make_policy(name, problem, seed=5)
    done = first.ask(20)
    resumed = make_policy(name, problem, seed=5)
    resumed.tell(_ok(done))
    rest = _drain(resumed)
    assert not set(rest) & set(done)
    assert set(rest) | set(done) == set(legal_points(problem.space))


def test_failed_points_are_not_proposed_again(name: str, problem: FakeProblem) -> None:
    policy = make_policy(name, problem)
    failed = policy.ask(10)
    policy.tell([Result(point, Status.CRASH) for point in failed])
    policy.tell([Result(point, Status.CANCELLED) for point in policy.ask(3)])
    assert not set(_drain(policy)) & set(failed)


def test_points_outside_of_the_space_may_be_told(name: str, problem: FakeProblem) -> None:
    policy = make_policy(name, problem)
    policy.tell([Result(Point("gone", {"x": 1}), Status.OK, 5.0)])
    assert set(_drain(policy)) == set(legal_points(problem.space))


def test_asking_for_nothing_gives_nothing(name: str, problem: FakeProblem) -> None:
    policy = make_policy(name, problem)
    assert policy.ask(0) == []
    assert not policy.finished


def test_a_space_without_legal_points_ends_at_once(name: str) -> None:
    policy = make_policy(name, FakeProblem(Space(()), by_product))
    assert policy.ask(3) == []
    assert policy.finished


def test_points_with_unknown_estimates_are_still_proposed(name: str) -> None:
    problem = FakeProblem(two_recipes(4), lambda points: [float("nan")] * len(points))
    assert set(_drain(make_policy(name, problem))) == set(legal_points(problem.space))


def _time(point: Point) -> float:
    """A landscape with interactions: deterministic in the point."""
    text = f"{point.recipe_name} {sorted(point.params.items())}"
    return 10.0 + zlib.crc32(text.encode()) % 97


def _outcome(point: Point) -> Result:
    """Every seventh point crashes, every eleventh has no number for a time."""
    time_us = _time(point)
    if int(time_us) % 7 == 0:
        return Result(point, Status.CRASH)
    return Result(point, Status.OK, math.nan if int(time_us) % 11 == 0 else time_us)


@pytest.mark.parametrize("size", [8, 12])
def test_a_resumed_session_goes_on_with_the_same_points(name: str, size: int) -> None:
    """One that asks, measures and tells one point at a time; stopped at any place."""
    if name in OWN_MIND:
        return
    problem = FakeProblem(two_recipes(size), by_product)
    whole = make_policy(name, problem, seed=5)
    results: list[Result] = []
    for _ in range(70):
        (point,) = whole.ask(1)
        results.append(_outcome(point))
        whole.tell(results[-1:])
    for stop in (0, 1, 5, 17, 31, 52):
        resumed = make_policy(name, problem, seed=5)
        resumed.tell(results[:stop])
        for result in results[stop : stop + 12]:
            (point,) = resumed.ask(1)
            assert point == result.point
            resumed.tell([result])


def test_failures_and_times_that_are_no_numbers_end_nothing(name: str) -> None:
    problem = FakeProblem(two_recipes(), by_product)
    policy = make_policy(name, problem, seed=1)
    proposed: list[Point] = []
    while batch := policy.ask(3):
        proposed.extend(batch)
        policy.tell([_outcome(point) for point in batch])
    assert len(proposed) == len(set(proposed))
    assert set(proposed) == set(legal_points(problem.space))


@pytest.mark.parametrize("median", [math.nan, math.inf, -math.inf, 0.0, -3.0])
def test_nothing_but_a_time_becomes_the_best(name: str, median: float) -> None:
    """A bound of 1 microsecond would remove every point if such a value were the best."""
    problem = FakeProblem(two_recipes(4), by_product, lambda points: np.ones(len(points)))
    policy = make_policy(name, problem)
    (point,) = policy.ask(1)
    policy.tell([Result(point, Status.OK, median)])
    assert set(_drain(policy)) | {point} == set(legal_points(problem.space))


@pytest.mark.parametrize("median", [5e-324, 1e300])
def test_a_time_of_any_size_ends_nothing(name: str, median: float) -> None:
    problem = FakeProblem(two_recipes(4), by_product)
    policy = make_policy(name, problem)
    for _ in range(12):
        (point,) = policy.ask(1)
        policy.tell([Result(point, Status.OK, median)])


def test_a_session_in_which_everything_fails_sees_every_point(name: str) -> None:
    problem = FakeProblem(two_recipes(), lambda points: np.full(len(points), np.nan))
    policy = make_policy(name, problem, seed=2)
    proposed: list[Point] = []
    while batch := policy.ask(2):
        proposed.extend(batch)
        policy.tell([Result(point, Status.COMPILE_ERROR) for point in batch])
    assert set(proposed) == set(legal_points(problem.space))
    assert len(proposed) == len(set(proposed))


def test_many_may_be_asked_for_before_the_first_result(name: str, problem: FakeProblem) -> None:
    policy = make_policy(name, problem, seed=4)
    waiting = [policy.ask(1)[0] for _ in range(12)]
    proposed = list(waiting)
    for _ in range(40):
        (fresh,) = policy.ask(1)
        proposed.append(fresh)
        waiting.append(fresh)
        policy.tell([_outcome(waiting.pop(0))])
    assert len(proposed) == len(set(proposed))
    assert set(proposed) <= set(legal_points(problem.space))


def test_a_space_of_one_point_is_proposed_once(name: str) -> None:
    only = RecipeSpace("only", 1, (Parameter("a", (3,), Kind.ORDINAL),))
    problem = FakeProblem(Space((only, RecipeSpace("empty", 1, ()))), lambda points: [1.0])
    proposed = _drain(make_policy(name, problem))
    assert sorted(p.recipe_name for p in proposed) == ["empty", "only"]
