"""What the pipelines of contractions share: sizes of a reduced form, parameters, register tiles."""

from __future__ import annotations

from collections.abc import Mapping

from tfsearch.atoms.contract import Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.program import Program
from tfsearch.recipes.contraction.match import Contraction
from tfsearch.recipes.resize import DimensionClasses, Position


def resized(c: Contraction, sizes: Mapping[str, int]) -> Program:
    """The program with other extents of its axes; ``RequestError`` where it pins its sizes."""
    classes = DimensionClasses(c.program)
    wanted: dict[Position, int] = {}
    parts = ((c.a.value, c.a.labels), (c.b.value, c.b.labels), (c.value, c.labels))
    for value, labels in parts:
        for dim, axis in enumerate(labels):
            if axis is not None:
                wanted[classes.of(value, dim)] = sizes[axis]
    return classes.resized(wanted)


def number(params: Mapping[str, ParamValue], name: str) -> int:
    """A parameter that is a whole number."""
    value = params[name]
    assert isinstance(value, int)
    return value


def require_equal_factors(c: Contraction, code: str) -> None:
    """``RequestError`` with the code for factors of two types."""
    if c.a.dtype is not c.b.dtype:
        raise RequestError(code, f"the factors are {c.a.dtype.value} and {c.b.dtype.value}")


def stored_widths(
    c: Contraction, atoms: AtomTable, rows: int, acc: DType, code: str
) -> tuple[int, ...]:
    """Columns of the register tiles of so many rows that every output is stored from, widest first.

    ``RequestError`` with the code when there are none.
    """
    stored = {c.program.ops[output.value].type.dtype for output in c.outputs}
    found = set.intersection(*(_tile_widths(atoms, rows, acc, dtype) for dtype in stored))
    if not found:
        raise RequestError(code, "no stores of the result's type from register tiles")
    return tuple(sorted(found, reverse=True))


def _tile_widths(atoms: AtomTable, rows: int, acc: DType, store: DType) -> set[int]:
    found: set[int] = set()
    for atom in atoms.values():
        computes = atom.computes
        if (
            computes.kind is Kind.STORE
            and len(computes.shape) == 2
            and computes.shape[0] == rows
            and computes.dtypes == (store, acc)
            and atom.features <= atoms.features
        ):
            found.add(computes.shape[1])
    return found
