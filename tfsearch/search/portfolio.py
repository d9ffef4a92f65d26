"""The portfolio: several policies that share their results; who is asked is learnt online.

The first points are the surrogate's, whose uniform ones suit every member. Then the member
with the best record is asked, plus a bonus for having been asked little (D. Auer, N. Cesa-Bianchi,
P. Fischer, "Finite-time analysis of the multiarmed bandit problem", 2002). A point counts for its
member by its rank: 1 for a new best, 0 below the fastest tenth of what was seen; older points count
less.

The choice follows from the results told in their order, so that a session that is told the
results of an earlier one goes on with the same point.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from tfsearch.search.base import Base, time_of
from tfsearch.search.problem import Policy, Problem, Result
from tfsearch.space import Point

FADE = 0.96
"""What is left of a member's record for every further point of its own."""
BONUS = 0.15
TOP = 0.1


@dataclass
class _Record:
    """A member's faded number of points and sum of what they counted for."""

    count: float = 0.0
    total: float = 0.0

    def note(self, reward: float) -> None:
        self.count = FADE * self.count + 1.0
        self.total = FADE * self.total + reward

    def score(self, trials: int) -> float:
        if not self.count:
            return math.inf
        return self.total / self.count + BONUS * math.sqrt(math.log(trials + 1) / self.count)


@dataclass
class _Standing:
    """Whom to ask, from the results so far."""

    names: tuple[str, ...]
    opening: int
    records: dict[str, _Record] = field(default_factory=dict[str, "_Record"])
    times: list[float] = field(default_factory=list[float])
    told: int = 0

    def choice(self, position: int) -> str:
        """The member for the point at this position (0 is the first) of the session."""
        if position < self.opening:
            return self.names[0]
        records = {name: self.records.get(name, _Record()) for name in self.names}
        return max(self.names, key=lambda name: records[name].score(position))

    def note(self, name: str, time_us: float | None) -> None:
        reward = 0.0
        if time_us is not None:
            slower = len(self.times) - bisect.bisect_left(self.times, time_us)
            share = slower / max(len(self.times), 1)
            reward = max(0.0, (share - 1.0 + TOP) / TOP)
            bisect.insort(self.times, time_us)
        if self.told >= self.opening:
            self.records.setdefault(name, _Record()).note(reward)
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
        self._standing = _Standing(tuple(self._members), opening)
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

    def _next(self) -> Point | None:
        first = self._standing.choice(len(self._seen))
        for name in (first, *(name for name in self._members if name != first)):
            while points := self._members[name].ask(1):
                if points[0] not in self._seen:
                    self._owners[points[0]] = name
                    return points[0]
        return None
