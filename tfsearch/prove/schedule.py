"""Units as coroutines under a seeded scheduler.

A unit is a generator. It yields None where another unit may go on before it, and a
:class:`Wait` where it cannot go on until the wait is over; the scheduler picks the next unit
at random from its seed. Other things that happen on their own (copies in flight) join as
further coroutines; other conditions to wait for, as further reasons.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass

Coroutine = Generator["Wait | None", None, int]


@dataclass(frozen=True)
class Wait:
    """A barrier over all units, reached at a statement (its number)."""

    statement: int


@dataclass(frozen=True)
class Deadlock:
    """Nobody can go on: the waits of the units that wait, and the units that have ended."""

    waiting: dict[int, Wait]
    ended: tuple[int, ...]


def run(
    coroutines: Sequence[Coroutine], seed: int, on_barrier: Callable[[], None]
) -> tuple[int, Deadlock | None]:
    """Run to the end; the sum of what the coroutines return, and the deadlock if there is one.

    ``on_barrier`` is called when all units have met at a barrier.
    """
    choose = random.Random(seed)
    ready = list(range(len(coroutines)))
    waiting: dict[int, Wait] = {}
    ended: list[int] = []
    steps = 0
    while ready or waiting:
        if not ready:
            if len(waiting) < len(coroutines):
                return steps, Deadlock(waiting, tuple(sorted(ended)))
            on_barrier()
            ready = sorted(waiting)
            waiting = {}
        unit = ready[choose.randrange(len(ready))] if len(ready) > 1 else ready[0]
        coroutine = coroutines[unit]
        # Runs of a few accesses keep switching cheap; each length is possible, one included.
        for _ in range(1 if len(ready) == 1 else choose.randrange(1, 9)):
            try:
                signal = next(coroutine)
            except StopIteration as stop:
                steps += int(stop.value)
                ended.append(unit)
                ready.remove(unit)
                break
            if signal is not None:
                waiting[unit] = signal
                ready.remove(unit)
                break
    return steps, None
