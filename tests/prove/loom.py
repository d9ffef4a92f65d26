"""A made-up machine for tests of concurrency: teams of warps, rings, asynchronous copies and maths.

Warps have four threads; two warps make a pair, which issues matrix operations. Tiles are small.
"""

from dataclasses import replace
from math import prod

from tfsearch.atoms.contract import (
    ANY,
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
    Sync,
    TileLayout,
)
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.prove.limits import Limits

LANES = 4
SIZE = 8
"""Rows and columns of the tiles of matrix operations."""
F32 = DType.F32
W, R, U = Access.WRITE, Access.READ, Access.UPDATE
SHARED = frozenset({MemorySpace.SHARED})
GLOBAL = frozenset({MemorySpace.GLOBAL})
MEMORY = SHARED | GLOBAL
REGISTER = frozenset({MemorySpace.REGISTER})
SWIZZLE = Swizzle(1, 2, 3)
"""Of rows of eight f32: 16-byte halves change places in every second group of four rows."""
TILE = TileLayout("swizzled", (SIZE, SIZE), (SIZE, 1), SWIZZLE)
ROWS = TileLayout("swizzled rows", (ANY, SIZE), (SIZE, 1), SWIZZLE)
BOX = BoxRule(extent=64, bytes=16, rank=3, span={str(SWIZZLE): 32, "": 1024})


def ring(*shape):
    """The layout of a ring of tiles with rows of eight elements."""
    return SwizzledLayout(SWIZZLE, Layout.row_major(shape))


def _copy(ops):
    dst, src = ops
    dst[...] = 0
    dst[tuple(slice(0, n) for n in src.shape)] = src


def _put(ops):
    dst, src = ops
    dst[...] = src[tuple(slice(0, n) for n in dst.shape)]


def _mma(ops):
    acc, a, b = ops
    acc[...] = acc + a @ b


def _fill(ops):
    ops[0][...] = ops[1]


def _add(ops):
    ops[0][...] = ops[1] + ops[2]


def _sum(ops):
    ops[0][...] = ops[1].sum()


def _add_to(ops):
    dst, src = ops
    dst[...] = dst + src[tuple(slice(0, n) for n in dst.shape)]


def _nothing(ops):
    pass


def spec(name, access, space, shape, **more):
    return OperandSpec(name, access, F32, shape, space, **{"alignment": 4, **more})


def number(name, part):
    return OperandSpec(name, R, DType.I32, (), frozenset(), part=part)


BARRIER = OperandSpec("barrier", U, DType.BARRIER, (1,), SHARED, alignment=8, part=Part.BARRIER)


def atom(name, kind, operands, semantics, effects=None, *, issuer="all", warps=0, align=1):
    shape = operands[0].shape if operands else ()
    return Atom(
        f"loom.{name}", frozenset(), Computation(kind, name, shape, (F32,)), operands, semantics,
        AtomCost("pipe", 1.0), "", issuer, warps, align, effects or Effects(),
    )  # fmt: skip


def sync(name, what, *operands, issuer="all", **more):
    return atom(
        name, Kind.SYNC, operands, _nothing, Effects(synchronises=what, **more), issuer=issuer
    )


def box_copies(rows):
    """Bulk copies of ``rows`` x 8 by one thread, through the host's descriptors."""
    shape = (rows, SIZE)
    tile = replace(TILE, shape=shape)
    dst = spec("dst", W, SHARED, shape, layouts=(tile,), alignment=128)
    src = spec("src", R, GLOBAL, shape, partial=(True, True), box=BOX, alignment=4)
    arrives = Effects(Completion.BARRIER_TRANSACTIONS, proxy="async")
    stored = Effects(Completion.COMMIT_GROUP, proxy="async", group="bulk")
    mask = number("mask", Part.MASK)
    out = spec("dst", W, GLOBAL, shape, partial=(True, True), box=BOX)
    staged = spec("src", R, SHARED, shape, layouts=(tile,), alignment=128)
    return (
        atom(f"copy.box.r{rows}", Kind.COPY, (dst, src, BARRIER), _copy, arrives, issuer="thread"),
        atom(
            f"copy.cast.r{rows}", Kind.COPY, (dst, src, BARRIER, mask), _copy, arrives,
            issuer="thread",
        ),
        atom(f"store.box.r{rows}", Kind.COPY, (out, staged), _put, stored, issuer="thread"),
    )  # fmt: skip


ACC = ("pair.m8n8",)
WIDE = ("team.m32n8",)
_TILE = (SIZE, SIZE)
ATOMS = (
    *(copy for rows in (4, 8, 16, 24) for copy in box_copies(rows)),
    # A copy that its threads share out row by row, in commit groups.
    atom(
        "copy.line.r32", Kind.COPY,
        (
            spec("dst", W, SHARED, (32, SIZE), share="rows", alignment=16),
            spec("src", R, GLOBAL, (32, SIZE), partial=(True, True)),
        ),
        _copy, Effects(Completion.COMMIT_GROUP, group="line"),
    ),
    atom(
        "copy.line.r16", Kind.COPY,
        (
            spec("dst", W, SHARED, (16, SIZE), share="rows", alignment=16),
            spec("src", R, GLOBAL, (16, SIZE), partial=(True, True)),
        ),
        _copy, Effects(Completion.COMMIT_GROUP, group="line"),
    ),
    atom(
        "copy.line.r8", Kind.COPY,
        (
            spec("dst", W, SHARED, _TILE, share="rows", alignment=16),
            spec("src", R, GLOBAL, _TILE, partial=(True, True)),
        ),
        _copy, Effects(Completion.COMMIT_GROUP, group="line"),
    ),
    atom(
        "mma", Kind.MMA,
        (
            spec("acc", U, REGISTER, _TILE, fragments=ACC, proxy="matrix"),
            spec("a", R, SHARED, _TILE, layouts=(TILE,), proxy="async", alignment=128),
            spec("b", R, SHARED, _TILE, layouts=(TILE,), proxy="async", alignment=128),
        ),
        _mma, Effects(Completion.MATRIX_GROUP, group="matrix"), warps=2, align=2,
    ),
    atom(
        "mma.line", Kind.MMA,
        (
            spec("acc", U, REGISTER, (32, SIZE), fragments=WIDE),
            spec("a", R, SHARED, (32, SIZE), alignment=16),
            spec("b", R, SHARED, _TILE, alignment=16),
        ),
        _mma, warps=4,
    ),
    atom(
        "zero", Kind.FILL,
        (
            spec("dst", W, REGISTER, _TILE, fragments=ACC),
            OperandSpec("value", R, F32, (), frozenset()),
        ),
        _fill, warps=2,
    ),
    atom(
        "zero.wide", Kind.FILL,
        (
            spec("dst", W, REGISTER, (32, SIZE), fragments=WIDE),
            OperandSpec("value", R, F32, (), frozenset()),
        ),
        _fill, warps=4,
    ),
    atom(
        "stage", Kind.STORE,
        (
            spec("dst", W, SHARED, _TILE, share="acc", alignment=16),
            spec("src", R, REGISTER, _TILE, fragments=ACC),
        ),
        _put, warps=2,
    ),
    atom(
        "store.wide", Kind.STORE,
        (
            spec("dst", W, GLOBAL, (32, SIZE), partial=(True, True), share="acc"),
            spec("src", R, REGISTER, (32, SIZE), fragments=WIDE),
        ),
        _put, warps=4,
    ),
    # Rows of eight in the registers of one warp.
    atom(
        "load.row", Kind.LOAD,
        (spec("dst", W, REGISTER, (SIZE,)), spec("src", R, MEMORY, (SIZE,), partial=(True,))),
        _copy, warps=1,
    ),
    atom(
        "store.row", Kind.STORE,
        (spec("dst", W, MEMORY, (SIZE,), partial=(True,)), spec("src", R, REGISTER, (SIZE,))),
        _put, warps=1,
    ),
    atom(
        "fill.row", Kind.FILL,
        (spec("dst", W, REGISTER, (SIZE,)), OperandSpec("value", R, F32, (), frozenset())),
        _fill, warps=1,
    ),
    atom(
        "add.row", Kind.MAP,
        (
            spec("dst", W, REGISTER, (SIZE,)), spec("a", R, REGISTER, (SIZE,)),
            spec("b", R, REGISTER, (SIZE,)),
        ),
        _add, warps=1,
    ),
    atom(
        "sum.row", Kind.REDUCE,
        (spec("dst", W, REGISTER, (SIZE,)), spec("a", R, REGISTER, (SIZE,))), _sum, warps=1,
    ),
    atom(
        "reduce.row", Kind.STORE,
        (
            spec("dst", Access.REDUCE, MEMORY, (SIZE,), partial=(True,)),
            spec("src", R, REGISTER, (SIZE,)),
        ),
        _add_to, warps=1,
    ),
    sync("commit.bulk", Sync.COMMIT, issuer="thread", group="bulk"),
    sync("wait.bulk", Sync.WAIT_GROUP, number("n", Part.PENDING), issuer="thread", group="bulk"),
    sync(
        "wait.bulk.read", Sync.WAIT_GROUP, number("n", Part.PENDING), issuer="thread",
        group="bulk", reads_only=True,
    ),
    sync("commit.line", Sync.COMMIT, group="line"),
    sync("wait.line", Sync.WAIT_GROUP, number("n", Part.PENDING), group="line"),
    sync("commit.matrix", Sync.COMMIT, group="matrix"),
    sync("wait.matrix", Sync.WAIT_GROUP, number("n", Part.PENDING), group="matrix"),
    sync("fence.matrix", Sync.FENCE, fences=frozenset({"matrix"})),
    sync("fence.async", Sync.FENCE, fences=frozenset({"async"})),
    sync("fence.init", Sync.FENCE, issuer="thread", fences=frozenset({"init"})),
    sync("init", Sync.INIT, BARRIER, number("count", Part.COUNT), issuer="thread"),
    sync("arrive", Sync.ARRIVE, BARRIER, issuer="thread"),
    sync("arrive.all", Sync.ARRIVE, BARRIER),
    sync("arrive.after", Sync.ARRIVE_AFTER, BARRIER, group="line"),
    sync("arrive.far", Sync.ARRIVE, BARRIER, number("rank", Part.RANK), issuer="thread"),
    sync("expect", Sync.EXPECT, BARRIER, number("bytes", Part.BYTES), issuer="thread"),
    sync("wait", Sync.WAIT, BARRIER, number("parity", Part.PARITY)),
    sync("team", Sync.TEAM),
    sync("named", Sync.NAMED, number("id", Part.ID), number("warps", Part.WARPS)),
    sync("named.arrive", Sync.NAMED_ARRIVE, number("id", Part.ID), number("warps", Part.WARPS)),
    sync("cluster.arrive", Sync.CLUSTER_ARRIVE),
    sync("cluster.wait", Sync.CLUSTER_WAIT),
    sync("registers", Sync.SET_REGISTERS, number("count", Part.REGISTERS)),
)  # fmt: skip
TABLE = AtomTable(ATOMS, ())
LIMITS = Limits(
    {MemorySpace.SHARED: 16 << 10, MemorySpace.REGISTER: 64, MemorySpace.SCRATCH: 1 << 20},
    register_bytes=4,
    max_units=256,
    max_warps=8,
    lanes=LANES,
    max_cluster=4,
    named_barriers=8,
    register_file=1024,
    register_least=8,
    register_most=48,
)


def tile_bytes(*shape):
    return prod(shape) * 4
