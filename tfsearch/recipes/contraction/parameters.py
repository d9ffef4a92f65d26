"""Parameters and constraints of the blocked contraction, one space per matrix unit.

Points that would lower to the same code are excluded, so that a space has no duplicates: block
sizes are powers of two of which only the first that covers an axis is kept, and an order of
loops is free only where both loops run more than once.
"""

from __future__ import annotations

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Side
from tfsearch.recipes.contraction.unit import MatrixUnit, order_of, vector_lanes
from tfsearch.recipes.domain import flat_size
from tfsearch.recipes.fragments import compute_dtype
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Constraint, Definition, Parameter, RecipeSpace
from tfsearch.space import Kind as Order

VERSION = 4
BARRIER = "unit_barrier"
"""What a synchronisation over all units computes and is called in effects."""
DEPTHS = (4, 8, 16, 32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096)
UNROLLS = (1, 2, 4)
ROWS_AHEAD = (4, 8, 16)
"""Distances in steps of k from which an unpacked second factor is prefetched."""
MAX_ROWS = 16
MAX_COLUMNS = 6
SHALLOW = 32
"""Depths below this keep few rows of the second factor in flight, for results of few rows."""
CODE_LIMIT = 160
"""Most multiply-accumulates in the text of one loop body; beyond it the compiler takes seconds."""


def space_of(contraction: Contraction, unit: MatrixUnit, kit: Kit, constant_b: bool) -> RecipeSpace:
    """The space of one unit. ``constant_b``: the second factor may be packed ahead of calls."""
    um, un, uk = unit.tile
    outer = flat_size(contraction.outer, contraction.extents)
    constants = {
        "m": contraction.m,
        "n": contraction.n,
        "k": contraction.k,
        "outer": outer,
        "um": um,
        "un": un,
        "uk": uk,
        "registers": kit.registers[vector_lanes(unit)] if unit.is_vector else kit.tiles,
        "a_bytes": unit.a.bytes,
        "b_bytes": unit.b.bytes,
        "a_all_bytes": _all_bytes(contraction, contraction.a),
        "b_all_bytes": _all_bytes(contraction, contraction.b),
        "out_bytes": _output_bytes(contraction),
        "cache": kit.caches[-1],
        "outer_cache": kit.outer_cache,
        "line": kit.line,
        "least_out": min(t.dtype.bytes for t in contraction.program.output_types),
        "sums_apart": int(_sums_apart(contraction)),
        "code_limit": CODE_LIMIT,
        "shallow": SHALLOW,
    }
    return RecipeSpace(
        name=f"contraction.blocked.{unit.name}",
        version=VERSION,
        parameters=_parameters(contraction, unit, kit, constant_b, outer),
        definitions=DEFINITIONS,
        constraints=(_registers(unit), *CONSTRAINTS, *_of_kind(unit)),
        constants=constants,
    )


def _output_bytes(contraction: Contraction) -> int:
    return sum(t.bytes for t in contraction.program.output_types)


def _sums_apart(contraction: Contraction) -> bool:
    """True when no output can hold unfinished sums, so that each output is written once."""
    kept = compute_dtype(contraction.acc)
    return all(t.dtype is not kept for t in contraction.program.output_types)


def _all_bytes(contraction: Contraction, side: Side) -> int:
    """Bytes of the input behind a factor, 0 where it is computed."""
    return 0 if side.source is None else contraction.program.inputs[side.source].type.bytes


def _ahead(contraction: Contraction, unit: MatrixUnit, kit: Kit) -> tuple[int, ...]:
    """Prefetch distances where a factor may stay unpacked that the caches do not hold.

    Vector units: rows of the second factor. Tile units: 1, the next panel of the first factor.
    """
    outer_cache = kit.outer_cache
    a_bytes, b_bytes = (_all_bytes(contraction, s) for s in (contraction.a, contraction.b))
    if unit.is_vector:
        distances, fn = (0, *ROWS_AHEAD), "prefetch"
        useful = b_bytes > outer_cache and contiguous(contraction, contraction.b, N)
    else:
        distances, fn = (0, 1), "prefetch_outer"
        useful = a_bytes + b_bytes > outer_cache and _direct_a(contraction, unit)
    hint = Computation(Kind.HINT, fn, (1,), (contraction.b.dtype,))
    return distances if useful and kit.atoms.usable(hint) is not None else (0,)


def _powers(limit: int) -> tuple[int, ...]:
    """1, 2, 4 … up to the first that covers ``limit``."""
    out = [1]
    while out[-1] < limit:
        out.append(out[-1] * 2)
    return tuple(out)


def _divisors(units: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted({d for u in units for d in range(1, u + 1) if u % d == 0}))


def _parameters(
    contraction: Contraction, unit: MatrixUnit, kit: Kit, constant_b: bool, outer: int
) -> tuple[Parameter, ...]:
    um, un, uk = unit.tile
    depths = [d for d in DEPTHS if d < contraction.k and d % uk == 0]
    whole = -(-contraction.k // uk) * uk
    most_rows = min(MAX_ROWS, -(-contraction.m // um))
    most_columns = min(MAX_COLUMNS, -(-contraction.n // un))
    grid = _divisors(kit.units)
    ordinal, categorical = Order.ORDINAL, Order.CATEGORICAL
    return (
        Parameter("rows", tuple(range(1, most_rows + 1)), ordinal),
        Parameter("columns", tuple(range(1, most_columns + 1)), ordinal),
        Parameter("kc", (*depths, whole), ordinal),
        Parameter("m_tiles", _powers(-(-contraction.m // um)), ordinal),
        Parameter("n_tiles", _powers(-(-contraction.n // un)), ordinal),
        Parameter(
            "order", ("nkm", "mkn") if unit.is_vector else ("nkm", "mkn", "nmk"), categorical
        ),
        Parameter("inner", ("nm", "mn"), categorical),
        Parameter("pack_a", _pack_a(contraction, unit), categorical),
        Parameter("pack_b", _pack_b(contraction, unit, constant_b), categorical),
        Parameter("unroll", UNROLLS, ordinal),
        Parameter("prefetch", _ahead(contraction, unit, kit), ordinal),
        Parameter("stream", (False, True), Order.BOOLEAN),
        Parameter("finish", ("after",) if unit.is_vector else ("after", "beside"), categorical),
        Parameter("units", kit.units, ordinal),
        Parameter("grid_m", grid, ordinal),
        Parameter("grid_o", grid if outer > 1 else (1,), ordinal),
        Parameter("grid_k", grid if outer == 1 and has_barrier(kit) else (1,), ordinal),
    )


def has_barrier(kit: Kit) -> bool:
    """True when units can wait for one another."""
    return kit.atoms.usable(Computation(Kind.SYNC, BARRIER, (), ())) is not None


def contiguous(contraction: Contraction, side: Side, axis: str) -> bool:
    """True when the factor is an input in which ``axis`` has stride one."""
    if side.source is None or axis not in side.source_labels:
        return False
    strides = contraction.program.inputs[side.source].type.element_strides
    return strides[side.source_labels.index(axis)] == 1


def _pack_a(contraction: Contraction, unit: MatrixUnit) -> tuple[str, ...]:
    side = contraction.a
    along_k = contiguous(contraction, side, K)
    if not unit.is_vector:
        return ("none", "rows") if _direct_a(contraction, unit) else ("rows",)
    ways = ["panel"]
    if along_k or side.source is None:
        ways.insert(0, "rows")
    if side.source is not None:
        ways.insert(0, "none")
    return tuple(ways)


def _direct_a(contraction: Contraction, unit: MatrixUnit) -> bool:
    """True when a tile unit can load its first factor in place: whole tiles, row by row."""
    um, _, uk = unit.tile
    whole = contraction.m % um == 0 and contraction.k % uk == 0
    return whole and contraction.a.dtype is unit.a and order_of(contraction, contraction.a, M) == K


def _pack_b(contraction: Contraction, unit: MatrixUnit, constant_b: bool) -> tuple[str, ...]:
    side = contraction.b
    ways = ["block"]
    if unit.is_vector and contiguous(contraction, side, N):
        ways.insert(0, "none")
    if constant_b and side.source is not None:
        ways.append("ahead")
    return tuple(ways)


DEFINITIONS = tuple(
    Definition(name, text)
    for name, text in (
        ("tile_m", "rows * um"),
        ("tile_n", "columns * un"),
        ("grid_n", "units // (grid_m * grid_o * grid_k)"),
        ("m_total", "ceil_div(m, tile_m)"),
        ("n_total", "ceil_div(n, tile_n)"),
        ("m_share", "ceil_div(m_total, grid_m)"),
        ("n_share", "ceil_div(n_total, max(grid_n, 1))"),
        ("m_held", "min(m_tiles, m_share)"),
        ("n_held", "min(n_tiles, n_share)"),
        ("k_blocks", "ceil_div(k, kc)"),
        ("depth", "min(kc, round_up(k, uk))"),
        ("a_block_bytes", "m_held * tile_m * depth * a_bytes"),
        ("held_a", "inner == 'mn' or m_held == 1"),
        ("b_block_depth", "depth * (1 + (order == 'nmk') * (k_blocks - 1))"),
        ("b_block_bytes", "n_held * tile_n * b_block_depth * b_bytes"),
    )
)


def _registers(unit: MatrixUnit) -> Constraint:
    """Accumulators and factors of a register tile fit the registers of the unit's kind."""
    if not unit.is_vector:
        return Constraint(
            "contraction.registers",
            "rows * columns + min(rows, columns) + min(max(rows, columns), 2) <= registers",
            "{rows} x {columns} accumulators and their factors exceed {registers} tiles",
        )
    return Constraint(
        "contraction.registers",
        "rows * columns + columns <= registers",
        "{rows} x {columns} accumulators and {columns} of the second factor exceed "
        "{registers} vector registers",
    )


CONSTRAINTS = (
    Constraint(
        "contraction.stream-lines",
        "not stream or tile_n * least_out % line == 0",
        "non-temporal stores of {tile_n} elements of {least_out} B leave lines of {line} B open",
    ),
    Constraint(
        "contraction.code-size",
        "rows * columns * unroll <= code_limit",
        "{rows} x {columns} x {unroll} multiply-accumulates exceed {code_limit} a loop body",
    ),
    Constraint(
        "contraction.shallow",
        "kc >= shallow or kc >= k or (m <= shallow and pack_b == 'none')",
        "a depth of {kc} reads the sums of {m} rows again every {kc} steps",
    ),
    Constraint(
        "contraction.grid",
        "units % (grid_m * grid_o * grid_k) == 0",
        "{units} units do not divide into {grid_o} x {grid_m} x {grid_k} parts",
    ),
    Constraint(
        "contraction.idle-units",
        "grid_o <= outer and grid_m <= m_total and grid_n <= n_total and grid_k <= k_blocks",
        "{grid_o} x {grid_m} x {grid_n} x {grid_k} parts for {outer} x {m_total} x {n_total} "
        "x {k_blocks} tiles",
    ),
    Constraint(
        "contraction.block-m",
        "m_tiles < 2 * m_share",
        "a block of {m_tiles} tiles where {m_share} are all",
    ),
    Constraint(
        "contraction.block-n",
        "n_tiles < 2 * n_share",
        "a block of {n_tiles} tiles where {n_share} are all",
    ),
    Constraint(
        "contraction.order",
        "order == 'nkm' or (m_tiles < m_share and n_tiles < n_share)"
        " or (kc < k and (m_tiles < m_share or n_tiles < n_share))"
        " or (n_tiles < n_share and pack_a != 'none')"
        " or (m_tiles < m_share and pack_b == 'block')",
        "the order of block loops makes no difference: one block, or nothing packed inside it",
    ),
    Constraint(
        "contraction.block-m-alone",
        "order != 'nkm' or pack_a != 'none' or not held_a or m_tiles >= m_share",
        "blocks of {m_tiles} row tiles that are neither packed nor passed over twice: tiles come "
        "in the same order as in one block of all",
    ),
    Constraint(
        "contraction.block-n-alone",
        "order != 'mkn' or pack_b == 'block' or held_a or n_tiles >= n_share",
        "blocks of {n_tiles} column tiles that are neither packed nor passed over twice: tiles "
        "come in the same order as in one block of all",
    ),
    Constraint(
        "contraction.unroll",
        "unroll <= max(depth // uk, 1)",
        "{unroll} steps an iteration exceed a block of {depth}",
    ),
    Constraint(
        "contraction.inner",
        "inner == 'nm' or (m_held > 1 and n_held > 1)",
        "one tile along an axis: the order of tile loops makes no difference",
    ),
    Constraint(
        "contraction.pack-a-memory",
        "pack_a == 'none' or a_block_bytes <= cache",
        "a packed block of {a_block_bytes} B exceeds the last-level cache of {cache} B",
    ),
    Constraint(
        "contraction.pack-b-memory",
        "pack_b != 'block' or b_block_bytes <= cache",
        "a packed block of {b_block_bytes} B exceeds the last-level cache of {cache} B",
    ),
)
"""What every unit's space demands beside its registers."""

VECTOR_CONSTRAINTS = (
    Constraint(
        "contraction.stream",
        "not stream or (out_bytes > outer_cache and kc >= k)",
        "non-temporal stores of {out_bytes} B that fit {outer_cache} B, or that are read again",
    ),
    Constraint(
        "contraction.prefetch",
        "prefetch == 0 or (pack_b == 'none' and b_all_bytes > outer_cache and depth > shallow)",
        "prefetching {prefetch} steps ahead is for blocks deeper than {shallow} (this: {depth}) "
        "of a second factor read in place whose {b_all_bytes} B exceed {outer_cache} B",
    ),
)
TILE_CONSTRAINTS = (
    Constraint(
        "contraction.stream",
        "not stream or (a_all_bytes + b_all_bytes + out_bytes > outer_cache"
        " and (kc >= k or sums_apart == 1))",
        "non-temporal stores of {out_bytes} B where factors of {a_all_bytes} and {b_all_bytes} B "
        "and the output fit {outer_cache} B, or that are read again",
    ),
    Constraint(
        "contraction.prefetch",
        "prefetch == 0 or (held_a and a_all_bytes + b_all_bytes > outer_cache)",
        "the next panel is asked for where panels of the first factor are held (inner {inner}), "
        "and the factors' {a_all_bytes} and {b_all_bytes} B exceed {outer_cache} B",
    ),
    Constraint(
        "contraction.order-inside",
        "order != 'nmk' or (kc < k and m_tiles < m_share and grid_k == 1"
        " and (n_tiles < n_share or pack_b == 'block'))",
        "k is the inner loop of blocks only where it has several, and where rows do: another "
        "order gives the same code",
    ),
    Constraint(
        "contraction.finish",
        "finish == 'after' or (held_a and n_held > 1 and n % tile_n == 0 and grid_k == 1)",
        "sums are finished beside the products of the next tile of the same rows: several whole "
        "tiles, the inner loop over columns (inner {inner}, {n_held} tiles)",
    ),
)


def _of_kind(unit: MatrixUnit) -> tuple[Constraint, ...]:
    return VECTOR_CONSTRAINTS if unit.is_vector else TILE_CONSTRAINTS
