"""How corrected estimates order a space."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.search.problems import Corrected, by_product, legal_points, two_recipes
from tfsearch.core.records import Status
from tfsearch.cost.learned import CAUTION, Correction
from tfsearch.search import Result, make_policy
from tfsearch.search.learned import Learned, features, matrix
from tfsearch.search.scan import pool_of, predict_points, scan
from tfsearch.search.table import Table
from tfsearch.space import Point, Points


def odd_is_slow(points: Points) -> Any:
    return np.where(points.column("a") % 2 == 1, 50.0, 1.0)


@pytest.fixture
def problem() -> Corrected:
    return Corrected(two_recipes(), by_product, odd_is_slow)


def _order(problem: Corrected) -> list[Point]:
    points = legal_points(problem.space)
    estimate, _ = predict_points(problem, points, corrected=True)
    return [points[int(row)] for row in np.argsort(estimate, kind="stable")]


def test_a_scan_holds_the_best_by_corrected_estimate(problem: Corrected) -> None:
    pool = scan(problem, keep=5).pool
    wanted = _order(problem)[:5]
    points = legal_points(problem.space)
    estimate, bound = predict_points(problem, points, corrected=True)
    assert np.array_equal(pool.estimate_us, np.sort(estimate)[:5])
    assert {pool.point(row).params["a"] for row in range(5)} == {p.params["a"] for p in wanted}
    assert not bound.any()
    plain, _ = predict_points(problem, points)
    assert not np.array_equal(plain, estimate)
    assert np.array_equal(np.sort(pool_of(problem, points).estimate_us), np.sort(estimate))


def test_only_the_first_by_estimate_are_corrected(
    problem: Corrected, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules[scan.__module__], "REACH", 3)
    points = legal_points(problem.space)
    plain, _ = predict_points(problem, points)
    corrected, _ = predict_points(problem, points, corrected=True)
    three = np.argsort(plain, kind="stable")[:3]
    assert list(scan(problem, keep=2).pool.estimate_us) == sorted(corrected[three])[:2]


def test_without_corrections_a_scan_is_what_it_was(problem: Corrected) -> None:
    problem.corrects = False
    points = legal_points(problem.space)
    plain, _ = predict_points(problem, points)
    assert np.array_equal(scan(problem, keep=4).pool.estimate_us, np.sort(plain)[:4])


def test_ranked_proposes_what_was_corrected_to_be_fast(problem: Corrected) -> None:
    fast = Corrected(problem.space, by_product, lambda points: 51.0 - odd_is_slow(points))
    first = make_policy("ranked:explore=0", fast).ask(8)
    assert all(int(point.params["a"]) % 2 == 1 for point in first)
    fast.corrects = False
    first = make_policy("ranked:explore=0", fast).ask(8)
    assert any(int(point.params["a"]) % 2 == 0 for point in first)


def test_residuals_are_against_the_corrected_estimate(problem: Corrected) -> None:
    """Times that are as corrected teach nothing: the order stays."""
    told, untold = (make_policy("ranked:explore=0,tolerance=0", problem) for _ in range(2))
    first = told.ask(6)
    untold.ask(6)
    estimate, _ = predict_points(problem, first, corrected=True)
    told.tell([Result(p, Status.OK, float(t)) for p, t in zip(first, estimate, strict=True)])
    assert told.ask(1) == untold.ask(1)


def test_the_surrogate_sees_corrected_estimates(problem: Corrected) -> None:
    table = Table(problem, 0)
    assert table.estimate is not None
    odd = [int(table.point(row).params["a"]) % 2 == 1 for row in range(len(table))]
    assert table.estimate[odd].min() > table.estimate[~np.array(odd)].max()


def _points(problem: Corrected) -> Points:
    return next(problem.space.chunks(64))


def test_features_say_how_large_and_which(problem: Corrected) -> None:
    points = _points(problem)
    found = features(points, {"moved": np.full(len(points), 8)})
    assert np.array_equal(found["log a"], np.log2(points.column("a")))
    assert np.array_equal(found["order=nm"], points.labels("order") == "nm")
    assert np.array_equal(found["a=3"], points.column("a") == 3)
    assert np.array_equal(found["fused=True"], points.labels("fused"))
    assert (found["fact moved"] == 3.0).all()


def test_what_a_space_does_not_have_counts_as_absent_or_unknown(problem: Corrected) -> None:
    points = _points(problem)
    found = matrix(("log a", "a=99", "log gone"), points, {})
    assert np.array_equal(found[:, 0], np.log2(points.column("a")))
    assert (found[:, 1] == 0).all()
    assert np.isnan(found[:, 2]).all()


def test_a_recipe_without_a_correction_is_left_alone(problem: Corrected) -> None:
    one = np.ones(1)
    correction = Correction(
        ("log a",), one, one, -9 * one, 9 * one, 0.1 * one, 0.01 * np.eye(1), 0.1
    )
    learned = Learned({"wide": correction})
    for points in problem.space.chunks(64):
        factor = learned.factor(points, {})
        moved = np.log2(points.column("a")) - 1.0
        wanted = np.exp(0.1 * moved + CAUTION * 0.1 * np.abs(moved))
        if points.recipe.name == "wide":
            assert np.allclose(factor, wanted)
        else:
            assert (factor == 1).all()
