"""Numbers of a processor: what atoms cost, what memory delivers, what bounds a time."""

from __future__ import annotations

from tfsearch.atoms.contract import Atom
from tfsearch.atoms.documents import Document
from tfsearch.atoms.table import AtomTable
from tfsearch.cost.model import Machine
from tfsearch.recipes.recipe import Kit
from tfsearch.target.x86.device import Processor

_REFERENCE = {"fma": 2.0, "load": 2.0, "store": 1.0, "alu": 2.0, "shuffle": 1.0}
"""Operations per cycle of the core on which the atoms' costs are stated."""
_LEVELS = ("l2", "l3", "memory")
FLOP_PER_TILE = 2 * 16 * 16 * 32


def atom_cycles(atom: Atom, document: Document) -> float:
    """Reciprocal throughput of an atom on the processor of a document, in cycles."""
    pipe = atom.cost.pipe
    if pipe == "tile":
        rate = document.get("tile.bf16")
        return atom.cost.cycles * (0.0625 / rate if rate else 1.0)
    bits = 512 if atom.features & {"avx512f", "amx_tile"} else 256
    rate = document.get(f"{pipe}_{bits}")
    if rate is None:
        rate = document.number(f"fma_{bits}") if pipe == "alu" else 1.0
    return atom.cost.cycles * _REFERENCE[pipe] / rate


def machine_of(document: Document) -> Machine:
    """The numbers that predictions rest on."""
    clock = document.number("clock")
    bandwidth = {level: document.number(f"bandwidth.{level}") for level in _LEVELS}
    top = document.get("clock_max")
    peaks: dict[str, float] = {}
    if top is not None:
        peaks["f32"] = document.number("fma_512") * 32 * top * 1e9
        peaks["f64"] = document.number("fma_512") * 16 * top * 1e9
        tile = document.get("tile.bf16")
        if tile is not None:
            peaks["bf16"] = tile * FLOP_PER_TILE * top * 1e9
            peaks["i8"] = 2 * peaks["bf16"]
    names = ("clock", *(f"bandwidth.{level}" for level in _LEVELS))
    return Machine(
        clock_ghz=clock,
        bandwidth=bandwidth,
        shared_bandwidth={},
        launch_us=(document.number("launch.one"), document.number("launch.many")),
        peak_flops=peaks,
        peak_bytes=None,
        calibrated=all(document.measured(name) for name in names),
        document=document.digest,
    )


def kit_of(cpu: Processor, atoms: AtomTable, document: Document) -> Kit:
    """What recipes need to know of a processor."""
    features = set(cpu.features)
    if "avx512f" in features:
        lanes, registers = (16, 8), {16: 32, 8: 16, 4: 16, 1: 16}
    elif "avx2" in features:
        lanes, registers = (8, 4), {8: 16, 4: 16, 1: 16}
    else:
        lanes, registers = (1,), {1: 16}
    counts = {1, cpu.units} | {u for u in (2, 4, 8, 16, 32) if u < cpu.units}
    caches = (*cpu.caches[:3], *([cpu.caches[-1]] * (3 - len(cpu.caches[:3]))))
    return Kit(
        atoms=atoms,
        lanes=lanes,
        registers=registers,
        units=tuple(sorted(counts)),
        caches=caches,
        cycles=lambda name: atom_cycles(atoms[name], document),
        tiles=8 if "amx_tile" in features else 0,
    )
