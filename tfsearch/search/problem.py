"""What a policy sees: the space, predictions, and the results of what it asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tfsearch.core.records import Status
from tfsearch.space import Point, Points, Space

Times = np.ndarray[Any, np.dtype[np.float64]]


class Predicted(Protocol):
    """Times of a batch of points in microseconds: an estimate and a sound lower bound each."""

    @property
    def estimate_us(self) -> Times:
        """The estimate, which only ranks."""
        ...

    @property
    def bound_us(self) -> Times:
        """The bound, which alone may remove a point; 0 where nothing is known."""
        ...


class Problem(Protocol):
    """A space with predictions."""

    @property
    def space(self) -> Space:
        """The points to choose from."""
        ...

    def predict(self, points: Points) -> Predicted:
        """Predictions of a batch."""
        ...


@runtime_checkable
class Correcting(Protocol):
    """A problem that may know better than its estimates, from what was measured before."""

    @property
    def corrects(self) -> bool:
        """Whether :meth:`correct` changes anything."""
        ...

    def correct(self, points: Points, estimate_us: Times) -> Times:
        """The estimates of a batch, corrected; bounds stay what they are."""
        ...


def correcting(problem: Problem) -> Correcting | None:
    """The problem, if it has corrections to its estimates."""
    return problem if isinstance(problem, Correcting) and problem.corrects else None


@dataclass(frozen=True)
class Result:
    """What became of a point. ``median_us`` is present exactly when the status is ok.

    ``code``, ``where`` and ``message`` say why it failed; ``ci_us`` is the time's 95 % interval.
    ``measured``: what else was measured of it, by name, smaller being better.
    """

    point: Point
    status: Status
    median_us: float | None = None
    code: str = ""
    where: str = ""
    message: str = ""
    ci_us: tuple[float, float] | None = None
    measured: Mapping[str, float] = field(default_factory=dict[str, float])


@runtime_checkable
class Factual(Protocol):
    """A problem that knows integer facts of its points, such as the memory that they take."""

    def point_facts(self, points: Points) -> Mapping[str, Any]:
        """Facts by name, one column each."""
        ...


class Policy(Protocol):
    """Proposes points. Deterministic: equal seeds, asks and tells give equal points.

    A session is resumed by telling a new policy everything the old one was told, in that order;
    it then proposes what is left. Where every point was told before the next was asked for, it goes
    on as an uninterrupted session would.
    """

    name: str

    def ask(self, n: int) -> list[Point]:
        """At most ``n`` legal points never returned or told before; fewer only at the end."""
        ...

    def tell(self, results: Sequence[Result]) -> None:
        """Results of points asked for, or of an earlier session."""
        ...

    @property
    def finished(self) -> bool:
        """True once :meth:`ask` has returned fewer points than it was asked for."""
        ...

    def close(self) -> None:
        """Let go of what the policy holds, such as a process; nothing is asked afterwards."""
        ...
