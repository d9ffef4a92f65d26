"""A second objective beside the time: a fact of the schedule, or something that was measured."""

from __future__ import annotations

import math

from tfsearch.core.errors import RequestError
from tfsearch.search.base import time_of
from tfsearch.search.problem import Factual, Problem, Result
from tfsearch.search.scan import points_of

ENERGY = "energy_uj"
"""Energy of a call in microjoules: its time at the power that the device reports."""


class Second:
    """The second objective of that name; smaller is better.

    It is one of the integer facts that the problem knows of its points, of the resources that the
    build reports, or :data:`ENERGY`.
    """

    def __init__(self, name: str, problem: Problem) -> None:
        self.name = name
        self._problem = problem

    def value(self, result: Result) -> float:
        """Its value for a result with a time.

        ``RequestError`` (``policy.objective``) where nothing of that name is known.
        """
        known = {**self._facts(result), **result.measured}
        found = known.get(self.name, math.nan)
        if not math.isfinite(found):
            names = ", ".join(sorted(known)) or "nothing"
            raise RequestError(
                "policy.objective",
                f"{self.name!r} is not known of what is measured here; known: {names}",
            )
        return found

    def values(self, result: Result) -> list[float] | None:
        """Time and second objective; None for a failure."""
        time_us = time_of(result)
        return None if time_us is None else [time_us, self.value(result)]

    def _facts(self, result: Result) -> dict[str, float]:
        if not isinstance(self._problem, Factual):
            return {}
        ((_, batch),) = points_of(self._problem.space, [result.point])
        found = self._problem.point_facts(batch)
        return {name: float(column[0]) for name, column in found.items()}
