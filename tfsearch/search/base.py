"""What every policy here shares: what was seen, the best so far, and bounds against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfsearch.core.records import Status
from tfsearch.search.problem import Problem, Result
from tfsearch.space import Point


def time_of(result: Result) -> float | None:
    """The time of a result in microseconds; None for a failure, and for what is no time."""
    median = result.median_us
    if result.status is not Status.OK or median is None:
        return None
    return median if math.isfinite(median) and median > 0 else None


class Base:
    """Bookkeeping of a policy: a point is proposed at most once, told or not."""

    name = ""

    def __init__(self, problem: Problem, incumbent_us: float | None) -> None:
        self.problem = problem
        self.best_us = incumbent_us
        self._seen: set[Point] = set()
        self._exhausted = False

    @property
    def finished(self) -> bool:
        """True once :meth:`ask` has returned fewer points than it was asked for."""
        return self._exhausted

    def ask(self, n: int) -> list[Point]:
        """At most ``n`` legal points never returned or told before."""
        out: list[Point] = []
        while len(out) < n and not self._exhausted:
            point = self._next()
            if point is None:
                self._exhausted = True
            elif point not in self._seen:
                self._seen.add(point)
                out.append(point)
        return out

    def tell(self, results: Sequence[Result]) -> None:
        """Note results; points never asked for are noted as seen."""
        for result in results:
            self._seen.add(result.point)
            median = time_of(result)
            if median is not None and (self.best_us is None or median < self.best_us):
                self.best_us = median

    def close(self) -> None:
        """Nothing is held."""

    def _next(self) -> Point | None:
        """The next point, perhaps one seen before; None when nothing is left."""
        raise NotImplementedError

    def _hopeless(self, bound_us: float) -> bool:
        """Whether a sound bound says that the point cannot beat the best."""
        return self.best_us is not None and bound_us >= self.best_us
