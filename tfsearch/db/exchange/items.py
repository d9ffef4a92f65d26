"""What moves between databases: whole records, and finals that name trials by place."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Final, Trial, WorkloadRecord
from tfsearch.db.records import ProofRecord, SessionRecord, SourceRecord

Place = tuple[str, int]
"""Session and index of a trial: the same in every database, as its id is not."""


@dataclass(frozen=True)
class TrialItem:
    """A trial and the digest of its content as it was recorded."""

    trial: Trial
    content: str


@dataclass(frozen=True)
class FinalItem:
    """A final; ``places`` says which trials the ids in it stand for."""

    final: Final
    places: Mapping[int, Place]


Item = (
    WorkloadRecord | SessionRecord | TrialItem | FinalItem | LaunchSpec | SourceRecord | ProofRecord
)


@dataclass(frozen=True)
class Selection:
    """What is taken of a database; without a workload and a session all of it.

    Of a workload (by key) or a session (by id): its trials, its finals, and what they refer to.
    Proofs belong to no workload, so they move with whole databases only.
    """

    workload: str | None = None
    session: str | None = None

    @property
    def whole(self) -> bool:
        """Whether nothing is left out."""
        return self.workload is None and self.session is None


@dataclass(frozen=True)
class Counts:
    """Records that were added to a database, and those that it had already."""

    added: Mapping[str, int]
    known: Mapping[str, int]

    def to_json(self) -> dict[str, dict[str, int]]:
        """The fields as the command line prints them."""
        return {"added": dict(self.added), "known": dict(self.known)}
