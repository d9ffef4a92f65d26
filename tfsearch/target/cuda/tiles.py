"""Atoms of register tiles: elementwise work on what matrix units leave in registers.

A tile is 64 rows of 8, 16 or 32 columns in the fragment ``m64`` of 128 threads. Costs are cycles
of one SM of sm_90a for the whole tile (origin: derived).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfsearch.atoms import semantics as meaning
from tfsearch.atoms.contract import (
    Access,
    Atom,
    AtomCost,
    Computation,
    Kind,
    OperandSpec,
    TileLayout,
)
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Swizzle
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.target.cuda.threads import ACCESS_RATE, F32_RATE, SPECIAL_RATE

ROWS = 64
COLUMNS = (32, 16, 8)
SPAN = 64
"""Elements of 16 bits in a row of a swizzled tile."""
SWIZZLE = Swizzle(3, 3, 3)
"""Of rows of 64 elements of 16 bits: 16-byte pieces change places within groups of eight rows."""
FRAGMENT = "m64"
WARPS = 4
F32 = DType.F32
TYPES = (DType.BF16, DType.F16, F32)
GLOBAL = frozenset({MemorySpace.GLOBAL})
SHARED = frozenset({MemorySpace.SHARED})
REGISTER = frozenset({MemorySpace.REGISTER})
BASE = frozenset({"wgmma"})
_SPECIAL = frozenset(meaning.UNARY) - {"neg", "abs", "floor", "ceil", "round", "sign"}


def tile_atoms() -> Iterator[Atom]:
    """Loads, stores and elementwise functions of tiles of every width."""
    for columns in COLUMNS:
        for dtype in TYPES:
            yield from _loads(columns, dtype)
            yield from _stores(columns, dtype)
            if dtype is not F32:
                yield from _stages(columns, dtype)
        yield from _functions(columns)


def _register(name: str, access: Access, columns: int) -> OperandSpec:
    return OperandSpec(name, access, F32, (ROWS, columns), REGISTER, dense=1, fragments=(FRAGMENT,))


def _atom(
    name: str,
    computes: Computation,
    operands: tuple[OperandSpec, ...],
    semantics: Any,
    template: str,
    pipe: str,
    cycles: float,
) -> Atom:
    return Atom(
        f"cuda.tile_{name}", BASE, computes, operands, semantics, AtomCost(pipe, cycles), template,
        "all", WARPS, WARPS,
    )  # fmt: skip


def _load(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = 0
    dst[: src.shape[0], : src.shape[1]] = src.astype(dst.dtype)


def _load_row(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = 0
    dst[:, : src.size] = src.reshape(1, -1).astype(dst.dtype)


def _load_column(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = 0
    dst[: src.size, :] = src.reshape(-1, 1).astype(dst.dtype)


def _loads(columns: int, mem: DType) -> Iterator[Atom]:
    shape, types = (ROWS, columns), (F32, mem)
    dst = _register("dst", Access.WRITE, columns)
    cycles = ROWS * columns / 2 / ACCESS_RATE
    name = f"x{columns}.{mem.value}"

    def source(extents: tuple[int, ...], dense: int = 1) -> OperandSpec:
        partial = (True,) * len(extents)
        return OperandSpec(
            "src", Access.READ, mem, extents, GLOBAL, partial, dense, mem.bytes,
            share="pairs of m64" if len(extents) > 1 else "",
        )  # fmt: skip

    yield _atom(
        f"load.{name}", Computation(Kind.LOAD, "", shape, types, partial=True),
        (dst, source(shape)), _load,
        "tfs_tile_load({dst}, {src}, {src.ld}, {src.rows}, {src.n}, tfs_lane);", "access", cycles,
    )  # fmt: skip
    yield _atom(
        f"load_row.{name}", Computation(Kind.LOAD, "row", shape, types, partial=True),
        (dst, source((columns,))), _load_row,
        "tfs_tile_load_row({dst}, {src}, {src.n}, tfs_lane);", "access", cycles / 2,
    )  # fmt: skip
    yield _atom(
        f"load_column.{name}", Computation(Kind.LOAD, "column", shape, types, partial=True),
        (dst, source((ROWS,), 0)), _load_column,
        "tfs_tile_load_column({dst}, {src}, {src.step}, {src.n}, tfs_lane);", "access", 8.0,
    )  # fmt: skip
    yield _atom(
        f"splat.{name}", Computation(Kind.SPLAT, "", shape, types),
        (dst, OperandSpec("src", Access.READ, mem, (1,), GLOBAL, alignment=mem.bytes)),
        meaning.splat, "tfs_splat({dst}, {src});", "access", 4.0,
    )  # fmt: skip


def _store(dtype: DType) -> Any:
    def semantics(views: Sequence[Any]) -> None:
        dst, src = views
        rows, columns = dst.shape
        dst[...] = meaning.converted(np.array(src[:rows, :columns]), dtype)

    return semantics


def _stores(columns: int, mem: DType) -> Iterator[Atom]:
    shape, types = (ROWS, columns), (mem, F32)
    src = _register("src", Access.READ, columns)
    for fn, alignment, cycles in (
        ("", mem.bytes, ROWS * columns / ACCESS_RATE),
        ("aligned", 16, ROWS * columns * mem.bytes / 64.0),
    ):
        dst = OperandSpec(
            "dst", Access.WRITE, mem, shape, GLOBAL, (True, True), 1, alignment,
            share="pairs of m64",
        )  # fmt: skip
        stem = f"store_{fn}" if fn else "store"
        yield _atom(
            f"{stem}.x{columns}.{mem.value}",
            Computation(Kind.STORE, fn, shape, types, partial=True), (dst, src), _store(mem),
            f"tfs_tile_{stem}({{dst}}, {{dst.ld}}, {{dst.rows}}, {{dst.n}}, {{src}}, tfs_lane);",
            "access", cycles,
        )  # fmt: skip


def _stages(columns: int, mem: DType) -> Iterator[Atom]:
    """A register tile into a tile in shared memory, swizzled as copies of boxes take it."""
    shape = (ROWS, columns)
    tile = TileLayout("rows of 128 bytes, swizzled", shape, (SPAN, 1), SWIZZLE)
    dst = OperandSpec(
        "dst", Access.WRITE, mem, shape, SHARED, (), 1, columns * mem.bytes, layouts=(tile,),
        share="matrices of m64",
    )  # fmt: skip
    yield _atom(
        "stage." + f"x{columns}.{mem.value}", Computation(Kind.STORE, "stage", shape, (mem, F32)),
        (dst, _register("src", Access.READ, columns)), _store(mem),
        "tfs_tile_stage({dst}, {src}, tfs_lane);", "access", ROWS * columns * mem.bytes / 128.0,
    )  # fmt: skip


def _functions(columns: int) -> Iterator[Atom]:
    shape, lanes = (ROWS, columns), ROWS * columns
    dst = _register("dst", Access.WRITE, columns)
    names = ("a", "b", "x", "y")
    a, b, x, y = (_register(name, Access.READ, columns) for name in names)
    simple, special = lanes / F32_RATE, lanes / SPECIAL_RATE
    yield _atom(
        "fill." + f"x{columns}", Computation(Kind.FILL, "", shape, (F32,)),
        (dst, OperandSpec("value", Access.READ, None, (), frozenset())), meaning.fill,
        "tfs_fill({dst}, {value});", "f32", simple,
    )  # fmt: skip
    for fn, function in meaning.UNARY.items():
        yield _atom(
            f"{fn}.x{columns}", Computation(Kind.MAP, fn, shape, (F32,)), (dst, a),
            meaning.lane_wise(function), f"{{dst}} = tfs_{fn}({{a}});",
            "special" if fn in _SPECIAL else "f32", special if fn in _SPECIAL else simple,
        )  # fmt: skip
    for fn, function in meaning.BINARY.items():
        yield _atom(
            f"{fn}.x{columns}", Computation(Kind.MAP, fn, shape, (F32,)), (dst, a, b),
            meaning.lane_wise(function), f"{{dst}} = tfs_{fn}({{a}}, {{b}});",
            "special" if fn == "div" else "f32", special if fn == "div" else simple,
        )  # fmt: skip
    for fn, test in meaning.COMPARE.items():
        yield _atom(
            f"select_{fn}.x{columns}",
            Computation(Kind.MAP, f"select_{fn}", shape, (F32, F32)), (dst, a, b, x, y),
            meaning.select(test), f"{{dst}} = tfs_select_{fn}({{a}}, {{b}}, {{x}}, {{y}});",
            "f32", 2 * simple,
        )  # fmt: skip
