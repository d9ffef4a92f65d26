"""Parameters and constraints of the dot pipeline of a contraction, one space per vector width."""

from __future__ import annotations

from tfsearch.recipes.contraction.dot import COLUMNS_OUTSIDE, ROWS_OUTSIDE, Dot, width_of
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Constraint, Definition, Parameter, RecipeSpace
from tfsearch.space import Kind as Order

VERSION = 1
MAX_ROWS = 8
MAX_COLUMNS = 16
UNROLLS = (1, 2, 4)
INDEPENDENT = 16
"""Sums that no processor can have more of in flight: 2 pipes, 4 to 6 cycles each, and some."""
CODE_LIMIT = 80
"""Most multiply-adds in the text of one loop body; leftovers along k double it."""


def dot_space(dot: Dot, kit: Kit) -> RecipeSpace:
    """The space of one vector width."""
    units = kit.units
    grid = tuple(sorted({d for u in units for d in range(1, u + 1) if u % d == 0}))
    rows, columns = dot.extent(dot.row), dot.extent(dot.column)
    ordinal = Order.ORDINAL
    return RecipeSpace(
        name=dot.name,
        version=VERSION,
        parameters=(
            Parameter("rows", tuple(range(1, min(MAX_ROWS, rows) + 1)), ordinal),
            Parameter("columns", tuple(range(1, min(MAX_COLUMNS, columns) + 1)), ordinal),
            Parameter("unroll", UNROLLS, ordinal),
            Parameter("sums", UNROLLS, ordinal),
            Parameter("order", (COLUMNS_OUTSIDE, ROWS_OUTSIDE), Order.CATEGORICAL),
            Parameter("units", units, ordinal),
            Parameter("grid_rows", grid, ordinal),
            Parameter("grid_outer", grid if dot.outer > 1 else (1,), ordinal),
        ),
        definitions=DEFINITIONS,
        constraints=CONSTRAINTS,
        constants={
            "all_rows": rows,
            "all_columns": columns,
            "k": dot.contraction.k,
            "outer": dot.outer,
            "vectors": dot.vectors,
            "registers": kit.registers[width_of(dot)],
            "independent": INDEPENDENT,
            "code_limit": CODE_LIMIT,
        },
    )


DEFINITIONS = tuple(
    Definition(name, text)
    for name, text in (
        ("grid_columns", "units // (grid_rows * grid_outer)"),
        ("row_tiles", "ceil_div(all_rows, rows)"),
        ("column_tiles", "ceil_div(all_columns, columns)"),
        ("row_share", "ceil_div(row_tiles, grid_rows)"),
        ("column_share", "ceil_div(column_tiles, max(grid_columns, 1))"),
    )
)

CONSTRAINTS = (
    Constraint(
        "dot.registers",
        "rows * columns * sums + min(rows, columns) + 1 <= registers",
        "{rows} x {columns} x {sums} accumulators and their factors exceed {registers} vector "
        "registers",
    ),
    Constraint(
        "dot.code-size",
        "rows * columns * unroll <= code_limit",
        "{rows} x {columns} x {unroll} multiply-adds exceed {code_limit} a loop body",
    ),
    Constraint(
        "dot.unroll",
        "unroll <= vectors",
        "{unroll} vectors a step where a sum has {vectors}",
    ),
    Constraint(
        "dot.sums",
        "sums <= unroll and (sums == 1 or rows * columns * sums <= independent)",
        "{sums} accumulators for each of {rows} x {columns} sums: more than {unroll} vectors a "
        "step fill, or than the {independent} that can be in flight",
    ),
    Constraint(
        "dot.grid",
        "units % (grid_rows * grid_outer) == 0",
        "{units} units do not divide into {grid_outer} x {grid_rows} parts",
    ),
    Constraint(
        "dot.idle-units",
        "grid_outer <= outer and grid_rows <= row_tiles and grid_columns <= column_tiles",
        "{grid_outer} x {grid_rows} x {grid_columns} parts for {outer} x {row_tiles} x "
        "{column_tiles} tiles",
    ),
    Constraint(
        "dot.order",
        "order == 'columns' or (row_share > 1 and column_share > 1)",
        "one tile along an axis: the order of tile loops makes no difference",
    ),
)
