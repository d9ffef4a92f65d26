"""From integer facts to time: phases, pipes, memory levels, and a sound lower bound.

A candidate is a sequence of phases (packing, the main loop, an epilogue). Within a phase
everything overlaps, so it takes as long as its busiest resource: an execution pipe or a memory
level. Phases follow one another. All quantities are arrays with one element per candidate.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Column = NDArray[Any]


@dataclass(frozen=True)
class Phase:
    """What the busiest unit does in one phase.

    ``cycles`` per pipe; ``bytes`` moved per memory level ("l1", "l2", "l3", "memory");
    ``overhead`` in cycles is added, not overlapped (loop control, dependency latency).
    """

    name: str
    cycles: Mapping[str, Column] = field(default_factory=dict[str, Column])
    bytes: Mapping[str, Column] = field(default_factory=dict[str, Column])
    overhead: Column | float = 0.0


@dataclass(frozen=True)
class Facts:
    """Integer facts of a batch of candidates.

    ``units`` is the number of executing units; ``flops`` the program's useful operations by
    kind ("f32", "bf16", …) and ``compulsory_bytes`` what any kernel must move to and from memory
    when nothing is cached (both independent of the candidate). ``columns`` are the named facts
    shown to people and compared with the analysis of the lowered kernel.
    """

    phases: Sequence[Phase]
    units: Column
    flops: Mapping[str, float]
    compulsory_bytes: float
    columns: Mapping[str, Column] = field(default_factory=dict[str, Column])


@dataclass(frozen=True)
class Machine:
    """The numbers of a device that predictions rest on.

    ``clock_ghz`` is the sustained clock; ``bandwidth`` is bytes per cycle of one unit per memory
    level; ``shared_bandwidth`` bytes per cycle of the whole device for levels that units share;
    ``launch_us`` is the cost of starting a kernel on 1 and on several units. ``peak_flops`` per
    unit and second by kind and ``peak_bytes`` per second (memory) are the vendor's peaks at the
    maximum clock, for the bound; a kind that is missing gives no bound. ``calibrated`` is False
    when any number was not measured. ``cores``: units beyond so many share the pipes of others;
    0 where every unit has its own.
    """

    clock_ghz: float
    bandwidth: Mapping[str, float]
    shared_bandwidth: Mapping[str, float]
    launch_us: tuple[float, float]
    peak_flops: Mapping[str, float]
    peak_bytes: float | None
    calibrated: bool
    document: str
    cores: int = 0

    def sharing(self, units: Column) -> Column:
        """How many units take turns on the pipes of a core."""
        if not self.cores:
            return np.ones(np.shape(units))
        return np.maximum(1.0, np.ceil(np.asarray(units) / self.cores))

    def at_once(self, units: Column) -> Column:
        """Units that run at full rate at once."""
        return np.minimum(units, self.cores) if self.cores else units


@dataclass(frozen=True)
class Prediction:
    """Per candidate, in microseconds: the estimate that ranks and the sound lower bound.

    ``bound_us`` is 0 where peaks are unknown. ``calibrated`` is False when the estimate rests on
    an unavailable number; ``document`` is the digest of the hardware documents used.
    """

    estimate_us: NDArray[np.float64]
    bound_us: NDArray[np.float64]
    calibrated: bool
    document: str


def estimate(facts: Facts, machine: Machine, *, cold: bool = False) -> Prediction:
    """Predict a batch of candidates.

    The bound holds for any kernel: useful operations at the peak rate of as many units as run;
    under the cold protocol also the compulsory bytes at the peak memory rate.
    """
    units = np.asarray(facts.units, dtype=np.float64)
    total = np.zeros(units.shape)
    for phase in facts.phases:
        total = total + phase_cycles(phase, machine, units)
    launch = np.where(units > 1, machine.launch_us[1], machine.launch_us[0])
    time = total / (machine.clock_ghz * 1e3) + launch
    lowest = bound(facts, machine, cold=cold)
    return Prediction(time, lowest, machine.calibrated, machine.document)


def phase_times(facts: Facts, machine: Machine) -> dict[str, NDArray[np.float64]]:
    """Predicted microseconds of every phase, and of the launch, per candidate."""
    units = np.asarray(facts.units, dtype=np.float64)
    out = {
        phase.name: phase_cycles(phase, machine, units) / (machine.clock_ghz * 1e3)
        for phase in facts.phases
    }
    out["launch"] = np.where(units > 1, machine.launch_us[1], machine.launch_us[0])
    return out


def phase_cycles(phase: Phase, machine: Machine, units: Column) -> Column:
    """Cycles of one phase on the busiest unit."""
    busiest = np.zeros(np.shape(units))
    turns = machine.sharing(units)
    for cycles in phase.cycles.values():
        busiest = np.maximum(busiest, cycles * turns)
    for level, moved in phase.bytes.items():
        busiest = np.maximum(busiest, moved * turns / machine.bandwidth[level])
        if level in machine.shared_bandwidth:
            busiest = np.maximum(busiest, moved * units / machine.shared_bandwidth[level])
    return busiest + phase.overhead


def bound(facts: Facts, machine: Machine, *, cold: bool) -> NDArray[np.float64]:
    """Lower bound in microseconds; 0 where the peaks are unknown."""
    units = np.asarray(facts.units, dtype=np.float64)
    out = np.zeros(units.shape)
    for kind, flops in facts.flops.items():
        peak = machine.peak_flops.get(kind)
        if peak:
            out = np.maximum(out, flops / (peak * machine.at_once(units)) * 1e6)
    if cold and machine.peak_bytes:
        out = np.maximum(out, facts.compulsory_bytes / machine.peak_bytes * 1e6)
    return out
