"""Frozen records that only the store and its callers exchange."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from tfsearch.core import keys
from tfsearch.core.records import (
    VERIFIER_VERSION,
    DeviceRecord,
    Final,
    JsonObject,
    Refusal,
    ScheduleRecord,
    ToolchainRecord,
    Trial,
    WorkloadRecord,
)


class SessionStatus(Enum):
    """State of a tuning session; ``RUNNING`` and ``INTERRUPTED`` ones can be resumed."""

    RUNNING = "running"
    INTERRUPTED = "interrupted"
    FINISHED = "finished"
    FAILED = "failed"


@dataclass(frozen=True)
class SessionFields:
    """What makes two sessions the same work; all equal means that one may resume the other.

    ``workload``, ``device``, ``toolchain`` are keys or digests; ``space`` is the space's
    fingerprint; ``policy`` the policy with everything that shapes its proposals but the seed.
    """

    workload: str
    target: str
    device: str
    toolchain: str
    flags: tuple[str, ...]
    policy: str
    seed: int
    space: str

    def key_fields(self) -> dict[str, object]:
        """Named fields of the identity."""
        return {
            "workload": self.workload,
            "target": self.target,
            "device": self.device,
            "toolchain": self.toolchain,
            "flags": list(self.flags),
            "policy": self.policy,
            "seed": self.seed,
            "space": self.space,
        }

    @property
    def key(self) -> str:
        """Digest of :meth:`key_fields`."""
        return keys.digest("session", self.key_fields())


@dataclass(frozen=True)
class SessionRecord:
    """One tuning session. ``id`` is chosen by its driver and unique in the database.

    ``owner`` names the process that drives it now (:meth:`Store.claim_session` changes it);
    ``details`` holds budgets and options that are not part of the identity.
    """

    id: str
    fields: SessionFields
    status: SessionStatus = SessionStatus.RUNNING
    owner: str = ""
    started_at: str = ""
    finished_at: str = ""
    details: JsonObject = field(default_factory=dict[str, Any])


@dataclass(frozen=True)
class Lease:
    """Who may measure on a device; see :mod:`tfsearch.db.leases`. ``holder`` is empty: nobody."""

    device: str
    holder: str
    term: int
    beat: int
    wishes: int


@dataclass(frozen=True)
class StoredTrial:
    """A trial and its id in the database."""

    id: int
    trial: Trial


@dataclass(frozen=True)
class StoredFinal:
    """A final and its id in the database."""

    id: int
    final: Final


@dataclass(frozen=True)
class BestQuery:
    """What a lookup asks for. ``None`` means that the field may have any value.

    ``toolchain`` is ``None`` when no compiler is present; ``features`` are the architecture
    features the build was allowed to use; ``headers`` the digest of the headers as they are now.
    """

    workload: WorkloadRecord
    target: str
    device: DeviceRecord
    toolchain: ToolchainRecord | None
    flags: tuple[str, ...]
    protocol: str
    verifier: int = VERIFIER_VERSION
    features: tuple[str, ...] | None = None
    macros: tuple[str, ...] | None = None
    headers: str | None = None


@dataclass(frozen=True)
class Nearest:
    """A record near a missed query: dotted field → (wanted, found), and where it is.

    ``median_us`` is the time of one call in microseconds.
    """

    differs: Mapping[str, tuple[object, object]]
    trial: int
    median_us: float

    def to_json(self) -> dict[str, object]:
        """The fields as the command line prints them."""
        return {
            "differs": {name: list(pair) for name, pair in self.differs.items()},
            "trial": self.trial,
            "median_us": self.median_us,
        }


@dataclass(frozen=True)
class SourceRecord:
    """What a generator (by content digest) emits for a schedule: source and launch digests."""

    schedule: str
    generator: str
    source: str
    launch: str


@dataclass(frozen=True)
class ProofRecord:
    """Verdict of one prover version on a recipe shape (hash of its reduced TIR)."""

    shape: str
    prover: str
    ok: bool
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class Timing:
    """The time of a verified candidate, with what makes it comparable with others.

    ``environment`` and ``device`` are keys, ``protocol`` and ``generator`` as in its trial;
    ``censored`` when it was timed only until it had lost.
    """

    workload: str
    environment: str
    device: str
    protocol: str
    generator: str
    schedule: ScheduleRecord
    median_us: float
    censored: bool


@dataclass(frozen=True)
class ModelRecord:
    """A learned model: the fields it is valid for (plain JSON without floats), and the model."""

    fields: Mapping[str, Any]
    document: Mapping[str, Any]

    @property
    def key(self) -> str:
        """Digest of the fields."""
        return keys.digest("model", self.fields)


@dataclass(frozen=True)
class Problem:
    """Something that :meth:`Store.verify` found wrong: stable code, place, message."""

    code: str
    where: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The fields as the command line prints them."""
        return {"code": self.code, "where": self.where, "message": self.message}


@dataclass(frozen=True)
class StoreStats:
    """Row counts of a store. ``bytes`` is the size of its files, 0 where that is unknown."""

    url: str
    revision: str
    trials: int
    trials_by_status: Mapping[str, int]
    workloads: int
    sessions: int
    finals: int
    devices: int
    toolchains: int
    builds: int
    proofs: int
    sources: int
    bytes: int

    def to_json(self) -> dict[str, object]:
        """The fields as the command line prints them."""
        return {**vars(self), "trials_by_status": dict(self.trials_by_status)}


@dataclass(frozen=True)
class GcReport:
    """What garbage collection removed (or would remove) and kept; sizes in bytes.

    ``over_limit_bytes`` is what stays above ``max_bytes`` because winners need it.
    """

    removed: tuple[str, ...]
    removed_bytes: int
    kept: int
    kept_bytes: int
    over_limit_bytes: int
    dry_run: bool

    def to_json(self) -> dict[str, object]:
        """The fields as the command line prints them."""
        return {**vars(self), "removed": list(self.removed)}
