"""Matrix units: the multiply-accumulate atoms a contraction can be built from.

A unit is an MMA atom with its tile geometry. One vector FMA is a tile of 1 x lanes x 1; a tile
instruction is 16 x 16 x 32; an outer-product instruction 16 x 16 x 1. The lowering is the same.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.atoms.contract import Atom, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Refusal
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.recipes.contraction.match import Contraction
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


def vector_lanes(unit: MatrixUnit) -> int:
    """Width of a vector unit's registers in 32-bit lanes, as :class:`Kit` counts them."""
    lanes = unit.tile[1]
    return max(1, lanes * unit.acc.bits // 32) if lanes > 1 else 1


_EXACT = {
    (DType.BF16, DType.F32),
    (DType.F16, DType.F32),
    (DType.F32, DType.F64),
    (DType.BF16, DType.F64),
    (DType.F16, DType.F64),
    (DType.I8, DType.I32),
}


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
        if side.dtype is not takes and (side.dtype, takes) not in _EXACT:
            return f"takes {takes.value}, the factor is {side.dtype.value}"
    return ""
