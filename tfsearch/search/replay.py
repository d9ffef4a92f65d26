"""Policies on recorded spaces, with simulated time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.records import Status
from tfsearch.search.problem import Result, Times
from tfsearch.search.registry import make_policy
from tfsearch.search.score import Recorded, Scored
from tfsearch.space import Points
from tfsearch.space.file.t4 import Results
from tfsearch.space.listed import ListedSpace

SLACK = 1.1
"""Searches go on a little beyond the time that is scored."""


class _Unknown:
    """No model: nothing is estimated, and every bound is 0."""

    def __init__(self, count: int) -> None:
        self.estimate_us = np.full(count, np.nan)
        self.bound_us = np.zeros(count)


class RecordedProblem:
    """A recorded space as policies see it, with its times (milliseconds) and costs (seconds).

    Raises ``RequestError`` (``replay.too-few``) where it cannot be scored.
    """

    def __init__(self, name: str, space: ListedSpace, times: Times, seconds: Times) -> None:
        self.name = name
        self.space = space
        try:
            self.recorded = Recorded(times, seconds)
        except ValueError as error:
            raise RequestError("replay.too-few", f"{name}: {error}") from None
        if not bool((seconds > 0).any()):
            raise RequestError("replay.no-cost", f"{name}: no result says what measuring it took")

    @classmethod
    def of(cls, results: Results) -> RecordedProblem:
        """The problem of a T4 file."""
        return cls(results.name, results.space, results.times_ms, results.seconds)

    def predict(self, points: Points) -> Any:
        """Nothing is known of them."""
        return _Unknown(len(points))

    def run(self, policy: str, seed: int, seconds: float | None = None) -> list[int]:
        """Rows in the order in which a policy visits them in that much simulated time.

        Without ``seconds`` it is what is scored, and a little more.
        """
        limit = SLACK * float(self.recorded.grid[-1]) if seconds is None else seconds
        one = make_policy(policy, self, seed=seed)
        visited: list[int] = []
        spent = 0.0
        while spent <= limit and (points := one.ask(1)):
            row = self.space.row(points[0])
            time = float(self.recorded.times[row])
            failed = bool(np.isnan(time))
            status = Status.CRASH if failed else Status.OK
            one.tell([Result(points[0], status, None if failed else 1000.0 * time)])
            visited.append(row)
            spent += float(self.recorded.seconds[row])
        return visited


@dataclass(frozen=True)
class Replayed:
    """A policy's runs: ``single`` is the mean of the runs' own scores with its 95 % interval,
    ``after[n]`` the median of best over optimum after n evaluations.
    """

    policy: str
    score: Scored
    single: Scored
    after: dict[int, float]
    evaluations: float
    seeds: int

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "policy": self.policy,
            "score": [self.score.score, self.score.low, self.score.high],
            "single": [self.single.score, self.single.low, self.single.high],
            "best_over_optimum_after": {str(n): value for n, value in self.after.items()},
            "evaluations": self.evaluations,
            "seeds": self.seeds,
        }


AFTER = (20, 50, 100, 200)


def judged(problem: RecordedProblem, policy: str, runs: list[list[int]]) -> Replayed:
    """What runs of a policy are worth."""
    recorded = problem.recorded
    single = np.array([recorded.single(run) for run in runs])
    half = 1.96 * float(single.std(ddof=1)) / len(single) ** 0.5 if len(single) > 1 else 0.0
    mean = float(single.mean())
    best = [recorded.best(run) for run in runs]
    return Replayed(
        policy,
        recorded.score(runs),
        Scored(mean, mean - half, mean + half),
        {
            count: float(
                np.nanmedian([curve[min(count, len(curve)) - 1] for curve in best])
                / recorded.optimum
            )
            for count in AFTER
        },
        float(np.mean([len(run) for run in runs])),
        len(runs),
    )
