"""A workload bound to a target for commands that look at schedules; no device is needed."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tfsearch.cli import options as shared
from tfsearch.core import keys, strict
from tfsearch.core.errors import (
    NoCandidateError,
    NotRecordedError,
    RequestError,
    UnavailableError,
)
from tfsearch.core.records import ScheduleRecord
from tfsearch.core.settings import Settings
from tfsearch.cost.model import Prediction
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import protocol, workload_from, workload_json
from tfsearch.plugin import identity, registry
from tfsearch.plugin.target import Device, Problem, Target
from tfsearch.search.scan import scan
from tfsearch.space import Point, Points, Space


@dataclass(frozen=True, eq=False)
class Bound:
    """A workload on a target; ``space`` has the fixed parameters held.

    ``present`` tells whether ``device`` is really here or stands for what the target is made for;
    ``cold`` whether times are of calls that find empty caches.
    """

    workload: Workload
    target: Target
    device: Device
    present: bool
    problem: Problem
    space: Space
    cold: bool = False

    def predict(self, points: Points) -> Prediction:
        """Predicted times of a batch of points."""
        return self.problem.predict(points, cold=self.cold)

    def best_ranked(self, keep: int = 1) -> list[tuple[Point, float, float]]:
        """The best by estimate: (point, estimate, bound) in microseconds.

        ``NoCandidateError`` (``space.no-legal``) when nothing is legal.
        """
        pool = scan(self, keep=keep).pool
        if not len(pool):
            counts = self.space.count()
            codes = ", ".join(f"{code}: {count}" for code, count in counts.rejected.items())
            raise NoCandidateError(
                "space.no-legal",
                f"none of the {counts.points} schedules of this space is legal ({codes})",
            )
        return [
            (pool.point(row), float(pool.estimate_us[row]), float(pool.bound_us[row]))
            for row in range(min(keep, len(pool)))
        ]

    def record(self, point: Point) -> ScheduleRecord:
        """A point as a schedule record."""
        return identity.schedule_of(self.problem, self.target.name, point)

    def with_space(self, space: Space) -> Bound:
        """The same with another part of the space."""
        return replace(self, space=space)


def bind(op: str, pairs: Sequence[str], options: Mapping[str, Any]) -> Bound:
    """The workload of a command line on the target that it names, or on the best one."""
    return bind_workload(shared.workload_of(op, pairs), options)


def bind_workload(workload: Workload, options: Mapping[str, Any]) -> Bound:
    """See :func:`bind`; ``options`` may hold ``target``, ``device``, ``fixes``, ``protocol``."""
    from tfsearch.tune.request import fixed_space

    target = _target(options.get("target"))
    selector = options.get("device")
    present = bool(target.devices())
    device = registry.device(target, selector) if present or selector else target.nominal()
    problem = target.problem(workload, device)
    fixes = shared.pairs_of(options.get("fixes", ()), "parameter")
    space = fixed_space(problem.space, dict(fixes))
    cold = protocol(options.get("protocol", "warm")).cold
    return Bound(workload, target, device, present, problem, space, cold)


def _target(name: str | None) -> Target:
    """The named target, the best present one, or the preferred one that can be loaded."""
    if name:
        return registry.get(name)
    try:
        return registry.best_present()
    except UnavailableError:
        loaded: list[Target] = []
        for other in registry.names():
            try:
                loaded.append(registry.get(other))
            except UnavailableError:
                continue  # its packages are not installed: another one may do
        usable = [target for target in loaded if target.preference > 0]
        if not usable:
            raise
        return max(usable, key=lambda target: target.preference)


def split(words: Sequence[str]) -> tuple[str | None, list[str], str | None]:
    """(op, KEY=VALUE texts, schedule) from words in any order.

    A schedule is JSON text, ``-`` for standard input, or the name of a file that holds it. An
    op has no ``=`` and is no such file.
    """
    op: str | None = None
    pairs: list[str] = []
    schedule: str | None = None
    for word in words:
        if word == "-" or word.lstrip().startswith("{") or word.endswith(".json"):
            if schedule is not None:
                raise RequestError("request.repeated", "two schedules are given")
            schedule = word
        elif "=" in word:
            pairs.append(word)
        elif op is None:
            op = word
        else:
            raise RequestError(
                "request.argument",
                f"{word!r} is neither KEY=VALUE nor a schedule (a *.json file or JSON text)",
            )
    return op, pairs, schedule


def read_schedule(text: str) -> ScheduleRecord:
    """A schedule from JSON text, a file, or standard input (``-``); ``RequestError`` otherwise."""
    if text == "-":
        content, where = sys.stdin.read(), "standard input"
    elif text.lstrip().startswith("{"):
        content, where = text, "the schedule"
    else:
        where = text
        try:
            content = Path(text).read_text(encoding="utf-8")
        except OSError as error:
            raise RequestError("schedule.no-file", f"{text}: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise RequestError("schedule.not-json", f"{text} is not a text file") from error
    try:
        data = strict.loads(content)
    except ValueError as error:
        raise RequestError("schedule.not-json", f"{where} is not JSON: {error}") from error
    return ScheduleRecord.from_json(data)


def workload_for(
    op: str | None, pairs: Sequence[str], schedule: ScheduleRecord | None, db: str | None
) -> Workload:
    """The workload that the words name, or else the one that the schedule is for.

    A schedule names its workload by key: those that this user's commands printed schedules for,
    and those in the database, are known.
    """
    if op is not None:
        return shared.workload_of(op, pairs)
    if pairs:
        raise RequestError("request.argument", f"{pairs[0]} without an op: name it, such as gemm")
    if schedule is None:
        raise RequestError(
            "request.argument", "name a workload, such as gemm m=512 …, or give a schedule"
        )
    places = shared.settings_of(db)
    remembered = _remembered(places, schedule.workload)
    return remembered or _recorded(places, schedule.workload)


def remember(places: Settings, workload: Workload) -> None:
    """Keep a workload under its key, so that a printed schedule says enough by itself."""
    path = _place(places, workload.key)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(json.dumps(workload_json(workload.record)), encoding="utf-8")
    except OSError:
        # A cache: on a read-only or full disk the user names the workload again.
        return


def _place(places: Settings, key: str) -> Path:
    return places.cache / "workloads" / f"{keys.digest('file', {'key': key})[:32]}.json"


def _remembered(places: Settings, key: str) -> Workload | None:
    try:
        data = json.loads(_place(places, key).read_text(encoding="utf-8"))
        found = Workload.from_record(workload_from(data))
    except (OSError, ValueError, KeyError, TypeError, RequestError):
        return None  # not there, or damaged: the database may know it
    return found if found.key == key else None


def _recorded(places: Settings, key: str) -> Workload:
    from tfsearch.runtime.serving import opened

    try:
        with opened(places) as store:
            record = store.workload(key)
    except NotRecordedError:
        record = None
    if record is None:
        raise NotRecordedError(
            "schedule.unknown-workload",
            f"workload {key[:16]}… is not known here; name it beside the schedule, such as "
            "gemm m=512 n=512 k=512 dtype=f32",
        )
    return Workload.from_record(record)
