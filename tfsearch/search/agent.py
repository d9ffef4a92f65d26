"""The agent policy: points come from a process of the user's, over JSON lines.

``docs/agents.md`` has the protocol. Whatever the agent answers, the session goes on: an answer
without one usable schedule, or none in time, is bad; it is answered with the reason and counted.
While an answer is missing the ranked policy fills in, and after ``PATIENCE`` bad answers in a row,
or when the agent is gone, it takes over for good, which is said.
"""

from __future__ import annotations

import json
import math
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from tfsearch.core import strict
from tfsearch.core.errors import TfsearchError
from tfsearch.core.records import ParamValue
from tfsearch.search.base import Base
from tfsearch.search.describe import result_json, space_json
from tfsearch.search.lines import Ended, LineProcess
from tfsearch.search.problem import Policy, Problem, Result
from tfsearch.search.scan import predict_points
from tfsearch.space import Point, Space

PROTOCOL = 1
PATIENCE = 5
DEADLINE_S = 120.0
BATCH = 4
"""Schedules that one question asks for."""
SHOWN = 20
COMPLETIONS = 256
"""Ways to fill in missing parameters that are looked at."""

Notice = Callable[[str, str], None]


class Bad(Exception):
    """Why an answer, or a schedule in it, is not taken: (what it is counted as, the reason)."""

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


class Agent(Base):
    """See the module.

    ``stand_in`` makes the policy that fills in; ``notice`` is called with a code and a line when
    something should be seen. ``counts`` has what was accepted and what was refused, by kind.
    """

    name = "agent"

    def __init__(
        self,
        problem: Problem,
        command: str,
        stand_in: Callable[[], Policy],
        *,
        incumbent_us: float | None,
        facts: Mapping[str, Any],
        budget: Mapping[str, Any],
        notice: Notice,
        deadline_s: float = DEADLINE_S,
    ) -> None:
        super().__init__(problem, incumbent_us)
        self.counts: Counter[str] = Counter()
        self._notice = notice
        self._deadline_s = deadline_s
        self._legal = problem.space.count().legal
        self._held = 0
        self._make_stand_in = stand_in
        self._stand_in: Policy | None = None
        self._results: list[Result] = []
        self._asks = 0
        self._streak = 0
        self._ready: deque[Point] = deque()
        self._origin: dict[Point, int] = {}
        self._process: LineProcess | None = LineProcess(command)
        self._say(
            {
                "type": "hello",
                "protocol": PROTOCOL,
                "space": space_json(problem.space),
                "facts": dict(facts),
                "budget": dict(budget),
                "incumbent_us": incumbent_us,
            }
        )

    def tell(self, results: Sequence[Result]) -> None:
        """Pass results on to the agent and to whoever fills in."""
        for result in results:
            if result.point not in self._seen and not self.problem.space.check(result.point):
                self._held += 1
            super().tell([result])
            self._results.append(_finite(result))
            told = {"type": "told", "id": self._origin.get(result.point)}
            self._say({**told, **result_json(self._results[-1])})
        if self._stand_in is not None:
            self._stand_in.tell(results)

    def close(self) -> None:
        """End the agent."""
        if self._process is not None:
            self._process.close()
            self._process = None
        if self._stand_in is not None:
            self._stand_in.close()

    def _next(self) -> Point | None:
        point = self._picked()
        if point is not None:
            self._held += 1
        return point

    def _picked(self) -> Point | None:
        """A point not seen before."""
        while self._ready:
            point = self._ready.popleft()
            if point not in self._seen:
                return point
        if self._process is not None and self._held < self._legal:
            point = self._asked()
            if point is not None:
                return point
        return self._filled_in()

    def _asked(self) -> Point | None:
        """The first new point of an answer; None when the ranked policy has to fill in.

        A bad answer is followed by another question at once, a missing one by none.
        """
        while self._process is not None:
            self._asks += 1
            wanted = min(BATCH, self._legal - self._held)
            self._say(
                {
                    "type": "ask",
                    "id": self._asks,
                    "n": wanted,
                    "deadline_s": self._deadline_s,
                    "history": self._history(),
                }
            )
            try:
                line = self._answer()
            except Ended as error:
                self._give_up(f"the agent is gone: {error}")
                return None
            if line is None:
                self._bad(Bad("late", f"no answer within {self._deadline_s:g} s"), self._asks)
                return None
            self._take(line, wanted)
            if self._ready:
                return self._ready.popleft()
        return None

    def _answer(self) -> bytes | None:
        if self._process is None:
            return None
        return self._process.receive(time.monotonic() + self._deadline_s)

    def _take(self, line: bytes, wanted: int) -> None:
        try:
            schedules = self._schedules(line)
        except Bad as bad:
            self._bad(bad, None)
            return
        problem: Bad | None = None
        for position, schedule in enumerate(schedules):
            try:
                if position >= wanted:
                    raise Bad("surplus", f"only {wanted} were asked for")
                point = self._point(schedule)
            except Bad as bad:
                problem = problem or bad
                self.counts[bad.kind] += 1
                self._reject(bad, self._asks, schedule)
            else:
                self.counts["accepted"] += 1
                self._origin[point] = self._asks
                self._ready.append(point)
        if self._ready:
            self._streak = 0
        elif problem is not None:
            self._strike(problem)

    def _schedules(self, line: bytes) -> list[Any]:
        if not line:
            raise Bad("malformed", "the line is too long")
        try:
            message: Any = strict.loads(line)
        except ValueError as error:
            why = (
                ""
                if isinstance(error, (json.JSONDecodeError, UnicodeDecodeError))
                else f": {error}"
            )
            raise Bad("malformed", f"the line is not JSON{why}") from None
        if not isinstance(message, dict):
            raise Bad("malformed", "a message is a JSON object")
        fields: dict[str, Any] = message  # pyright: ignore[reportUnknownVariableType]
        if fields.get("type") != "propose":
            raise Bad("malformed", 'the answer to an ask has "type": "propose"')
        number = fields.get("id")
        if number != self._asks or isinstance(number, bool):
            late = isinstance(number, int) and 0 < number < self._asks
            reason = "that question is over" if late else f"the question's id is {self._asks}"
            raise Bad("late" if late else "malformed", reason)
        schedules: Any = fields.get("schedules")
        if not isinstance(schedules, list) or not schedules:
            raise Bad("malformed", '"schedules" is a list of at least one schedule')
        return list(schedules)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]

    def _point(self, schedule: Any) -> Point:
        """The point of a proposed schedule, missing parameters filled in."""
        space = self.problem.space
        if not isinstance(schedule, dict) or set(schedule) - {"recipe", "params"}:  # pyright: ignore[reportUnknownArgumentType]
            raise Bad("malformed", 'a schedule is {"recipe": NAME, "params": {NAME: VALUE}}')
        fields: dict[str, Any] = schedule  # pyright: ignore[reportUnknownVariableType]
        name, params = fields.get("recipe"), fields.get("params", {})
        if name is None and len(space.recipes) == 1:
            name = space.recipes[0].name
        if not isinstance(name, str) or not isinstance(params, dict):
            raise Bad("malformed", '"recipe" is a name and "params" an object')
        values: dict[str, ParamValue] = params  # pyright: ignore[reportUnknownVariableType]
        if not all(isinstance(value, (int, str)) for value in values.values()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise Bad("malformed", "values are integers, booleans or strings")
        try:
            missing = set(space.recipe(name).by_name) - set(values)
            point = self._completed(name, values) if missing else _ordered(space, name, values)
        except TfsearchError as error:
            raise Bad("illegal", f"{error.code}: {error.message}") from None
        refusals = space.check(point)
        if refusals:
            raise Bad("illegal", "; ".join(f"{r.code}: {r.message}" for r in refusals[:3]))
        if point in self._seen or point in self._ready:
            raise Bad("duplicate", "it was proposed before")
        return point

    def _completed(self, name: str, values: Mapping[str, ParamValue]) -> Point:
        """The best by estimate of some points with these values."""
        import numpy as np

        part = Space((self.problem.space.recipe(name),)).fix(values)
        if not part.recipes:
            raise Bad("illegal", "a value is outside of its domain")
        sample = part.sample(COMPLETIONS, np.random.default_rng(len(self._seen)))
        points = [point for point in sample if point not in self._seen]
        if not points:
            raise Bad("illegal", "no untried legal schedule has these values")
        estimate, _ = predict_points(self.problem, points)
        return points[int(np.argmin(np.where(np.isnan(estimate), np.inf, estimate)))]

    def _bad(self, bad: Bad, number: int | None) -> None:
        """An answer of no use."""
        self.counts[bad.kind] += 1
        self._reject(bad, number, None)
        self._strike(bad)

    def _strike(self, bad: Bad) -> None:
        self._streak += 1
        if self._streak >= PATIENCE:
            self._give_up(f"{PATIENCE} bad answers in a row; the last: {bad}")

    def _reject(self, bad: Bad, number: int | None, schedule: Any) -> None:
        reject = {"type": "reject", "id": number, "kind": bad.kind, "reason": str(bad)}
        self._say({**reject, "schedule": schedule})

    def _give_up(self, why: str) -> None:
        self._ready.clear()
        if self._process is not None:
            self._process.close()
            self._process = None
        counted = ", ".join(f"{kind} {count}" for kind, count in sorted(self.counts.items()))
        self._notice(
            "agent.replaced",
            f"{why} ({counted or 'nothing accepted'}); the ranked policy takes over",
        )

    def _filled_in(self) -> Point | None:
        if self._stand_in is None:
            self._stand_in = self._make_stand_in()
            self._stand_in.tell(self._results)
        while points := self._stand_in.ask(1):
            if points[0] not in self._seen:
                return points[0]
        return None

    def _history(self) -> dict[str, Any]:
        known = [r for r in self._results if r.median_us is not None]
        known.sort(key=lambda result: result.median_us or math.inf)
        return {
            "trials": len(self._results),
            "failed": dict(Counter(r.status.value for r in self._results if r.median_us is None)),
            "best": [result_json(result) for result in known[:SHOWN]],
        }

    def _say(self, message: Mapping[str, Any]) -> None:
        if self._process is None:
            return
        try:
            self._process.send(message)
        except Ended as error:
            self._give_up(f"the agent is gone: {error}")


def _finite(result: Result) -> Result:
    """The result without times that JSON cannot say."""
    median, interval = result.median_us, result.ci_us
    if median is not None and not math.isfinite(median):
        median = interval = None
    if interval is not None and not all(math.isfinite(end) for end in interval):
        interval = None
    return replace(result, median_us=median, ci_us=interval)


def _ordered(space: Space, name: str, values: Mapping[str, ParamValue]) -> Point:
    """The point with its parameters in declared order; unknown names stay, to be refused."""
    known = [p.name for p in space.recipe(name).parameters]
    rest = [key for key in values if key not in known]
    return Point(name, {key: values[key] for key in [*known, *rest]})
