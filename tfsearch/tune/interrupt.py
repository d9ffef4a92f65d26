"""Ctrl-C: at once while waiting, at the next safe point while records are written."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Generator
from types import FrameType, TracebackType
from typing import Any


class Interrupts:
    """Takes SIGINT for the time of a ``with`` block.

    The first Ctrl-C sets ``requested`` and, inside :meth:`waiting`, raises ``KeyboardInterrupt``
    there; elsewhere the session reaches its next check undisturbed. The second one always
    raises. Outside the main thread, where Python delivers no signals, nothing is changed.
    """

    def __init__(self) -> None:
        self.requested = False
        self._waiting = False
        self._previous: Any = None
        self._installed = False

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._previous = signal.signal(signal.SIGINT, self._on_signal)
            self._installed = True
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._installed:
            signal.signal(signal.SIGINT, self._previous)
            self._installed = False

    @contextlib.contextmanager
    def waiting(self) -> Generator[None, None, None]:
        """A stretch of waiting that Ctrl-C may cut short: nothing is half written in it."""
        self._waiting = True
        try:
            if self.requested:
                raise KeyboardInterrupt
            yield
        finally:
            self._waiting = False

    def _on_signal(self, _number: int, _frame: FrameType | None) -> None:
        again = self.requested
        self.requested = True
        if again or self._waiting:
            raise KeyboardInterrupt
