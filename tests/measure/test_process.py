"""A deadline is the child's time, not that of a machine that stood still."""

from __future__ import annotations

import pytest

from tfsearch.measure import process as processes
from tfsearch.measure.process import MeasuringProcess, Overdue


class Scripted(MeasuringProcess):
    """Waits that take as long as the test says; the last one brings a message."""

    def __init__(self, *waits: float) -> None:
        self._buffer = b""
        self._stopped_s = 0.0
        self._command = -1
        self.waits = list(waits)
        self.now = 0.0

    def _fill(self, timeout_ms: int) -> None:
        self.now += self.waits.pop(0) or timeout_ms / 1000
        if not self.waits:
            self._buffer += b'{"kind": "result"}\n'


def received(child: Scripted, monkeypatch: pytest.MonkeyPatch) -> object:
    monkeypatch.setattr(processes.time, "monotonic", lambda: child.now)
    return child.receive(1.0)["kind"]


def test_a_process_that_was_stopped_does_not_blame_the_child(monkeypatch: pytest.MonkeyPatch):
    assert received(Scripted(0, 100.0, 0, 0), monkeypatch) == "result"


def test_a_child_that_takes_too_long_is_overdue(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Overdue):
        received(Scripted(*[0] * 10), monkeypatch)


def test_a_child_that_hangs_is_overdue_after_a_stop_too(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(Overdue):
        received(Scripted(100.0, *[0] * 10), monkeypatch)
