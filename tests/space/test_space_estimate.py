"""Spaces too large to be counted: a bounded time, and an estimate that is said to be one."""

from __future__ import annotations

import math
import time

import numpy as np
import pytest

from tfsearch.space import Constraint, Kind, Parameter, RecipeSpace, Space
from tfsearch.space.estimate import estimate


def coupled(count: int, values: int, *texts: str) -> Space:
    """``count`` parameters p0, p1, … of so many values, all coupled by these constraints."""
    domain = tuple(range(1, values + 1))
    parameters = tuple(Parameter(f"p{i}", domain, Kind.ORDINAL) for i in range(count))
    constraints = tuple(Constraint(f"t.c{i}", text, text) for i, text in enumerate(texts))
    return Space((RecipeSpace("r", 1, parameters, constraints=constraints),))


def total(count: int) -> str:
    return " + ".join(f"p{i}" for i in range(count))


@pytest.mark.parametrize(
    "texts",
    [
        (f"({total(6)}) % 7 == 0",),
        (f"{total(6)} <= 18", "p0 * p1 % 4 == 0"),
        ("p0 % p1 == 0", "p1 % p2 == 0", "p2 % p3 == 0", "p3 % p4 == 0", "p4 % p5 == 0"),
    ],
)
def test_an_estimate_is_near_the_count(texts: tuple[str, ...]) -> None:
    space = coupled(6, 10, *texts)
    exact = space.count()
    (component,) = space._enumerations["r"].plan.components
    found = estimate(component, space.recipes[0].compiled, math.inf)
    assert abs(found.legal - exact.legal) <= max(5 * found.error, 0.01) * exact.legal
    assert found.error < 0.05
    failed = sum(found.failed.values())
    assert failed == pytest.approx(exact.points - exact.legal, rel=0.05)


def test_a_gigantic_coupled_space_is_estimated_in_bounded_time() -> None:
    space = coupled(12, 32, f"({total(12)}) % 5 == 0", f"{total(12)} >= 30")
    start = time.monotonic()
    found = space.count_within(0.2)
    assert time.monotonic() - start < 30
    assert not found.exact
    assert found.points == 32**12
    assert found.legal == pytest.approx(32**12 / 5, rel=0.05)
    assert set(found.rejected) <= {"t.c0", "t.c1"}


def test_what_is_counted_in_time_is_exact() -> None:
    space = coupled(4, 10, f"({total(4)}) % 7 == 0")
    assert space.count_within(60.0) == space.count()
    assert space.count().exact


def test_no_legal_point_in_the_sample_is_no_count_of_none() -> None:
    """One point in 2**60 is legal, and no prefix says so."""
    space = coupled(12, 32, f"{' * '.join(f'(p{i} == 7)' for i in range(12))} == 1")
    found = space.count_within(0.05)
    assert (found.legal, found.error, found.exact) == (0, math.inf, False)


def test_an_estimate_is_never_kept_as_a_count() -> None:
    space = coupled(7, 16, f"({total(7)}) % 5 == 0", f"{total(7)} <= 60")
    rough = space.count_within(0.0)
    assert not rough.exact
    exact = space.count()
    assert exact.exact
    assert exact.legal + sum(exact.rejected.values()) == exact.points
    points = space.sample(5, np.random.default_rng(0))
    assert len(points.row) == 5
