"""One-call kernels: each atom between plain loads and stores, through the emitter."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Access, Atom, Kind, OperandSpec
from tfsearch.atoms.table import AtomTable
from tfsearch.codegen.storage import ENTRY_PREFIX
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.rounding import round_to
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Expr
from tfsearch.ir.tir.nodes import (
    Buffer,
    Io,
    Kernel,
    MemorySpace,
    Module,
    Operand,
    Param,
    Scalar,
    Window,
    window,
)
from tfsearch.target.x86.emit import source_of

ROWS = 40
GAP = 3
FILLS: Mapping[bool, tuple[float, ...]] = {
    True: (0.0, -0.0, 1.5, -3.0, 2.0**-120, float("inf"), float("-inf"), float("nan")),
    False: (0.0, 1.0, -7.0, 2147483647.0, -2147483648.0),
}

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class OneCall:
    """A kernel around one atom, and the arrays it is called with."""

    atom: Atom
    kernel: Kernel
    inputs: Mapping[str, Array]

    @property
    def module(self) -> Module:
        return Module((self.kernel,))

    @property
    def symbol(self) -> str:
        return ENTRY_PREFIX + self.kernel.name

    def call(self, library: ctypes.CDLL) -> dict[str, Array]:
        """Arrays of the written arguments after one call."""
        held = {p.buffer.name: _flat(p.buffer, self.inputs) for p in self.kernel.params}
        pointers = [flat.ctypes.data for flat in held.values()] + [0]
        block = (ctypes.c_void_p * (len(pointers) + 2))(*pointers)
        assert getattr(library, self.symbol)(block) == 0
        return {
            p.buffer.name: _view(held[p.buffer.name], p.buffer)
            for p in self.kernel.params
            if p.io in (Io.OUT, Io.INOUT)
        }


def _flat(buffer: Buffer, inputs: Mapping[str, Array]) -> Array:
    flat = np.zeros(buffer.bytes // buffer.dtype.bytes, buffer.dtype.numpy)
    if buffer.name in inputs:
        _view(flat, buffer)[...] = inputs[buffer.name]
    return flat


def _view(flat: Array, buffer: Buffer) -> Array:
    strides = tuple(s * buffer.dtype.bytes for s in buffer.dense_strides)
    return np.lib.stride_tricks.as_strided(flat, buffer.shape, strides)


def one_call(atom: Atom, name: str, seed: int) -> OneCall:
    """The atom on ``ROWS`` rows of operands; partial ones with every extent in turn."""
    return _Maker(atom, name, np.random.default_rng(seed)).made()


class _Maker:
    def __init__(self, atom: Atom, name: str, rng: np.random.Generator) -> None:
        self.atom = atom
        self.name = name
        self.rng = rng
        self.builder = Builder()
        self.params: list[Param] = []
        self.inputs: dict[str, Array] = {}
        self.pool = _pool_of(atom)

    def made(self) -> OneCall:
        if self.atom.computes.kind is Kind.FILL:
            self._fills()
        elif not self.atom.operands:
            self.builder.call(self.atom.id)
        else:
            with self.builder.loop("row", ROWS) as row:
                self._row(row)
        if self.atom.effects.proxy == "weak_store":
            self.builder.call("x86.stream_fence")
        kernel = self.builder.kernel(self.name, tuple(self.params), 1)
        return OneCall(self.atom, kernel, self.inputs)

    def _fills(self) -> None:
        spec = self.atom.operands[0]
        assert spec.dtype is not None
        values = FILLS[spec.dtype.is_float]
        out = self._param("dst", spec.dtype, (len(values), *spec.shape), Io.OUT)
        for index, value in enumerate(values):
            register = self._register(spec)
            self.builder.call(self.atom.id, register, Scalar(value))
            self._store(spec, register, window(out, index, (0, spec.shape[0])))

    def _row(self, row: Expr) -> None:
        extents = self._extents(row)
        operands: list[Operand] = []
        stores: list[tuple[OperandSpec, Window, Window]] = []
        for spec in self.atom.operands:
            if not _in_registers(spec):
                operands.append(self._memory(spec, row, extents))
                continue
            register = self._register(spec)
            if spec.access is not Access.WRITE:
                self._load(spec, register, row)
            lanes = spec.shape[0]
            partial = any(spec.partial)
            box = window(register.buffer, (0, extents[0])) if partial else register
            operands.append(box)
            if spec.access is not Access.READ:
                out = self._param(f"{spec.name}_out", spec.dtype, (ROWS, lanes), Io.OUT)
                stores.append((spec, register, window(out, row, (0, lanes))))
        self.builder.call(self.atom.id, *operands)
        for spec, register, target in stores:
            self._store(spec, register, target)

    def _extents(self, row: Expr) -> tuple[Expr, ...]:
        shape = next((s.shape for s in self.atom.operands if any(s.partial)), ())
        return tuple(
            self.builder.let("extent", (row * factor) % (lanes + 1))
            for lanes, factor in zip(shape, (1, 7), strict=False)
        )

    def _memory(self, spec: OperandSpec, row: Expr, extents: tuple[Expr, ...]) -> Window:
        assert spec.dtype is not None
        io = Io.IN if spec.access is Access.READ else Io.INOUT
        strides = None
        shape = (ROWS, *spec.shape[:-1], spec.shape[-1] + 1)
        if spec.dense == 0:
            shape = (ROWS, *spec.shape)
            strides = (GAP * spec.shape[-1] + 1, GAP)
        buffer = self._param(spec.name, spec.dtype, shape, io, strides)
        sizes: list[Any] = list(spec.shape)
        if any(spec.partial):
            own = extents if len(extents) == 1 or spec.access is Access.READ else extents[::-1]
            sizes = list(own)
        return window(buffer, row, *((0, size) for size in sizes))

    def _param(
        self,
        name: str,
        dtype: DType | None,
        shape: tuple[int, ...],
        io: Io,
        strides: tuple[int, ...] | None = None,
    ) -> Buffer:
        assert dtype is not None
        buffer = Buffer(name, dtype, shape, MemorySpace.GLOBAL, strides, dtype.bytes)
        self.params.append(Param(buffer, io))
        if io is not Io.OUT:
            self.inputs[name] = _values(dtype, shape, self.rng, self.pool)
        return buffer

    def _register(self, spec: OperandSpec) -> Window:
        assert spec.dtype is not None
        buffer = self.builder.alloc("r", spec.dtype, spec.shape, MemorySpace.REGISTER)
        return window(buffer, (0, spec.shape[0]))

    def _load(self, spec: OperandSpec, register: Window, row: Expr) -> None:
        source = self._param(spec.name, spec.dtype, (ROWS, *spec.shape), Io.IN)
        self.builder.call(_plain("load", spec), register, window(source, row, (0, spec.shape[0])))

    def _store(self, spec: OperandSpec, register: Window, target: Window) -> None:
        self.builder.call(_plain("store", spec), target, register)


def _plain(what: str, spec: OperandSpec) -> str:
    assert spec.dtype is not None
    name, dtype = f"{spec.dtype.value}x{spec.shape[0]}", spec.dtype.value
    return f"x86.load.{name}.{dtype}" if what == "load" else f"x86.store.{dtype}.{name}"


def _in_registers(spec: OperandSpec) -> bool:
    return MemorySpace.REGISTER in spec.spaces


def at_the_edge(atom: Atom, name: str, *, end: bool) -> Kernel:
    """Partial accesses of every extent that end with their buffer, or begin with it.

    The memory operand is the first argument.
    """
    builder = Builder()
    memory, register = sorted(atom.operands, key=_in_registers)
    assert memory.dtype is not None
    assert register.dtype is not None
    lanes = register.shape[0]
    reads = memory.access is Access.READ
    buffer = Buffer(memory.name, memory.dtype, (lanes,), MemorySpace.GLOBAL, None, 1)
    other = Buffer("other", register.dtype, (lanes + 1, lanes), MemorySpace.GLOBAL)
    with builder.loop("extent", lanes + 1) as extent:
        part = window(buffer, (lanes - extent if end else 0, extent))
        fragment = builder.alloc("r", register.dtype, (lanes,), MemorySpace.REGISTER)
        box, row = window(fragment, (0, lanes)), window(other, extent, (0, lanes))
        if reads:
            builder.call(atom.id, box, part)
            builder.call(_plain("store", register), row, box)
        else:
            builder.call(_plain("load", register), box, row)
            builder.call(atom.id, part, box)
    io = (Io.IN, Io.OUT) if reads else (Io.OUT, Io.IN)
    params = (Param(buffer, io[0]), Param(other, io[1]))
    return builder.kernel(name, params, 1)


def one_text(kernels: Iterable[Kernel], atoms: AtomTable) -> str:
    """The kernels as one C text."""
    parts: list[str] = ['#include "kernel.h"']
    for kernel in kernels:
        head, _, body = source_of(Module((kernel,)), atoms)[0].partition("\n")
        assert head == parts[0]
        parts.append(body)
    return "\n".join(parts)


# Values ----------------------------------------------------------------------------------------


def _pool_of(atom: Atom) -> str:
    if atom.computes.accuracy == "fast":
        return "tame"
    return "few" if atom.computes.fn.startswith("select") else "all"


def _values(dtype: DType, shape: tuple[int, ...], rng: np.random.Generator, pool: str) -> Array:
    """Special numbers, small integers, and numbers of every magnitude, mixed."""
    if dtype.is_integer:
        info = np.iinfo(dtype.numpy)
        special = np.array([0, 1, -1, 2, 100, info.min, info.max, info.min + 1])
        wide = rng.integers(info.min, info.max, shape, endpoint=True)
        chosen = np.where(rng.random(shape) < 0.5, wide, rng.choice(special, shape))
        return chosen.astype(dtype.numpy)
    if pool == "tame":
        scale = np.exp2(rng.integers(-8, 7, shape).astype(float))
        return round_to(dtype, np.abs(rng.standard_normal(shape)) * scale + 2.0**-8)
    tiny, huge = {
        DType.F32: (2.0**-149, 3.4028234663852886e38),
        DType.F64: (5e-324, 1.7976931348623157e308),
        DType.F16: (2.0**-24, 65504.0),
        DType.BF16: (2.0**-133, 3.3895313892515355e38),
    }[dtype]
    few = np.array([0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, np.inf, -np.inf, np.nan])
    if pool == "few":
        return round_to(dtype, rng.choice(few, shape))
    edges = [tiny, -tiny, huge, -huge, 127.5, 128.5, -128.5, 2147483647.0, -2147483648.0, 3e9]
    special = np.concatenate([few, edges])
    span = np.log2(huge) - 1
    scale = np.exp2(np.floor(rng.uniform(-span, span, shape) * rng.choice([0.05, 1], shape)))
    wide = rng.standard_normal(shape) * scale
    return round_to(dtype, np.where(rng.random(shape) < 0.7, wide, rng.choice(special, shape)))
