"""Hand-written concurrent kernels on the made-up machine of :mod:`tests.prove.loom`."""

from contextlib import contextmanager, nullcontext

from tests.prove.loom import LANES, SIZE, SWIZZLE, ring, tile_bytes
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Operator, Var, as_expr, binary, maximum, minimum
from tfsearch.ir.tir.nodes import UNIT, Box, Buffer, Io, MemorySpace, Module, Param, window

F32 = DType.F32
SHARED, REGISTER = MemorySpace.SHARED, MemorySpace.REGISTER


def arg(name, *shape):
    return Buffer(name, F32, shape, MemorySpace.GLOBAL, None, 128)


def boxed(buffer, rows, io):
    """An argument with a descriptor of boxes of ``rows`` x 8."""
    return Param(buffer, io, (Box((rows, SIZE), buffer.dense_strides, SWIZZLE),))


def clipped(start, extent, size):
    """(start, what is left of the extent before the edge)."""
    return start, maximum(0, minimum(extent, size - start))


def tile(buffer, slot, row=0, rows=SIZE):
    """A tile of a ring."""
    return window(buffer, slot, (row, rows), (0, SIZE))


class Ring:
    """Persistent, warp-specialised ``c = a @ b`` through a ring of shared-memory slots.

    ``consumers`` pairs of warps either share every tile (8 rows each) or, with ``pingpong``, take
    turns. With ``cast``, two units form a cluster whose tiles lie above one another: each loads
    half of the tile of ``b`` and sends it to both. With ``square``, four units do, and share
    tiles of ``a`` along the rows of the cluster too. With ``lines``, all threads of the loader copy
    through the generic proxy, and arrive once their copies are complete.
    """

    def __init__(
        self,
        m,
        n,
        k,
        *,
        stages=3,
        consumers=2,
        pingpong=False,
        cast=False,
        lines=False,
        square=False,
        clusters=2,
    ):
        self.m, self.n, self.k = m, n, k
        self.stages, self.consumers, self.pingpong = stages, consumers, pingpong
        self.lines = lines
        self.high, self.wide = (2, 2) if square else (2, 1) if cast else (1, 1)
        self.size = self.high * self.wide
        self.cast = cast or square
        unit = Var(UNIT) % self.size
        self.r, self.c_ = (unit // self.wide, unit % self.wide) if square else (unit, as_expr(0))
        self.clusters = clusters
        self.rows = SIZE if pingpong else SIZE * consumers
        self.steps = -(-k // SIZE)
        self.across = -(-n // (SIZE * self.wide))
        self.down = -(-m // (self.rows * self.high))
        self.tiles = self.down * self.across
        self.builder = Builder(("a", "b", "c"))
        self.a, self.b, self.c = arg("a", m, k), arg("b", k, n), arg("c", m, n)

    def module(self):
        b = self.builder
        slots = self.stages
        self.full = b.alloc("full", DType.BARRIER, (slots,), SHARED, alignment=8)
        self.empty = b.alloc("empty", DType.BARRIER, (slots,), SHARED, alignment=8)
        shape = (slots, self.rows, SIZE)
        self.sa = b.alloc("sa", F32, shape, SHARED, alignment=1024, layout=ring(*shape))
        shape = (slots, SIZE, SIZE)
        self.sb = b.alloc("sb", F32, shape, SHARED, alignment=1024, layout=ring(*shape))
        shape = (self.consumers, SIZE, SIZE)
        self.sc = b.alloc("sc", F32, shape, SHARED, alignment=1024, layout=ring(*shape))
        self._setup()
        self.cluster = b.let("cluster", Var(UNIT) // self.size)
        turns = (self.tiles - self.cluster + (self.clusters - 1)) // self.clusters
        self.turns = b.let("turns", turns)
        with b.role("loader", 0, 2, width=2):
            self._load()
        last = 2 + 2 * self.consumers
        with b.role("maths", 2, last, width=2, instance="w") as w:
            self._work(w)
        self._leave()
        half = SIZE // self.high
        params = (
            boxed(self.a, self.rows // self.wide, Io.IN), boxed(self.b, half, Io.IN),
            boxed(self.c, SIZE, Io.OUT),
        )  # fmt: skip
        kernel = b.kernel(
            "ring", params, self.clusters * self.size, warps=last, lanes=LANES, registers=32,
            cluster=(self.high, self.wide) if self.cast else (),
        )  # fmt: skip
        return Module((kernel,))

    def _setup(self):
        b = self.builder
        with b.loop("i", self.stages) as i:
            b.call("loom.init", window(self.full, i), 2 * LANES if self.lines else 1)
            reached = self.high + self.wide - 1
            arrivals = (1 if self.pingpong else self.consumers) * reached
            b.call("loom.init", window(self.empty, i), arrivals)
        b.call("loom.fence.init")
        self._meet()

    def _meet(self):
        if self.cast:
            self.builder.call("loom.cluster.arrive")
            self.builder.call("loom.cluster.wait")
        else:
            self.builder.call("loom.team")

    def _leave(self):
        if self.cast:
            self._meet()

    def _place(self, j):
        """(first row, first column) of this unit's tile of a turn."""
        b = self.builder
        t = b.let("t", self.cluster + j * self.clusters)
        row = b.let("row", ((t // self.across) * self.high + self.r) * self.rows)
        return row, b.let("col", (t % self.across * self.wide + self.c_) * SIZE)

    def _load(self):
        b = self.builder
        b.call("loom.registers", 16)
        with b.loop("j", self.turns) as j:
            row, col = self._place(j)
            with b.loop("kk", self.steps) as kk:
                at = b.let("at", j * self.steps + kk)
                slot = b.let("slot", at % self.stages)
                b.call("loom.wait", window(self.empty, slot), (at // self.stages + 1) % 2)
                self._fill(kk, slot, row, col)

    def _fill(self, kk, slot, row, col):
        b = self.builder
        full = window(self.full, slot)
        half, part = SIZE // self.high, self.rows // self.wide
        first, above = self.r * half, self.c_ * part
        source_a = window(
            self.a, clipped(row + above, part, self.m), clipped(kk * SIZE, SIZE, self.k)
        )
        source_b = window(
            self.b, clipped(kk * SIZE + first, half, self.k), clipped(col, SIZE, self.n)
        )
        into_a, into_b = tile(self.sa, slot, above, part), tile(self.sb, slot, first, half)
        if self.lines:
            b.call(f"loom.copy.line.r{self.rows}", into_a, source_a)
            b.call("loom.copy.line.r8", into_b, source_b)
            b.call("loom.arrive.after", full)
            return
        b.call("loom.expect", full, tile_bytes(self.rows, SIZE) + tile_bytes(SIZE, SIZE))
        if self.wide > 1:
            mask = self.r * 9 + 3
            b.call(f"loom.copy.cast.r{part}", into_a, source_a, full, mask)
            b.call(f"loom.copy.cast.r{half}", into_b, source_b, full, (self.c_ + 1) * 5)
        elif self.cast:
            b.call(f"loom.copy.box.r{part}", into_a, source_a, full)
            b.call(f"loom.copy.cast.r{half}", into_b, source_b, full, 3)
        else:
            b.call(f"loom.copy.box.r{part}", into_a, source_a, full)
            b.call(f"loom.copy.box.r{half}", into_b, source_b, full)

    def _release(self, slot):
        b = self.builder
        if self.wide > 1:
            with b.loop("r", 2) as r:
                b.call("loom.arrive.far", window(self.empty, slot), self.r * 2 + r)
            with b.loop("r", 2) as r, b.when(binary(Operator.NE, r, self.r)):
                b.call("loom.arrive.far", window(self.empty, slot), r * 2 + self.c_)
        elif self.cast:
            with b.loop("r", 2) as r:
                b.call("loom.arrive.far", window(self.empty, slot), r)
        else:
            b.call("loom.arrive", window(self.empty, slot))

    @contextmanager
    def _turn(self, w):
        """Instances of a ping-pong kernel work one after another, in turns."""
        b = self.builder
        if self.pingpong and self.consumers == 2:
            b.call("loom.named", w + 4, 4)
            yield
            b.call("loom.named.arrive", Const(5) - w, 4)
        else:
            yield

    def _work(self, w):
        b = self.builder
        acc = b.alloc("acc", F32, (SIZE, SIZE), REGISTER, fragment="pair.m8n8", alignment=4)
        whole = window(acc, (0, SIZE), (0, SIZE))
        rest = 32 * (2 + 2 * self.consumers) - 16 * 2
        b.call("loom.registers", min(rest // (2 * self.consumers) // 8 * 8, 48))
        if self.pingpong and self.consumers == 2:
            with b.when(w.eq(1)):
                b.call("loom.named.arrive", 4, 4)
        start, step = (w, self.consumers) if self.pingpong else (0, 1)
        with b.loop("j", self.turns, start=start, step=step) as j:
            row, col = self._place(j)
            with self._turn(w):
                self._contract(whole, w, j)
            b.call("loom.wait.bulk.read", 0)
            b.call("loom.named", w + 1, 2)
            b.call("loom.stage", tile(self.sc, w), whole)
            b.call("loom.fence.async")
            b.call("loom.named", w + 1, 2)
            if not self.pingpong:
                row = row + w * SIZE
            target = window(self.c, clipped(row, SIZE, self.m), clipped(col, SIZE, self.n))
            b.call("loom.store.box.r8", target, tile(self.sc, w))
            b.call("loom.commit.bulk")
        b.call("loom.wait.bulk", 0)

    def _contract(self, acc, w, j):
        b = self.builder
        b.call("loom.zero", acc, 0.0)
        b.call("loom.fence.matrix")
        with b.loop("kk", self.steps) as kk:
            at = b.let("at", j * self.steps + kk)
            slot = b.let("slot", at % self.stages)
            b.call("loom.wait", window(self.full, slot), at // self.stages % 2)
            if self.lines:
                b.call("loom.fence.async")
            rows = as_expr(0) if self.pingpong else w * SIZE
            b.call("loom.mma", acc, tile(self.sa, slot, rows), tile(self.sb, slot))
            b.call("loom.commit.matrix")
            b.call("loom.wait.matrix", 1)
            with b.when(as_expr(0).lt(kk)) if self.steps > 1 else nullcontext():
                if self.steps > 1:
                    self._release((at + (self.stages - 1)) % self.stages)
        b.call("loom.wait.matrix", 0)
        self._release((j * self.steps + (self.steps - 1)) % self.stages)


def ring_contraction(m, n, k, **options):
    return Ring(m, n, k, **options).module()


def line_contraction(m, n, k, *, stages=3, units=2):
    """``c = a @ b`` by teams of four warps, tiles of 32 x 8 through commit groups of copies."""
    b = Builder(("a", "b", "c"))
    a_, b_, c_ = arg("a", m, k), arg("b", k, n), arg("c", m, n)
    sa = b.alloc("sa", F32, (stages, 32, SIZE), SHARED, alignment=128)
    sb = b.alloc("sb", F32, (stages, SIZE, SIZE), SHARED, alignment=128)
    acc = b.alloc("acc", F32, (32, SIZE), REGISTER, fragment="team.m32n8", alignment=4)
    whole = window(acc, (0, 32), (0, SIZE))
    steps, across = -(-k // SIZE), -(-n // SIZE)
    tiles = -(-m // 32) * across

    def fetch(kk, row, col):
        slot = b.let("into", kk % stages)
        source = window(a_, clipped(row, 32, m), clipped(kk * SIZE, SIZE, k))
        b.call("loom.copy.line.r32", tile(sa, slot, 0, 32), source)
        source = window(b_, clipped(kk * SIZE, SIZE, k), clipped(col, SIZE, n))
        b.call("loom.copy.line.r8", tile(sb, slot), source)

    with b.loop("t", tiles, start=Var(UNIT), step=units) as t:
        row = b.let("row", t // across * 32)
        col = b.let("col", t % across * SIZE)
        b.call("loom.zero.wide", whole, 0.0)
        with b.loop("p", stages - 1) as p:
            with b.when(p.lt(steps)):
                fetch(p, row, col)
            b.call("loom.commit.line")
        with b.loop("kk", steps) as kk:
            b.call("loom.wait.line", stages - 2)
            b.call("loom.team")
            slot = b.let("slot", kk % stages)
            b.call("loom.mma.line", whole, tile(sa, slot, 0, 32), tile(sb, slot))
            with b.when((kk + (stages - 1)).lt(steps)):
                fetch(kk + (stages - 1), row, col)
            b.call("loom.commit.line")
        b.call("loom.wait.line", 0)
        b.call("loom.team")
        b.call("loom.store.wide", window(c_, clipped(row, 32, m), clipped(col, SIZE, n)), whole)
    params = (Param(a_, Io.IN), Param(b_, Io.IN), Param(c_, Io.OUT))
    return Module((b.kernel("line", params, units, warps=4, lanes=LANES),))


def row_sums(rows, columns, *, units=2, warps=4):
    """``y[r] = sum of x[r, :]`` by all warps of a unit, partial sums through shared memory."""
    b = Builder(("x", "y"))
    x, y = arg("x", rows, columns), arg("y", rows)
    part = b.alloc("part", F32, (warps, SIZE), SHARED, alignment=128)
    lanes = (0, SIZE)
    with b.role("rows", 0, warps, width=1, instance="w") as w:
        total = b.alloc("total", F32, (SIZE,), REGISTER, alignment=4)
        more = b.alloc("more", F32, (SIZE,), REGISTER, alignment=4)
        with b.loop("r", rows, start=Var(UNIT), step=units) as r:
            b.call("loom.fill.row", window(total, lanes), 0.0)
            with b.loop("j", columns, start=w * SIZE, step=warps * SIZE) as j:
                b.call(
                    "loom.load.row", window(more, lanes), window(x, r, clipped(j, SIZE, columns))
                )
                b.call("loom.add.row", *[window(v, lanes) for v in (total, total, more)])
            b.call("loom.store.row", window(part, w, lanes), window(total, lanes))
            b.call("loom.team")
            with b.when(w.eq(0)):
                with b.loop("i", warps - 1) as i:
                    b.call("loom.load.row", window(more, lanes), window(part, i + 1, lanes))
                    b.call("loom.add.row", *[window(v, lanes) for v in (total, total, more)])
                b.call("loom.sum.row", window(total, lanes), window(total, lanes))
                b.call("loom.store.row", window(y, (r, 1)), window(total, lanes))
            b.call("loom.team")
    params = (Param(x, Io.IN), Param(y, Io.OUT))
    return Module((b.kernel("row_sums", params, units, warps=warps, lanes=LANES),))


def split_sums(columns, depth, *, units=3):
    """``y += sum of x[d, :] over d`` with the depth split over units that add atomically."""
    b = Builder(("x", "y"))
    x, y = arg("x", depth, columns), arg("y", columns)
    lanes = (0, SIZE)
    total = b.alloc("total", F32, (SIZE,), REGISTER, alignment=4)
    more = b.alloc("more", F32, (SIZE,), REGISTER, alignment=4)
    with b.loop("j", columns, step=SIZE) as j:
        b.call("loom.fill.row", window(total, lanes), 0.0)
        with b.loop("d", depth, start=Var(UNIT), step=units) as d:
            b.call("loom.load.row", window(more, lanes), window(x, d, clipped(j, SIZE, columns)))
            b.call("loom.add.row", *[window(v, lanes) for v in (total, total, more)])
        b.call("loom.reduce.row", window(y, clipped(j, SIZE, columns)), window(total, lanes))
    params = (Param(x, Io.IN), Param(y, Io.INOUT))
    return Module((b.kernel("split", params, units, lanes=LANES),))


__all__ = ["Layout", "line_contraction", "ring_contraction", "row_sums", "split_sums"]
