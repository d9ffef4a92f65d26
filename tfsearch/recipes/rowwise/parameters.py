"""Parameters and constraints of row-wise candidates."""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.core.records import ParamValue
from tfsearch.recipes.recipe import Kit
from tfsearch.recipes.rowwise.beside import staged_slots
from tfsearch.recipes.rowwise.match import Pipeline
from tfsearch.recipes.rowwise.plan import Plan, divides_by_rows
from tfsearch.recipes.rowwise.schedule import (
    EXACT,
    RECIPROCAL,
    REGISTERS,
    REREAD,
    STAGED,
    Geometry,
)
from tfsearch.space import Constraint, Definition, Kind, Parameter, RecipeSpace

VERSION = 3
NAMES = {Pipeline.ROWS: "rowwise.rows", Pipeline.COLUMNS: "rowwise.columns"}
SPARE_REGISTERS = 8
"""Registers left to temporaries and constants of maths functions."""
_COUNTS = (1, 2, 4, 8)


@dataclass(frozen=True)
class Footprint:
    """Bytes of all arguments (``total``), and per element of what staging keeps (``staged``)."""

    total: int
    staged: int

    @staticmethod
    def of(plan: Plan) -> Footprint:
        """Of a program."""
        every = (*plan.domain.inputs, *plan.domain.outputs)
        staged = sum(8 if _is_wide(plan, v) else 4 for v in plan.staged)
        return Footprint(sum(a.type.bytes for a in every), staged)


def _is_wide(plan: Plan, value: int) -> bool:
    return plan.domain.program.ops[value].type.dtype.bytes == 8


def space_of(plan: Plan, kit: Kit, lanes: tuple[int, ...]) -> RecipeSpace:
    """The space of a program; ``lanes`` are the widths for which all instructions exist."""
    domain, geometry = plan.domain, Geometry.of(plan.domain)
    rows = domain.pipeline is Pipeline.ROWS
    size = Footprint.of(plan)
    widths = tuple(sorted(lanes))
    beyond_cache = size.total > (kit.caches[-1] if kit.caches else 0)
    far = size.total > (kit.caches[:2] or (0,))[-1]
    walks = len(plan.passes) - 1
    chains = geometry.deep if not rows else geometry.lines
    parameters = (
        Parameter("lanes", widths, Kind.ORDINAL),
        Parameter("unroll", _upto(geometry.extent // widths[0]), Kind.ORDINAL),
        Parameter("rows", _upto(chains), Kind.ORDINAL),
        Parameter("staging", _stagings(plan, kit, widths), Kind.CATEGORICAL),
        Parameter(
            "divide", (EXACT, RECIPROCAL) if divides_by_rows(domain) else (EXACT,), Kind.CATEGORICAL
        ),
        _flag("prefetch", rows and walks > 1 and far and bool(plan.fetched)),
        _flag("beside", rows and walks > 1 and kit.staging is not None),
        _flag("stream", bool(plan.element_outputs) and beyond_cache),
        Parameter("units", tuple(sorted(kit.units)), Kind.ORDINAL),
    )
    constants: dict[str, ParamValue] = {
        "extent": geometry.extent,
        "lines": geometry.lines,
        "deep": geometry.deep,
        "live": plan.live,
        "accumulators": max(1, plan.accumulators),
        "staged_bytes": size.staged,
        "memory": max(kit.caches, default=1 << 20),
        "narrowest": widths[0],
        "spare": SPARE_REGISTERS,
        "walks": walks,
        "slots": staged_slots(plan),
    }
    return RecipeSpace(
        NAMES[domain.pipeline],
        VERSION,
        parameters,
        _definitions(kit, widths, rows),
        (*_common(), *((*_rows(), *_beside()) if rows else _columns())),
        constants,
    )


def _upto(most: int) -> tuple[int, ...]:
    return tuple(n for n in _COUNTS if n == 1 or n <= most)


def _flag(name: str, useful: bool) -> Parameter:
    return Parameter(name, (False, True) if useful else (False,), Kind.BOOLEAN)


def _stagings(plan: Plan, kit: Kit, widths: tuple[int, ...]) -> tuple[str, ...]:
    geometry = Geometry.of(plan.domain)
    out = [REREAD]
    if plan.staged and kit.staging is not None:
        out.append(STAGED)
    fits = any(
        -(-geometry.extent // w) * plan.live + SPARE_REGISTERS <= kit.registers[w] for w in widths
    )
    if geometry.pipeline is Pipeline.ROWS and geometry.deep == 1 and fits:
        out.append(REGISTERS)
    return tuple(out)


def _definitions(kit: Kit, widths: tuple[int, ...], rows: bool) -> tuple[Definition, ...]:
    registers = str(kit.registers[widths[0]])
    for width in widths[1:]:
        registers = f"{kit.registers[width]} if lanes == {width} else ({registers})"
    groups = "ceil_div(lines, rows)" if rows else "lines * ceil_div(extent, unroll * lanes)"
    staged = (
        "(slots if beside else 1) * rows * deep * round_up(extent, lanes) * staged_bytes"
        if rows
        else "unroll * deep * lanes * staged_bytes"
    )
    return (
        Definition("registers", registers),
        Definition("groups", groups),
        Definition("together", "walks if beside else 1"),
        Definition("fragments", "ceil_div(extent, lanes)"),
        Definition("held", "fragments * rows * live + spare"),
        Definition("kept_bytes", staged),
    )


def _common() -> tuple[Constraint, ...]:
    return (
        Constraint(
            "rowwise.lanes-wasted",
            "lanes == narrowest or lanes < 2 * extent",
            "{lanes} lanes for {extent} elements: half of every vector would be empty",
        ),
        Constraint(
            "rowwise.unroll-extent",
            "unroll == 1 or unroll * lanes <= extent",
            "{unroll} fragments of {lanes} lanes exceed the {extent} elements along them",
        ),
        Constraint(
            "rowwise.accumulators",
            "rows * unroll * accumulators * together * 2 <= registers",
            "{rows} x {unroll} fragments of {together} passes with {accumulators} accumulators "
            "each take more than half of {registers} registers",
        ),
        Constraint(
            "rowwise.code-size",
            "rows * unroll * together <= 16",
            "{rows} x {unroll} fragments of {together} passes a step: more than 16 only bloat the "
            "code",
        ),
        Constraint(
            "rowwise.units-idle",
            "units <= groups",
            "{units} units for {groups} groups of work: some would idle",
        ),
        Constraint(
            "rowwise.stream-partial",
            "stream == False or lanes <= extent",
            "short fragments of {extent} elements are never streamed",
        ),
        Constraint(
            "rowwise.staging-memory",
            f"staging != '{STAGED}' or kept_bytes <= memory",
            "{kept_bytes} bytes of staged values exceed the {memory} bytes of the largest cache",
        ),
    )


def _rows() -> tuple[Constraint, ...]:
    return (
        Constraint(
            "rowwise.registers-unroll",
            f"staging != '{REGISTERS}' or unroll == 1",
            "a row in registers is unrolled as a whole: unroll {unroll} has no effect",
        ),
        Constraint(
            "rowwise.registers-fit",
            f"staging != '{REGISTERS}' or held <= registers",
            "{fragments} fragments of {rows} rows with {live} values each and {spare} "
            "temporaries need {held} registers of {registers}",
        ),
        Constraint(
            "rowwise.rows-lines",
            "rows == 1 or rows <= lines",
            "{rows} rows at a time of only {lines}",
        ),
        Constraint(
            "rowwise.prefetch-effect",
            f"prefetch == False or (staging != '{REGISTERS}' and unroll * lanes <= extent "
            "and groups >= 2 * units)",
            "nothing to fetch ahead: {groups} groups on {units} units, steps of {unroll} x "
            "{lanes} in {extent} elements",
        ),
    )


def _beside() -> tuple[Constraint, ...]:
    return (
        Constraint(
            "rowwise.beside",
            f"beside == False or (staging != '{REGISTERS}' and (groups - 1) // units >= walks)",
            "{walks} passes side by side need memory between them (staging {staging}), and {walks} "
            "of the {groups} groups on each of {units} units",
        ),
    )


def _columns() -> tuple[Constraint, ...]:
    return (
        Constraint(
            "rowwise.rows-deep",
            "rows == 1 or rows <= deep",
            "{rows} accumulators for {deep} rows",
        ),
    )
