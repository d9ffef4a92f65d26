"""TIR modules as C with intrinsics."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tfsearch.atoms.contract import Atom
from tfsearch.codegen.clike import KernelEmitter
from tfsearch.codegen.storage import ENTRY_PREFIX, entry_spec, plan
from tfsearch.core.errors import InternalError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import (
    UNIT,
    Block,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    MemorySpace,
    Module,
    Role,
)

TILE_FEATURE = "amx_tile"
_ELEMENTS = {
    DType.F32: "float",
    DType.F64: "double",
    DType.BF16: "uint16_t",
    DType.F16: "uint16_t",
    DType.I8: "int8_t",
    DType.I32: "int32_t",
}
_TILE_RANK = 2
UNIT_BARRIER = "unit_barrier"
BARRIER_BYTES = 128
"""Bytes at the start of the workspace that hold the barrier of the support library."""
TOO_FEW_THREADS = 11
"""What a kernel returns whose units wait for one another and which got too few threads."""


class CDialect:
    """C with the types of ``clib``."""

    def element(self, dtype: DType) -> str:
        """Storage type of one element."""
        return _ELEMENTS[dtype]

    def register(self, dtype: DType, shape: tuple[int, ...]) -> str | None:
        """``tfs_f32x16``; tiles are numbered by the instruction set and have no type."""
        if len(shape) == _TILE_RANK:
            return None
        return f"tfs_{dtype.value}x{shape[-1]}"

    def literal(self, value: float) -> str:
        """A constant with every bit; it converts exactly to the register's element type."""
        if math.isnan(value):
            return "NAN"
        if math.isinf(value):
            return "INFINITY" if value > 0 else "-INFINITY"
        return value.hex()

    def argument(self, index: int) -> str:
        """Arguments come as an array of addresses."""
        return f"args[{index}]"

    def pointer(self, element: str, name: str, address: str) -> str:
        """A ``restrict`` pointer."""
        return f"{element} *restrict {name} = ({element} *){address};"

    def array(self, buffer: Buffer) -> str:
        """A local array on the stack of its thread."""
        if buffer.space is not MemorySpace.LOCAL:
            raise InternalError(
                "codegen.space", f"{buffer.name}: C has no {buffer.space.value} memory"
            )
        element, count = self.element(buffer.dtype), buffer.bytes // buffer.dtype.bytes
        align = max(buffer.alignment, 1)
        return f"{element} {buffer.name}[{count}] __attribute__((aligned({align})));"

    def unroll(self, count: int) -> str:
        """A pragma that gcc and clang take."""
        return f"#pragma GCC unroll {count}"


def source_of(module: Module, atoms: Mapping[str, Atom]) -> tuple[str, LaunchSpec]:
    """C text of a module, and how its entries are called.

    An entry takes the pointers of its arguments in order, then the workspace (zeroed when it was
    allocated), the thread pool, the function that runs a body on the pool, and the one that waits
    at a barrier.
    """
    tiles = TILE_FEATURE in features_of(module, atoms)
    parts = ['#include "tiles.h"' if tiles else '#include "kernel.h"', ""]
    entries: list[EntrySpec] = []
    for kernel in module.kernels:
        waits = any(
            atoms[name].effects.synchronises == UNIT_BARRIER for name in _atoms_of(kernel.body)
        )
        layout = plan(kernel, BARRIER_BYTES if waits else 0)
        body = KernelEmitter(kernel, atoms, CDialect(), layout).lines()
        parts += _entry(kernel, body, waits=waits)
        entries.append(entry_spec(kernel, layout))
    return "\n".join(parts), LaunchSpec(main=entries[-1], prepares=tuple(entries[:-1]))


def features_of(module: Module, atoms: Mapping[str, Atom]) -> tuple[str, ...]:
    """Architecture features that the atoms of a module need, sorted."""
    needed: set[str] = set()
    for kernel in module.kernels:
        for name in _atoms_of(kernel.body):
            needed |= atoms[name].features
    return tuple(sorted(needed))


def _atoms_of(block: Block) -> set[str]:
    """Ids of the atoms called in a block or inside it."""
    found: set[str] = set()
    for statement in block:
        match statement:
            case Call(atom):
                found.add(atom)
            case For(body=body) | Role(body=body):
                found |= _atoms_of(body)
            case If(then=then, orelse=orelse):
                found |= _atoms_of(then) | _atoms_of(orelse)
            case _:
                pass
    return found


def _entry(kernel: Kernel, body: list[str], *, waits: bool) -> list[str]:
    symbol, count = ENTRY_PREFIX + kernel.name, len(kernel.params)
    lines = [f"static void {symbol}_unit(void **args, long {UNIT}) {{", f"  (void){UNIT};"]
    if waits:
        lines += [
            f"  void *const tfs_barrier_state = args[{count}];",
            f"  void (*const tfs_wait)(void *, int) = (void (*)(void *, int))args[{count + 3}];",
            f"  const int tfs_units = {kernel.units};",
        ]
    lines += [*body, "}", ""]
    if kernel.units == 1:
        lines += [f"int {symbol}(void **args) {{", f"  {symbol}_unit(args, 0);", "  return 0;"]
    else:
        lines += _threads(symbol, kernel.units, count + 1, waits=waits)
    return [*lines, "}", ""]


def _threads(symbol: str, units: int, pool: int, *, waits: bool) -> list[str]:
    """The body of one thread, and the entry that runs it on the pool.

    The pool may give fewer threads than asked for. Each then takes every so-manyth unit; units
    that wait for one another need a thread each, or the call fails.
    """
    return [
        f"struct {symbol}_call {{ void **args; int refused; }};",
        f"static void {symbol}_thread(void *context, int thread, int threads) {{",
        f"  struct {symbol}_call *call = (struct {symbol}_call *)context;",
        *(
            [f"  if (threads < {units}) {{ call->refused = {TOO_FEW_THREADS}; return; }}"]
            if waits
            else []
        ),
        f"  for (long {UNIT} = thread; {UNIT} < {units}; {UNIT} += threads)",
        f"    {symbol}_unit(call->args, {UNIT});",
        "}",
        "",
        f"int {symbol}(void **args) {{",
        "  typedef void (*body_t)(void *, int, int);",
        "  typedef void (*run_t)(void *, int, body_t, void *);",
        f"  struct {symbol}_call call = {{args, 0}};",
        f"  ((run_t)args[{pool + 1}])(args[{pool}], {units}, {symbol}_thread, &call);",
        "  return call.refused;",
    ]
