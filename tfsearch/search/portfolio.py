"""The portfolio: several policies that share their results; who is asked is learnt online.

The first points are the first member's, which then leads. Three of four points are the leader's;
the fourth goes to the other member with the best record, plus a bonus for having been asked little
(P. Auer, N. Cesa-Bianchi, P. Fischer, "Finite-time analysis of the multiarmed bandit problem",
2002), where a point counts by its rank: 1 for a new best, 0 below the fastest tenth of what was
seen. A member that finds new bests more often for each point it may propose takes the lead. Older
points count less.

The choice follows from the results told in their order, so that a session that is told the
results of an earlier one goes on with the same point.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfsearch.search.base import Base, time_of
from tfsearch.search.problem import Policy, Problem, Result
from tfsearch.space import Point

FADE = 0.97
"""What is left of a member's record for every further point of its own."""
BONUS = 0.15
TOP = 0.1
OTHERS = 4
"""Every so many points one is not the leader's."""
CREDIT = 1.0, 8.0
"""New bests and points that the first member starts with."""


@dataclass
class _Record:
    """A member's faded sums: points, what they counted for, and new bests among them."""

    points: float = 0.0
    total: float = 0.0
    bests: float = 0.0

    def note(self, reward: float, *, best: bool) -> None:
        self.points = FADE * self.points + 1.0
        self.total = FADE * self.total + reward
        self.bests = FADE * self.bests + best

    def promise(self, trials: int) -> float:
        """What a point of this member may count for."""
        if not self.points:
            return math.inf
        return self.total / self.points + BONUS * math.sqrt(math.log(trials + 1) / self.points)

    def rate(self) -> float:
        """New bests for a point, against a prior of one in ``CREDIT[1]`` that it has to earn."""
        return self.bests / (self.points + CREDIT[1])


class _Standing:
    """Whom to ask, from the results so far."""

    def __init__(self, names: Sequence[str], opening: int) -> None:
        self.names = tuple(names)
        self.opening = opening
        self.told = 0
        self._times: list[float] = []
        self._records = {name: _Record() for name in names}
        self._records[self.names[0]] = _Record(CREDIT[1], CREDIT[0], CREDIT[0])

    def choice(self, position: int) -> str:
        """The member for the point at this position (0 is the first) of the session."""
        leader = self.names[0]
        if position >= self.opening:
            leader = max(self.names, key=lambda name: self._records[name].rate())
            others = [name for name in self.names if name != leader]
            if others and position % OTHERS == 0:
                return max(others, key=lambda name: self._records[name].promise(position))
        return leader

    def note(self, name: str, time_us: float | None) -> None:
        """A member's point took this long, or failed."""
        reward, best = 0.0, False
        if time_us is not None:
            slower = len(self._times) - bisect.bisect_left(self._times, time_us)
            share = slower / max(len(self._times), 1)
            reward = max(0.0, (share - 1.0 + TOP) / TOP)
            best = not self._times or time_us < self._times[0]
            bisect.insort(self._times, time_us)
        if self.told >= self.opening:
            self._records[name].note(reward, best=best)
        self.told += 1


class Portfolio(Base):
    """See the module. The first of ``members`` opens."""

    name = "portfolio"

    def __init__(
        self,
        problem: Problem,
        members: Mapping[str, Policy],
        *,
        incumbent_us: float | None,
        opening: int,
    ) -> None:
        super().__init__(problem, incumbent_us)
        self._members = dict(members)
        self._standing = _Standing(list(self._members), opening)
        self._owners: dict[Point, str] = {}

    def tell(self, results: Sequence[Result]) -> None:
        """Credit whoever proposed each point, and tell everyone."""
        for result in results:
            super().tell([result])
            owner = self._owners.pop(result.point, None)
            if owner is None:
                owner = self._standing.choice(self._standing.told)
            self._standing.note(owner, time_of(result))
        for member in self._members.values():
            member.tell(results)

    def close(self) -> None:
        """Close the members."""
        for member in self._members.values():
            member.close()

    def _next(self) -> Point | None:
        first = self._standing.choice(len(self._seen))
        for name in (first, *(name for name in self._members if name != first)):
            while points := self._members[name].ask(1):
                if points[0] not in self._seen:
                    self._owners[points[0]] = name
                    return points[0]
        return None
