"""Parameters and constraints of maps."""

from __future__ import annotations

from tfsearch.core.records import ParamValue
from tfsearch.recipes.domain import flat_size
from tfsearch.recipes.map.lower import PLENTY, STRIDED, TRANSPOSE
from tfsearch.recipes.map.match import Domain
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Constraint, Definition, Kind, Parameter, RecipeSpace

NAME = "map"
VERSION = 1
_COUNTS = (1, 2, 4, 8)


def space_of(
    domain: Domain, kit: Kit, lanes: tuple[int, ...], turning: tuple[int, ...]
) -> RecipeSpace:
    """The space of a map; ``lanes`` are the widths for which all instructions exist, ``turning``
    those that can also turn the inputs that need it.
    """
    extents = domain.extents
    widths = tuple(sorted(lanes))
    along = extents[domain.turn] if domain.turn else 1
    total = sum(a.type.bytes for a in (*domain.inputs, *domain.outputs))
    contiguous = any(
        domain.lane in own and a.strides[own.index(domain.lane)] == 1
        for a, own in zip(domain.outputs, domain.labels, strict=True)
    )
    beyond_cache = total > (kit.caches[-1] if kit.caches else 0)
    blocks = tuple(n for n in _COUNTS if n == 1 or n * widths[0] < 2 * along) if turning else (1,)
    parameters = (
        Parameter("lanes", widths, Kind.ORDINAL),
        Parameter("unroll", _unrolls(extents[domain.lane], widths[0]), Kind.ORDINAL),
        Parameter("gather", (STRIDED, TRANSPOSE) if turning else (STRIDED,), Kind.CATEGORICAL),
        Parameter("block", blocks, Kind.ORDINAL),
        Parameter(
            "stream", (False, True) if contiguous and beyond_cache else (False,), Kind.BOOLEAN
        ),
        Parameter("units", tuple(sorted(kit.units)), Kind.ORDINAL),
    )
    constants: dict[str, ParamValue] = {
        "extent": extents[domain.lane],
        "lines": flat_size(domain.axes, extents),
        "along": along,
        "plenty": PLENTY,
        "narrowest": widths[0],
    }
    return RecipeSpace(NAME, VERSION, parameters, _definitions(), _constraints(turning), constants)


def _unrolls(extent: int, narrowest: int) -> tuple[int, ...]:
    return tuple(n for n in _COUNTS if n == 1 or n * narrowest <= extent)


def _definitions() -> tuple[Definition, ...]:
    turns = f"gather == '{TRANSPOSE}'"
    return (
        Definition("chunks", "ceil_div(extent, unroll * lanes)"),
        Definition("tiles", "ceil_div(along, lanes)"),
        Definition("groups", "lines // along * ceil_div(tiles, block)"),
        Definition("shares", f"groups if {turns} else max(lines, chunks)"),
        Definition(
            "by_lines",
            "units == 1 or lines % units == 0 or lines >= plenty * units or chunks < units",
        ),
    )


def _constraints(turning: tuple[int, ...]) -> tuple[Constraint, ...]:
    able = " or ".join(f"lanes == {width}" for width in turning) or "lanes == 0"
    return (
        Constraint(
            "map.lanes-wasted",
            "lanes == narrowest or lanes < 2 * extent",
            "{lanes} lanes for {extent} elements: half of every vector would be empty",
        ),
        Constraint(
            "map.unroll-extent",
            "unroll == 1 or unroll * lanes <= extent",
            "{unroll} fragments of {lanes} lanes exceed the {extent} elements along them",
        ),
        Constraint(
            "map.transpose-lanes",
            f"gather != '{TRANSPOSE}' or {able}",
            "no instruction turns tiles of {lanes} x {lanes}",
        ),
        Constraint(
            "map.transpose-unroll",
            f"gather != '{TRANSPOSE}' or unroll == 1",
            "turned tiles are walked row by row: unroll {unroll} has no effect",
        ),
        Constraint(
            "map.block-effect",
            f"block == 1 or (gather == '{TRANSPOSE}' and block < 2 * tiles)",
            "a block of {block} tiles has no effect on {tiles} tiles ({gather})",
        ),
        Constraint(
            "map.stream-partial",
            "stream == False or lanes <= extent",
            "short fragments of {extent} elements are never streamed",
        ),
        Constraint(
            "map.units-idle",
            "units <= shares",
            "{units} units for {shares} shares of work: some would idle",
        ),
    )
