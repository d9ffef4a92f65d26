"""Where the memory of a kernel lives: workspace offsets of scratch and local buffers.

Scratch buffers are shared by all units, local ones exist once per unit. Both are carved out of
one workspace argument whose size is part of the launch specification. Buffers of disjoint
blocks do not share storage: footprints are small beside the arguments, and an aliasing plan
would have to be proved.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tfsearch.core.launch import ArgumentSpec, EntrySpec
from tfsearch.ir.tir.nodes import Alloc, Block, Buffer, For, If, Kernel, MemorySpace, Role

PAGE = 4096
ENTRY_PREFIX = "tfsearch_"
"""What the name of a kernel's entry begins with."""
SMALL = 16384
"""Local buffers up to this many bytes live on the C stack instead of the workspace."""


@dataclass(frozen=True)
class StoragePlan:
    """``offsets``: bytes from the workspace base; ``per_unit``: stride between units' local parts.

    A local buffer of unit u lies at ``offsets[name] + u * per_unit``.
    """

    offsets: dict[str, int]
    per_unit: int
    workspace_bytes: int


def allocations(block: Block) -> Iterator[Buffer]:
    """Every buffer allocated in a block or inside it, in order."""
    for statement in block:
        match statement:
            case Alloc(buffer):
                yield buffer
            case For(body=body) | Role(body=body):
                yield from allocations(body)
            case If(then=then, orelse=orelse):
                yield from allocations(then)
                yield from allocations(orelse)
            case _:
                pass


def on_stack(buffer: Buffer) -> bool:
    """True for local buffers small enough for the C stack."""
    return buffer.space is MemorySpace.LOCAL and buffer.bytes <= SMALL


def plan(kernel: Kernel, reserved: int = 0) -> StoragePlan:
    """Assign workspace offsets; each buffer is aligned to its own alignment (at least 64).

    The first ``reserved`` bytes are left to the target's launch code.
    """
    buffers = list(allocations(kernel.body))
    offsets: dict[str, int] = {}
    top = reserved
    for buffer in buffers:
        if buffer.space is MemorySpace.SCRATCH:
            top = _round_up(top, max(buffer.alignment, 64))
            offsets[buffer.name] = top
            top += buffer.bytes
    base = _round_up(top, PAGE)
    local = 0
    for buffer in buffers:
        if buffer.space is MemorySpace.LOCAL and not on_stack(buffer):
            local = _round_up(local, max(buffer.alignment, 64))
            offsets[buffer.name] = base + local
            local += buffer.bytes
    # An odd number of pages between units keeps their buffers off the same cache sets.
    pages = _round_up(local, PAGE) // PAGE
    per_unit = (pages | 1) * PAGE if pages else 0
    total = base + per_unit * kernel.units if per_unit else top
    return StoragePlan(offsets, per_unit, total)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def entry_spec(kernel: Kernel, layout: StoragePlan) -> EntrySpec:
    """What a caller has to know of a kernel: its entry, its arguments, its units, its memory."""
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
