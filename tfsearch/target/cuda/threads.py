"""Atoms of threads: fragments shared out over the threads of a unit.

A fragment of n lanes belongs to all threads of a unit; each holds n / threads neighbours. Every
atom is a call of one function of ``clib/kernel.cuh``. Costs are cycles of one SM of sm_90a for
the whole fragment (origin: derived from the rates of its architecture document); documents of
other architectures scale them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from tfsearch.atoms import semantics as meaning
from tfsearch.atoms.contract import (
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
from tfsearch.target.cuda.semantics import WARP, reduce

MEMORY = frozenset({MemorySpace.GLOBAL, MemorySpace.SHARED})
REGISTER = frozenset({MemorySpace.REGISTER})
BASE = frozenset({"sm_80"})
WORD = 16
"""Bytes of the widest access of a thread."""

TEAMS: dict[int, tuple[int, int]] = {
    32: (1, 1),
    64: (1, 2),
    128: (1, 4),
    256: (1, 8),
    512: (4, 4),
    1024: (4, 8),
    2048: (8, 8),
    4096: (16, 8),
}
"""Lanes of a fragment → warps of the unit, lanes of a thread."""

F32_RATE, F64_RATE, SPECIAL_RATE, INTEGER_RATE = 128.0, 64.0, 16.0, 64.0
SHUFFLE_RATE, ACCESS_RATE, SHARED_RATE = 32.0, 32.0, 128.0
"""Results (of accesses: addresses, bytes) of an SM of sm_90a in a cycle."""

_SPECIAL = {
    "exp": 1.0, "log": 1.0, "tanh": 2.0, "sin": 1.0, "cos": 1.0, "erf": 1.0, "sigmoid": 2.0,
    "rsqrt": 1.0, "recip": 1.0, "sqrt": 1.0, "div": 1.0,
}  # fmt: skip
"""Results of the special function unit that one lane of a precise function takes; derived from
what the compiler makes of them."""
_FAST = ("exp", "log", "tanh", "sin", "cos", "sigmoid", "rsqrt", "recip")
_INTEGER_UNARY = ("neg", "abs", "sign")


@dataclass(frozen=True)
class Width:
    """One register type: element type, lanes of a fragment, warps that share it."""

    dtype: DType
    lanes: int
    warps: int
    each: int

    @property
    def name(self) -> str:
        """``f32x256``."""
        return f"{self.dtype.value}x{self.lanes}"

    @property
    def loads(self) -> tuple[DType, ...]:
        """Element types in memory that loads convert from."""
        if not self.dtype.is_float:
            return (DType.I8, DType.I32)
        return (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I8, DType.I32)

    @property
    def stores(self) -> tuple[DType, ...]:
        """Element types in memory that stores convert to in one rounding."""
        if not self.dtype.is_float:
            return (DType.I8, DType.I32)
        both = (DType.F32, DType.F16, DType.I8, DType.I32)
        return (*both, DType.BF16) if self.dtype is DType.F32 else (*both, DType.F64)

    @property
    def pipe(self) -> str:
        """The unit that does its arithmetic."""
        return {DType.F32: "f32", DType.F64: "f64"}.get(self.dtype, "integer")

    @property
    def cycles(self) -> float:
        """Cycles of one operation on every lane."""
        rate = {"f32": F32_RATE, "f64": F64_RATE}.get(self.pipe, INTEGER_RATE)
        return self.lanes / rate

    def register(self, name: str, access: Access, *, partial: bool = False) -> OperandSpec:
        """A register operand."""
        return OperandSpec(name, access, self.dtype, (self.lanes,), REGISTER, (partial,), dense=1)

    def memory(
        self,
        name: str,
        access: Access,
        dtype: DType,
        *,
        partial: bool = False,
        dense: int = 1,
        alignment: int = 1,
    ) -> OperandSpec:
        """A memory operand of as many elements as there are lanes."""
        share = f"pieces of {self.each}"
        return OperandSpec(
            name, access, dtype, (self.lanes,), MEMORY, (partial,), dense,
            max(alignment, dtype.bytes), share=share,
        )  # fmt: skip

    def aligned(self, dtype: DType) -> int:
        """Bytes that a thread's piece in memory is aligned to where it is accessed in words."""
        return min(WORD, self.each * dtype.bytes)

    def word_cycles(self, dtype: DType) -> float:
        """Cycles of an access in words."""
        return self.lanes * dtype.bytes / SHARED_RATE

    def element_cycles(self) -> float:
        """Cycles of an access element by element."""
        return self.lanes / ACCESS_RATE

    def atom(
        self,
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
        shared_bytes: int = 0,
    ) -> Atom:
        """An atom that all threads of the unit execute."""
        return Atom(
            id=f"cuda.{stem}",
            features=BASE,
            computes=computes,
            operands=operands,
            semantics=semantics,
            cost=AtomCost(pipe, cycles, latency),
            template=template,
            issuer="all",
            effects=effects or Effects(),
            flops=flops,
            issuing_warps=self.warps,
            shared_bytes=shared_bytes,
        )


WIDTHS = tuple(
    Width(dtype, lanes, *TEAMS[lanes])
    for lanes in TEAMS
    for dtype in (DType.F32, DType.I32, DType.F64)
)


def thread_atoms() -> Iterator[Atom]:
    """Loads, stores, maths, reductions and multiply-accumulate of every register type."""
    by_lanes: dict[int, list[Width]] = {}
    for width in WIDTHS:
        by_lanes.setdefault(width.lanes, []).append(width)
        yield _fill(width)
        for mem in width.loads:
            yield from _loads(width, mem)
        for mem in width.stores:
            yield from _stores(width, mem)
        yield from _unary(width)
        yield from _binary(width)
        yield from _selects(width)
        yield from _reductions(width)
        yield from _multiply_adds(width)
    for group in by_lanes.values():
        for source in group:
            for target in group:
                yield from _conversions(source, target)
    yield from _orderings()


def _fill(width: Width) -> Atom:
    return width.atom(
        f"fill.{width.name}",
        Computation(Kind.FILL, "", (width.lanes,), (width.dtype,)),
        (
            width.register("dst", Access.WRITE),
            OperandSpec("value", Access.READ, None, (), frozenset()),
        ),
        meaning.fill,
        "tfs_fill({dst}, {value});",
        width.pipe,
        width.cycles,
    )


def _loads(width: Width, mem: DType) -> Iterator[Atom]:
    lanes, types = (width.lanes,), (width.dtype, mem)
    dst, suffix = width.register("dst", Access.WRITE), f"{width.name}.{mem.value}"

    def one(stem: str, fn: str, source: OperandSpec, call: str, cycles: float) -> Atom:
        partial = any(source.partial)
        computes = Computation(Kind.LOAD, fn, lanes, types, partial=partial)
        return width.atom(
            f"{stem}.{suffix}", computes, (dst, source), meaning.load, call, "access", cycles,
            latency=400.0,
        )  # fmt: skip

    read, words, elements = Access.READ, width.word_cycles(mem), width.element_cycles()
    aligned = width.aligned(mem)
    yield width.atom(
        f"splat.{suffix}",
        Computation(Kind.SPLAT, "", lanes, types),
        (dst, OperandSpec("src", read, mem, (1,), MEMORY, alignment=mem.bytes)),
        meaning.splat,
        "tfs_splat({dst}, {src});",
        "access",
        float(width.warps),
        latency=400.0,
    )
    yield one(
        "load_aligned", "aligned", width.memory("src", read, mem, alignment=aligned),
        "tfs_load_aligned({dst}, {src}, tfs_lane);", words,
    )  # fmt: skip
    yield one(
        "load_aligned_partial", "aligned",
        width.memory("src", read, mem, partial=True, alignment=aligned),
        "tfs_load_aligned_partial({dst}, {src}, {src.n}, tfs_lane);", words,
    )  # fmt: skip
    yield one(
        "load", "", width.memory("src", read, mem), "tfs_load({dst}, {src}, tfs_lane);", elements
    )
    yield one(
        "load_partial", "", width.memory("src", read, mem, partial=True),
        "tfs_load_partial({dst}, {src}, {src.n}, tfs_lane);", elements,
    )  # fmt: skip
    yield one(
        "load_strided", "strided", width.memory("src", read, mem, partial=True, dense=0),
        "tfs_load_strided({dst}, {src}, {src.step}, {src.n}, tfs_lane);", 4 * elements,
    )  # fmt: skip


def _stores(width: Width, mem: DType) -> Iterator[Atom]:
    lanes, types = (width.lanes,), (mem, width.dtype)
    src, suffix = width.register("src", Access.READ), f"{mem.value}.{width.name}"

    def one(stem: str, fn: str, target: OperandSpec, call: str, cycles: float) -> Atom:
        partial = any(target.partial)
        computes = Computation(Kind.STORE, fn, lanes, types, partial=partial)
        return width.atom(
            f"{stem}.{suffix}", computes, (target, src), meaning.store(mem), call, "access", cycles
        )

    write, words, elements = Access.WRITE, width.word_cycles(mem), width.element_cycles()
    aligned = width.aligned(mem)
    whole = width.memory("dst", write, mem, alignment=aligned)
    yield one(
        "store_aligned", "aligned", whole, "tfs_store_aligned({dst}, {src}, tfs_lane);", words
    )
    yield one("store_stream", "stream", whole, "tfs_store_stream({dst}, {src}, tfs_lane);", words)
    yield one(
        "store_aligned_partial", "aligned",
        width.memory("dst", write, mem, partial=True, alignment=aligned),
        "tfs_store_aligned_partial({dst}, {src}, {dst.n}, tfs_lane);", words,
    )  # fmt: skip
    yield one(
        "store", "", width.memory("dst", write, mem), "tfs_store({dst}, {src}, tfs_lane);", elements
    )
    yield one(
        "store_partial", "", width.memory("dst", write, mem, partial=True),
        "tfs_store_partial({dst}, {src}, {dst.n}, tfs_lane);", elements,
    )  # fmt: skip
    yield one(
        "store_strided", "strided", width.memory("dst", write, mem, partial=True, dense=0),
        "tfs_store_strided({dst}, {dst.step}, {src}, {dst.n}, tfs_lane);", 4 * elements,
    )  # fmt: skip


def _unary(width: Width) -> Iterator[Atom]:
    names = meaning.UNARY if width.dtype.is_float else _INTEGER_UNARY
    dst, a = width.register("dst", Access.WRITE), width.register("a", Access.READ)
    lanes, types = (width.lanes,), (width.dtype,)
    for fn in names:
        pipe, cycles = _work(width, fn)
        yield width.atom(
            f"{fn}.{width.name}",
            Computation(Kind.MAP, fn, lanes, types),
            (dst, a),
            meaning.lane_wise(meaning.UNARY[fn]),
            f"{{dst}} = tfs_{fn}({{a}});",
            pipe,
            cycles,
            flops=width.lanes,
        )
        if fn in _FAST and width.dtype is DType.F32:
            yield width.atom(
                f"fast_{fn}.{width.name}",
                Computation(Kind.MAP, fn, lanes, types, "fast"),
                (dst, a),
                meaning.lane_wise(meaning.UNARY[fn]),
                f"{{dst}} = tfs_fast_{fn}({{a}});",
                "special",
                width.lanes / SPECIAL_RATE,
                flops=width.lanes,
            )


def _work(width: Width, fn: str) -> tuple[str, float]:
    """Pipe and cycles of a precise function."""
    special = _SPECIAL.get(fn)
    if special is None:
        return width.pipe, width.cycles
    if width.dtype is DType.F64:
        return "f64", 20.0 * width.cycles
    return "special", special * width.lanes / SPECIAL_RATE


def _binary(width: Width) -> Iterator[Atom]:
    a, b = width.register("a", Access.READ), width.register("b", Access.READ)
    lanes, types = (width.lanes,), (width.dtype,)
    for fn, function in meaning.BINARY.items():
        if fn == "div" and not width.dtype.is_float:
            continue
        pipe, cycles = _work(width, fn)
        yield width.atom(
            f"{fn}.{width.name}",
            Computation(Kind.MAP, fn, lanes, types),
            (width.register("dst", Access.WRITE), a, b),
            meaning.lane_wise(function),
            f"{{dst}} = tfs_{fn}({{a}}, {{b}});",
            pipe,
            cycles,
            flops=width.lanes,
        )
        if fn in ("add", "mul", "max", "min"):
            yield width.atom(
                f"{fn}_partial.{width.name}",
                Computation(Kind.MAP, fn, lanes, types, partial=True),
                (width.register("dst", Access.UPDATE, partial=True), a, b),
                meaning.first_lanes(function),
                f"{{dst}} = tfs_first(tfs_{fn}({{a}}, {{b}}), {{dst}}, {{dst.n}}, tfs_lane);",
                pipe,
                2 * cycles,
                flops=width.lanes,
            )


def _selects(width: Width) -> Iterator[Atom]:
    names = ("a", "b", "x", "y")
    operands = (
        width.register("dst", Access.WRITE),
        *(width.register(name, Access.READ) for name in names),
    )
    for fn, test in meaning.COMPARE.items():
        yield width.atom(
            f"select_{fn}.{width.name}",
            Computation(Kind.MAP, f"select_{fn}", (width.lanes,), (width.dtype, width.dtype)),
            operands,
            meaning.select(test),
            f"{{dst}} = tfs_select_{fn}({{a}}, {{b}}, {{x}}, {{y}});",
            "integer",
            2 * width.lanes / INTEGER_RATE,
            flops=width.lanes,
        )


def _reductions(width: Width) -> Iterator[Atom]:
    effects = Effects(synchronises=Sync.TEAM) if width.warps > 1 else Effects()
    words = max(1, width.dtype.bytes // 4)
    steps = 5 * words * width.warps * WARP / SHUFFLE_RATE
    for fn, function in meaning.FOLD.items():
        yield width.atom(
            f"reduce_{fn}.{width.name}",
            Computation(Kind.REDUCE, fn, (width.lanes,), (width.dtype,)),
            (width.register("dst", Access.WRITE), width.register("src", Access.READ)),
            reduce(function, width.warps, width.each),
            f"{{dst}} = tfs_reduce_{fn}<{width.warps}>({{src}});",
            "shuffle",
            steps,
            flops=width.lanes,
            latency=150.0,
            effects=effects,
            shared_bytes=width.dtype.bytes * width.warps if width.warps > 1 else 0,
        )


def _multiply_adds(width: Width) -> Iterator[Atom]:
    product = width.atom(
        f"fma.{width.name}",
        Computation(Kind.MMA, "", (1, width.lanes, 1), (width.dtype,) * 3),
        (
            width.register("acc", Access.UPDATE),
            width.register("a", Access.READ),
            width.register("b", Access.READ),
        ),
        meaning.multiply_add,
        "{acc} = tfs_fma({a}, {b}, {acc});",
        width.pipe,
        width.cycles,
        flops=2 * width.lanes,
    )
    yield product
    yield replace(
        product,
        id=f"cuda.lane_fma.{width.name}",
        computes=Computation(Kind.MAP, "fma", (width.lanes,), (width.dtype,)),
    )


def _conversions(source: Width, target: Width) -> Iterator[Atom]:
    dst, src = target.register("dst", Access.WRITE), source.register("src", Access.READ)
    lanes = (target.lanes,)
    wide = DType.F64 in (source.dtype, target.dtype)
    cycles = target.lanes / SPECIAL_RATE if wide else target.lanes / INTEGER_RATE
    if source is not target:
        yield target.atom(
            f"convert.{target.name}.{source.name}",
            Computation(Kind.CONVERT, "", lanes, (target.dtype, source.dtype)),
            (dst, src),
            meaning.convert(target.dtype),
            "tfs_convert({dst}, {src});",
            "convert",
            cycles,
        )
    if target.dtype is DType.I32:
        yield target.atom(
            f"saturate_i8.{target.name}.{source.name}",
            Computation(Kind.CONVERT, "", lanes, (DType.I8, source.dtype)),
            (dst, src),
            meaning.convert(DType.I8),
            "tfs_saturate_i8({dst}, {src});",
            "convert",
            2 * cycles,
        )


def _orderings() -> Iterator[Atom]:
    """The fence after streamed stores, and prefetches of a line."""
    yield Atom(
        id="cuda.fence",
        features=BASE,
        computes=Computation(Kind.SYNC, "fence", (), ()),
        operands=(),
        semantics=meaning.nothing,
        cost=AtomCost("access", 1.0, 500.0),
        template="__threadfence();",
        issuer="all",
        effects=Effects(synchronises=Sync.FENCE),
    )
    for mem in (DType.F32, DType.F64, DType.BF16, DType.F16, DType.I8, DType.I32):
        yield Atom(
            id=f"cuda.prefetch.{mem.value}",
            features=BASE,
            computes=Computation(Kind.HINT, "prefetch", (1,), (mem,)),
            operands=(OperandSpec("src", Access.READ, mem, (1,), MEMORY),),
            semantics=meaning.nothing,
            cost=AtomCost("access", 1.0),
            template="tfs_prefetch({src}, tfs_lane);",
            issuer="all",
        )
