"""From a question to a loaded kernel: which record answers it, and where its executable is."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfsearch.core import settings as core_settings
from tfsearch.core.errors import (
    NotRecordedError,
    NotSavedError,
    RequestError,
    TfsearchError,
    UnavailableError,
)
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import BuildRecord, Status, Trial
from tfsearch.core.settings import Settings
from tfsearch.db.artifacts import ArtifactStore
from tfsearch.db.records import BestQuery, Nearest, StoredTrial
from tfsearch.ir.workload import Workload
from tfsearch.measure.protocols import Loaded, Runner
from tfsearch.plugin import identity, registry
from tfsearch.plugin.target import Compiler, Device, Problem, Source, Target
from tfsearch.runtime.kernelrecord import KernelRecord
from tfsearch.toolchain.headers import directives
from tfsearch.toolchain.room import delivering

if TYPE_CHECKING:
    from tfsearch.db import Store
    from tfsearch.space.file import KernelWorkload

COMPILE_TIMEOUT_S = 120.0
COMPILE_MEMORY_BYTES = 4 << 30


@dataclass(frozen=True)
class Question:
    """What is asked for. Everything here changes which record answers."""

    workload: Workload | KernelWorkload
    target: str | None = None
    device: str | None = None
    toolchain: str | None = None
    flags: tuple[str, ...] = ()
    macros: tuple[str, ...] = ()
    protocol: str = "warm"


@dataclass(frozen=True)
class Place:
    """Where a question is asked: the target, device and compiler it comes down to here.

    ``compiler`` is None when there is none, and ``no_compiler`` then says why and how to get one.
    """

    question: Question
    target: Target
    device: Device
    compiler: Compiler | None
    no_compiler: str
    settings: Settings

    @property
    def artifacts(self) -> ArtifactStore:
        """This user's own artifact store."""
        return ArtifactStore(self.settings.artifacts)

    def problem(self) -> Problem:
        """The workload bound to the target."""
        workload = self.question.workload
        if isinstance(workload, Workload):
            return self.target.problem(workload, self.device)
        from tfsearch.plugin.kernel import bound_problem  # only users' kernels need it

        return bound_problem(self.target, workload, self.device)

    def query(self, workload: Workload | KernelWorkload | None = None) -> BestQuery:
        """The question for the database."""
        question = self.question
        return identity.best_query(
            (workload or question.workload).record,
            self.target,
            self.device,
            self.compiler,
            question.flags,
            question.macros,
            question.protocol,
        )


@dataclass(frozen=True)
class Found:
    """A record that answers, what its build is made of, and its time in the latest final.

    ``median_us`` and ``ci_us`` in microseconds; None when the final is not of this trial.
    """

    stored: StoredTrial
    launch: LaunchSpec
    source: Source | None
    median_us: float | None = None
    ci_us: tuple[float, float] | None = None

    @property
    def build(self) -> BuildRecord:
        """The recorded build."""
        build = self.stored.trial.build
        assert build is not None
        return build


class Missed(NotRecordedError):
    """No record answers; ``nearest`` says what the closest ones differ in."""

    def __init__(self, place: Place, nearest: Sequence[Nearest]) -> None:
        work = place.question.workload.record
        text = f"no kernel is recorded for {work.label} on {place.target.name}"
        if nearest and "workload.op" in nearest[0].differs:
            text += f"; nothing is recorded for {work.op} yet"
        elif nearest:
            shown = list(nearest[0].differs.items())[:3]
            text += "; the nearest record differs: "
            text += "; ".join(_difference(name, here, there) for name, (here, there) in shown)
        super().__init__("lookup.not-recorded", f"{text}; run tfsearch tune")
        self.nearest = tuple(nearest)


_SHOWN, _BEFORE = 40, 20


def _difference(name: str, here: object, there: object) -> str:
    """One field; of long texts the place where they part."""
    mine, other = _text(here), _text(there)
    start = 0
    if len(mine) > _SHOWN and len(other) > _SHOWN:
        pairs = enumerate(zip(mine, other, strict=False))
        same = next((at for at, (a, b) in pairs if a != b), min(len(mine), len(other)))
        start = mine.rfind(" ", 0, max(0, same - 1)) + 1 if same > _BEFORE else 0
    return f"{name} is {_short(other, start)} there, {_short(mine, start)} here"


def _text(value: object) -> str:
    return "absent" if value is None else str(value)


def _short(text: str, start: int) -> str:
    if start:
        return f"…{text[start : start + _BEFORE]}…"
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "…"


class BuildFailed(UnavailableError):
    """A kernel did not build here; ``status`` says how the compilation ended."""

    def __init__(self, status: Status, log: str) -> None:
        lines = log.strip().splitlines()
        self.status = status
        self.first_line = lines[0] if lines else "no message"
        super().__init__(
            "lookup.build-failed",
            f"the kernel does not build here ({status.value}): {self.first_line}",
        )


def resolve(question: Question, settings: Settings | None = None) -> Place:
    """Find the target, the device and the compiler of a question.

    A compiler that the question names has to be there; without a name none is needed.
    ``RequestError`` for unknown names and rejected flags, ``UnavailableError`` for an absent
    device.
    """
    target = registry.get(question.target) if question.target else registry.best_present()
    device = registry.device(target, question.device)
    compiler: Compiler | None = None
    reason = ""
    try:
        compiler = target.compiler(question.toolchain)
        _ = compiler.record
    except UnavailableError as error:
        if question.toolchain is not None:
            raise
        compiler, reason = None, error.message
    if compiler is not None:
        compiler.check_flags(question.flags, question.macros)
    return Place(question, target, device, compiler, reason, settings or core_settings.load())


@contextlib.contextmanager
def opened(settings: Settings) -> Generator[Store]:
    """The database, read only; ``NotRecordedError`` (``db.missing``) when there is none."""
    from tfsearch.db import open_store

    store = open_store(settings.database_url, create=False, read_only=True)
    try:
        yield store
    finally:
        store.close()


def exact(place: Place, store: Store) -> Found:
    """The record of exactly this question, if it still is what would be built now.

    Raises :class:`Missed` otherwise.
    """
    query = place.query()
    stored = store.best(query)
    if stored is None:
        raise Missed(place, store.nearest(query))
    found, stale = _current(place, store, stored, query)
    if found is not None:
        return _with_times(found, query, store)
    raise Missed(place, [stale, *store.nearest(query)][:3])


def _current(
    place: Place, store: Store, stored: StoredTrial, query: BestQuery
) -> tuple[Found | None, Nearest]:
    """The record or the one of an earlier final that holds, else how it differs."""
    if place.compiler is None:
        return _without_compiler(place, store, stored)
    verdict = _verdict(place, place.compiler, store, stored.trial)
    if verdict.current and verdict.source is not None:
        return Found(stored, verdict.source.launch, verdict.source), _stale(stored, {})
    if verdict.build is not None and "build.headers" in verdict.differs:
        # A header changed after the latest final; perhaps it was like this before.
        again = store.best(replace(query, headers=verdict.build.headers))
        if again is not None:
            second = _verdict(place, place.compiler, store, again.trial)
            if second.current and second.source is not None:
                return Found(again, second.source.launch, second.source), _stale(again, {})
    return None, _stale(stored, verdict.differs)


def _with_times(found: Found, query: BestQuery, store: Store) -> Found:
    final = store.latest_final(
        query.workload.key,
        target=query.target,
        device_key=query.device.key,
        toolchain=None if query.toolchain is None else query.toolchain.digest,
        flags=query.flags,
        protocol=query.protocol,
        verifier=query.verifier,
    )
    for entry in final.final.entries if final is not None else ():
        if entry.trial == found.stored.id:
            return replace(found, median_us=entry.median_us, ci_us=entry.ci_us)
    return found


def _verdict(place: Place, compiler: Compiler, store: Store, trial: Trial) -> identity.Verdict:
    return identity.still_current(
        trial,
        target=place.target,
        problem=place.problem,
        compiler=compiler,
        flags=place.question.flags,
        macros=place.question.macros,
        store=store,
        artifacts=place.artifacts,
    )


def _without_compiler(
    place: Place, store: Store, stored: StoredTrial
) -> tuple[Found | None, Nearest]:
    """Only the source can be compared: today's generator has to give the recorded one.

    What a user's kernel includes is known to the preprocessor alone.
    """
    trial = stored.trial
    workload = place.question.workload
    if not isinstance(workload, Workload) and directives(workload.text):
        raise UnavailableError(
            "lookup.no-compiler",
            f"{workload.op} includes files, and what they hold now takes a preprocessor to know: "
            f"{place.no_compiler}",
        )
    assert trial.build is not None
    key = trial.build.key
    generator = place.target.generator_digest()
    noted = identity.noted_source(place.artifacts, trial.schedule.key, generator)
    own = trial.schedule.workload == trial.workload and noted == key.source
    own = own and isinstance(workload, Workload)  # a user's text is read anew, always
    if own and trial.generator == generator:
        launch = store.launch(key.launch)
        if launch is not None:
            return Found(stored, launch, None), _stale(stored, {})
    try:
        source = identity.lowered_source(place.problem(), place.target.name, trial.schedule)
    except UnavailableError:
        raise
    except TfsearchError as error:
        return None, _stale(stored, {"schedule": (error.code, "ok")})
    if (source.digest, source.launch.digest) == (key.source, key.launch):
        return Found(stored, source.launch, source), _stale(stored, {})
    return None, _stale(stored, {"build.source": (source.digest, key.source)})


def _stale(stored: StoredTrial, differs: Mapping[str, tuple[object, object]]) -> Nearest:
    measurement = stored.trial.measurement
    return Nearest(differs, stored.id, 0.0 if measurement is None else measurement.median_us)


def executable(place: Place, found: Found) -> Path:
    """What this user built of the record's key, from the own store, else built again.

    The file that the record names counts only as far as a note of the own store agrees: anyone
    who can write the database can name another one. ``UnavailableError`` when it has to be
    built and there is no compiler, or it fails.
    """
    store = place.artifacts
    try:
        own = store.noted(found.build.key.key)
        if own is None:
            raise UnavailableError(
                "artifacts.foreign",
                "the recorded kernel was not built by this user, so no file is loaded for it",
            )
        return store.path(own)
    except UnavailableError as error:
        if place.compiler is None:
            raise UnavailableError(
                "lookup.no-compiler",
                f"{error.message}; it cannot be built either: {place.no_compiler}",
            ) from error
    source = found.source or identity.lowered_source(
        place.problem(), place.target.name, found.stored.trial.schedule
    )
    return build(place, place.compiler, source)


def build(place: Place, compiler: Compiler, source: Source) -> Path:
    """Compile a source into the user's own store and note the key of the build.

    The path is that of a temporary file where the store cannot be written. :class:`BuildFailed`
    when the compiler fails, ``RequestError`` (``build.changed``) when a header changes meanwhile.
    """
    key = compiler.key(source, place.question.flags, place.question.macros)
    with delivering():
        folder = Path(tempfile.mkdtemp(prefix="tfsearch-build-"))
        out = folder / "artifact"
        outcome = compiler.compile(
            source,
            place.question.flags,
            place.question.macros,
            out,
            timeout_s=COMPILE_TIMEOUT_S,
            memory_bytes=COMPILE_MEMORY_BYTES,
        )
    if outcome.status is not Status.OK:
        _remove(folder)
        raise BuildFailed(outcome.status, outcome.log)
    try:
        now = compiler.key(source, place.question.flags, place.question.macros)
        identity.require_unchanged(key, now)
    except TfsearchError:
        _remove(folder)
        raise
    store = place.artifacts
    try:
        digest = store.put_file(out)
        store.note(key.key, digest)
        kept = store.path(digest)
    except NotSavedError:
        return out  # a read-only or full store: loaded from the private temporary folder
    _remove(folder)
    return kept


def _remove(folder: Path) -> None:
    import shutil

    shutil.rmtree(folder, ignore_errors=True)


@cache
def runner(path: str, selector: str) -> Runner:
    """The target's loader in this process, made once for each device."""
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)(selector)


def load(target: Target, device: Device, artifact: Path, launch: LaunchSpec) -> Loaded:
    """Load an executable; ``UnavailableError`` with the loader's message when it cannot."""
    try:
        return runner(target.runner, device.selector).load(artifact, launch)
    except OSError as error:
        raise UnavailableError(
            "lookup.load", f"the kernel cannot be loaded on {device.record.name}: {error}"
        ) from error


def record_of(workload: Workload | KernelWorkload, found: Found) -> KernelRecord:
    """What a kernel says about where it comes from."""
    trial = found.stored.trial
    measurement, verification = trial.measurement, trial.verification
    median, interval = found.median_us, found.ci_us
    if median is None and measurement is not None:
        median, interval = measurement.median_us, measurement.ci_us
    return KernelRecord(
        workload=workload.record,
        target=trial.schedule.target,
        schedule=trial.schedule,
        median_us=median,
        ci_us=interval,
        max_error=None if verification is None else verification.max_error,
        trial=found.stored.id,
        build=_build_json(found.build),
    )


def _build_json(build: BuildRecord) -> dict[str, Any]:
    return {"key": build.key.key, "artifact": build.artifact, **build.key.key_fields()}


def check_allow(allow: Sequence[str]) -> tuple[str, ...]:
    """The steps beyond the exact one that a caller allows; ``RequestError`` for others."""
    known = ("bucket", "model")
    values = (allow,) if isinstance(allow, str) else tuple(allow)
    for value in values:
        if value not in known:
            raise RequestError(
                "lookup.allow", f"allow is a list of {' and '.join(known)}, not {value!r}"
            )
    return values
