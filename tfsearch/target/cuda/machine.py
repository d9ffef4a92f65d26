"""Numbers of a GPU for predictions: what atoms cost, what memory delivers, what bounds a time."""

from __future__ import annotations

from tfsearch.atoms.contract import Atom
from tfsearch.atoms.table import AtomTable
from tfsearch.cost.model import Machine
from tfsearch.recipes.recipe import Crew, Kit, Team
from tfsearch.target.cuda.hardware import Hardware
from tfsearch.target.cuda.threads import (
    F32_RATE,
    F64_RATE,
    INTEGER_RATE,
    SHUFFLE_RATE,
    SPECIAL_RATE,
    TEAMS,
    WARP,
)
from tfsearch.target.cuda.warps import MMA_RATE

_RATES = {
    "f32": ("rate.f32", F32_RATE),
    "f64": ("rate.f64", F64_RATE),
    "integer": ("rate.integer", INTEGER_RATE),
    "special": ("rate.special", SPECIAL_RATE),
    "shuffle": ("rate.shuffle", SHUFFLE_RATE),
    "mma": ("rate.mma", MMA_RATE),
}
"""Facts that scale the costs of a pipe, and their values on the architecture of the costs."""
WAVES = (1, 2, 4, 8, 16, 32, 64, 128)
"""Units for every SM that are worth trying; those that are not resident wait for others."""
FRAGMENT_REGISTERS = 160
"""Registers of a thread that fragments may take; addresses and temporaries have the others."""
KINDS = {"bf16": "bf16", "f16": "f16", "i8": "i8", "f64": "f64"}


def atom_cycles(atom: Atom, hardware: Hardware) -> float:
    """Reciprocal throughput of an atom on one SM, in cycles."""
    name, reference = _RATES.get(atom.cost.pipe, ("", 1.0))
    rate = hardware.get(name) if name else None
    return atom.cost.cycles * (reference / rate if rate else 1.0)


def machine_of(hardware: Hardware) -> Machine:
    """The numbers that predictions rest on.

    Where the sustained clock, the copy rate or the launch cost are unavailable, the vendor's
    peaks stand for them and predictions are labelled uncalibrated. A device of which only the
    architecture is known has no peaks.
    """
    top = hardware.get("clock_max")
    clock = hardware.get("clock") or top or 1.0
    units = int(hardware.get("units") or 1)
    rate = hardware.get("bandwidth.copy") or hardware.get("peak.memory") or 1000.0
    memory = rate / clock
    l2 = hardware.get("bandwidth.l2") or 4.0 * memory
    launch = hardware.get("launch") or 3.0
    peaks: dict[str, float] = {}
    if top is not None:
        peaks["f32"] = 2 * hardware.number("rate.f32") * top * 1e9
        peaks["f64"] = 2 * hardware.number("rate.f64") * top * 1e9
        for kind, fact in KINDS.items():
            matrix = hardware.get(f"matrix.{fact}")
            if matrix is not None:
                peaks[kind] = max(matrix * top * 1e9, peaks.get(kind, 0.0))
    peak = hardware.get("peak.memory")
    l2_unit = hardware.get("bandwidth.l2_unit") or 64.0
    return Machine(
        clock_ghz=clock,
        bandwidth={"l2": l2_unit, "l3": l2_unit, "memory": l2_unit},
        shared_bandwidth={"l3": l2, "memory": memory},
        launch_us=(launch, launch),
        peak_flops=peaks,
        peak_bytes=None if peak is None else peak * 1e9,
        calibrated=all(hardware.measured(n) for n in ("clock", "bandwidth.copy", "launch")),
        document=hardware.digest,
        cores=units,
    )


def kit_of(hardware: Hardware, atoms: AtomTable) -> Kit:
    """What recipes need to know of a device."""
    units = int(hardware.get("units") or 1)
    counts = {1, max(1, units // 4), max(1, units // 2)}
    counts |= {units * n for n in WAVES}
    shared = hardware.whole("limit.shared_per_block")
    l2 = int(hardware.get("l2") or 32 << 20)
    return Kit(
        atoms=atoms,
        lanes=tuple(sorted(TEAMS, reverse=True)),
        registers={lanes: FRAGMENT_REGISTERS // each for lanes, (_, each) in TEAMS.items()},
        units=tuple(sorted(counts)),
        # Recipes know three levels a unit: its registers hold what it works on, the L1 is not
        # counted on, and the L2 is shared by all units.
        caches=(shared, max(1, l2 // units), max(1, l2 // units)),
        cycles=lambda name: atom_cycles(atoms[name], hardware),
        line=128,
        cores=units,
        fetches=False,
        teams={lanes: Team(warps, WARP) for lanes, (warps, _) in TEAMS.items()},
        staging=None,
        crew=Crew(
            lanes=WARP,
            shared=shared,
            registers=hardware.whole("limit.registers"),
            most=hardware.whole("limit.registers_per_thread"),
            cluster=int(hardware.get("limit.cluster") or 1),
            units=units,
            reserved=hardware.whole("limit.shared_reserved"),
        ),
    )
