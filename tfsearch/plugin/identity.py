"""Identity between the layers: schedules and points, keys, and whether a record still holds.

A recorded build is current when building its schedule now would give the same key: the same
source (known at once when the generator's digest is equal and the source was kept, else by
lowering the schedule again), the same flags, macros, toolchain content and headers. So an edit
of the generator that changes no source loses no record.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tfsearch.core import keys
from tfsearch.core.errors import InternalError, RequestError, TfsearchError, UnavailableError
from tfsearch.core.records import (
    BuildKey,
    BuildRecord,
    MeasurementKey,
    ScheduleRecord,
    Trial,
    WorkloadRecord,
)
from tfsearch.db import ArtifactStore, BestQuery
from tfsearch.measure.job import protocol as protocol_named
from tfsearch.plugin.target import Compiler, Device, Problem, Source, Target

if TYPE_CHECKING:
    from tfsearch.db import Store  # at run time it would load SQLAlchemy
    from tfsearch.space import Point

GENERATOR_SUFFIXES = (".py", ".toml", ".c", ".h")


def generator_digest(*modules: str) -> str:
    """Digest over the content of every source file of these modules and packages.

    For :meth:`Target.generator_digest`: name everything that a schedule passes through on its
    way to source. Files are named relative to their package, so the installation's place is no
    part of it.
    """
    return _generator_digest(tuple(sorted(set(modules))))


@cache
def _generator_digest(modules: tuple[str, ...]) -> str:
    files: dict[str, str] = {}
    for name in modules:
        spec = find_spec(name)
        if spec is None or spec.origin is None:
            raise InternalError("identity.module", f"module {name} has no source to hash")
        origin = Path(spec.origin)
        if spec.submodule_search_locations is None:
            files[name] = keys.digest_bytes(origin.read_bytes())
            continue
        for path in sorted(origin.parent.rglob("*")):
            if path.suffix in GENERATOR_SUFFIXES and path.is_file():
                place = path.relative_to(origin.parent).as_posix()
                files[f"{name}/{place}"] = keys.digest_bytes(path.read_bytes())
    return keys.digest("generator", files)


def schedule_of(problem: Problem, target: str, point: Point) -> ScheduleRecord:
    """The point as a schedule record."""
    record = problem.workload.record
    recipe = problem.space.recipe(point.recipe_name)
    return ScheduleRecord(
        program=record.op,
        workload=record.key,
        target=target,
        recipe=recipe.name,
        recipe_version=recipe.version,
        params=dict(point.params),
    )


def point_of(problem: Problem, target: str, schedule: ScheduleRecord) -> Point:
    """The point of a schedule, legal or not (``space.check`` says which).

    ``RequestError`` when it is a schedule of another target, workload or recipe version.
    """
    own = problem.workload.key
    if schedule.target != target:
        raise RequestError(
            "schedule.target", f"the schedule is for target {schedule.target}, not {target}"
        )
    if schedule.workload != own:
        raise RequestError(
            "schedule.workload",
            f"the schedule is for workload {schedule.workload[:12]}…, not {own[:12]}…",
        )
    recipe = problem.space.recipe(schedule.recipe)
    if schedule.recipe_version != recipe.version:
        raise RequestError(
            "schedule.recipe-version",
            f"the schedule is for version {schedule.recipe_version} of recipe {recipe.name}, this "
            f"release has version {recipe.version}",
        )
    from tfsearch.space import Point

    return Point(schedule.recipe, dict(schedule.params))


def measurement_key(build: BuildKey, device: Device, protocol: str) -> MeasurementKey:
    """Key of a measurement; ``protocol`` is a protocol's name."""
    return MeasurementKey(build, device.record, protocol_named(protocol).key)


def best_query(
    workload: WorkloadRecord,
    target: Target,
    device: Device,
    compiler: Compiler | None,
    flags: Sequence[str] = (),
    macros: Sequence[str] = (),
    protocol: str = "warm",
) -> BestQuery:
    """What to ask the database for; without a compiler any toolchain's record will do.

    Headers and the features a build was allowed to use depend on the source, so they are
    compared by :func:`still_current`.
    """
    return BestQuery(
        workload=workload,
        target=target.name,
        device=device.record,
        toolchain=None if compiler is None else compiler.record,
        flags=tuple(flags),
        protocol=protocol_named(protocol).key,
        macros=tuple(macros),
    )


@dataclass(frozen=True)
class Verdict:
    """Whether a record still holds.

    ``differs`` maps dotted fields of the build's key to (wanted now, recorded); empty exactly
    when ``current``. ``build`` is the key as of now and ``source`` what it is the key of; they
    are None where the schedule cannot be lowered or its source cannot be built any more.
    ``relowered`` tells that the fast path did not apply.
    """

    current: bool
    differs: Mapping[str, tuple[object, object]]
    build: BuildKey | None
    source: Source | None
    relowered: bool


def still_current(
    trial: Trial,
    *,
    target: Target,
    problem: Callable[[], Problem],
    compiler: Compiler,
    flags: Sequence[str] = (),
    macros: Sequence[str] = (),
    store: Store | None = None,
    artifacts: ArtifactStore | None = None,
) -> Verdict:
    """Whether building the trial's schedule now would give its recorded build.

    ``problem`` is called only when the schedule has to be lowered. Errors of the compiler
    (``UnavailableError``) pass through.
    """
    if trial.build is None:
        raise InternalError("identity.no-build", f"trial {trial.index} has no build to compare")
    recorded = trial.build.key
    source = _kept_source(trial, recorded, target, store, artifacts)
    relowered = source is None
    if source is None:
        try:
            source = lowered_source(problem(), target.name, trial.schedule)
        except UnavailableError:
            raise
        except TfsearchError as error:
            return Verdict(False, {"schedule": (error.code, "ok")}, None, None, True)
    try:
        now = compiler.key(source, flags, macros)
    except UnavailableError:
        raise
    except TfsearchError as error:
        return Verdict(False, {"build": (error.code, "ok")}, None, source, relowered)
    differs = keys.differences(now.key_fields(), recorded.key_fields(), "build.")
    return Verdict(not differs, differs, now, source, relowered)


class BuildChanged(RequestError):
    """A header or the compiler changed while a build was made, so its key is not known."""


def require_unchanged(before: BuildKey, now: BuildKey) -> None:
    """:class:`BuildChanged` (``build.changed``) where the keys before and after a build differ."""
    differs = keys.differences(now.key_fields(), before.key_fields())
    if differs:
        raise BuildChanged(
            "build.changed", f"{', '.join(sorted(differs))} changed during the build; try again"
        )


def lowered_source(problem: Problem, target: str, schedule: ScheduleRecord) -> Source:
    """A schedule's source as the generator emits it now.

    ``RequestError`` for a schedule of something else, or one that is not legal.
    """
    from tfsearch.plugin.kernel import source_of

    point = point_of(problem, target, schedule)
    refusals = problem.space.check(point)
    if refusals:
        raise RequestError(refusals[0].code, refusals[0].message)
    return source_of(problem, point)


def keep_source(source: Source, build: BuildRecord, store: Store, artifacts: ArtifactStore) -> None:
    """Keep what the fast path of :func:`still_current` needs; ``NotSavedError`` if it cannot."""
    kept = artifacts.put(source.to_bytes())
    if kept != build.key.source:
        raise InternalError(
            "identity.source", "a compiler's key does not hold the digest of the source"
        )
    store.record_launch(source.launch)


def note_source(artifacts: ArtifactStore, schedule: str, generator: str, source: str) -> None:
    """Note what this user's generator emitted for a schedule (all by digest).

    The fast path of :func:`still_current` goes by such notes: a database may say anything.
    ``NotSavedError`` if it cannot be noted.
    """
    artifacts.note(_emission(schedule, generator), source)


def noted_source(artifacts: ArtifactStore, schedule: str, generator: str) -> str | None:
    """Digest of what this user's generator emitted for a schedule; None without a note."""
    return artifacts.noted(_emission(schedule, generator))


def _emission(schedule: str, generator: str) -> str:
    return keys.digest("emission", {"schedule": schedule, "generator": generator})


def _kept_source(
    trial: Trial,
    recorded: BuildKey,
    target: Target,
    store: Store | None,
    artifacts: ArtifactStore | None,
) -> Source | None:
    """The recorded source, if today's generator is the one that emitted it and it was kept."""
    if store is None or artifacts is None or trial.schedule.workload != trial.workload:
        return None
    generator = target.generator_digest()
    if trial.generator != generator:
        known = store.generator_source(trial.schedule.key, generator)
        if known is None or (known.source, known.launch) != (recorded.source, recorded.launch):
            return None
    if not artifacts.has(recorded.source):
        return None
    if noted_source(artifacts, trial.schedule.key, generator) != recorded.source:
        return None
    launch = store.launch(recorded.launch)
    if launch is None:
        return None
    try:
        return Source.from_bytes(artifacts.get(recorded.source), launch, recorded.features)
    except (UnavailableError, ValueError):
        # A damaged copy is no reason to miss: lowering again gives the source as well.
        return None
