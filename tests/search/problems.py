"""Small problems for policies: a space, an estimate, a bound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.space import Constraint, Kind, Parameter, Point, Points, RecipeSpace, Space


@dataclass(frozen=True)
class Predicted:
    estimate_us: Any
    bound_us: Any


class FakeProblem:
    """``estimate`` and ``bound`` map a batch of points to columns."""

    def __init__(
        self,
        space: Space,
        estimate: Callable[[Points], Any],
        bound: Callable[[Points], Any] | None = None,
    ) -> None:
        self.space = space
        self._estimate = estimate
        self._bound = bound

    def predict(self, points: Points) -> Predicted:
        bound = self._bound(points) if self._bound else np.zeros(len(points))
        return Predicted(np.asarray(self._estimate(points), np.float64), np.asarray(bound))


class Corrected(FakeProblem):
    """A problem that knows a factor of its estimates."""

    def __init__(
        self, space: Space, estimate: Callable[[Points], Any], factor: Callable[[Points], Any]
    ) -> None:
        super().__init__(space, estimate)
        self.corrects = True
        self._factor = factor

    def correct(self, points: Points, estimate_us: Any) -> Any:
        return estimate_us * self._factor(points)


def two_recipes(size: int = 8) -> Space:
    """Two recipes; the constraints make about half of the points illegal."""
    steps = tuple(range(1, size + 1))
    wide = RecipeSpace(
        "wide",
        1,
        (
            Parameter("a", steps, Kind.ORDINAL),
            Parameter("b", steps, Kind.ORDINAL),
            Parameter("order", ("mn", "nm", "z"), Kind.CATEGORICAL),
            Parameter("fused", (False, True), Kind.BOOLEAN),
        ),
        constraints=(Constraint("test.product", f"a * b <= {size * 2}", "{a}·{b} is too large"),),
    )
    narrow = RecipeSpace("narrow", 1, (Parameter("a", steps, Kind.ORDINAL),))
    return Space((wide, narrow))


def by_product(points: Points) -> Any:
    """An estimate with a unique direction: large ``a`` is fast."""
    a = points.column("a").astype(np.float64)
    b = points.column("b") if "b" in points.recipe.by_name else np.full(len(points), 4)
    return 100.0 / (a + 1.0) + b


def legal_points(space: Space) -> list[Point]:
    return [points.point(row) for points in space.chunks() for row in range(len(points))]
