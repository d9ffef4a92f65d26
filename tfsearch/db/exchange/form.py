"""Records as JSON objects, one a line, and back. docs/records.md describes them.

Toolchains and devices have lines of their own, before the trials that name them by digest. Reading
is strict: an unknown, missing or ill-typed field, a number that no column holds, and a record that
is not what its digest says are all ``Malformed``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from tfsearch.core.errors import TfsearchError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import (
    Accuracy,
    BuildKey,
    BuildRecord,
    DeviceRecord,
    Final,
    FinalEntry,
    Measurement,
    MeasurementKey,
    Refusal,
    ScheduleRecord,
    Status,
    ToolchainRecord,
    Trial,
    Verification,
    WorkloadRecord,
)
from tfsearch.db import codec
from tfsearch.db.exchange.fields import (
    INT32,
    INT64,
    Fields,
    Malformed,
    anything,
    finite,
    flag,
    listed,
    mapped,
    optional,
    pair,
    real,
    strict,
    text,
    whole,
)
from tfsearch.db.exchange.items import FinalItem, Item, Place, TrialItem
from tfsearch.db.records import (
    ProofRecord,
    SessionFields,
    SessionRecord,
    SessionStatus,
    SourceRecord,
)

KIND = "record"
"""The name under which a line says of what kind it is."""


class Writer:
    """Makes lines of records; what trials share stands once, before the first one that needs it."""

    def __init__(self) -> None:
        self._said: set[str] = set()

    def lines(self, item: Item) -> Iterator[dict[str, Any]]:
        """The objects of a record, in the order in which they have to be read."""
        if isinstance(item, TrialItem):
            yield from self._shared(item.trial)
        yield {KIND: _KINDS[type(item)], **strict(_FIELDS[type(item)](item))}

    def _shared(self, trial: Trial) -> Iterator[dict[str, Any]]:
        key = trial.measurement_key
        build = key.build if key else trial.build.key if trial.build else None
        for record in (build and build.toolchain, key and key.device):
            if record is None:
                continue
            name = record.digest if isinstance(record, ToolchainRecord) else record.key
            if name not in self._said:
                self._said.add(name)
                kind = "toolchain" if isinstance(record, ToolchainRecord) else "device"
                yield {KIND: kind, "key": name, **strict(_plain(record))}


def _plain(record: Any) -> dict[str, Any]:
    assert is_dataclass(record)
    return {one.name: _json(getattr(record, one.name)) for one in fields(record)}


def _json(value: Any) -> Any:
    if isinstance(value, (Accuracy, Status, SessionStatus)):
        return value.value
    if isinstance(value, tuple):
        return [_json(one) for one in cast("tuple[Any, ...]", value)]
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return _plain(value) if is_dataclass(value) and not isinstance(value, type) else value


def _workload(record: WorkloadRecord) -> dict[str, Any]:
    return {"key": record.key, **_plain(record)}


def _trial(item: TrialItem) -> dict[str, Any]:
    trial = item.trial
    key, build, proof, measured = (
        trial.measurement_key,
        trial.build,
        trial.verification,
        trial.measurement,
    )
    built = key.build if key else build.key if build else None
    return {
        **trial.head_json(),
        "generator": trial.generator,
        "build_key": built and {**_plain(built), "toolchain": built.toolchain.digest},
        "measurement_key": key
        and {"device": key.device.key, "protocol": key.protocol, "verifier": key.verifier},
        "build": build
        and {
            "artifact": build.artifact,
            "seconds": build.seconds,
            "resources": dict(build.resources),
            "log": build.log,
        },
        "verification": proof and _plain(proof),
        "measurement": measured and _plain(measured),
        "finished_at": trial.finished_at,
        "content": item.content,
    }


def _final(item: FinalItem) -> dict[str, Any]:
    made = _plain(item.final)
    made["winner"] = list(item.places[item.final.winner])
    for entry in made["entries"]:
        entry["trial"] = list(item.places[entry["trial"]])
    return made


def _launch(spec: LaunchSpec) -> dict[str, Any]:
    return {"digest": spec.digest, "spec": spec.to_json()}


_FIELDS: dict[type[Any], Any] = {
    WorkloadRecord: _workload,
    SessionRecord: _plain,
    TrialItem: _trial,
    FinalItem: _final,
    LaunchSpec: _launch,
    SourceRecord: _plain,
    ProofRecord: _plain,
}
_KINDS: dict[type[Any], str] = {
    WorkloadRecord: "workload",
    SessionRecord: "session",
    TrialItem: "trial",
    FinalItem: "final",
    LaunchSpec: "launch",
    SourceRecord: "source",
    ProofRecord: "proof",
}


class Reader:
    """Makes records of lines; remembers the toolchains and devices that later ones name."""

    def __init__(self) -> None:
        self._toolchains: dict[str, ToolchainRecord] = {}
        self._devices: dict[str, DeviceRecord] = {}

    def item(self, data: Mapping[str, Any]) -> Item | None:
        """The record of an object; None where it only says what others refer to.

        :class:`Malformed` for anything else, and for a record that is not what its digest says.
        """
        kind = data.get(KIND)
        read = self._readers().get(kind) if isinstance(kind, str) else None
        if read is None:
            raise Malformed(f"unknown {KIND} {str(kind)[:60]!r}")
        fields = Fields({name: one for name, one in data.items() if name != KIND}, str(kind))
        try:
            return read(fields)
        except Malformed:
            raise
        except (TfsearchError, ValueError, KeyError, TypeError) as error:
            raise Malformed(f"{kind}: {error}") from None

    def _readers(self) -> dict[str, Callable[[Fields], Item | None]]:
        return {
            "toolchain": self._toolchain,
            "device": self._device,
            "workload": _read_workload,
            "session": _read_session,
            "trial": self._trial,
            "final": _read_final,
            "launch": _read_launch,
            "source": _read_source,
            "proof": _read_proof,
        }

    def _toolchain(self, given: Fields) -> None:
        key = given.take("key", text)
        record = ToolchainRecord(
            given.take("name", text),
            given.take("version", text),
            given.take("programs", mapped(text)),
        )
        given.end()
        _same(record.digest, key, "toolchain")
        self._toolchains[key] = record

    def _device(self, given: Fields) -> None:
        key = given.take("key", text)
        record = DeviceRecord(
            name=given.take("name", text),
            kind=given.take("kind", text),
            model=given.take("model", text),
            features=given.take("features", listed(text)),
            units=given.take("units", whole(INT32)),
            memory_bytes=given.take("memory_bytes", whole(INT64)),
            partitioning=given.take("partitioning", text),
            driver=given.take("driver", text),
        )
        given.end()
        _same(record.key, key, "device")
        self._devices[key] = record

    def _trial(self, given: Fields) -> TrialItem:
        built = given.take("build_key", optional(self._build_key))
        key = given.take("measurement_key", optional(lambda data: self._measured(data, built)))
        trial = Trial(
            session=given.take("session", text),
            index=given.take("index", whole(INT32)),
            workload=given.take("workload", text),
            schedule=given.take("schedule", _read_schedule),
            status=given.take("status", lambda value: Status(text(value))),
            code=given.take("code", text),
            where=given.take("where", text),
            message=given.take("message", text),
            predicted_us=given.take("predicted_us", optional(finite)),
            generator=given.take("generator", text),
            measurement_key=key,
            build=given.take("build", optional(lambda data: _read_build(data, built))),
            verification=given.take("verification", optional(_read_verification)),
            measurement=given.take("measurement", optional(_read_measurement)),
            finished_at=given.take("finished_at", text),
        )
        content = given.take("content", text)
        given.end()
        if built is not None and key is None and trial.build is None:
            raise Malformed("trial: a build key without a build and a measurement key")
        _same(codec.content(trial), content, f"trial {trial.session}/{trial.index}")
        return TrialItem(trial, content)

    def _build_key(self, data: object) -> BuildKey:
        given = Fields(data, "build key")
        toolchain = given.take("toolchain", text)
        if toolchain not in self._toolchains:
            raise Malformed(f"toolchain {toolchain[:12]} is not described before")
        record = BuildKey(
            source=given.take("source", text),
            launch=given.take("launch", text),
            target=given.take("target", text),
            features=given.take("features", listed(text)),
            flags=given.take("flags", listed(text)),
            macros=given.take("macros", listed(text)),
            toolchain=self._toolchains[toolchain],
            headers=given.take("headers", text),
        )
        given.end()
        return record

    def _measured(self, data: object, built: BuildKey | None) -> MeasurementKey:
        given = Fields(data, "measurement key")
        device = given.take("device", text)
        if device not in self._devices:
            raise Malformed(f"device {device[:12]} is not described before")
        protocol = given.take("protocol", text)
        verifier = given.take("verifier", whole(INT32))
        given.end()
        return MeasurementKey(_needed(built), self._devices[device], protocol, verifier)


def _needed(built: BuildKey | None) -> BuildKey:
    if built is None:
        raise Malformed("there is no build key")
    return built


def _same(found: str, said: str, what: str) -> None:
    if found != said:
        raise Malformed(f"{what} was altered: its digest is {found[:12]}…, not {said[:12]}…")


def _read_workload(given: Fields) -> WorkloadRecord:
    key = given.take("key", text)
    record = WorkloadRecord(
        op=given.take("op", text),
        dims=given.take("dims", mapped(_dimension)),
        dtype=given.take("dtype", text),
        program=given.take("program", text),
        accuracy=given.take("accuracy", lambda value: Accuracy(text(value))),
        reproducible=given.take("reproducible", flag),
        alignment=given.take("alignment", whole(INT32)),
        constant_inputs=given.take("constant_inputs", listed(text)),
    )
    given.end()
    _same(record.key, key, "workload")
    return record


def _dimension(value: Any) -> int | str:
    return text(value) if isinstance(value, str) else whole(INT64)(value)


def _read_session(given: Fields) -> SessionRecord:
    record = SessionRecord(
        id=given.take("id", text),
        fields=given.take("fields", _read_session_fields),
        status=given.take("status", lambda value: SessionStatus(text(value))),
        owner=given.take("owner", text),
        started_at=given.take("started_at", text),
        finished_at=given.take("finished_at", text),
        details=given.take("details", mapped(anything)),
    )
    given.end()
    return record


def _read_session_fields(data: object) -> SessionFields:
    given = Fields(data, "session")
    record = SessionFields(
        workload=given.take("workload", text),
        target=given.take("target", text),
        device=given.take("device", text),
        toolchain=given.take("toolchain", text),
        flags=given.take("flags", listed(text)),
        policy=given.take("policy", text),
        seed=given.take("seed", whole(INT64, -INT64)),
        space=given.take("space", text),
    )
    given.end()
    return record


def _read_schedule(data: object) -> ScheduleRecord:
    record = ScheduleRecord.from_json(data)
    whole(INT32)(record.recipe_version)
    for value in (record.program, record.workload, record.target, record.recipe):
        text(value)
    return record


def _read_build(data: object, built: BuildKey | None) -> BuildRecord:
    given = Fields(data, "build")
    record = BuildRecord(
        key=_needed(built),
        artifact=given.take("artifact", text),
        seconds=given.take("seconds", finite),
        resources=given.take("resources", mapped(whole(INT64, -INT64))),
        log=given.take("log", text),
    )
    given.end()
    return record


def _read_verification(data: object) -> Verification:
    given = Fields(data, "verification")
    record = Verification(
        passed=given.take("passed", flag),
        max_error=given.take("max_error", real),
        passes=given.take("passes", mapped(real)),
        message=given.take("message", text),
    )
    given.end()
    return record


def _read_measurement(data: object) -> Measurement:
    given = Fields(data, "measurement")
    record = Measurement(
        samples_us=given.take("samples_us", listed(finite)),
        median_us=given.take("median_us", finite),
        ci_us=given.take("ci_us", pair),
        protocol=given.take("protocol", text),
        censored=given.take("censored", flag),
        conditions=given.take("conditions", mapped(anything)),
    )
    given.end()
    return record


def _read_final(given: Fields) -> FinalItem:
    places: list[Place] = []

    def place(value: Any) -> int:
        if not isinstance(value, list) or len(cast("list[Any]", value)) != 2:
            raise Malformed("it must be a session and an index")
        found = (text(value[0]), whole(INT32)(value[1]))
        if found not in places:
            places.append(found)
        return places.index(found)

    def entry(data: object) -> FinalEntry:
        one = Fields(data, "entry")
        made = FinalEntry(
            trial=one.take("trial", place),
            median_us=one.take("median_us", finite),
            ci_us=one.take("ci_us", pair),
            ratio=one.take("ratio", finite),
            ratio_ci=one.take("ratio_ci", pair),
        )
        one.end()
        return made

    final = Final(
        session=given.take("session", text),
        workload=given.take("workload", text),
        winner=given.take("winner", place),
        entries=given.take("entries", listed(entry)),
        protocol=given.take("protocol", text),
        finished_at=given.take("finished_at", text),
        conditions=given.take("conditions", mapped(anything)),
    )
    given.end()
    return FinalItem(final, dict(enumerate(places)))


def _read_launch(given: Fields) -> LaunchSpec:
    digest = given.take("digest", text)
    spec = LaunchSpec.from_json(given.take("spec", mapped(anything)))
    given.end()
    _same(spec.digest, digest, "launch")
    return spec


def _read_source(given: Fields) -> SourceRecord:
    record = SourceRecord(
        schedule=given.take("schedule", text),
        generator=given.take("generator", text),
        source=given.take("source", text),
        launch=given.take("launch", text),
    )
    given.end()
    return record


def _read_proof(given: Fields) -> ProofRecord:
    record = ProofRecord(
        shape=given.take("shape", text),
        prover=given.take("prover", text),
        ok=given.take("ok", flag),
        refusals=given.take("refusals", listed(_read_refusal)),
    )
    given.end()
    return record


def _read_refusal(data: object) -> Refusal:
    given = Fields(data, "refusal")
    record = Refusal(
        given.take("code", text), given.take("where", text), given.take("message", text)
    )
    given.end()
    return record
