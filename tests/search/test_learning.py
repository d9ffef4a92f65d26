"""What the policies that learn find, on landscapes with a known optimum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.search.problems import FakeProblem, legal_points
from tfsearch.core.records import Status
from tfsearch.search import Policy, Result, make_policy, table
from tfsearch.search.features import Encoder
from tfsearch.search.gaussian import Posterior, Shape, fit
from tfsearch.search.portfolio import Portfolio
from tfsearch.search.table import Table
from tfsearch.space import Constraint, Kind, Parameter, Point, Points, RecipeSpace, Space


def _space() -> Space:
    """2,280 legal points: two sizes, an unroll, a category and a switch."""
    sizes = tuple(range(16, 257, 16))
    parameters = (
        Parameter("x", sizes, Kind.ORDINAL),
        Parameter("y", (1, 2, 4, 8, 16, 32), Kind.ORDINAL),
        Parameter("unroll", (1, 2, 3, 4, 6, 8), Kind.ORDINAL),
        Parameter("order", ("ab", "ba", "z"), Kind.CATEGORICAL),
        Parameter("wide", (False, True), Kind.BOOLEAN),
    )
    limit = Constraint("test.threads", "x * y <= 1024", "{x}·{y} threads are too many")
    return Space((RecipeSpace("loop", 1, parameters, constraints=(limit,)),))


def _landscape(params: dict[str, Any]) -> float:
    """Interacting, uneven in x (whole multiples of 32 are good), fails at the largest unroll."""
    x, y, unroll = params["x"], params["y"], params["unroll"]
    time = 100.0 * (1 + abs(np.log2(x * y / 256)) * 0.4) * (1.0 if x % 32 == 0 else 1.3)
    time *= 1 + 0.15 * abs(unroll - (4 if params["wide"] else 2))
    time *= {"ab": 1.0, "ba": 1.2, "z": 1.1}[params["order"]]
    return float(time * (0.8 if params["wide"] and y >= 4 else 1.0))


def _optimum(space: Space) -> float:
    return min(_landscape(dict(p.params)) for p in legal_points(space) if p.params["unroll"] < 8)


def _blind(space: Space) -> FakeProblem:
    return FakeProblem(space, lambda points: np.full(len(points), np.nan))


def _run(policy: Policy, trials: int) -> list[float]:
    best: list[float] = []
    for _ in range(trials):
        (point,) = policy.ask(1)
        time_us = _landscape(dict(point.params))
        result = Result(point, Status.OK, time_us)
        if point.params["unroll"] == 8:
            result, time_us = Result(point, Status.CRASH), np.inf
        policy.tell([result])
        best.append(min(time_us, best[-1] if best else np.inf))
    return best


@pytest.mark.parametrize(
    ("name", "share"),
    [("local", 1.3), ("evolutionary", 1.3), ("surrogate", 1.02), ("portfolio", 1.02)],
)
def test_learning_comes_close_to_the_optimum_in_a_hundred_trials(name: str, share: float) -> None:
    space = _space()
    ends = [_run(make_policy(name, _blind(space), seed=s), 100)[-1] for s in range(9)]
    chance = [_run(make_policy("random", _blind(space), seed=s), 100)[-1] for s in range(9)]
    assert np.median(ends) <= share * _optimum(space)
    assert np.mean(ends) < np.mean(chance)


def test_a_climb_moves_to_neighbours_of_the_best() -> None:
    policy = make_policy("local", _blind(_space()), seed=3)
    (start,) = policy.ask(1)
    policy.tell([Result(start, Status.OK, 50.0)])
    near = _space().neighbours(start)
    tried = [policy.ask(1)[0] for _ in near]
    assert set(tried) == set(near)
    policy.tell([Result(point, Status.OK, 60.0) for point in tried])
    assert policy.ask(1)[0] not in near


def test_a_good_estimate_saves_trials() -> None:
    space = _space()

    def estimate(points: Points) -> Any:
        return [_landscape(points.params(row)) * 3.0 for row in range(len(points))]

    told = [_run(make_policy("surrogate", FakeProblem(space, estimate), seed=s), 6) for s in (1, 2)]
    assert all(run[-1] <= 1.2 * _optimum(space) for run in told)


def test_a_misleading_estimate_is_given_up() -> None:
    space = _space()

    def estimate(points: Points) -> Any:
        return [1e4 / _landscape(points.params(row)) for row in range(len(points))]

    ends = [
        _run(make_policy("surrogate", FakeProblem(space, estimate), seed=s), 80)[-1]
        for s in range(5)
    ]
    assert np.median(ends) <= 1.3 * _optimum(space)


def test_the_portfolio_asks_the_member_that_finds_more() -> None:
    """One member proposes fast points, the other slow ones."""
    space = _space()
    order = sorted(legal_points(space), key=lambda p: _landscape(dict(p.params)))
    members = {"first": _Fixed(order[::-1]), "second": _Fixed(order[200::-1])}
    policy = Portfolio(_blind(space), members, incumbent_us=None, opening=2)
    asked: list[Point] = []
    for _ in range(60):
        (point,) = policy.ask(1)
        asked.append(point)
        policy.tell([Result(point, Status.OK, _landscape(dict(point.params)))])
    assert sum(point in order[:201] for point in asked[20:]) >= 25


class _Fixed:
    """Proposes what it was given, in that order."""

    def __init__(self, points: list[Point]) -> None:
        self.name = "fixed"
        self._points = list(points)

    @property
    def finished(self) -> bool:
        return not self._points

    def ask(self, n: int) -> list[Point]:
        out, self._points = self._points[:n], self._points[n:]
        return out

    def tell(self, results: Any) -> None:
        pass

    def close(self) -> None:
        pass


@pytest.mark.parametrize("name", ["surrogate", "portfolio"])
def test_a_space_too_large_to_hold_is_walked_to_its_end(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table, "HELD", 100)
    monkeypatch.setattr(table, "SAMPLED", 64)
    space = Space((RecipeSpace("r", 1, tuple(_ordinal(n, 6) for n in "abc")),))
    policy = make_policy(name, _blind(space), seed=1)
    proposed: list[Point] = []
    while batch := policy.ask(1):
        proposed.extend(batch)
        policy.tell([Result(p, Status.OK, 1.0 + sum(map(int, p.params.values()))) for p in batch])
    assert len(proposed) == len(set(proposed)) == 216
    assert set(proposed) == set(legal_points(space))


def test_the_surrogate_leaves_its_sample_for_better_neighbours(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The best point of a space of which a fiftieth is held is found along neighbours."""
    monkeypatch.setattr(table, "HELD", 100)
    monkeypatch.setattr(table, "SAMPLED", 150)
    space = Space((RecipeSpace("r", 1, tuple(_ordinal(n, 9) for n in "abcd")),))
    policy = make_policy("surrogate", _blind(space), seed=1)
    best = np.inf
    for _ in range(120):
        (point,) = policy.ask(1)
        time_us = 1.0 + sum((int(v) - 6) ** 2 for v in point.params.values())
        best = min(best, time_us)
        policy.tell([Result(point, Status.OK, time_us)])
    assert best == 1.0


def _ordinal(name: str, size: int) -> Parameter:
    return Parameter(name, tuple(range(1, size + 1)), Kind.ORDINAL)


def test_rows_of_a_table_are_the_points_of_the_space() -> None:
    space = _space()
    held = Table(_blind(space), 0)
    points = legal_points(space)
    assert [held.point(row) for row in range(len(held))] == points
    assert [held.row(point) for point in points] == list(range(len(points)))
    assert held.row(Point("loop", {**points[0].params, "x": 256, "y": 32})) is None
    assert held.estimate is None


def test_features_tell_sizes_halvings_and_categories_apart() -> None:
    space = _space()
    encoder = Encoder(space)
    (points,) = space.legal_set()
    features = encoder.features(points)
    # x: size and halvings; y: size alone, because halvings follow from it; unroll: both.
    assert encoder.groups.tolist() == [0, 1, 2, 3, 4, 5, 5, 5, 6]
    assert features.min() == 0.0
    assert features.max() == 1.0
    assert len(np.unique(features, axis=0)) == len(points)


def _observed(count: int) -> tuple[Any, Any, Any]:
    rng = np.random.default_rng(0)
    features = rng.random((count, 3))
    return features, np.arange(3), np.sin(4 * features[:, 0]) + 0.3 * features[:, 1]


def test_fitted_lengths_are_long_where_nothing_depends_on_a_choice() -> None:
    features, groups, y = _observed(60)
    shape = fit(Shape.first(3), features, groups, y - y.mean(), rounds=30)
    assert shape.lengths[2] > shape.lengths[0] + 1.0


@pytest.mark.parametrize("hold", [True, False])
def test_observations_added_one_by_one_give_the_same_posterior(
    hold: bool,
) -> None:
    """With a value at once, or expected first and corrected later in any order."""
    features, groups, y = _observed(24)
    points = np.random.default_rng(1).random((40, 3))
    shape = Shape.first(3)
    whole = Posterior(shape, groups, points, features, y, 0)
    grown = Posterior(shape, groups, points, features[:16], y[:16], 8)
    if hold:
        for row in range(16, 24):
            grown.add(features[row], None, float(y[row]))
    else:
        numbers = [grown.add(features[row], None, None) for row in range(16, 24)]
        for number in reversed(numbers):
            grown.correct(number, float(y[number]))
    assert grown.full
    np.testing.assert_allclose(grown.mean, whole.mean, atol=1e-6)
    np.testing.assert_allclose(grown.spread, whole.spread, atol=1e-5)
