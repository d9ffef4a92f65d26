"""Hand-written kernels on the toy machine: what legal lowered code looks like."""

from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Var, ceil_div, maximum, minimum
from tfsearch.ir.tir.nodes import UNIT, Buffer, Io, MemorySpace, Module, Param, window

F32 = DType.F32


def _arg(name, *shape, strides=None):
    return Buffer(name, F32, shape, MemorySpace.GLOBAL, strides, 64)


def lanes(register, *row):
    """One vector register."""
    return window(register, *row, (0, 8))


def gemm(m, n, k, *, units=2, mr=4, nv=2, kc=16, packed=True):
    """``c = a @ b``: blocks of ``kc`` steps, tiles of ``mr`` rows and ``nv`` vectors, tails.

    B is packed into scratch by all units, block by block, between two barriers; rows of tiles
    are shared out among the units.
    """
    b = Builder()
    a_, b_, c_ = _arg("a", m, k), _arg("b", k, n), _arg("c", m, n)
    nr = 8 * nv
    panels = -(-n // nr)
    pack = b.alloc("pack", F32, (panels, kc, nr), MemorySpace.SCRATCH) if packed else None
    acc = b.alloc("acc", F32, (mr, nv, 8), MemorySpace.REGISTER)
    av = b.alloc("av", F32, (1, 8), MemorySpace.REGISTER)
    bv = b.alloc("bv", F32, (nv, 8), MemorySpace.REGISTER)
    blocks = -(-m // mr)
    unit = Var(UNIT)
    first, last = unit * blocks // units, (unit + 1) * blocks // units
    with b.loop("kb", ceil_div(k, kc)) as kb:
        kk = b.let("kk", minimum(kc, k - kb * kc))
        if pack is not None:
            _pack(b, pack, b_, kb * kc, kk, n, units)
            b.call("toy.barrier")
        with b.loop("ib", last, start=first) as ib, b.loop("jp", panels) as jp:
            rows = b.let("rows", minimum(mr, m - ib * mr))
            with b.loop("i", mr, unrolled=True) as i, b.loop("v", nv, unrolled=True) as v:
                cols = maximum(0, minimum(8, n - jp * nr - v * 8))
                b.call("toy.fill", lanes(acc, i, v), 0.0)
                with b.when((Const(0) + 0).lt(kb) if not isinstance(kb, Const) else kb):
                    row = minimum(ib * mr + i, m - 1)
                    b.call(
                        "toy.load",
                        lanes(acc, i, v),
                        window(c_, row, (jp * nr + v * 8, cols)),
                    )
            with b.loop("p", kk) as p:
                with b.loop("v", nv, unrolled=True) as v:
                    if pack is not None:
                        b.call("toy.load", lanes(bv, v), window(pack, jp, p, (v * 8, 8)))
                    else:
                        cols = maximum(0, minimum(8, n - jp * nr - v * 8))
                        b.call(
                            "toy.load",
                            lanes(bv, v),
                            window(b_, kb * kc + p, (jp * nr + v * 8, cols)),
                        )
                with b.loop("i", mr, unrolled=True) as i:
                    row = minimum(ib * mr + i, m - 1)
                    b.call("toy.splat", lanes(av, 0), window(a_, row, kb * kc + p))
                    with b.loop("v", nv, unrolled=True) as v:
                        b.call(
                            "toy.fma",
                            lanes(acc, i, v),
                            lanes(av, 0),
                            lanes(bv, v),
                        )
            with (
                b.loop("i", mr, unrolled=True) as i,
                b.when(i.lt(rows)),
                b.loop("v", nv, unrolled=True) as v,
            ):
                cols = maximum(0, minimum(8, n - jp * nr - v * 8))
                b.call(
                    "toy.store",
                    window(c_, ib * mr + i, (jp * nr + v * 8, cols)),
                    lanes(acc, i, v),
                )
        if pack is not None:
            b.call("toy.barrier")
    params = (Param(a_, Io.IN), Param(b_, Io.IN), Param(c_, Io.OUT))
    return Module((b.kernel("gemm", params, units),))


def _pack(b, pack, source, k0, kk, n, units):
    panels, _, nr = pack.shape
    t = b.alloc("t", F32, (1, 8), MemorySpace.REGISTER)
    unit = Var(UNIT)
    first, last = unit * panels // units, (unit + 1) * panels // units
    with (
        b.loop("q", last, start=first) as q,
        b.loop("r", kk) as r,
        b.loop("w", nr // 8, unrolled=True) as w,
    ):
        cols = maximum(0, minimum(8, n - q * nr - w * 8))
        b.call("toy.load", lanes(t, 0), window(source, k0 + r, (q * nr + w * 8, cols)))
        b.call("toy.store", window(pack, q, r, (w * 8, 8)), lanes(t, 0))


def row_sum(rows, columns, *, units=1):
    """``y[r] = sum of x[r, :]`` with a ragged last vector."""
    b = Builder()
    x, y = _arg("x", rows, columns), _arg("y", rows)
    unit = Var(UNIT)
    total = b.alloc("total", F32, (1, 8), MemorySpace.REGISTER)
    part = b.alloc("part", F32, (1, 8), MemorySpace.REGISTER)
    with b.loop("r", (unit + 1) * rows // units, start=unit * rows // units) as r:
        b.call("toy.fill", lanes(total, 0), 0.0)
        with b.loop("j", columns, step=8) as j:
            b.call("toy.load", lanes(part, 0), window(x, r, (j, minimum(8, columns - j))))
            b.call(
                "toy.add",
                lanes(total, 0),
                lanes(total, 0),
                lanes(part, 0),
            )
        b.call("toy.sum", lanes(total, 0), lanes(total, 0))
        b.call("toy.store.one", window(y, r), lanes(total, 0))
    return Module((b.kernel("row_sum", (Param(x, Io.IN), Param(y, Io.OUT)), units),))


def prepared(rows, columns):
    """A prepare kernel that copies ``w`` into padded rows, and a main that adds it to ``x``."""
    width = -(-columns // 8) * 8
    w, x, y = _arg("w", rows, columns), _arg("x", rows, columns), _arg("y", rows, columns)
    p = _arg("p", rows, width)
    first = Builder()
    t = first.alloc("t", F32, (1, 8), MemorySpace.REGISTER)
    with first.loop("r", rows) as r, first.loop("j", columns, step=8) as j:
        first.call("toy.load", lanes(t, 0), window(w, r, (j, minimum(8, columns - j))))
        first.call("toy.store", window(p, r, (j, 8)), lanes(t, 0))
    b = Builder()
    s = b.alloc("s", F32, (2, 8), MemorySpace.REGISTER)
    with b.loop("r", rows) as r, b.loop("j", columns, step=8) as j:
        cols = minimum(8, columns - j)
        b.call("toy.load", lanes(s, 0), window(x, r, (j, cols)))
        b.call("toy.load.aligned", lanes(s, 1), window(p, r, (j, 8)))
        b.call("toy.add", lanes(s, 0), lanes(s, 0), lanes(s, 1))
        b.call("toy.store", window(y, r, (j, cols)), lanes(s, 0))
    prepare = first.kernel("pack", (Param(w, Io.IN), Param(p, Io.OUT)), 1)
    main = b.kernel("main", (Param(x, Io.IN), Param(p, Io.PREPARED), Param(y, Io.OUT)), 1)
    return Module((prepare, main))
