"""Fused elementwise work on tiles of an accumulator that a team of warps holds."""

from __future__ import annotations

from collections.abc import Mapping

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.expr import Const, Expr, ExprLike
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, Scalar, Window, window
from tfsearch.recipes.contraction.match import M, N
from tfsearch.recipes.fragments import (
    Fragments,
    FragmentTile,
    Labels,
    Lanes,
    Place,
    alignment_of,
    compute_dtype,
)

ALIGNED, STAGE = "aligned", "stage"


class RegisterTile(FragmentTile):
    """Values of a tile of rows x columns; rows run along m, columns along n.

    ``height`` and ``lanes.valid`` are what exists of the rows and columns.
    """

    def __init__(
        self,
        owner: Fragments,
        place: Place,
        rows: int,
        height: Expr,
        lanes: Lanes,
        fragment: str,
        leaves: Mapping[int, Window],
    ) -> None:
        super().__init__(owner, place, lanes, dict(leaves))
        self.rows = rows
        self.height = height
        self.fragment = fragment

    def register(self, stem: str, dtype: DType) -> Window:
        """A fresh register tile."""
        shape = (self.rows, self.lanes.count)
        buffer = self.owner.builder.alloc(
            stem, dtype, shape, MemorySpace.REGISTER, alignment=4, fragment=self.fragment
        )
        return window(buffer, (0, self.rows), (0, self.lanes.count))

    def call(
        self,
        kind: Kind,
        fn: str,
        dtypes: tuple[DType, ...],
        *operands: Window | Scalar,
        partial: bool = False,
    ) -> None:
        """Call the atom that computes this on whole tiles."""
        self.owner.builder.call(
            self.owner.atom(self._computation(kind, fn, dtypes, partial=partial)), *operands
        )

    def _computation(
        self, kind: Kind, fn: str, dtypes: tuple[DType, ...], *, partial: bool
    ) -> Computation:
        shape = (self.rows, self.lanes.count)
        return Computation(kind, fn, shape, dtypes, self.owner.accuracy.value, partial)

    def _has(self, kind: Kind, fn: str, dtypes: tuple[DType, ...]) -> bool:
        return self.owner.atoms.usable(self._computation(kind, fn, dtypes, partial=False)) is not (
            None
        )

    def load(self, buffer: Buffer, labels: Labels) -> Window:
        """A tile of an argument, or one row, column or element of it in all of the tile."""
        dtype = compute_dtype(buffer.dtype)
        out = self.register("x", dtype)
        source, types = self.memory(buffer, labels), (dtype, buffer.dtype)
        axes = [axis for axis in labels if axis in (M, N)]
        if not axes:
            self.call(Kind.SPLAT, "", types, out, source)
            return out
        if axes == [M]:
            self.call(Kind.LOAD, "column", types, out, source, partial=True)
            return out
        if axes not in ([N], [M, N]) or buffer.dense_strides[labels.index(N)] != 1:
            raise RequestError("recipe.ring", f"{buffer.name} is not stored row by row")
        self.call(Kind.LOAD, "row" if axes == [N] else "", types, out, source, partial=True)
        return out

    def store(
        self, source: Window, buffer: Buffer, labels: Labels, *, stream: bool = False
    ) -> None:
        """A tile into an output that is stored row by row."""
        del stream
        axes = [axis for axis in labels if axis in (M, N)]
        if axes != [M, N] or buffer.dense_strides[labels.index(N)] != 1:
            raise RequestError("recipe.ring", f"{buffer.name} is not stored row by row")
        target, types = self.memory(buffer, labels), (buffer.dtype, source.buffer.dtype)
        computes = self._computation(Kind.STORE, ALIGNED, types, partial=True)
        found = self.owner.atoms.usable(computes)
        fits = found is not None and alignment_of(target) % found.operands[0].alignment == 0
        self.call(Kind.STORE, ALIGNED if fits else "", types, target, source, partial=True)

    def stage(self, source: Window, into: Window) -> None:
        """A tile into a tile of shared memory that a copy takes from there."""
        self.call(Kind.STORE, STAGE, (into.buffer.dtype, source.buffer.dtype), into, source)

    def memory(self, buffer: Buffer, labels: Labels) -> Window:
        """The memory window of this tile."""
        dims: list[tuple[ExprLike, ExprLike]] = [(0, 1)] * (len(buffer.shape) - len(labels))
        for axis in labels:
            if axis is None:
                dims.append((0, 1))
            elif axis == M:
                dims.append((self.place[M], self.height))
            elif axis == N:
                dims.append((self.place[N], self.lanes.valid))
            else:
                dims.append((self.place.get(axis, Const(0)), 1))
        return window(buffer, *dims)
