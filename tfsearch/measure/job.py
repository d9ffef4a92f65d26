"""What is to be measured and what came of it, as data that crosses process boundaries as JSON."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tfsearch.core.errors import InternalError, RequestError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Accuracy, Measurement, Status, Verification, WorkloadRecord
from tfsearch.measure.protocols import Room


@dataclass(frozen=True)
class Protocol:
    """How times are taken. Everything in :attr:`key` changes what a time means.

    ``sets``: argument sets with different contents that calls rotate over; ``sample_us``: the
    least duration of one sample, reached by batching calls.
    """

    name: str
    version: int
    cold: bool
    sets: int
    sample_us: int

    @property
    def key(self) -> str:
        """The text that is part of a measurement's key."""
        return f"{self.name}/{self.version} sets={self.sets} sample={self.sample_us}us median"


PROTOCOLS: Mapping[str, Protocol] = {
    "warm": Protocol("warm", 1, cold=False, sets=2, sample_us=200),
    "cold": Protocol("cold", 1, cold=True, sets=2, sample_us=200),
}


def protocol(name: str) -> Protocol:
    """A protocol by name; ``RequestError`` for an unknown one."""
    if name not in PROTOCOLS:
        raise RequestError(
            "measure.protocol", f"unknown protocol {name!r}; known: {', '.join(PROTOCOLS)}"
        )
    return PROTOCOLS[name]


@dataclass(frozen=True)
class Limits:
    """What one job may use.

    ``deadline_s``: wall time after which the process is killed. ``budget_s``: time for taking
    samples (up to four times that while there are too few for an interval, after which the
    measurement is censored); of a final, for all participants together. ``share``: the wanted
    relative half width of the interval. ``most``: samples, or rounds of a final. ``memory_bytes``:
    address space that the job may add to the process (0: no limit, for runtimes that reserve
    address space freely). ``argument_bytes``: memory of all argument sets together; fewer sets
    are bound rather than going above it. ``reference_bytes``: memory of the references kept
    between candidates. ``lost_ratio``: see :class:`~tfsearch.measure.statistics.StoppingRule`.
    """

    deadline_s: float = 60.0
    budget_s: float = 1.5
    share: float = 0.01
    most: int = 300
    memory_bytes: int = 8 << 30
    argument_bytes: int = 1 << 30
    reference_bytes: int = 1 << 30
    lost_ratio: float = 1.3

    def fitted(self, room: Room) -> Limits:
        """These limits on a device with memory of its own."""
        return dataclasses.replace(
            self,
            argument_bytes=max(self.argument_bytes, room.argument_bytes),
            reference_bytes=max(self.reference_bytes, room.reference_bytes),
            memory_bytes=self.memory_bytes if room.bounded else 0,
        )


@dataclass(frozen=True)
class MeasureJob:
    """One build to verify and to time.

    ``artifact`` is a path whose content must hash to ``sha256``. ``lower_bound_us``: no correct
    kernel is faster (0: unknown). ``incumbent_us``: the best time so far, for racing (None: do
    not race). ``probes``: names of the machine-speed probes that matter, ``probe_reference`` their
    fast values where known. ``sizes`` binds dimensions that the program leaves as ranges.
    ``oracle``: import path ``package.module:factory`` of the reference
    when the program is not HIR text; ``reference`` is handed to that factory as its third argument
    where it is not empty.
    """

    workload: WorkloadRecord
    artifact: str
    sha256: str
    launch: LaunchSpec
    protocol: str = "warm"
    seed: int = 0
    verification_seed: int = 0
    lower_bound_us: float = 0.0
    incumbent_us: float | None = None
    probes: tuple[str, ...] = ()
    probe_reference: Mapping[str, float] = field(default_factory=dict[str, float])
    limits: Limits = Limits()
    sizes: Mapping[str, int] = field(default_factory=dict[str, int])
    oracle: str = ""
    reference: str = ""

    def __post_init__(self) -> None:
        protocol(self.protocol)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "workload": workload_json(self.workload),
            "artifact": self.artifact,
            "sha256": self.sha256,
            "launch": self.launch.to_json(),
            "protocol": self.protocol,
            "seed": self.seed,
            "verification_seed": self.verification_seed,
            "lower_bound_us": self.lower_bound_us,
            "incumbent_us": self.incumbent_us,
            "probes": list(self.probes),
            "probe_reference": dict(self.probe_reference),
            "limits": dataclasses.asdict(self.limits),
            "sizes": dict(self.sizes),
            "oracle": self.oracle,
            "reference": self.reference,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MeasureJob:
        """Inverse of :meth:`to_json`; ``InternalError`` for anything else."""
        try:
            fields = dict(data)
            fields["workload"] = workload_from(fields["workload"])
            fields["launch"] = LaunchSpec.from_json(fields["launch"])
            fields["probes"] = tuple(fields["probes"])
            fields["limits"] = Limits(**fields["limits"])
            return MeasureJob(**fields)
        except (KeyError, TypeError) as error:
            raise InternalError("measure.job", f"malformed measure job: {error}") from error


@dataclass(frozen=True)
class MeasureOutcome:
    """What came of a job. A measurement is present exactly when the status is ok.

    ``where`` is the phase it ended in: ``load``, ``verify``, ``bind``, ``time`` or ``check``.
    """

    status: Status
    code: str = ""
    where: str = ""
    message: str = ""
    verification: Verification | None = None
    measurement: Measurement | None = None
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if (self.status is Status.OK) != (self.measurement is not None):
            raise ValueError("a measurement is present exactly when the status is ok")

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "status": self.status.value,
            "code": self.code,
            "where": self.where,
            "message": self.message,
            "verification": _record(self.verification),
            "measurement": _record(self.measurement),
            "seconds": self.seconds,
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> MeasureOutcome:
        """Inverse of :meth:`to_json`; ``InternalError`` for anything else."""
        try:
            return MeasureOutcome(
                Status(data["status"]),
                data["code"],
                data["where"],
                data["message"],
                _verification(data["verification"]),
                _measurement(data["measurement"]),
                data["seconds"],
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InternalError("measure.outcome", f"malformed outcome: {error}") from error


@dataclass(frozen=True)
class Standing:
    """One participant of an interleaved comparison.

    ``outcome`` holds its status and its own samples; ``ratio`` is time / time of the reference
    participant (the winner of a final, the first of a benchmark), the median over pairs of the
    same round with its 95 % interval; None when it was not timed.
    """

    name: str
    outcome: MeasureOutcome
    ratio: float | None = None
    ratio_ci: tuple[float, float] | None = None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "name": self.name,
            "outcome": self.outcome.to_json(),
            "ratio": self.ratio,
            "ratio_ci": None if self.ratio_ci is None else list(self.ratio_ci),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Standing:
        """Inverse of :meth:`to_json`; ``InternalError`` for anything else."""
        try:
            pair = data["ratio_ci"]
            return Standing(
                data["name"],
                MeasureOutcome.from_json(data["outcome"]),
                data["ratio"],
                None if pair is None else (pair[0], pair[1]),
            )
        except (KeyError, TypeError, IndexError) as error:
            raise InternalError("measure.standing", f"malformed standing: {error}") from error


@dataclass(frozen=True)
class Comparison:
    """An interleaved comparison. ``reference`` is the index ratios refer to, None if none ran.

    ``decided``: every other participant is slower with 95 % confidence or too close to matter.
    """

    standings: tuple[Standing, ...]
    reference: int | None
    decided: bool
    protocol: str
    conditions: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "standings": [standing.to_json() for standing in self.standings],
            "reference": self.reference,
            "decided": self.decided,
            "protocol": self.protocol,
            "conditions": dict(self.conditions),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> Comparison:
        """Inverse of :meth:`to_json`; ``InternalError`` for anything else."""
        try:
            return Comparison(
                tuple(Standing.from_json(item) for item in data["standings"]),
                data["reference"],
                data["decided"],
                data["protocol"],
                data["conditions"],
            )
        except (KeyError, TypeError) as error:
            raise InternalError("measure.comparison", f"malformed comparison: {error}") from error


def workload_json(workload: WorkloadRecord) -> dict[str, Any]:
    """A workload record as a plain JSON object."""
    return {
        "op": workload.op,
        "dims": dict(workload.dims),
        "dtype": workload.dtype,
        "program": workload.program,
        "accuracy": workload.accuracy.value,
        "reproducible": workload.reproducible,
        "alignment": workload.alignment,
        "constant_inputs": list(workload.constant_inputs),
    }


def workload_from(data: Mapping[str, Any]) -> WorkloadRecord:
    """Inverse of :func:`workload_json`; ``KeyError`` or ``TypeError`` for anything else."""
    fields = dict(data)
    fields["accuracy"] = Accuracy(fields["accuracy"])
    fields["constant_inputs"] = tuple(fields["constant_inputs"])
    return WorkloadRecord(**fields)


def _record(record: Verification | Measurement | None) -> dict[str, Any] | None:
    return None if record is None else dataclasses.asdict(record)


def _verification(data: Mapping[str, Any] | None) -> Verification | None:
    return None if data is None else Verification(**data)


def _measurement(data: Mapping[str, Any] | None) -> Measurement | None:
    if data is None:
        return None
    fields = dict(data)
    fields["samples_us"] = tuple(fields["samples_us"])
    low, high = fields["ci_us"]
    fields["ci_us"] = (low, high)
    return Measurement(**fields)
