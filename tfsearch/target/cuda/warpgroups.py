"""Atoms of teams of warps: copies by descriptor, matrix products of four warps, barriers.

Tiles in shared memory have rows of 128 bytes in the swizzle of 1024 bytes that both the copy
engine and the matrix units know. A fragment ``m64`` of 64 rows is what the matrix units leave in
the registers of 128 threads: 16 rows a warp, pairs of columns. Costs are cycles of one SM of
sm_90a (origin: derived from the rates of its architecture document).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tfsearch.atoms.contract import (
    Access,
    Atom,
    AtomCost,
    BoxRule,
    Completion,
    Computation,
    Effects,
    Kind,
    OperandSpec,
    Part,
    Semantics,
    Sync,
    TileLayout,
)
from tfsearch.atoms.semantics import nothing
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.target.cuda import tiles

GROUP = 4
"""Warps that issue a matrix product."""
ROWS = tiles.ROWS
DEPTH = 16
"""Elements of 16 bits along the sum of one product."""
SPAN, SWIZZLE = tiles.SPAN, tiles.SWIZZLE
REPEAT = 1024
"""Bytes after which the swizzle repeats."""
WIDTHS = tuple(range(8, 257, 8))
MATRIX_FLOPS = 4096.0
SHARED_RATE = 128.0
R, W, U = Access.READ, Access.WRITE, Access.UPDATE
SHARED = frozenset({MemorySpace.SHARED})
GLOBAL = frozenset({MemorySpace.GLOBAL})
BOX = BoxRule(extent=256, bytes=16, rank=5, span={str(SWIZZLE): 128})
FRAGMENT = tiles.FRAGMENT
HALVES = (DType.BF16, DType.F16)
BARRIER = OperandSpec("barrier", U, DType.BARRIER, (1,), SHARED, alignment=8, part=Part.BARRIER)
_PTX = {DType.BF16: "bf16", DType.F16: "f16"}


def warpgroup_atoms() -> Iterator[Atom]:
    """Every atom of this module, and those of register tiles."""
    for dtype in HALVES:
        for rows in WIDTHS:
            yield from _box_loads(dtype, rows)
            yield from _products(dtype, rows)
        yield _box_store(dtype, ROWS)
    yield from _barriers()
    yield from _groups()
    yield from _box_groups()
    yield from _meetings()
    yield from tiles.tile_atoms()


def _number(name: str, part: Part) -> OperandSpec:
    return OperandSpec(name, R, DType.I32, (), frozenset(), part=part)


def _load_box(views: Sequence[Any]) -> None:
    dst, src = views[:2]
    dst[...] = 0
    dst[tuple(slice(0, n) for n in src.shape)] = src


def _box_loads(dtype: DType, rows: int) -> Iterator[Atom]:
    shape = (rows, SPAN)
    tile = TileLayout("rows of 128 bytes, swizzled", shape, (SPAN, 1), SWIZZLE)
    dst = OperandSpec("dst", W, dtype, shape, SHARED, alignment=REPEAT, layouts=(tile,))
    src = OperandSpec("src", R, dtype, shape, GLOBAL, (True, True), alignment=dtype.bytes, box=BOX)
    effects = Effects(Completion.BARRIER_TRANSACTIONS, proxy="async")
    cost = AtomCost("fill", rows * SPAN * dtype.bytes / SHARED_RATE, 800.0)
    name = f"{dtype.value}.r{rows}"
    yield Atom(
        f"cuda.box_load.{name}", frozenset({"tma", "mbarrier"}),
        Computation(Kind.COPY, "box", shape, (dtype, dtype)), (dst, src, BARRIER), _load_box, cost,
        "if (tfs_first) tfs_box_load({dst}, {src}, {barrier}, {src.corner});", "thread",
        effects=effects,
    )  # fmt: skip
    yield Atom(
        f"cuda.box_cast.{name}", frozenset({"tma", "mbarrier", "cluster"}),
        Computation(Kind.COPY, "box cast", shape, (dtype, dtype)),
        (dst, src, BARRIER, _number("mask", Part.MASK)), _load_box, cost,
        "if (tfs_first) tfs_box_cast({dst}, {src}, {barrier}, {mask}, {src.corner});", "thread",
        effects=effects,
    )  # fmt: skip


def _store_box(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = src[tuple(slice(0, n) for n in dst.shape)]


def _box_store(dtype: DType, rows: int) -> Atom:
    """A tile in shared memory to a box of an argument; what hangs over is left out."""
    shape = (rows, SPAN)
    tile = TileLayout("rows of 128 bytes, swizzled", shape, (SPAN, 1), SWIZZLE)
    src = OperandSpec("src", R, dtype, shape, SHARED, alignment=REPEAT, layouts=(tile,))
    dst = OperandSpec("dst", W, dtype, shape, GLOBAL, (True, True), alignment=dtype.bytes, box=BOX)
    return Atom(
        f"cuda.box_store.{dtype.value}.r{rows}", frozenset({"tma"}),
        Computation(Kind.COPY, "box store", shape, (dtype, dtype)), (dst, src), _store_box,
        AtomCost("fill", rows * SPAN * dtype.bytes / SHARED_RATE, 500.0),
        "if (tfs_first) tfs_box_store({dst}, {src}, {dst.corner});", "thread",
        effects=Effects(Completion.COMMIT_GROUP, proxy="async", group="box"),
    )  # fmt: skip


def _across(name: str, *, a: bool, b: bool) -> str:
    """A name with the factors that are stored across the sum."""
    return " ".join(filter(None, (name, "a across" if a else "", "b across" if b else "")))


def _meaning(*, first: bool, a: bool, b: bool) -> Semantics:
    def semantics(views: Sequence[Any]) -> None:
        acc, left, right = views
        left, right = left.astype("float32"), right.astype("float32")
        found = (left.T if a else left) @ (right if b else right.T)
        acc[...] = found if first else acc + found

    return semantics


def product_text(dtype: DType, columns: int, *, first: bool, a: bool, b: bool) -> str:
    """The instruction with its registers, as a template; ``first``: it overwrites.

    ``a``, ``b``: the factor is stored across the sum.
    """
    count = columns // 2
    registers = ", ".join(f"%{i}" for i in range(count))
    mark = "=f" if first else "+f"
    places = ", ".join(f'"{mark}"({{acc}}.x[{i}])' for i in range(count))
    kind = _PTX[dtype]
    sides = [f"tfs_matrix{'_across' if on else ''}" for on in (a, b)]
    return (
        'asm volatile("{{\\n.reg .pred p;\\n'
        f"setp.ne.b32 p, {0 if first else 1}, 0;\\n"
        f"wgmma.mma_async.sync.aligned.m64n{columns}k16.f32.{kind}.{kind} "
        f'{{{{{registers}}}}}, %{count}, %{count + 1}, p, 1, 1, {int(a)}, {int(b)};\\n}}}}" : '
        f'{places} : "l"({sides[0]}({{a}})), "l"({sides[1]}({{b}})));'
    )


def _side(name: str, dtype: DType, count: int, *, across: bool) -> OperandSpec:
    """A factor: ``count`` x 16 with rows along the sum, or 16 x ``count`` in blocks of 64."""
    if across:
        inner = min(count, SPAN)
        tile = TileLayout(
            "blocks of 128 bytes across the sum, swizzled",
            (DEPTH, (inner, max(count // SPAN, 1))), (SPAN, (1, SPAN * SPAN)), SWIZZLE,
        )  # fmt: skip
        shape = (DEPTH, count)
    else:
        tile = TileLayout("rows of 128 bytes, swizzled", (count, DEPTH), (SPAN, 1), SWIZZLE)
        shape = (count, DEPTH)
    alignment = REPEAT if across else 32
    return OperandSpec(
        name, Access.READ, dtype, shape, SHARED, alignment=alignment, layouts=(tile,),
        proxy="async",
    )  # fmt: skip


def _products(dtype: DType, columns: int) -> Iterator[Atom]:
    flops = 2 * ROWS * columns * DEPTH
    majors = [(a, b) for a in (False, True) for b in (False, True) if not b or not columns % SPAN]
    for a, b in majors:
        for first in (False, True):
            acc = OperandSpec(
                "acc", W if first else U, DType.F32, (ROWS, columns),
                frozenset({MemorySpace.REGISTER}), fragments=(FRAGMENT,), proxy="matrix",
            )  # fmt: skip
            fn = _across("first" if first else "", a=a, b=b)
            stem = "_".join(["product", *fn.split()])
            yield Atom(
                f"cuda.{stem}.{dtype.value}.n{columns}",
                frozenset({"wgmma"}),
                Computation(Kind.MMA, fn, (ROWS, columns, DEPTH), (DType.F32, dtype, dtype)),
                (acc, _side("a", dtype, ROWS, across=a), _side("b", dtype, columns, across=b)),
                _meaning(first=first, a=a, b=b),
                AtomCost("matrix", flops / MATRIX_FLOPS, 128.0),
                product_text(dtype, columns, first=first, a=a, b=b), "all", GROUP, GROUP,
                Effects(Completion.MATRIX_GROUP, group="matrix"), flops,
            )  # fmt: skip


def _sync(
    name: str,
    what: Sync,
    template: str,
    features: tuple[str, ...],
    *operands: OperandSpec,
    issuer: str = "all",
    warps: int = 0,
    fn: str = "",
    fences: tuple[str, ...] = (),
    group: str = "",
    reads_only: bool = False,
) -> Atom:
    return Atom(
        f"cuda.{name}", frozenset(features), Computation(Kind.SYNC, fn or what.value, (), ()),
        operands, nothing, AtomCost("issue", 1.0, 20.0), template, issuer, warps, max(warps, 1),
        Effects(
            synchronises=what, fences=frozenset(fences), group=group,
            reads_only=reads_only,
        ),
    )  # fmt: skip


def _barriers() -> Iterator[Atom]:
    """Barrier objects in shared memory."""
    has = ("mbarrier",)
    one = "if (tfs_first) "
    yield _sync(
        "barrier_init", Sync.INIT, one + "tfs_barrier_init({barrier}, {count});", has, BARRIER,
        _number("count", Part.COUNT), issuer="thread",
    )  # fmt: skip
    yield _sync(
        "barrier_arrive", Sync.ARRIVE, one + "tfs_barrier_arrive({barrier});", has, BARRIER,
        issuer="thread",
    )  # fmt: skip
    yield _sync(
        "barrier_arrive_far", Sync.ARRIVE, one + "tfs_barrier_arrive({barrier}, {rank});",
        ("mbarrier", "cluster"), BARRIER, _number("rank", Part.RANK), issuer="thread",
    )  # fmt: skip
    yield _sync(
        "barrier_expect", Sync.EXPECT, one + "tfs_barrier_expect({barrier}, {bytes});", has,
        BARRIER, _number("bytes", Part.BYTES), issuer="thread",
    )  # fmt: skip
    yield _sync(
        "barrier_wait", Sync.WAIT, "tfs_barrier_wait({barrier}, {parity});", has, BARRIER,
        _number("parity", Part.PARITY),
    )  # fmt: skip
    yield _sync(
        "barrier_wait_elected", Sync.WAIT, one + "tfs_barrier_wait({barrier}, {parity});", has,
        BARRIER, _number("parity", Part.PARITY), issuer="thread",
    )  # fmt: skip
    yield _sync(
        "fence_init", Sync.FENCE, one + "tfs_fence_init();", has, issuer="thread", fn="fence init",
        fences=("init",),
    )  # fmt: skip
    yield _sync(
        "fence_async", Sync.FENCE, "tfs_fence_async();", has, fn="fence async", fences=("async",)
    )


def _groups() -> Iterator[Atom]:
    """Groups of matrix products."""
    has = ("wgmma",)
    yield _sync(
        "product_fence", Sync.FENCE, "tfs_product_fence();", has, warps=GROUP, fn="fence matrix",
        fences=("matrix",),
    )  # fmt: skip
    yield _sync(
        "product_commit", Sync.COMMIT, "tfs_product_commit();", has, warps=GROUP, group="matrix"
    )
    yield _sync(
        "product_wait", Sync.WAIT_GROUP, "tfs_product_wait<{pending}>();", has,
        _number("pending", Part.PENDING), warps=GROUP, group="matrix",
    )  # fmt: skip


def _box_groups() -> Iterator[Atom]:
    """Groups of copies to arguments."""
    has, one = ("tma",), "if (tfs_first) "
    pending = _number("pending", Part.PENDING)
    yield _sync(
        "box_commit", Sync.COMMIT, one + "tfs_box_commit();", has, issuer="thread", group="box"
    )
    yield _sync(
        "box_wait", Sync.WAIT_GROUP, one + "tfs_box_wait<{pending}>();", has, pending,
        issuer="thread", group="box",
    )  # fmt: skip
    yield _sync(
        "box_wait_read", Sync.WAIT_GROUP, one + "tfs_box_wait_read<{pending}>();", has, pending,
        issuer="thread", group="box", fn="wait_group read", reads_only=True,
    )  # fmt: skip


def _meetings() -> Iterator[Atom]:
    """Threads that wait for one another, and the registers that they hand over."""
    ident, warps = _number("id", Part.ID), _number("warps", Part.WARPS)
    yield _sync("meet", Sync.TEAM, "__syncthreads();", ("sm_80",))
    yield _sync(
        "meet_named", Sync.NAMED, "tfs_named_sync({id}, {warps} * 32);", ("sm_80",), ident, warps
    )
    yield _sync(
        "meet_named_arrive", Sync.NAMED_ARRIVE, "tfs_named_arrive({id}, {warps} * 32);",
        ("sm_80",), ident, warps,
    )  # fmt: skip
    yield _sync("cluster_arrive", Sync.CLUSTER_ARRIVE, "tfs_cluster_arrive();", ("cluster",))
    yield _sync("cluster_wait", Sync.CLUSTER_WAIT, "tfs_cluster_wait();", ("cluster",))
    registers = _number("registers", Part.REGISTERS)
    for fn in ("lower", "raise"):
        yield _sync(
            f"registers_{fn}", Sync.SET_REGISTERS, f"tfs_registers_{fn}<{{registers}}>();",
            ("setmaxnreg",), registers, warps=GROUP, fn=fn,
        )  # fmt: skip
