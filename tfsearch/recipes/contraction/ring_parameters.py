"""Parameters and constraints of the ring pipeline of a contraction."""

from __future__ import annotations

from math import prod

from tfsearch.recipes.contraction.match import M, N
from tfsearch.recipes.contraction.ring import RingContraction
from tfsearch.recipes.contraction.ring_schedule import (
    COOPERATIVE,
    DIRECT,
    PINGPONG,
    STAGED,
    STAGES_OF_RESULTS,
    consumer_registers,
)
from tfsearch.space import Constraint, Definition, Parameter, RecipeSpace
from tfsearch.space import Kind as Order

VERSION = 1
STAGES = tuple(range(2, 9))
DEPTHS = (1, 2, 4)
"""Boxes of a slot along the sum."""
GROUPS = (1, 2, 4, 8, 16)
MOST_BLOCKS = 4
BARRIER_BYTES = 16
"""Of a slot: one barrier says that it is full, one that it is empty."""
SPARE_REGISTERS = 24
"""Of a consumer's thread beside its accumulators: addresses, what an epilogue needs."""


def ring_space(ring: RingContraction, name: str) -> RecipeSpace:
    """The space of one contraction."""
    atoms, crew, c = ring.atoms, ring.crew, ring.contraction
    size = c.a.dtype.bytes
    ordinal, categorical = Order.ORDINAL, Order.CATEGORICAL
    rows = tuple(atoms.rows * n for n in range(1, MOST_BLOCKS + 1) if atoms.rows * n <= _most(ring))
    shapes = (1, 2) if crew.cluster > 1 and atoms.casts else (1,)
    registers = [
        consumer_registers(crew.registers, crew.lanes, atoms.warps, n, crew.most) for n in (1, 2, 3)
    ]
    return RecipeSpace(
        name=name,
        version=VERSION,
        parameters=(
            Parameter("tile_m", rows, ordinal),
            Parameter("tile_n", tuple(n for n in atoms.products if n in atoms.boxes), ordinal),
            Parameter("tile_k", tuple(atoms.span * n for n in DEPTHS), ordinal),
            Parameter("stages", STAGES, ordinal),
            Parameter("consumers", (1, 2, 3), ordinal),
            Parameter("scheme", (COOPERATIVE, PINGPONG), categorical),
            Parameter("high", shapes, ordinal),
            Parameter("wide", shapes, ordinal),
            Parameter("group", GROUPS, ordinal),
            Parameter("epilogue", (DIRECT, STAGED) if _stages(ring) else (DIRECT,), categorical),
            Parameter("units", (crew.units,), ordinal),
        ),
        definitions=_DEFINITIONS,
        constraints=_CONSTRAINTS,
        constants={
            "m": c.m,
            "n": c.n,
            "k": c.k,
            "planes": prod(c.extents[axis] for axis in c.outer),
            "rows": atoms.rows,
            "threads": atoms.warps * crew.lanes,
            "size": size,
            "shared": crew.shared,
            "padding": atoms.swizzle.period * size,
            "barriers": BARRIER_BYTES,
            "a_step": _step(ring, 0),
            "b_step": _step(ring, 1),
            "one": registers[0],
            "two": registers[1],
            "three": registers[2],
            "spare": SPARE_REGISTERS,
            "span": atoms.span,
            "staging": STAGES_OF_RESULTS * atoms.rows * atoms.span * size,
        },
    )


def _most(ring: RingContraction) -> int:
    return max(ring.atoms.boxes)


def _stages(ring: RingContraction) -> bool:
    """Whether results can be staged: one output of the factors' type in rows of whole words."""
    c, put = ring.contraction, ring.atoms.put
    if put is None or len(c.outputs) != 1:
        return False
    output = c.outputs[0]
    kind = c.program.ops[output.value].type
    rule = next(spec.box for spec in put.operands if spec.box is not None)
    words = all(step * kind.dtype.bytes % rule.bytes == 0 for step in kind.element_strides[:-1])
    fits = output.labels == (*c.outer, M, N) and kind.element_strides[-1] == 1
    return kind.dtype is c.a.dtype and words and fits and ring.alignment % rule.bytes == 0


def _step(ring: RingContraction, side: int) -> int:
    """What parts of a tile that a cluster shares are multiples of: rows, or blocks of columns."""
    return ring.atoms.span if ring.across[side] else min(ring.atoms.boxes)


_DEFINITIONS = tuple(
    Definition(name, text)
    for name, text in (
        ("share", "max(1, consumers * (scheme == 'cooperative'))"),
        ("accumulators", "tile_m * tile_n // (threads * share)"),
        ("registers", "one * (consumers == 1) + two * (consumers == 2) + three * (consumers == 3)"),
        ("slot", "(tile_m + tile_n) * tile_k * size"),
        ("staged", "staging * consumers * (epilogue == 'staged')"),
        ("down", "ceil_div(m, tile_m * high)"),
        ("across", "ceil_div(n, tile_n * wide)"),
        ("tiles", "down * across * planes"),
        ("steps", "ceil_div(k, tile_k)"),
    )
)

_CONSTRAINTS = (
    Constraint(
        "ring.rows",
        "tile_m % (rows * share) == 0",
        "{tile_m} rows are not shared out among {share} consumers in blocks of {rows}",
    ),
    Constraint(
        "ring.shared",
        "stages * (slot + barriers) + staged + padding <= shared",
        "{stages} slots of {slot} B, their barriers and {staged} B for results exceed the "
        "{shared} B of shared memory",
    ),
    Constraint(
        "ring.registers",
        "accumulators + spare <= registers",
        "{accumulators} accumulators of a thread and {spare} more exceed its {registers} registers",
    ),
    Constraint(
        "ring.staged",
        "epilogue == 'direct' or tile_n % span == 0",
        "tiles of {tile_n} columns are not staged in boxes of {span}",
    ),
    Constraint(
        "ring.scheme",
        "scheme == 'cooperative' or consumers == 2",
        "{consumers} consumers do not take turns; two do",
    ),
    Constraint(
        "ring.cluster",
        "high * wide <= 2 and units % (high * wide) == 0",
        "clusters of {high} x {wide} units: two at most share tiles here",
    ),
    Constraint(
        "ring.cluster-parts",
        "tile_m % (wide * a_step) == 0 and tile_n % (high * b_step) == 0",
        "a tile of {tile_m} x {tile_n} has no parts of multiples of {a_step} and {b_step} for "
        "{high} x {wide} units",
    ),
    Constraint(
        "ring.cluster-idle",
        "(high == 1 or m > tile_m) and (wide == 1 or n > tile_n)",
        "{high} x {wide} tiles of {tile_m} x {tile_n} for a result of {m} x {n}",
    ),
    Constraint(
        "ring.rows-empty",
        "tile_m <= max(rows, 2 * m) and tile_n <= max(8, 2 * n)",
        "a tile of {tile_m} x {tile_n} is mostly outside of a result of {m} x {n}",
    ),
    Constraint(
        "ring.group",
        "group == 1 or group // 2 < down and across > 1",
        "groups of {group} rows of tiles where there are {down} x {across} tiles",
    ),
)
