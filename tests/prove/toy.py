"""A small vector machine for tests: eight f32 lanes, a barrier, an i32 file beside it."""

from tfsearch.atoms.contract import Access, Atom, AtomCost, Computation, Effects, Kind, OperandSpec
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.prove.limits import Limits

LANES = 8
MEMORY = frozenset({MemorySpace.GLOBAL, MemorySpace.SCRATCH, MemorySpace.LOCAL, MemorySpace.SHARED})
REGISTER = frozenset({MemorySpace.REGISTER})


def _spec(name, access, space, shape=(LANES,), partial=(), dtype=DType.F32, alignment=4):
    return OperandSpec(name, access, dtype, shape, space, partial, alignment=alignment)


def _atom(name, kind, fn, operands, semantics, *, pipe="fma", flops=0, sync="", features=()):
    return Atom(
        f"toy.{name}",
        frozenset(features),
        Computation(kind, fn, (LANES,), (DType.F32,)),
        operands,
        semantics,
        AtomCost(pipe, 1.0),
        "",
        effects=Effects(synchronises=sync),
        flops=flops,
    )


def _load(ops):
    dst, src = ops
    dst[:] = 0
    dst[: src.size] = src


def _store(ops):
    dst, src = ops
    dst[:] = src[: dst.size]


def _splat(ops):
    ops[0][:] = ops[1][0]


def _fill(ops):
    ops[0][:] = ops[1]


def _fma(ops):
    ops[0][:] = ops[0] + ops[1] * ops[2]


def _add(ops):
    ops[0][:] = ops[1] + ops[2]


def _sum(ops):
    ops[0][:] = ops[1].sum()


def _store_one(ops):
    ops[0][0] = ops[1][0]


def _nothing(ops):
    pass


W, R, U = Access.WRITE, Access.READ, Access.UPDATE
DST, A, B = (_spec(name, access, REGISTER) for name, access in (("dst", W), ("a", R), ("b", R)))
PART = _spec("src", R, MEMORY, partial=(True,))
WHOLE = _spec("src", R, MEMORY, alignment=32)
ONE = _spec("src", R, MEMORY, (1,))
OUT = _spec("dst", W, MEMORY, partial=(True,))
OUT_ONE = _spec("dst", W, MEMORY, (1,))
VALUE = OperandSpec("value", R, DType.F32, (), frozenset())
ACC = _spec("acc", U, REGISTER)
ATOMS = (
    _atom("load", Kind.LOAD, "", (DST, PART), _load, pipe="load"),
    _atom("load.aligned", Kind.LOAD, "aligned", (DST, WHOLE), _load, pipe="load"),
    _atom("store", Kind.STORE, "", (OUT, A), _store, pipe="store"),
    _atom("store.one", Kind.STORE, "one", (OUT_ONE, A), _store_one, pipe="store"),
    _atom("splat", Kind.SPLAT, "", (DST, ONE), _splat, pipe="load"),
    _atom("fill", Kind.FILL, "", (DST, VALUE), _fill),
    _atom("fma", Kind.MMA, "", (ACC, A, B), _fma, flops=16),
    _atom("add", Kind.MAP, "add", (DST, A, B), _add, flops=8),
    _atom("sum", Kind.REDUCE, "add", (DST, A), _sum, flops=8),
    _atom("barrier", Kind.SYNC, "", (), _nothing, pipe="sync", sync="unit_barrier"),
    _atom("prefetch", Kind.HINT, "", (ONE,), _nothing, pipe="load"),
    _atom("wide", Kind.MAP, "wide", (DST,), _fill, features=("avx9",)),
)
TABLE = AtomTable(ATOMS, {"base"})
LIMITS = Limits(
    {
        MemorySpace.SCRATCH: 1 << 20,
        MemorySpace.LOCAL: 1 << 14,
        MemorySpace.REGISTER: 16,
    },
    register_bytes=32,
    max_units=8,
)
