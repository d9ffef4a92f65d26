"""What each policy is for, and how policies are named."""

from __future__ import annotations

import itertools
import re

import numpy as np
import pytest

from tests import repository
from tests.search.problems import FakeProblem, by_product, legal_points, two_recipes
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Status
from tfsearch.search import Result, make_policy, scan
from tfsearch.search.registry import POLICIES
from tfsearch.space import Kind, Parameter, Point, RecipeSpace, Space

PAGE = repository.ROOT / "docs" / "policies.md"


def _big() -> Space:
    values = tuple(range(16))
    return Space(
        (RecipeSpace("big", 1, tuple(Parameter(name, values, Kind.ORDINAL) for name in "abcde")),)
    )


def _apart(left: Point, right: Point) -> int:
    return sum(left.params[name] != right.params[name] for name in left.params)


def test_ranked_proposes_the_best_estimate_first() -> None:
    problem = FakeProblem(two_recipes(), by_product)
    points = legal_points(problem.space)
    first = make_policy("ranked", problem).ask(1)[0]
    best = scan(problem, keep=1).pool.point(0)
    assert first == best
    assert first in points


def test_equally_good_points_come_in_a_varied_order() -> None:
    """Where it is not their turn to be near, the first 16 of a flat model are no near-copies."""
    problem = FakeProblem(_big(), lambda points: np.full(len(points), 10.0))
    first = make_policy("ranked:explore=0,exploit=0", problem).ask(16)
    least = min(_apart(a, b) for a, b in itertools.combinations(first, 2))
    assert least >= 2


def test_a_clear_estimate_wins_over_variety() -> None:
    problem = FakeProblem(_big(), lambda points: 10.0 * 2.0 ** points.column("a"))
    first = make_policy("ranked:explore=0", problem).ask(16)
    assert {point.params["a"] for point in first} == {0}


def test_a_share_of_the_proposals_is_uniform() -> None:
    problem = FakeProblem(_big(), lambda points: 10.0 * 2.0 ** points.column("a"))
    first = make_policy("ranked:explore=0.25", problem, seed=1).ask(40)
    elsewhere = [point for point in first if point.params["a"] != 0]
    assert 7 <= len(elsewhere) <= 10


def test_measurements_correct_a_model_that_is_wrong_about_a_choice() -> None:
    """The model prefers a = 0; every measurement says that it is ten times slower there."""
    problem = FakeProblem(_big(), lambda points: 10.0 + 0.05 * points.column("a"))
    policy = make_policy("ranked:explore=0.25,pool=4096", problem, seed=2)
    for _ in range(15):
        batch = policy.ask(4)
        slow = [int(point.params["a"]) < 4 for point in batch]
        policy.tell(
            [
                Result(point, Status.OK, 100.0 if is_slow else 10.0)
                for point, is_slow in zip(batch, slow, strict=True)
            ]
        )
    late = policy.ask(20)
    assert sum(int(point.params["a"]) >= 4 for point in late) >= 15
    unaware = make_policy("ranked:explore=0.25,pool=4096", problem, seed=2).ask(80)[60:]
    assert sum(int(point.params["a"]) >= 4 for point in unaware) <= 6


def test_hints_come_first_and_illegal_ones_are_left_out() -> None:
    problem = FakeProblem(two_recipes(), by_product)
    hint = legal_points(problem.space)[17]
    illegal = Point("wide", {"a": 8, "b": 8, "order": "mn", "fused": False})
    policy = make_policy("ranked", problem, hints=[illegal, hint])
    asked = policy.ask(1000)
    assert asked[0] == hint
    assert illegal not in asked
    assert len(asked) == len(set(asked)) == problem.space.count().legal


@pytest.mark.parametrize("name", ["ranked", "random", "exhaustive:prune=true"])
def test_only_points_whose_bound_is_not_below_the_incumbent_are_removed(name: str) -> None:
    problem = FakeProblem(two_recipes(), by_product, lambda points: points.column("a") * 1.0)
    asked = make_policy(name, problem, incumbent_us=4.0).ask(10_000)
    kept = [point for point in legal_points(problem.space) if int(point.params["a"]) < 4]
    assert set(asked) == set(kept)


@pytest.mark.parametrize("name", ["ranked", "random"])
def test_a_measured_time_removes_points_too(name: str) -> None:
    problem = FakeProblem(two_recipes(), by_product, lambda points: points.column("a") * 1.0)
    policy = make_policy(name, problem)
    (point,) = policy.ask(1)
    policy.tell([Result(point, Status.OK, 3.0)])
    assert all(int(p.params["a"]) < 3 for p in policy.ask(10_000))


def test_exhaustive_goes_through_the_space_in_its_order() -> None:
    problem = FakeProblem(two_recipes(), by_product, lambda points: np.full(len(points), 99.0))
    asked = make_policy("exhaustive", problem, incumbent_us=1.0).ask(10_000)
    assert asked == legal_points(problem.space)


def test_random_is_uniform_over_legal_points() -> None:
    problem = FakeProblem(two_recipes(4), by_product)
    legal = legal_points(problem.space)
    counts = dict.fromkeys(legal, 0)
    rounds = 400
    for seed in range(rounds):
        for point in make_policy("random", problem, seed=seed).ask(5):
            counts[point] += 1
    expected = rounds * 5 / len(legal)
    spread = sum((count - expected) ** 2 / expected for count in counts.values())
    # chi-squared with len - 1 degrees of freedom: mean len - 1, deviation sqrt(2 len)
    assert spread < len(legal) + 5 * (2 * len(legal)) ** 0.5


def test_the_scan_finds_the_same_pool_whatever_its_size_and_counts_what_bounds_remove() -> None:
    problem = FakeProblem(_big(), by_product, lambda points: points.column("b") * 1.0)
    everything = scan(problem, keep=16**5)
    few = scan(problem, keep=100, incumbent_us=None)
    assert few.legal == everything.legal == 16**5
    assert [few.pool.point(i) for i in range(100)] == [everything.pool.point(i) for i in range(100)]
    against = scan(problem, keep=100, incumbent_us=8.0)
    assert against.pruned == 16**5 // 2
    assert against.floor_us == 0.0
    assert everything.pruned == 0


def test_an_unknown_policy_lists_the_known_ones() -> None:
    with pytest.raises(RequestError, match="exhaustive") as caught:
        make_policy("rnaked", FakeProblem(two_recipes(), by_product))
    assert caught.value.code == "policy.unknown"
    assert "ranked" in caught.value.message


@pytest.mark.parametrize(
    "text", ["ranked:depth=3", "random:x=1", "ranked:explore=2", "ranked:pool=x", "ranked:tpe"]
)
def test_a_wrong_option_is_refused_with_what_is_allowed(text: str) -> None:
    with pytest.raises(RequestError, match=r"option") as caught:
        make_policy(text, FakeProblem(two_recipes(), by_product))
    assert caught.value.code == "policy.option"


def test_auto_takes_the_model_where_it_tells_points_apart() -> None:
    space = two_recipes()
    assert make_policy("auto", FakeProblem(space, by_product)).name == "ranked"
    for says_nothing in (np.nan, 7.0, np.inf, 0.0):
        silent = FakeProblem(space, lambda points, v=says_nothing: np.full(len(points), v))
        assert make_policy("auto", silent).name == "portfolio"


def test_the_page_tells_every_policy_with_its_options() -> None:
    rows = re.findall(r"^\| `(\w+)[^|]*\|[^|]*\|([^|]*)\|$", PAGE.read_text("utf-8"), re.M)
    told = dict(rows)
    assert told.keys() == POLICIES.keys()
    for name, entry in POLICIES.items():
        if name == "portfolio":  # "those of its members"
            members = [POLICIES[m].options for m in ("surrogate", "evolutionary", "local")]
            assert set(entry.options) == {option for options in members for option in options}
        elif name != "optuna":  # its option is the name of the sampler
            found = re.findall(r"`(\w+)", told[name])
            assert sorted(found) == sorted(entry.options), name


def test_the_portfolio_takes_the_options_of_its_members() -> None:
    problem = FakeProblem(two_recipes(), by_product)
    assert make_policy("portfolio:population=4,explore=0.1", problem).ask(1)
    with pytest.raises(RequestError, match="population is a number"):
        make_policy("portfolio:population=x", problem)
