"""What a session found, for people and as JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfsearch.core.errors import NoCandidateError, TfsearchError, UnavailableError
from tfsearch.core.records import (
    DeviceRecord,
    ScheduleRecord,
    Status,
    ToolchainRecord,
    WorkloadRecord,
)
from tfsearch.measure.job import Comparison
from tfsearch.tune.noise import Noise


@dataclass(frozen=True)
class SpaceSummary:
    """Counts of the space: all points, legal ones, those that bounds removed, rejections."""

    points: int
    legal: int
    pruned: int
    rejected: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """The fields as the command line prints them."""
        return {
            "points": self.points,
            "legal": self.legal,
            "pruned": self.pruned,
            "rejected": dict(self.rejected),
        }


@dataclass(frozen=True)
class TrialSummary:
    """Trials of the session. ``reused`` of them were answered from the record."""

    total: int
    ok: int
    failed: Mapping[Status, int]
    reused: int

    def to_json(self) -> dict[str, Any]:
        """The fields as the command line prints them."""
        return {
            "total": self.total,
            "ok": self.ok,
            "failed": {status.value: count for status, count in self.failed.items()},
        }


@dataclass(frozen=True)
class Best:
    """The winner. ``source`` is ``measured`` (in this session) or ``database``.

    ``tflops`` and ``roofline_fraction`` (lower bound over time) are None where unknown;
    ``max_error`` is the largest error over the allowed one. ``trial`` is the database id, negative
    when it is not saved.
    """

    schedule: ScheduleRecord
    median_us: float
    ci_us: tuple[float, float]
    tflops: float | None
    roofline_fraction: float | None
    verified: bool
    max_error: float | None
    source: str
    trial: int

    def to_json(self) -> dict[str, Any]:
        """The fields as the command line prints them."""
        return {
            "schedule": self.schedule.to_json(),
            "median_us": self.median_us,
            "ci_us": list(self.ci_us),
            "tflops": self.tflops,
            "roofline_fraction": self.roofline_fraction,
            "verified": self.verified,
            "max_error": self.max_error,
            "source": self.source,
        }


@dataclass(frozen=True)
class BaselineResult:
    """The baseline beside the winner, from one run of interleaved pairs.

    ``speedup`` = time(baseline) / time(winner), the median over pairs with its 95 % interval;
    ``winner_us`` is the winner's median in that run, which a busy machine makes differ from
    that of the final.
    """

    name: str
    median_us: float
    speedup: float
    speedup_ci: tuple[float, float]
    winner_us: float

    def to_json(self) -> dict[str, Any]:
        """The fields as the command line prints them."""
        return {"name": self.name, "median_us": self.median_us, "speedup": self.speedup}


@dataclass(frozen=True)
class TuneReport:
    """The whole answer.

    ``best`` is None only when the session was interrupted before anything succeeded.
    ``baseline_note`` says why there is no baseline, else "". ``unsaved`` is the reason why
    something is not in the database, or None; ``lost`` why the session ended early because the
    device or the compiler went away. ``final`` is the interleaved comparison, where one
    ran. ``noise`` says how steady the machine was; None when this session timed no best.
    """

    workload: WorkloadRecord
    target: str
    device: DeviceRecord
    toolchain: ToolchainRecord
    space: SpaceSummary
    trials: TrialSummary
    best: Best | None
    baseline: BaselineResult | None
    baseline_note: str
    elapsed_s: float
    session: str
    stopped: str
    interrupted: bool = False
    unsaved: TfsearchError | None = None
    lost: UnavailableError | None = None
    final: Comparison | None = None
    noise: Noise | None = None
    proof: str = ""

    @property
    def exit_code(self) -> int:
        """0, 130 after Ctrl-C, 5 when the device went away, 6 when measured but not saved."""
        if self.interrupted:
            return 130
        if self.lost is not None:
            return 5
        return 0 if self.unsaved is None else 6

    def to_json(self) -> dict[str, Any]:
        """The document that ``tune --json`` prints."""
        return {
            "workload": {
                "key": self.workload.key,
                "op": self.workload.op,
                "dims": dict(self.workload.dims),
                "dtype": self.workload.dtype,
            },
            "target": self.target,
            "device": device_json(self.device),
            "toolchain": toolchain_json(self.toolchain),
            "space": self.space.to_json(),
            "trials": self.trials.to_json(),
            "best": None if self.best is None else self.best.to_json(),
            "baseline": None if self.baseline is None else self.baseline.to_json(),
            "elapsed_s": self.elapsed_s,
            "interrupted": self.interrupted,
            "noise": None if self.noise is None else self.noise.to_json(),
            **({"proof": self.proof} if self.proof else {}),
        }


def device_json(device: DeviceRecord) -> dict[str, Any]:
    """A device as the command line prints it."""
    return {"key": device.key, **device.key_fields()}


def toolchain_json(toolchain: ToolchainRecord) -> dict[str, Any]:
    """A toolchain as the command line prints it."""
    return {
        "name": toolchain.name,
        "version": toolchain.version,
        "digest": toolchain.digest,
        "programs": dict(toolchain.programs),
    }


@dataclass(frozen=True)
class FailedStatus:
    """One line of the table of failures: how many, and the first message."""

    status: Status
    count: int
    code: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "status": self.status.value,
            "count": self.count,
            "code": self.code,
            "message": self.message,
        }


class AllFailedError(NoCandidateError):
    """Candidates were tried and none is correct. ``table`` has one line per status."""

    def __init__(self, table: Sequence[FailedStatus]) -> None:
        total = sum(line.count for line in table)
        parts = [
            f"{line.count} {line.status.value} (first: [{line.code}] {line.message[:200]})"
            for line in table
        ]
        super().__init__(
            "tune.all-failed",
            f"none of the {total} candidates tried is correct and fast: {'; '.join(parts)}",
        )
        self.table = tuple(table)
