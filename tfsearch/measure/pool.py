"""A bounded pool for compilations, which are subprocesses that threads wait for."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Self, TypeVar

from tfsearch.core.errors import InternalError

T = TypeVar("T")

_WAKE_S = 0.1


@dataclass(frozen=True)
class Done(Generic[T]):
    """A finished task: its ``tag``, and either its ``value`` or the ``error`` it raised."""

    tag: Hashable
    value: T | None
    error: BaseException | None

    def result(self) -> T:
        """The value; raises the task's error."""
        if self.error is not None:
            raise self.error
        return self.value  # pyright: ignore[reportReturnType] - T may itself be Optional


class CompilePool(Generic[T]):
    """Runs functions on ``workers`` daemon threads; results come in completion order.

    At most ``backlog`` tasks (twice the workers by default) wait or have uncollected results in
    addition to those that run: :meth:`submit` blocks beyond that (back pressure). Leaving the
    context, by Ctrl-C too, drops what waits and does not wait for what runs: the threads are
    daemons and a compilation ends at its own time limit. A function that can stop early may
    watch :attr:`stopping`.
    """

    def __init__(self, workers: int, *, backlog: int | None = None) -> None:
        if workers < 1:
            raise InternalError("measure.pool", f"a pool needs at least one worker, not {workers}")
        self.workers = workers
        self.stopping = threading.Event()
        self._limit = workers + (2 * workers if backlog is None else max(0, backlog))
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Hashable, Callable[[], T]]] = deque()
        self._done: queue.SimpleQueue[Done[T]] = queue.SimpleQueue()
        self._open = 0
        self._idle = 0
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def outstanding(self) -> int:
        """Tasks submitted whose results were not collected yet."""
        with self._changed:
            return self._open

    def submit(
        self, tag: Hashable, function: Callable[..., T], *args: Any, timeout_s: float | None = None
    ) -> bool:
        """Queue ``function(*args)``; blocks while the pool is full.

        False when it stayed full for ``timeout_s`` seconds. Raises ``InternalError`` on a closed
        pool. The thread that submits must not be the only one that collects, unless it does so
        with a timeout: results count against the bound.
        """
        with self._changed:
            free = self._changed.wait_for(
                lambda: self._open < self._limit or self.stopping.is_set(), timeout_s
            )
            if self.stopping.is_set():
                raise InternalError("measure.pool", "the compile pool is closed")
            if not free:
                return False
            self._open += 1
            self._waiting.append((tag, lambda: function(*args)))
            if len(self._waiting) > self._idle and len(self._threads) < self.workers:
                thread = threading.Thread(target=self._work, name="compile", daemon=True)
                self._threads.append(thread)
                thread.start()
            self._changed.notify_all()
        return True

    def cancel(self, tag: Hashable) -> bool:
        """Drop a task that has not started; False when it runs, is done, or is not there."""
        with self._changed:
            for item in self._waiting:
                if item[0] == tag:
                    self._waiting.remove(item)
                    self._open -= 1
                    self._changed.notify_all()
                    return True
        return False

    def next_done(self, timeout_s: float | None = None) -> Done[T] | None:
        """The next finished task; None after ``timeout_s``, or when nothing is outstanding.

        Waits in short slices, so that Ctrl-C is noticed at once.
        """
        left = timeout_s
        while self.outstanding and not self.stopping.is_set():
            step = _WAKE_S if left is None else min(_WAKE_S, max(0.0, left))
            try:
                done = self._done.get(timeout=step) if step > 0 else self._done.get_nowait()
            except queue.Empty:
                if left is not None:
                    left -= step
                    if left <= 0:
                        return None
                continue
            with self._changed:
                self._open -= 1
                self._changed.notify_all()
            return done
        return None

    def results(self) -> Iterator[Done[T]]:
        """Finished tasks in completion order until nothing is outstanding."""
        while (done := self.next_done()) is not None:
            yield done

    def close(self) -> None:
        """Drop what waits, let running functions see :attr:`stopping`, and return at once."""
        with self._changed:
            self.stopping.set()
            self._open -= len(self._waiting)
            self._waiting.clear()
            self._changed.notify_all()

    def _work(self) -> None:
        while True:
            with self._changed:
                self._idle += 1
                self._changed.wait_for(lambda: self._waiting or self.stopping.is_set())
                self._idle -= 1
                if self.stopping.is_set():
                    return
                tag, task = self._waiting.popleft()
            self._done.put(_run(tag, task))


def _run(tag: Hashable, task: Callable[[], T]) -> Done[T]:
    try:
        return Done(tag, task(), None)
    except BaseException as error:  # noqa: BLE001 - handed to whoever collects the result
        return Done(tag, None, error)
