"""Frozen records: what the layers hand to one another and what the database keeps.

Units: times are microseconds in fields named ``*_us`` and nanoseconds in ``*_ns``; sizes are
bytes. Digests are SHA-256 hex strings made by :mod:`tfsearch.core.keys`; that of a record is
computed when it is first asked for and kept, so nothing may change what a record holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, cast

from tfsearch.core import keys
from tfsearch.core.errors import RequestError

SCHEDULE_SCHEMA = 1
VERIFIER_VERSION = 2
"""What a measured kernel had to pass, before it was compiled and when it ran: part of a
measurement's identity. Records of another version are kept and never served. Raise it with the
rules of ``tfsearch.prove`` and with what verification on the machine catches;
``tests/prove/test_version.py`` keeps what each version refuses. (Proofs of recipe shapes need no
version: they are remembered under a digest of the prover's code.)
"""
NUMPY_ALIGNMENT = 16
"""Bytes that NumPy's own allocator guarantees: the default alignment class of a workload."""

ParamValue = int | str | bool
JsonObject = Mapping[str, Any]


class Status(Enum):
    """How a trial ended. ``OK`` is the only one with a latency."""

    OK = "ok"
    REFUSED = "refused"
    COMPILE_ERROR = "compile_error"
    COMPILE_CRASH = "compile_crash"
    COMPILE_TIMEOUT = "compile_timeout"
    LOAD_ERROR = "load_error"
    WRONG = "wrong"
    NONDETERMINISTIC = "nondeterministic"
    IMPLAUSIBLE = "implausible"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out_of_memory"
    DEVICE_ERROR = "device_error"
    CANCELLED = "cancelled"


class Accuracy(Enum):
    """Accuracy class of a workload's maths; part of the workload key."""

    PRECISE = "precise"
    FAST = "fast"


class ServedBy(Enum):
    """Which step of the run-time order answered a lookup."""

    EXACT = "exact"
    BUCKET = "bucket"
    MODEL = "model"
    FALLBACK = "fallback"


@dataclass(frozen=True)
class Refusal:
    """Why something is not legal: stable ``code``, ``where`` (a place), ``message`` (numbers)."""

    code: str
    where: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The fields as the command line prints them."""
        return {"code": self.code, "where": self.where, "message": self.message}


@dataclass(frozen=True)
class WorkloadRecord:
    """A workload as the database knows it.

    ``program`` is the canonical HIR text with everything bound; ``alignment`` the guaranteed
    alignment of every argument in bytes; ``constant_inputs`` the names of inputs whose contents
    stay the same from call to call, so that work on them may be done ahead of the call.
    """

    op: str
    dims: Mapping[str, int | str]
    dtype: str
    program: str
    accuracy: Accuracy = Accuracy.PRECISE
    reproducible: bool = True
    alignment: int = NUMPY_ALIGNMENT
    constant_inputs: tuple[str, ...] = ()

    def key_fields(self) -> dict[str, object]:
        """The fields that are the workload's identity (names of op and dims are labels only)."""
        return {
            "program": self.program,
            "accuracy": self.accuracy,
            "reproducible": self.reproducible,
            "alignment": self.alignment,
            "constant_inputs": list(self.constant_inputs),
        }

    @cached_property
    def key(self) -> str:
        """Digest of :meth:`key_fields`."""
        return keys.digest("workload", self.key_fields())

    @property
    def label(self) -> str:
        """The workload in one line, as the command line takes it: for people, no identity."""
        dims = "".join(f" {name}={value}" for name, value in self.dims.items())
        return f"{self.op}{dims} dtype={self.dtype}"


@dataclass(frozen=True)
class ScheduleRecord:
    """Every choice that turns a workload into one kernel, as data."""

    program: str
    workload: str
    target: str
    recipe: str
    recipe_version: int
    params: Mapping[str, ParamValue]
    schema: int = SCHEDULE_SCHEMA

    def to_json(self) -> dict[str, object]:
        """Plain JSON object; parameters sorted by name."""
        return {
            "schema": self.schema,
            "program": self.program,
            "workload": self.workload,
            "target": self.target,
            "recipe": self.recipe,
            "recipe_version": self.recipe_version,
            "params": {name: self.params[name] for name in sorted(self.params)},
        }

    @staticmethod
    def from_json(data: object) -> ScheduleRecord:
        """Parse; an unknown or missing key, or a wrong type, is a ``RequestError``."""
        fields = {
            "schema": int,
            "program": str,
            "workload": str,
            "target": str,
            "recipe": str,
            "recipe_version": int,
            "params": dict,
        }
        if not isinstance(data, Mapping):
            raise RequestError("schedule.not-an-object", "a schedule is a JSON object")
        data = cast("Mapping[str, Any]", data)
        unknown = sorted(set(map(str, data)) - set(fields))
        if unknown:
            raise RequestError(
                "schedule.unknown-key",
                f"schedule has unknown key {unknown[0]!r}; known keys: {', '.join(fields)}",
            )
        for name, kind in fields.items():
            if name not in data:
                raise RequestError("schedule.missing-key", f"schedule lacks key {name!r}")
            if not isinstance(data[name], kind) or isinstance(data[name], bool):
                raise RequestError(
                    "schedule.wrong-type", f"schedule key {name!r} must be {kind.__name__}"
                )
        if data["schema"] != SCHEDULE_SCHEMA:
            raise RequestError(
                "schedule.schema",
                f"schedule schema {data['schema']} is not supported; this release reads "
                f"schema {SCHEDULE_SCHEMA}",
            )
        for name, value in cast("dict[object, object]", data["params"]).items():
            if not isinstance(name, str) or not isinstance(value, (int, str, bool)):
                raise RequestError(
                    "schedule.wrong-type",
                    f"parameter {name!r} must be an integer, a string or a boolean",
                )
        return ScheduleRecord(**{name: data[name] for name in fields})

    @cached_property
    def key(self) -> str:
        """Digest of the whole schedule."""
        return keys.digest("schedule", self.to_json())


@dataclass(frozen=True)
class ToolchainRecord:
    """A compiler as content: the programs that really run, hashed.

    ``programs`` maps a role (``driver``, ``cc1``, ``as``, ``ld``, …) to the SHA-256 of the file.
    ``version`` is for people; identity is the content.
    """

    name: str
    version: str
    programs: Mapping[str, str]

    @cached_property
    def digest(self) -> str:
        """Identity of the toolchain's content."""
        return keys.digest("toolchain", {"name": self.name, "programs": self.programs})


@dataclass(frozen=True)
class DeviceRecord:
    """One concrete piece of hardware, as a measurement's key sees it."""

    name: str
    kind: str
    model: str
    features: tuple[str, ...]
    units: int
    memory_bytes: int
    partitioning: str
    driver: str

    def key_fields(self) -> dict[str, object]:
        """Every field: all of them can change a time."""
        return {
            "name": self.name,
            "kind": self.kind,
            "model": self.model,
            "features": list(self.features),
            "units": self.units,
            "memory_bytes": self.memory_bytes,
            "partitioning": self.partitioning,
            "driver": self.driver,
        }

    @cached_property
    def key(self) -> str:
        """Digest of :meth:`key_fields`."""
        return keys.digest("device", self.key_fields())


@dataclass(frozen=True)
class BuildKey:
    """Identity of a build: what is compiled, for what, with what.

    ``source`` and ``launch`` are digests of the emitted source and the launch specification;
    ``headers`` is the digest over the content of every header the compiler reads.
    """

    source: str
    launch: str
    target: str
    features: tuple[str, ...]
    flags: tuple[str, ...]
    macros: tuple[str, ...]
    toolchain: ToolchainRecord
    headers: str

    def key_fields(self) -> dict[str, object]:
        """Named fields of the key."""
        return {
            "source": self.source,
            "launch": self.launch,
            "target": self.target,
            "features": list(self.features),
            "flags": list(self.flags),
            "macros": list(self.macros),
            "toolchain": {"name": self.toolchain.name, "programs": self.toolchain.programs},
            "headers": self.headers,
        }

    @cached_property
    def key(self) -> str:
        """Digest of :meth:`key_fields`."""
        return keys.digest("build", self.key_fields())


@dataclass(frozen=True)
class MeasurementKey:
    """Identity of a measurement: a build on a device under a protocol, verified by a version."""

    build: BuildKey
    device: DeviceRecord
    protocol: str
    verifier: int = VERIFIER_VERSION

    def key_fields(self) -> dict[str, object]:
        """Named fields of the key."""
        return {
            "build": self.build.key_fields(),
            "device": self.device.key_fields(),
            "protocol": self.protocol,
            "verifier": self.verifier,
        }

    @cached_property
    def key(self) -> str:
        """Digest of :meth:`key_fields`."""
        return keys.digest("measurement", self.key_fields())


@dataclass(frozen=True)
class BuildRecord:
    """A compiled candidate. ``artifact`` is the content hash of the executable in the store."""

    key: BuildKey
    artifact: str
    seconds: float
    resources: Mapping[str, int] = field(default_factory=dict[str, int])
    log: str = ""


@dataclass(frozen=True)
class Verification:
    """Outcome of the three numeric passes. ``max_error`` is max |error| / allowed error."""

    passed: bool
    max_error: float
    passes: Mapping[str, float] = field(default_factory=dict[str, float])
    message: str = ""


@dataclass(frozen=True)
class Measurement:
    """Samples of one build on one device under one protocol.

    ``samples_us`` are times of one call in microseconds (each sample may average a batch of
    calls); ``ci_us`` is the 95 % interval of the median. ``censored`` means that racing stopped
    it early. ``conditions`` holds probes of the machine's speed and set-aside sample counts.
    """

    samples_us: tuple[float, ...]
    median_us: float
    ci_us: tuple[float, float]
    protocol: str
    censored: bool = False
    conditions: JsonObject = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Trial:
    """One attempt at a candidate. A measurement is present exactly when the status is ok."""

    session: str
    index: int
    workload: str
    schedule: ScheduleRecord
    status: Status
    code: str = ""
    where: str = ""
    message: str = ""
    predicted_us: float | None = None
    generator: str = ""
    measurement_key: MeasurementKey | None = None
    build: BuildRecord | None = None
    verification: Verification | None = None
    measurement: Measurement | None = None
    finished_at: str = ""

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != (self.measurement is not None):
            raise ValueError("a measurement is present exactly when the status is ok")
        if self.status is Status.OK and (self.measurement_key is None or self.build is None):
            raise ValueError("an ok trial names its build and its measurement key")

    def head_json(self) -> dict[str, Any]:
        """What was tried and how it ended, as JSON; without the build and what was measured."""
        return {
            "session": self.session,
            "index": self.index,
            "workload": self.workload,
            "schedule": self.schedule.to_json(),
            "status": self.status.value,
            "code": self.code,
            "where": self.where,
            "message": self.message,
            "predicted_us": self.predicted_us,
        }


@dataclass(frozen=True)
class FinalEntry:
    """One participant of a final: its median, and its time ratio to the reference entry."""

    trial: int
    median_us: float
    ci_us: tuple[float, float]
    ratio: float
    ratio_ci: tuple[float, float]


@dataclass(frozen=True)
class Final:
    """An interleaved comparison of a few builds in one run.

    ``winner`` is the database id of the winning trial; ``entries`` hold trial ids too. Ratios are
    time(entry) / time(winner), medians over pairs, with 95 % intervals.
    """

    session: str
    workload: str
    winner: int
    entries: tuple[FinalEntry, ...]
    protocol: str
    finished_at: str = ""
    conditions: JsonObject = field(default_factory=dict[str, Any])
