"""What a session tells whoever watches it: a progress display, a log, a test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from tfsearch.core.records import Status


class Stage(Enum):
    """What the session does now."""

    ENUMERATE = "enumerate"
    RESUME = "resume"
    SEARCH = "search"
    FINAL = "final"


@dataclass(frozen=True)
class Started:
    """The session begins: what is tuned, where, and what the space holds."""

    workload: str
    target: str
    device: str
    points: int
    legal: int
    pruned: int
    trials_limit: int | None
    seconds_limit: float | None


@dataclass(frozen=True)
class Progress:
    """After every trial. ``seconds_left`` is an estimate, None before the first trial ends.

    ``reused`` counts candidates answered from the record; they are part of ``done``.
    """

    done: int
    failed: int
    reused: int
    best_us: float | None
    elapsed_s: float
    seconds_left: float | None


@dataclass(frozen=True)
class TrialEnded:
    """One candidate is through. ``median_us`` is present exactly when the status is ok."""

    index: int
    status: Status
    code: str
    message: str
    median_us: float | None
    reused: bool
    params: Mapping[str, Any] = field(default_factory=dict[str, Any])


class Observer(Protocol):
    """Receives events in the session's own thread; must not raise and should be quick."""

    def started(self, event: Started) -> None:
        """The space is enumerated; candidates follow."""
        ...

    def stage(self, stage: Stage) -> None:
        """The session enters a stage."""
        ...

    def trial(self, event: TrialEnded) -> None:
        """A candidate ended."""
        ...

    def progress(self, event: Progress) -> None:
        """Numbers for a progress line, after each :meth:`trial`."""
        ...

    def warning(self, code: str, message: str) -> None:
        """Something the user should know, such as a record that could not be saved."""
        ...


class Silent:
    """An observer that ignores everything."""

    def started(self, event: Started) -> None:
        """Ignored."""

    def stage(self, stage: Stage) -> None:
        """Ignored."""

    def trial(self, event: TrialEnded) -> None:
        """Ignored."""

    def progress(self, event: Progress) -> None:
        """Ignored."""

    def warning(self, code: str, message: str) -> None:
        """Ignored."""
