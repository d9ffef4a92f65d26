"""A tuning session as seen on standard error: a live line on a terminal, else plain lines."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tfsearch.cli.output import microseconds, note
from tfsearch.tune.observer import Progress, Silent, Stage, Started, TrialEnded

if TYPE_CHECKING:
    from tfsearch.tune.observer import Observer

EVERY_S = 2.0


def observer(quiet: bool) -> Any:
    """A context manager that is an observer of a session."""
    if quiet:
        return Quiet()
    return Live() if sys.stderr.isatty() else Plain()


class _Managed(Silent):
    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None


class Quiet(_Managed):
    """Warnings only."""

    def warning(self, code: str, message: str) -> None:
        """One line."""
        note(f"warning[{code}]: {message}")


class Plain(Quiet):
    """A line when something better is found, and one every few seconds."""

    def __init__(self) -> None:
        self._best: float | None = None
        self._printed = 0.0

    def started(self, event: Started) -> None:
        """What is tuned, and how large the space is."""
        note(_title(event))

    def trial(self, event: TrialEnded) -> None:
        """Nothing: the progress that follows says it."""

    def progress(self, event: Progress) -> None:
        """A line, if there is something new."""
        now = time.monotonic()
        better = event.best_us is not None and event.best_us != self._best
        if better or now - self._printed >= EVERY_S:
            self._best, self._printed = event.best_us, now
            note(summary(event))


class Live(Quiet):
    """One line that is drawn again and again."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.live import Live as Region

        self._console = Console(stderr=True, highlight=False)
        self._region = Region(console=self._console, refresh_per_second=8, transient=True)
        self._stage = ""
        self._text = ""

    def __enter__(self) -> Self:
        self._region.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._region.stop()

    def started(self, event: Started) -> None:
        """A title that stays."""
        self._console.print(_title(event), markup=False)

    def stage(self, stage: Stage) -> None:
        """Shown in front of the numbers."""
        self._stage = stage.value
        self._draw()

    def progress(self, event: Progress) -> None:
        """New numbers."""
        self._text = summary(event)
        self._draw()

    def warning(self, code: str, message: str) -> None:
        """A line above the live one."""
        self._console.print(f"warning[{code}]: {message}", markup=False)

    def _draw(self) -> None:
        from rich.text import Text

        self._region.update(Text(f"{self._stage}: {self._text}" if self._text else self._stage))


def _title(event: Started) -> str:
    removed = f", {event.pruned} of them cannot beat the recorded best" if event.pruned else ""
    return (
        f"tuning {event.workload} on {event.target} ({event.device}): {event.legal} legal of "
        f"{event.points} schedules{removed}"
    )


def summary(event: Progress) -> str:
    """Trials done, failed, answered from the record; the best so far; the time left."""
    parts = [f"{event.done} trial{'' if event.done == 1 else 's'}"]
    if event.failed:
        parts.append(f"{event.failed} failed")
    if event.reused:
        parts.append(f"{event.reused} known")
    parts.append(f"best {microseconds(event.best_us)}" if event.best_us is not None else "no best")
    if event.seconds_left is not None:
        parts.append(f"{event.seconds_left:.0f} s left")
    return ", ".join(parts)


def checked(one: Observer) -> Observer:
    """The observer; its type is checked here."""
    return one
