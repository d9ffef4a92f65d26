"""Parameters and constraints of the warps pipeline of a contraction."""

from __future__ import annotations

from collections.abc import Callable

from tfsearch.recipes.contraction.warps import WarpsContraction
from tfsearch.recipes.contraction.warps_atoms import LEFT, RIGHT, Panel
from tfsearch.recipes.contraction.warps_schedule import registers_at_most
from tfsearch.space import Constraint, Definition, Parameter, RecipeSpace
from tfsearch.space import Kind as Order

VERSION = 1
TILES_M = (16, 32, 64, 128, 256)
TILES_N = (16, 32, 64, 128, 256)
STEPS = (1, 2, 4, 8)
"""Depths of a step, in the narrowest panels."""
WARPS = (1, 2, 4)
STAGES = (2, 3, 4, 5, 6)
GROUPS = (1, 2, 4, 8, 16)
RESIDENT = (1, 2, 3, 4)
SPARE_REGISTERS = 56
"""Of a thread beside accumulators and fragments: addresses, what an epilogue needs."""
LONGEST = 256
"""Products of a warp in one step, which are one straight line of code."""
ALIGNMENT = 16
"""Bytes that every buffer in shared memory is aligned to."""


def warps_space(whole: WarpsContraction, name: str) -> RecipeSpace:
    """The space of one contraction."""
    atoms, crew, c = whole.atoms, whole.crew, whole.contraction
    size = c.a.dtype.bytes
    ordinal, categorical = Order.ORDINAL, Order.CATEGORICAL
    rows, columns, depth = atoms.shape
    panels = tuple(atoms.panels.values())
    narrow = min(panel.span for panel in panels)
    return RecipeSpace(
        name=name,
        version=VERSION,
        parameters=(
            Parameter("tile_m", tuple(n for n in TILES_M if n % rows == 0), ordinal),
            Parameter("tile_n", tuple(n for n in TILES_N if n % atoms.width(RIGHT) == 0), ordinal),
            Parameter("tile_k", tuple(narrow * n for n in STEPS), ordinal),
            Parameter("high", WARPS, ordinal),
            Parameter("wide", WARPS, ordinal),
            Parameter("stages", STAGES, ordinal),
            Parameter("panel", tuple(atoms.panels), categorical),
            Parameter("vector", _vectors(whole), ordinal),
            Parameter("ahead", (0, 1), ordinal),
            Parameter("group", GROUPS, ordinal),
            Parameter("resident", RESIDENT, ordinal),
        ),
        definitions=_definitions(whole, panels),
        constraints=_CONSTRAINTS,
        constants={
            "m": c.m,
            "n": c.n,
            "k": c.k,
            "rows": rows,
            "columns": columns,
            "depth": depth,
            "fragment_n": atoms.width(RIGHT),
            "a_least": narrow if whole.across[LEFT] else rows,
            "b_least": narrow if whole.across[RIGHT] else atoms.width(RIGHT),
            "size": size,
            "shared": crew.shared,
            "all_shared": crew.shared + crew.reserved,
            "reserved": crew.reserved,
            "lanes": crew.lanes,
            "spare": SPARE_REGISTERS,
            "aligned": ALIGNMENT,
            "longest": LONGEST,
        },
    )


def _vectors(whole: WarpsContraction) -> tuple[int, ...]:
    """Bytes of an access: what the rows of a factor allow, or half as much."""
    panel = next(iter(whole.atoms.panels.values()))
    best = [panel.widest(n) for n in whole.aligned]
    sizes = sorted({size for size, _ in panel.copies})
    return tuple(size for size in sizes if min(*best, max(best) // 2) <= size <= max(best))


def _chosen(panels: tuple[Panel, ...], of: Callable[[Panel], int]) -> str:
    return " + ".join(f"{of(panel)} * (panel == '{panel.name}')" for panel in panels)


def _definitions(whole: WarpsContraction, panels: tuple[Panel, ...]) -> tuple[Definition, ...]:
    size = whole.contraction.a.dtype.bytes
    return tuple(
        Definition(name, text)
        for name, text in (
            ("span", _chosen(panels, lambda p: p.span)),
            ("pitch", _chosen(panels, lambda p: p.pitch)),
            ("period", _chosen(panels, lambda p: max(p.period * size, ALIGNMENT))),
            ("warps", "high * wide"),
            ("warp_m", "tile_m // high"),
            ("warp_n", "tile_n // wide"),
            ("a_along", "tile_m" if whole.across[LEFT] else "tile_k"),
            ("b_along", "tile_n" if whole.across[RIGHT] else "tile_k"),
            ("a_slots", "stages * tile_m * tile_k * pitch // span * size"),
            ("b_slots", "stages * tile_n * tile_k * pitch // span * size"),
            ("slots", "a_slots + b_slots - 2 * (pitch - span) * size + period - aligned"),
            ("accumulators", "warp_m * warp_n // lanes"),
            ("fragments", _fragments(whole)),
            ("registers", _registers(whole)),
            ("products", "tile_k // depth * (warp_m // rows) * (warp_n // columns)"),
            ("down", "ceil_div(m, tile_m)"),
            ("across", "ceil_div(n, tile_n)"),
        )
    )


def _fragments(whole: WarpsContraction) -> str:
    """Registers of a thread for fragments of one depth, times those held at once."""
    size = whole.contraction.a.dtype.bytes
    a, b = (whole.atoms.copies_of(side) * size for side in (LEFT, RIGHT))
    return f"(ahead + 1) * depth * (warp_m * {a} + warp_n * {b}) // (4 * lanes)"


def _registers(whole: WarpsContraction) -> str:
    """Registers of a thread, by the warps of a unit and the units side by side."""
    crew = whole.crew
    terms: list[str] = []
    for warps in sorted({high * wide for high in WARPS for wide in WARPS}):
        for resident in RESIDENT:
            have = registers_at_most(crew.registers, warps * crew.lanes, resident, crew.most)
            have = have or crew.most
            terms.append(f"{have} * (warps == {warps}) * (resident == {resident})")
    return " + ".join(terms)


_CONSTRAINTS = (
    Constraint(
        "warps.rows",
        "tile_m % (high * rows) == 0",
        "{tile_m} rows are not shared out among {high} warps in blocks of {rows}",
    ),
    Constraint(
        "warps.columns",
        "tile_n % (wide * fragment_n) == 0",
        "{tile_n} columns are not shared out among {wide} warps in blocks of {fragment_n}",
    ),
    Constraint(
        "warps.panels",
        "a_along % span == 0 and b_along % span == 0",
        "panels of {span} elements do not make up {a_along} and {b_along}",
    ),
    Constraint(
        "warps.shared",
        "slots <= shared and resident * (slots + reserved) <= all_shared",
        "{stages} stages take {slots} B; {resident} units of that do not fit {shared} B",
    ),
    Constraint(
        "warps.registers",
        "accumulators + fragments + spare <= registers",
        "{accumulators} accumulators, {fragments} of fragments and {spare} more registers of a "
        "thread exceed its {registers}",
    ),
    Constraint(
        "warps.small",
        "warp_m * warp_n >= 512 or tile_m * tile_n <= 1024",
        "tiles of {warp_m} x {warp_n} give a warp too little to do",
    ),
    Constraint(
        "warps.empty",
        "tile_m <= max(a_least, 2 * m) and tile_n <= max(b_least, 2 * n) and "
        "tile_k <= max(span, 2 * k)",
        "a tile of {tile_m} x {tile_n} x {tile_k} is mostly outside of {m} x {n} x {k}",
    ),
    Constraint(
        "warps.stages",
        "stages == 2 or (stages - 1) * tile_k < k + tile_k",
        "{stages} stages of {tile_k} hold more than all {k} elements of a sum",
    ),
    Constraint(
        "warps.ahead",
        "ahead == 0 or tile_k > depth",
        "a step of {tile_k} has no fragments to load ahead of",
    ),
    Constraint(
        "warps.long",
        "products <= longest",
        "{products} products of a warp in one step make its code longer than {longest}",
    ),
    Constraint(
        "warps.group",
        "group == 1 or group // 2 < down and across > 1",
        "groups of {group} rows of tiles where there are {down} x {across} tiles",
    ),
)
