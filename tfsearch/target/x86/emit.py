"""TIR modules as C with intrinsics."""

from __future__ import annotations

import math
from collections.abc import Mapping

from tfsearch.atoms.contract import Atom
from tfsearch.codegen.clike import KernelEmitter
from tfsearch.codegen.storage import StoragePlan, plan
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import UNIT, Block, Call, For, If, Kernel, Module, Role

ENTRY_PREFIX = "tfsearch_"
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


def source_of(module: Module, atoms: Mapping[str, Atom]) -> tuple[str, LaunchSpec]:
    """C text of a module, and how its entries are called.

    An entry takes the pointers of its arguments in order, then the workspace, the thread pool and
    the function that runs a body on the pool.
    """
    tiles = TILE_FEATURE in features_of(module, atoms)
    parts = ['#include "tiles.h"' if tiles else '#include "kernel.h"', ""]
    entries: list[EntrySpec] = []
    for kernel in module.kernels:
        layout = plan(kernel)
        body = KernelEmitter(kernel, atoms, CDialect(), layout).lines()
        parts += _entry(kernel, body)
        entries.append(_entry_spec(kernel, layout))
    return "\n".join(parts), LaunchSpec(main=entries[-1], prepares=tuple(entries[:-1]))


def features_of(module: Module, atoms: Mapping[str, Atom]) -> tuple[str, ...]:
    """Architecture features that the atoms of a module need, sorted."""
    needed: set[str] = set()

    def visit(block: Block) -> None:
        for statement in block:
            match statement:
                case Call(atom):
                    needed.update(atoms[atom].features)
                case For(body=body) | Role(body=body):
                    visit(body)
                case If(then=then, orelse=orelse):
                    visit(then)
                    visit(orelse)
                case _:
                    pass

    for kernel in module.kernels:
        visit(kernel.body)
    return tuple(sorted(needed))


def _entry(kernel: Kernel, body: list[str]) -> list[str]:
    symbol = ENTRY_PREFIX + kernel.name
    head = f"static void {symbol}_unit(void **args, long {UNIT})"
    lines = [f"{head} {{", f"  (void){UNIT};", *body, "}", ""]
    pool = len(kernel.params) + 1
    if kernel.units == 1:
        lines += [f"int {symbol}(void **args) {{", f"  {symbol}_unit(args, 0);"]
    else:
        # The pool may give fewer threads than asked for: each takes every so-manyth unit.
        lines += [
            f"static void {symbol}_thread(void *args, int thread, int threads) {{",
            f"  for (long {UNIT} = thread; {UNIT} < {kernel.units}; {UNIT} += threads)",
            f"    {symbol}_unit((void **)args, {UNIT});",
            "}",
            "",
            f"int {symbol}(void **args) {{",
            "  typedef void (*body_t)(void *, int, int);",
            "  typedef void (*run_t)(void *, int, body_t, void *);",
            f"  ((run_t)args[{pool + 1}])(args[{pool}], {kernel.units}, {symbol}_thread, args);",
        ]
    return [*lines, "  return 0;", "}", ""]


def _entry_spec(kernel: Kernel, layout: StoragePlan) -> EntrySpec:
    return EntrySpec(
        symbol=ENTRY_PREFIX + kernel.name,
        arguments=tuple(
            ArgumentSpec(
                name=param.buffer.name,
                dtype=param.buffer.dtype.value,
                shape=param.buffer.shape,
                strides=param.buffer.dense_strides,
                io=param.io.value,
                alignment=param.buffer.alignment,
            )
            for param in kernel.params
        ),
        units=kernel.units,
        workspace_bytes=layout.workspace_bytes,
    )
