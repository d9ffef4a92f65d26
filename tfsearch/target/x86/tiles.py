"""The AMX tile unit as atoms, and what brings data into its order.

Throughputs and latencies in cycles: Intel 64 and IA-32 Architectures Optimization Reference
Manual, 248966-049, table of AMX instructions (TDP* 16 and 52, TILELOADD 8 and 45, TILESTORED
16, TILEZERO 0 and 16, LDTILECFG 204 latency, TILERELEASE 13). Costs of packing are derived from
the loads, shuffles and stores of one tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.atoms import semantics as meaning
from tfsearch.atoms.contract import (
    WEAK_STORE,
    Access,
    Atom,
    AtomCost,
    Computation,
    Effects,
    Kind,
    OperandSpec,
    Semantics,
)
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.target.x86.atoms import AVX512, MEMORY, REGISTER

TILE = frozenset({MemorySpace.TILE})
MODE = "tiles"
"""The mode of a unit whose tile registers are configured."""
ROWS = 16
ROW_BYTES = 64
AMX = frozenset({"amx_tile"})
PACKING = AVX512 | AMX
NATIVE_BF16 = AVX512 | {"avx512_bf16"}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Product:
    """A dot-product instruction: ``acc[16, 16] += a[16, k] * b[k, 16]``, k in groups of 4 bytes."""

    name: str
    acc: DType
    factor: DType
    feature: str

    @property
    def k(self) -> int:
        """Depth of one instruction."""
        return ROW_BYTES // self.factor.bytes

    @property
    def group(self) -> int:
        """Consecutive k that lie side by side in the second factor."""
        return 4 // self.factor.bytes


PRODUCTS = (
    Product("dpbf16ps", DType.F32, DType.BF16, "amx_bf16"),
    Product("dpbssd", DType.I32, DType.I8, "amx_int8"),
)


def tile_atoms() -> Iterator[Atom]:
    """Configuration, moves, products and packing of the tile unit; native rounding to bf16."""
    yield from _state_atoms()
    for product in PRODUCTS:
        yield _product_atom(product)
        yield _zero_atom(product.acc)
        yield _load_atom(product.factor)
        yield _load_atom(product.factor, "stream")
        yield _load_atom(product.acc)
        yield _store_atom(product.acc)
        yield from _order_atoms(product)
        yield from _copy_atoms(product.factor)
    yield from _native_stores()


def _atom(
    name: str,
    features: frozenset[str],
    computes: Computation,
    operands: tuple[OperandSpec, ...],
    semantics: Semantics,
    template: str,
    cost: AtomCost,
    flops: int = 0,
    effects: Effects | None = None,
) -> Atom:
    return Atom(
        f"x86.{name}",
        features,
        computes,
        operands,
        semantics,
        cost,
        template,
        effects=effects or Effects(needs=MODE if any(s.spaces == TILE for s in operands) else ""),
        flops=flops,
    )


def _tile(name: str, access: Access, dtype: DType) -> OperandSpec:
    return OperandSpec(name, access, dtype, (ROWS, ROW_BYTES // dtype.bytes), TILE)


def _memory(
    name: str, access: Access, dtype: DType, shape: tuple[int, ...], *, partial: bool = False
) -> OperandSpec:
    return OperandSpec(name, access, dtype, shape, MEMORY, (True,) * len(shape) if partial else ())


# The unit's state, tiles and memory ------------------------------------------------------------


def _zero(views: Sequence[Any]) -> None:
    views[0][...] = 0


def _copy(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = src.reshape(dst.shape)


def _copy_first(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = 0
    dst[: src.size] = src.reshape(-1)


def _state_atoms() -> Iterator[Atom]:
    for fn, cycles in (("begin", 204.0), ("end", 13.0)):
        yield _atom(
            f"amx.{fn}",
            AMX,
            Computation(Kind.CONFIGURE, fn, (), ()),
            (),
            meaning.nothing,
            f"tfs_tiles_{fn}();",
            AtomCost("alu", cycles, cycles),
            effects=Effects(configures=MODE) if fn == "begin" else Effects(releases=MODE),
        )


def _zero_atom(dtype: DType) -> Atom:
    return _atom(
        f"amx.zero.{dtype.value}",
        AMX,
        Computation(Kind.FILL, "zero", (ROWS, ROWS), (dtype,)),
        (_tile("dst", Access.WRITE, dtype),),
        _zero,
        "TFS_TILE_ZERO({dst});",
        AtomCost("alu", 1.0, 16.0),
    )


def _load_atom(dtype: DType, fn: str = "") -> Atom:
    """A tile load; "stream" is the one that leaves the first-level cache to other data."""
    shape = (ROWS, ROW_BYTES // dtype.bytes)
    return _atom(
        f"amx.{fn or 'load'}.{dtype.value}",
        AMX,
        Computation(Kind.LOAD, fn, shape, (dtype, dtype)),
        (_tile("dst", Access.WRITE, dtype), _memory("src", Access.READ, dtype, shape)),
        _copy,
        f"TFS_TILES_{(fn or 'load').upper()}({{dst}}, {{src}}, {{src.ld}} * {dtype.bytes}L);",
        AtomCost("load", 8.0, 45.0),
    )


def _store_atom(dtype: DType) -> Atom:
    shape = (ROWS, ROW_BYTES // dtype.bytes)
    return _atom(
        f"amx.store.{dtype.value}",
        AMX,
        Computation(Kind.STORE, "", shape, (dtype, dtype)),
        (_memory("dst", Access.WRITE, dtype, shape), _tile("src", Access.READ, dtype)),
        _copy,
        f"TFS_TILE_STORE({{src}}, {{dst}}, {{dst.ld}} * {dtype.bytes}L);",
        AtomCost("store", 16.0, 16.0),
    )


# Products --------------------------------------------------------------------------------------

_TINY = np.float32(2.0**-126)
_FLUSHED = float.fromhex("0x1.ffffffp-127")
"""f64 sums below this round, with unlimited exponents, to less than the smallest normal f32."""


def _flush(values: Array) -> Array:
    """Denormal f32 numbers count as zeros of their sign."""
    return np.where(np.abs(values) < _TINY, np.copysign(np.float32(0), values), values)


def _fused(a: Array, b: Array, c: Array) -> Array:
    """``a * b + c`` of flushed f32 arrays, rounded once to nearest even, denormals flushed.

    ``a * b`` is exact in f64. Their f64 sum is rounded to odd, so that the final rounding is right.
    """
    product, addend = a.astype(np.float64) * b, c.astype(np.float64)
    total = product + addend
    back = total - product
    error = (product - (total - back)) + (addend - back)
    bits = total.view(np.int64)
    inexact = (error != 0) & np.isfinite(total) & (bits & 1 == 0)
    odd = bits + np.where(inexact, np.where((error > 0) == (total > 0), 1, -1), 0)
    rounded = odd.view(np.float64).astype(np.float32)
    small = np.abs(total) < _FLUSHED
    return np.where(small, np.copysign(np.float32(0), total.astype(np.float32)), rounded)


def _dpbf16ps(views: Sequence[Any]) -> None:
    """Intel SDM, TDPBF16PS: even and odd members of the pairs accumulate apart, in order of k."""
    acc, a, b = views
    with np.errstate(all="ignore"):
        rows = _flush(a.astype(np.float32)).reshape(ROWS, -1, 2)
        columns = _flush(b.astype(np.float32)).reshape(rows.shape[1], ROWS, 2)
        sums = np.zeros((ROWS, ROWS, 2), dtype=np.float32)
        for k in range(rows.shape[1]):
            sums = _fused(rows[:, None, k], columns[None, k], sums)
        one = np.ones((), dtype=np.float32)
        pair = _fused(sums[..., 0], one, sums[..., 1])
        acc[...] = _fused(_flush(acc), one, pair)


def _dpbssd(views: Sequence[Any]) -> None:
    """Intel SDM, TDPBSSD: exact products, sums modulo 2^32."""
    acc, a, b = views
    groups = b.reshape(-1, ROWS, 4).transpose(0, 2, 1).reshape(-1, ROWS)
    acc[...] += a.astype(np.int32) @ groups.astype(np.int32)


_MEANINGS: dict[str, Semantics] = {"dpbf16ps": _dpbf16ps, "dpbssd": _dpbssd}


def _product_atom(product: Product) -> Atom:
    types = (product.acc, product.factor, product.factor)
    return _atom(
        f"amx.{product.name}",
        AMX | {product.feature},
        Computation(Kind.MMA, "", (ROWS, ROWS, product.k), types),
        (
            _tile("acc", Access.UPDATE, product.acc),
            _tile("a", Access.READ, product.factor),
            _tile("b", Access.READ, product.factor),
        ),
        _MEANINGS[product.name],
        f"TFS_TILE_{product.name.upper()}({{acc}}, {{a}}, {{b}});",
        AtomCost("tile", 16.0, 52.0),
        flops=2 * ROWS * ROWS * product.k,
    )


# Orders of elements ----------------------------------------------------------------------------


def _padded(source: Array, rows: int, columns: int) -> Array:
    block = np.zeros((rows, columns), dtype=source.dtype)
    block[: source.shape[-2], : source.shape[-1]] = source.reshape(source.shape[-2:])
    return block


def _interleaved(block: Array, group: int) -> Array:
    k, n = block.shape
    return block.reshape(k // group, group, n).transpose(0, 2, 1).reshape(k // group, n * group)


def _order_atoms(product: Product) -> Iterator[Atom]:
    """Blocks of k x 16 elements as tiles: a second factor from either order, a first from one."""
    dtype, k, group = product.factor, product.k, product.group

    def interleave(views: Sequence[Any]) -> None:
        dst, src = views
        dst[...] = _interleaved(_padded(src, k, ROWS), group).reshape(dst.shape)

    def interleave_transposed(views: Sequence[Any]) -> None:
        dst, src = views
        dst[...] = _interleaved(_padded(src, ROWS, k).T, group).reshape(dst.shape)

    def transpose(views: Sequence[Any]) -> None:
        dst, src = views
        dst[...] = _padded(src, k, ROWS).T.reshape(dst.shape)

    wide, tall = (ROWS, k), (k, ROWS)
    zips = 2.0 if dtype is DType.BF16 else 11.0
    square = 64.0
    for name, kind, fn, source, semantics, cycles in (
        ("interleave", Kind.INTERLEAVE, "", tall, interleave, ROWS * zips),
        (
            "interleave_transposed",
            Kind.INTERLEAVE,
            "transposed",
            wide,
            interleave_transposed,
            square,
        ),
        ("transpose_padded", Kind.TRANSPOSE, "padded", tall, transpose, square + ROWS * zips),
    ):
        yield _atom(
            f"amx.{name}.{dtype.value}",
            PACKING,
            Computation(kind, fn, tall, (dtype, dtype)),
            (
                _memory("dst", Access.WRITE, dtype, wide),
                _memory("src", Access.READ, dtype, source, partial=True),
            ),
            semantics,
            f"tfs_{name}_{dtype.value}({{dst}}, {{dst.ld}}, {{src}}, {{src.ld}}, "
            "{src.rows}, {src.n});",
            AtomCost("shuffle", cycles),
        )


def _copy_atoms(dtype: DType) -> Iterator[Atom]:
    """Rows of 64 bytes as they are: registers of the memory's own type."""
    lanes = (ROW_BYTES // dtype.bytes,)
    name = f"{dtype.value}x{lanes[0]}"
    types = (dtype, dtype)

    def register(operand: str, access: Access) -> OperandSpec:
        return OperandSpec(operand, access, dtype, lanes, REGISTER)

    yield _atom(
        f"zero.{name}",
        PACKING,
        Computation(Kind.FILL, "zero", lanes, (dtype,)),
        (register("dst", Access.WRITE),),
        _zero,
        f"{{dst}} = (tfs_{name}){{{{0}}}};",
        AtomCost("alu", 0.5),
    )
    for partial, call, count in ((False, "load", ""), (True, "loadn", ", {src.n}")):
        yield _atom(
            f"{'load_partial' if partial else 'load'}.{name}",
            PACKING,
            Computation(Kind.LOAD, "", lanes, types, partial=partial),
            (
                register("dst", Access.WRITE),
                _memory("src", Access.READ, dtype, lanes, partial=partial),
            ),
            _copy_first,
            f"{{dst}} = tfs_{call}_{name}({{src}}{count});",
            AtomCost("load", 1.0 if partial else 0.5, 5.0),
        )
    yield _atom(
        f"store.{name}",
        PACKING,
        Computation(Kind.STORE, "", lanes, types),
        (_memory("dst", Access.WRITE, dtype, lanes), register("src", Access.READ)),
        _copy,
        f"tfs_store_{name}({{dst}}, {{src}});",
        AtomCost("store", 1.0),
    )


# Rounding to bf16 in one instruction -----------------------------------------------------------


_round_to_bf16 = meaning.store(DType.BF16)


def _native_stores() -> Iterator[Atom]:
    """Stores of f32 as bf16 where one instruction rounds; the same bits as the general ones.

    ``VCVTNEPS2BF16`` flushes denormals, so ``clib`` lets those take the general way.
    """
    lanes, types = (16,), (DType.BF16, DType.F32)
    source = OperandSpec("src", Access.READ, DType.F32, lanes, REGISTER)
    for fn, call in (("", "store"), ("stream", "stream")):
        yield _atom(
            f"{call}_native.bf16.f32x16",
            NATIVE_BF16,
            Computation(Kind.STORE, fn, lanes, types),
            (_memory("dst", Access.WRITE, DType.BF16, lanes), source),
            _round_to_bf16,
            f"tfs_{call}_bf16_f32x16({{dst}}, {{src}});",
            AtomCost("store", 1.0),
            effects=Effects(proxy=WEAK_STORE) if fn else None,
        )
    yield _atom(
        "store_native_partial.bf16.f32x16",
        NATIVE_BF16,
        Computation(Kind.STORE, "", lanes, types, partial=True),
        (_memory("dst", Access.WRITE, DType.BF16, lanes, partial=True), source),
        _round_to_bf16,
        "tfs_storen_bf16_f32x16({dst}, {src}, (int)({dst.n}));",
        AtomCost("store", 2.0),
    )
