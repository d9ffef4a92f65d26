"""Hand-written kernels with every kind of statement, on scalar atoms of x86."""

from __future__ import annotations

from collections.abc import Sequence

from tfsearch.atoms.table import AtomTable
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Var, maximum, minimum
from tfsearch.ir.tir.nodes import (
    UNIT,
    Block,
    Buffer,
    Io,
    Kernel,
    MemorySpace,
    Module,
    Param,
    Role,
    Scalar,
    window,
)
from tfsearch.target.x86.atoms import vector_atoms

F32 = DType.F32
ATOMS = AtomTable(tuple(vector_atoms()), ())
LOAD, STORE, ADD = "x86.load.f32x1.f32", "x86.store.f32.f32x1", "x86.add.f32x1"
FILL, PARTIAL = "x86.fill.f32x1", "x86.load_partial.f32x1.f32"


def argument(name: str, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Buffer:
    return Buffer(name, F32, shape, MemorySpace.GLOBAL, strides)


def every_statement() -> Module:
    """Lets, loops, unrolled loops, conditions, roles, fragments, three places for memory."""
    x, y = argument("x", (8, 6), (10, 1)), argument("y", (8, 6))
    builder = Builder(["x", "y"])
    shared = builder.alloc("shared", F32, (8, 6), MemorySpace.SCRATCH)
    large = builder.alloc("large", F32, (64, 128), MemorySpace.LOCAL)
    small = builder.alloc("small", F32, (6,), MemorySpace.LOCAL, alignment=128)
    first = builder.let("first", Var(UNIT) * 8 // 2)
    last = builder.let("last", minimum(maximum(first + 4, 1), 8))
    register = builder.alloc("r", F32, (2, 1), MemorySpace.REGISTER)
    with builder.loop("row", last, start=first, step=2) as row, builder.loop("j", 6, unroll=2) as j:
        with builder.loop("part", 2, unrolled=True) as part:
            builder.call(LOAD, window(register, part, (0, 1)), window(x, row, j))
            builder.call(STORE, window(shared, row, j), window(register, part, (0, 1)))
        with builder.when(row.eq(4)):
            builder.call(FILL, window(register, 0, (0, 1)), Scalar(float("inf")))
        builder.call(PARTIAL, window(register, 1, (0, 1)), window(x, row, (j, minimum(6 - j, 1))))
        builder.call(STORE, window(small, j), window(register, 1, (0, 1)))
        builder.call(STORE, window(large, row, j), window(register, 1, (0, 1)))
        builder.choose(
            row.eq(0),
            _add(builder, register, 0, 1, y, row, j),
            _add(builder, register, 1, 0, y, row, j),
        )
    builder.append(Role("leader", 0, 1, _fill(register, y)))
    return Module((builder.kernel("main", (Param(x, Io.IN), Param(y, Io.OUT)), 2),))


def _add(builder: Builder, r: Buffer, a: int, b: int, y: Buffer, *place: object) -> Block:
    with builder.capture() as block:
        left, right = window(r, a, (0, 1)), window(r, b, (0, 1))
        builder.call(ADD, left, left, right)
        builder.call(STORE, window(y, *place), left)  # type: ignore[arg-type]
    return tuple(block)


def _fill(register: Buffer, y: Buffer) -> Block:
    builder = Builder()
    builder.call(FILL, window(register, 0, (0, 1)), Scalar(-0.0))
    builder.call(STORE, window(y, 7, 5), window(register, 0, (0, 1)))
    return builder.kernel("body", (), 1).body


def copy_of(names: Sequence[str]) -> Module:
    """The second argument becomes the first plus itself; locals have ordinary names."""
    source, target = argument(names[0], (4,)), argument(names[1], (4,))
    builder = Builder(names)
    held = builder.alloc("acc", F32, (1, 1), MemorySpace.REGISTER)
    with builder.loop("i", 4) as i:
        one = window(held, 0, (0, 1))
        builder.call(LOAD, one, window(source, i))
        builder.call(ADD, one, one, one)
        builder.call(STORE, window(target, i), one)
    params = (Param(source, Io.IN), Param(target, Io.OUT))
    return Module((builder.kernel("main", params, 1),))


def with_allocations(buffers: Sequence[tuple[MemorySpace, int, int]], units: int) -> Kernel:
    """A kernel of nothing but allocations: (space, elements, alignment)."""
    builder = Builder()
    for space, count, alignment in buffers:
        builder.alloc("buffer", F32, (count,), space, alignment=alignment)
    return builder.kernel("main", (), units)
