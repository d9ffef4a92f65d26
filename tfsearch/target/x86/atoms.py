"""The instructions of x86 as atoms: scalar, AVX2, AVX-512 lanes.

Every atom is a call of one inline function of ``clib`` (a single instruction, or the fixed
sequence that the ISA needs for it). Reciprocal throughputs are cycles per 512-bit operation of
the architecture documents' reference core; the documents scale them (origin: derived from the
port counts there).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
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
    Sync,
)
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace

MEMORY = frozenset({MemorySpace.GLOBAL, MemorySpace.SCRATCH, MemorySpace.LOCAL})
REGISTER = frozenset({MemorySpace.REGISTER})

AVX512 = frozenset({"avx512f", "avx512bw", "avx512vl", "avx512dq", "avx2", "fma", "f16c"})
AVX2 = frozenset({"avx2", "fma", "f16c"})
BASELINE: frozenset[str] = frozenset()

_FLOATS_IN_MEMORY = (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I8, DType.I32)
_INTEGERS_IN_MEMORY = (DType.I8, DType.I32)


@dataclass(frozen=True)
class Width:
    """One register type: element type, lanes, and the features it needs."""

    dtype: DType
    lanes: int
    features: frozenset[str]

    @property
    def name(self) -> str:
        """``f32x16``."""
        return f"{self.dtype.value}x{self.lanes}"

    @property
    def in_memory(self) -> tuple[DType, ...]:
        """Element types that loads convert from and stores convert to."""
        return _FLOATS_IN_MEMORY if self.dtype.is_float else _INTEGERS_IN_MEMORY

    def register(self, name: str, access: Access, *, partial: bool = False) -> OperandSpec:
        """A register operand."""
        return OperandSpec(name, access, self.dtype, (self.lanes,), REGISTER, (partial,), dense=1)

    def memory(
        self, name: str, access: Access, dtype: DType, *, partial: bool = False, dense: int = 1
    ) -> OperandSpec:
        """A memory operand of as many elements as there are lanes."""
        return OperandSpec(name, access, dtype, (self.lanes,), MEMORY, (partial,), dense)


WIDTHS: tuple[Width, ...] = (
    Width(DType.F32, 16, AVX512),
    Width(DType.I32, 16, AVX512),
    Width(DType.F64, 8, AVX512),
    Width(DType.F32, 8, AVX2),
    Width(DType.I32, 8, AVX2),
    Width(DType.F64, 4, AVX2),
    Width(DType.F32, 4, AVX2),
    Width(DType.I32, 4, AVX2),
    Width(DType.F32, 1, BASELINE),
    Width(DType.I32, 1, BASELINE),
    Width(DType.F64, 1, BASELINE),
)


def vector_atoms() -> Iterator[Atom]:
    """Loads, stores, maths, reductions and multiply-accumulate of every register type."""
    by_lanes: dict[int, list[Width]] = {}
    for width in WIDTHS:
        by_lanes.setdefault(width.lanes, []).append(width)
        yield from _memory_atoms(width)
        yield from _map_atoms(width)
        yield from _reduce_atoms(width)
        yield _mma(width)
        yield _lane_fma(width)
        if width.dtype is DType.F32 and width.lanes in (8, 16):
            yield from _transposes(width)
    yield barrier_atom()
    for group in by_lanes.values():
        yield from _conversions(group)
    yield from _ordering_atoms()


def barrier_atom() -> Atom:
    """A barrier over all units of a kernel."""
    return Atom(
        id="x86.barrier",
        features=BASELINE,
        computes=Computation(Kind.SYNC, "unit_barrier", (), ()),
        operands=(),
        semantics=meaning.nothing,
        cost=AtomCost("alu", 2000.0),
        template="tfs_wait(tfs_barrier_state, tfs_units);",
        effects=Effects(synchronises="unit_barrier"),
    )


# Memory ----------------------------------------------------------------------------------------


def _atom(
    width: Width,
    stem: str,
    computes: Computation,
    operands: tuple[OperandSpec, ...],
    semantics: Semantics,
    template: str,
    pipe: str,
    cycles: float,
    *,
    flops: int = 0,
    latency: float = 4.0,
    effects: Effects | None = None,
) -> Atom:
    return Atom(
        id=f"x86.{stem}",
        features=width.features,
        computes=computes,
        operands=operands,
        semantics=semantics,
        cost=AtomCost(pipe, cycles, latency),
        template=template,
        issuer="thread",
        effects=effects or Effects(),
        flops=flops,
    )


def _memory_atoms(width: Width) -> Iterator[Atom]:
    """A literal in every lane; loads from and stores to every element type in memory."""
    yield _atom(
        width,
        f"fill.{width.name}",
        Computation(Kind.FILL, "", (width.lanes,), (width.dtype,)),
        (
            width.register("dst", Access.WRITE),
            OperandSpec("value", Access.READ, None, (), frozenset()),
        ),
        meaning.fill,
        f"{{dst}} = tfs_set1_{width.name}({{value}});",
        "alu",
        0.5,
    )
    for mem in width.in_memory:
        yield from _loads(width, mem)
        yield from _stores(width, mem)


def _loads(width: Width, mem: DType) -> Iterator[Atom]:
    n, m, lanes, types = width.name, mem.value, (width.lanes,), (width.dtype, mem)
    read, register = Access.READ, width.register("dst", Access.WRITE)
    yield _atom(
        width,
        f"splat.{n}.{m}",
        Computation(Kind.SPLAT, "", lanes, types),
        (register, OperandSpec("src", read, mem, (1,), MEMORY)),
        meaning.splat,
        f"{{dst}} = tfs_set1_{n}(tfs_load_{m}_{width.dtype.value}x1({{src}}));",
        "load",
        0.5,
    )
    yield _atom(
        width,
        f"load.{n}.{m}",
        Computation(Kind.LOAD, "", lanes, types),
        (register, width.memory("src", read, mem)),
        meaning.load,
        f"{{dst}} = tfs_load_{m}_{n}({{src}});",
        "load",
        0.5,
    )
    yield _atom(
        width,
        f"load_partial.{n}.{m}",
        Computation(Kind.LOAD, "", lanes, types, partial=True),
        (register, width.memory("src", read, mem, partial=True)),
        meaning.load,
        f"{{dst}} = tfs_loadn_{m}_{n}({{src}}, (int)({{src.n}}));",
        "load",
        1.0,
    )
    yield _atom(
        width,
        f"load_strided.{n}.{m}",
        Computation(Kind.LOAD, "strided", lanes, types, partial=True),
        (register, width.memory("src", read, mem, partial=True, dense=0)),
        meaning.load,
        f"{{dst}} = tfs_loads_{m}_{n}({{src}}, {{src.step}}, {{src.n}});",
        "load",
        0.5 * width.lanes,
    )


def _stores(width: Width, mem: DType) -> Iterator[Atom]:
    n, m, lanes, types = width.name, mem.value, (width.lanes,), (mem, width.dtype)
    write, register = Access.WRITE, width.register("src", Access.READ)
    for fn, call in (("", "store"), ("stream", "stream")):
        yield _atom(
            width,
            f"{call}.{m}.{n}",
            Computation(Kind.STORE, fn, lanes, types),
            (width.memory("dst", write, mem), register),
            meaning.store(mem),
            f"tfs_{call}_{m}_{n}({{dst}}, {{src}});",
            "store",
            1.0,
            effects=Effects(proxy=WEAK_STORE) if fn else None,
        )
    yield _atom(
        width,
        f"store_partial.{m}.{n}",
        Computation(Kind.STORE, "", lanes, types, partial=True),
        (width.memory("dst", write, mem, partial=True), register),
        meaning.store(mem),
        f"tfs_storen_{m}_{n}({{dst}}, {{src}}, (int)({{dst.n}}));",
        "store",
        2.0,
    )
    yield _atom(
        width,
        f"store_strided.{m}.{n}",
        Computation(Kind.STORE, "strided", lanes, types, partial=True),
        (width.memory("dst", write, mem, partial=True, dense=0), register),
        meaning.store(mem),
        f"tfs_stores_{m}_{n}({{dst}}, {{dst.step}}, {{src}}, {{dst.n}});",
        "store",
        1.0 * width.lanes,
    )


def _ordering_atoms() -> Iterator[Atom]:
    """The fence that makes non-temporal stores visible in order, and prefetches of a line."""
    yield Atom(
        id="x86.stream_fence",
        features=BASELINE,
        computes=Computation(Kind.SYNC, "fence", (), ()),
        operands=(),
        semantics=meaning.nothing,
        cost=AtomCost("store", 30.0, 100.0),
        template="tfs_stream_fence();",
        effects=Effects(synchronises=Sync.FENCE, fences=frozenset({WEAK_STORE})),
    )
    for mem in _FLOATS_IN_MEMORY:
        for fn, locality in (("prefetch", 3), ("prefetch_outer", 2)):
            yield Atom(
                id=f"x86.{fn}.{mem.value}",
                features=BASELINE,
                computes=Computation(Kind.HINT, fn, (1,), (mem,)),
                operands=(OperandSpec("src", Access.READ, mem, (1,), MEMORY),),
                semantics=meaning.nothing,
                cost=AtomCost("load", 0.5),
                template=f"__builtin_prefetch({{src}}, 0, {locality});",
            )


# Lane-wise maths -------------------------------------------------------------------------------

_UNARY_CYCLES: dict[str, float] = {
    "neg": 0.5,
    "abs": 0.5,
    "sqrt": 9.0,
    "floor": 1.0,
    "ceil": 1.0,
    "round": 1.0,
    "sign": 2.0,
    "exp": 8.0,
    "log": 12.0,
    "tanh": 16.0,
    "sin": 16.0,
    "cos": 16.0,
    "erf": 20.0,
    "sigmoid": 14.0,
    "rsqrt": 16.0,
    "recip": 8.0,
}
_FAST = ("exp", "log", "tanh", "sin", "cos", "erf", "sigmoid", "rsqrt", "recip")
_INTEGER_UNARY = ("neg", "abs", "sign")
_BINARY_CYCLES: dict[str, float] = {
    "add": 0.5,
    "sub": 0.5,
    "mul": 0.5,
    "div": 8.0,
    "max": 1.5,
    "min": 1.5,
}


def _map_atoms(width: Width) -> Iterator[Atom]:
    n, lanes, types = width.name, (width.lanes,), (width.dtype,)
    dst = width.register("dst", Access.WRITE)
    a, b = width.register("a", Access.READ), width.register("b", Access.READ)
    unary = _UNARY_CYCLES if width.dtype.is_float else _INTEGER_UNARY
    for fn in unary:
        cycles, value = _UNARY_CYCLES[fn], meaning.lane_wise(meaning.UNARY[fn])
        yield _atom(
            width,
            f"{fn}.{n}",
            Computation(Kind.MAP, fn, lanes, types),
            (dst, a),
            value,
            f"{{dst}} = tfs_{fn}_{n}({{a}});",
            "fma",
            cycles,
            flops=width.lanes,
        )
        if fn in _FAST and width.dtype is DType.F32:
            yield _atom(
                width,
                f"fast_{fn}.{n}",
                Computation(Kind.MAP, fn, lanes, types, "fast"),
                (dst, a),
                value,
                f"{{dst}} = tfs_fast_{fn}_{n}({{a}});",
                "fma",
                cycles / 2,
                flops=width.lanes,
            )
    binary = {f: v for f, v in _BINARY_CYCLES.items() if f != "div" or width.dtype.is_float}
    for fn, cycles in binary.items():
        value = meaning.lane_wise(meaning.BINARY[fn])
        yield _atom(
            width,
            f"{fn}.{n}",
            Computation(Kind.MAP, fn, lanes, types),
            (dst, a, b),
            value,
            f"{{dst}} = tfs_{fn}_{n}({{a}}, {{b}});",
            "fma",
            cycles,
            flops=width.lanes,
        )
        if fn in ("add", "mul", "max", "min"):
            yield _atom(
                width,
                f"{fn}_partial.{n}",
                Computation(Kind.MAP, fn, lanes, types, partial=True),
                (width.register("dst", Access.UPDATE, partial=True), a, b),
                meaning.first_lanes(meaning.BINARY[fn]),
                f"{{dst}} = tfs_first_{n}(tfs_{fn}_{n}({{a}}, {{b}}), {{dst}}, {{dst.n}});",
                "fma",
                cycles + 0.5,
                flops=width.lanes,
            )
    for fn, test in meaning.COMPARE.items():
        yield _atom(
            width,
            f"select_{fn}.{n}",
            Computation(Kind.MAP, f"select_{fn}", lanes, (width.dtype, width.dtype)),
            (dst, a, b, width.register("x", Access.READ), width.register("y", Access.READ)),
            meaning.select(test),
            f"{{dst}} = tfs_select_{fn}_{n}({{a}}, {{b}}, {{x}}, {{y}});",
            "alu",
            1.0,
            flops=width.lanes,
        )


# Reductions, conversions -----------------------------------------------------------------------


def _tree(fn: Callable[[Any, Any], Any]) -> Semantics:
    """The order that clib documents: lane i meets lane i + L/2, then the lower half goes on."""

    def semantics(views: Sequence[Any]) -> None:
        dst, src = views
        lanes = np.array(src)
        with np.errstate(all="ignore"):
            while lanes.size > 1:
                half = lanes.size // 2
                lanes = fn(lanes[:half], lanes[half:])
        dst[...] = lanes[0]

    return semantics


def _reduce_atoms(width: Width) -> Iterator[Atom]:
    n = width.name
    for fn, fold in meaning.FOLD.items():
        scalar = f"tfs_h{fn}_{n}({{src}})"
        value = scalar if width.lanes == 1 else f"tfs_fold_{fn}_{n}({{src}})[0]"
        yield _atom(
            width,
            f"reduce_{fn}.{n}",
            Computation(Kind.REDUCE, fn, (width.lanes,), (width.dtype,)),
            (width.register("dst", Access.WRITE), width.register("src", Access.READ)),
            _tree(fold),
            f"{{dst}} = tfs_set1_{n}({value});",
            "shuffle",
            8.0,
            flops=width.lanes,
            latency=16.0,
        )


def _conversions(group: Sequence[Width]) -> Iterator[Atom]:
    for source in group:
        for target in group:
            features = source.features | target.features
            width = Width(target.dtype, target.lanes, features)
            dst = target.register("dst", Access.WRITE)
            src = source.register("src", Access.READ)
            lanes = (target.lanes,)
            if source is not target:
                yield _atom(
                    width,
                    f"convert.{target.name}.{source.name}",
                    Computation(Kind.CONVERT, "", lanes, (target.dtype, source.dtype)),
                    (dst, src),
                    meaning.convert(target.dtype),
                    f"{{dst}} = tfs_cvt_{source.name}_{target.name}({{src}});",
                    "fma",
                    1.0,
                )
            if target.dtype is DType.I32:
                wide = f"tfs_cvt_{source.name}_{target.name}({{src}})"
                inner = "{src}" if source is target else wide
                yield _atom(
                    width,
                    f"saturate_i8.{target.name}.{source.name}",
                    Computation(Kind.CONVERT, "", lanes, (DType.I8, source.dtype)),
                    (dst, src),
                    meaning.convert(DType.I8),
                    f"{{dst}} = tfs_sat8_{target.name}({inner});",
                    "fma",
                    2.0,
                )


# Matrices --------------------------------------------------------------------------------------


def _mma(width: Width) -> Atom:
    types = (width.dtype,) * 3
    return _atom(
        width,
        f"fma.{width.name}",
        Computation(Kind.MMA, "", (1, width.lanes, 1), types),
        (
            width.register("acc", Access.UPDATE),
            width.register("a", Access.READ),
            width.register("b", Access.READ),
        ),
        meaning.multiply_add,
        f"{{acc}} = tfs_fma_{width.name}({{a}}, {{b}}, {{acc}});",
        "fma",
        0.5,
        flops=2 * width.lanes,
    )


def _lane_fma(width: Width) -> Atom:
    """The same instruction as a map: lane by lane, where the first factor is no splat."""
    return replace(
        _mma(width),
        id=f"x86.lane_fma.{width.name}",
        computes=Computation(Kind.MAP, "fma", (width.lanes,), (width.dtype,)),
    )


def _transpose(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = src.reshape(src.shape[-2:]).T.astype(dst.dtype).reshape(dst.shape)


def _transposes(width: Width) -> Iterator[Atom]:
    n, lanes = width.name, width.lanes
    for mem in (DType.F32, DType.BF16, DType.F16):
        yield _atom(
            width,
            f"transpose.{n}.{mem.value}",
            Computation(Kind.TRANSPOSE, "", (lanes, lanes), (width.dtype, mem)),
            (
                OperandSpec("dst", Access.WRITE, width.dtype, (lanes, lanes), MEMORY, (True, True)),
                OperandSpec("src", Access.READ, mem, (lanes, lanes), MEMORY, (True, True)),
            ),
            _transpose,
            f"tfs_transpose_{mem.value}_{n}({{dst}}, {{dst.ld}}, {{src}}, {{src.ld}}, "
            f"{{src.rows}}, {{src.n}});",
            "shuffle",
            4.0 * lanes,
        )
