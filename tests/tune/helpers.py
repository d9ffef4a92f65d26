"""Requests on the null target, and an observer that keeps what it is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfsearch.core.settings import Settings
from tfsearch.db import Store
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits
from tfsearch.tune import Progress, Stage, Started, TrialEnded, TuneReport, TuneRequest, tune
from tfsearch.tune.observer import Observer


class Watcher:
    def __init__(self, on_trial: Callable[[TrialEnded], None] | None = None) -> None:
        self.events: list[Any] = []
        self.warnings: list[str] = []
        self._on_trial = on_trial

    def started(self, event: Started) -> None:
        self.events.append(event)

    def stage(self, stage: Stage) -> None:
        self.events.append(stage)

    def trial(self, event: TrialEnded) -> None:
        self.events.append(event)
        if self._on_trial is not None:
            self._on_trial(event)

    def progress(self, event: Progress) -> None:
        self.events.append(event)

    def warning(self, code: str, message: str) -> None:
        self.warnings.append(code)

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


def run(
    workload: Workload,
    store: Store | None,
    home: Settings,
    *,
    target: str = "null",
    observer: Observer | None = None,
    unsaved: Any = None,
    **options: Any,
) -> TuneReport:
    defaults = {"baseline": False, "trials": 3, "limits": Limits(budget_s=0.2)}
    request = TuneRequest(workload, target=target, **{**defaults, **options})
    return tune(request, store=store, settings=home, observer=observer, unsaved=unsaved)
