"""Matrix units: the multiply-accumulate atoms a contraction can be built from.

A unit is an MMA atom with its tile geometry. One vector FMA is a tile of 1 x lanes x 1; a tile
instruction is 16 x 16 x 32; an outer-product instruction 16 x 16 x 1. The lowering is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tfsearch.atoms.contract import Atom, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Refusal
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.recipes.contraction.match import Contraction, K, N, Side
from tfsearch.recipes.fragments import compute_dtype


@dataclass(frozen=True)
class MatrixUnit:
    """An MMA atom: ``acc[m, n] += a[m, k] * b[k, n]`` over one tile."""

    atom: Atom

    @property
    def name(self) -> str:
        """The atom's id."""
        return self.atom.id

    @property
    def tile(self) -> tuple[int, int, int]:
        """Rows, columns and depth of one tile."""
        m, n, k = self.atom.computes.shape
        return m, n, k

    @property
    def acc(self) -> DType:
        """Element type of the accumulator."""
        return self.atom.computes.dtypes[0]

    @property
    def a(self) -> DType:
        """Element type in which the unit takes the first factor."""
        return self.atom.computes.dtypes[1]

    @property
    def b(self) -> DType:
        """Element type in which the unit takes the second factor."""
        return self.atom.computes.dtypes[2]

    @property
    def space(self) -> MemorySpace:
        """Where accumulators live."""
        (space,) = self.atom.operands[0].spaces
        return space

    @property
    def is_vector(self) -> bool:
        """True when a tile is one row of lanes in a vector register."""
        return self.space is MemorySpace.REGISTER

    @property
    def group(self) -> int:
        """How many consecutive k of one column lie side by side in the unit's second operand."""
        if self.is_vector:
            return 1
        _, n, _ = self.tile
        return self.atom.operands[2].shape[-1] // n

    def tile_registers(self, rows: int, columns: int) -> tuple[int, int, int]:
        """Tile registers of a block of unit tiles: accumulators, first and second factors.

        The factors of the shorter side stay; those of the longer side pass through two registers,
        so that one is loaded while the other is used.
        """
        a, b = (min(rows, 2), columns) if rows >= columns else (rows, min(columns, 2))
        return rows * columns, a, b


def vector_lanes(unit: MatrixUnit) -> int:
    """Width of a vector unit's registers in 32-bit lanes, as :class:`Kit` counts them."""
    lanes = unit.tile[1]
    return max(1, lanes * unit.acc.bits // 32) if lanes > 1 else 1


def narrower(
    unit: MatrixUnit, units: Sequence[MatrixUnit], cycles: Callable[[str], float]
) -> MatrixUnit | None:
    """The widest of the vector units with fewer lanes that takes the least, and less, time."""
    types = unit.atom.computes.dtypes
    found = [
        one
        for one in units
        if unit.is_vector
        and one.is_vector
        and one.atom.computes.dtypes == types
        and one.tile[1] < unit.tile[1]
        and cycles(one.name) < cycles(unit.name)
    ]
    return min(found, key=lambda one: (cycles(one.name), -one.tile[1]), default=None)


def matrix_units(
    contraction: Contraction, atoms: AtomTable
) -> tuple[list[MatrixUnit], list[Refusal]]:
    """Units that can carry a contraction exactly, and why each other one cannot."""
    units: list[MatrixUnit] = []
    refusals: list[Refusal] = []
    for atom in atoms.values():
        if atom.computes.kind is not Kind.MMA:
            continue
        reason = _reason(contraction, atom, atoms)
        if reason:
            refusals.append(Refusal("atom.refused", atom.id, reason))
        else:
            units.append(MatrixUnit(atom))
    return units, refusals


def _reason(contraction: Contraction, atom: Atom, atoms: AtomTable) -> str:
    missing = sorted(atom.features - atoms.features)
    if missing:
        return f"needs {', '.join(missing)}"
    acc, a, b = atom.computes.dtypes
    wanted = compute_dtype(contraction.acc)
    if acc is not wanted:
        return f"accumulates in {acc.value}, wanted {wanted.value}"
    for side, takes in ((contraction.a, a), (contraction.b, b)):
        if side.dtype is not takes and not side.dtype.widens_to(takes):
            return f"takes {takes.value}, the factor is {side.dtype.value}"
    return "" if MatrixUnit(atom).is_vector else _tile_reason(contraction, b)


def _tile_reason(contraction: Contraction, takes: DType) -> str:
    """Tile units pack the second factor from an input: rows of n, or of k, one after another."""
    side = contraction.b
    if side.source is None or side.dtype is not takes:
        return f"takes its second factor from an input of {takes.value}"
    if order_of(contraction, side, N) is None:
        return "takes a second factor whose innermost axis is the sum's or the result's"
    return ""


def order_of(contraction: Contraction, side: Side, axis: str) -> str | None:
    """The contiguous axis, K or ``axis``, of a factor that is a matrix stored row by row in it.

    None where the factor is computed, or where neither axis is contiguous and innermost.
    """
    labels = side.source_labels
    if side.source is None or axis not in labels or K not in labels:
        return None
    strides = contraction.program.inputs[side.source].type.element_strides
    inner = K if labels.index(K) > labels.index(axis) else axis
    return inner if strides[labels.index(inner)] == 1 else None
