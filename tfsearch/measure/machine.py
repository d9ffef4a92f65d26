"""Whether somebody else used the machine while something was timed."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_STAT = Path("/proc/stat")
_LEAST_S = 0.05
"""Shorter stretches say nothing: the system counts in hundredths of a second."""


@dataclass(frozen=True)
class Usage:
    """The machine's counters at one moment, in seconds; None where the system does not tell.

    ``busy``: all processors together, time that a hypervisor took included; ``stolen``: that time
    alone; ``own``: this process.
    """

    wall: float
    own: float
    busy: float | None = None
    stolen: float | None = None


def usage() -> Usage:
    """The counters now."""
    wall, own = time.monotonic(), time.process_time()
    try:
        fields = [int(x) for x in _STAT.read_text(encoding="ascii").split("\n", 1)[0].split()[1:9]]
    except (OSError, ValueError):
        return Usage(wall, own)
    tick = 1.0 / os.sysconf("SC_CLK_TCK")
    user, nice, system, _idle, _wait, irq, soft, steal = fields
    busy = (user + nice + system + irq + soft + steal) * tick
    return Usage(wall, own, busy, steal * tick)


def preemptions() -> int:
    """How often this thread had to give up its processor so far; 0 where it is not counted."""
    if not sys.platform.startswith("linux"):
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def shared(before: Usage, after: Usage) -> dict[str, Any]:
    """What others took between two moments, as conditions of a measurement.

    ``others``: processors that other programs kept busy on average, ``stolen``: those that the
    hypervisor took, ``processors``: how many there are. None where it is not known.
    """
    wall = after.wall - before.wall
    others = stolen = None
    if wall >= _LEAST_S and before.busy is not None and after.busy is not None:
        spent = after.busy - before.busy - (after.own - before.own)
        others = max(0.0, spent / wall)
        stolen = max(0.0, ((after.stolen or 0.0) - (before.stolen or 0.0)) / wall)
    return {"others": others, "stolen": stolen, "processors": os.cpu_count()}
