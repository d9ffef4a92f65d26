"""What is alive at once: the peak of every memory space with its holders.

Memory lives from its allocation to the end of the block. Registers and tiles live from the
first to the last statement of their block that touches them: what a register allocator sees.
Roles over warps that stand side by side run at once, so that what each allocates in shared memory
is alive together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfsearch.ir.tir.nodes import Alloc, Block, Buffer, Call, If, Kernel, MemorySpace, Role
from tfsearch.ir.tir.walk import Path, children, windows


@dataclass(frozen=True)
class Peak:
    """The most that is alive at once in a space, where, and the buffers with their sizes.

    ``alignment`` is the largest of the holders, bytes.
    """

    amount: int
    path: Path
    holders: tuple[tuple[str, int], ...]
    alignment: int = 1


@dataclass(frozen=True)
class Lifetime:
    """An allocation and the statements of its block during which it is alive (first, last)."""

    buffer: Buffer
    path: Path
    first: Path
    last: Path


_Peaks = dict[MemorySpace, Peak]


def peaks(kernel: Kernel, size: Callable[[Buffer], int]) -> dict[MemorySpace, Peak]:
    """The peak of every space that the kernel allocates in.

    ``size`` says what a buffer takes, bytes or a count. Bytes are laid out one after another in
    order of allocation, each at its alignment.
    """
    return _block(kernel.body, (), 0, size)[0]


def lifetimes(kernel: Kernel) -> tuple[Lifetime, ...]:
    """Every allocation with its live range, in the order of the text."""
    out: list[Lifetime] = []

    def visit(block: Block, prefix: Path, offset: int) -> set[str]:
        touched = [_touched(block, index, prefix, offset, visit) for index in range(len(block))]
        for index, buffer, first, last in _ranges(block, touched):
            at = (*prefix, offset + index)
            out.append(Lifetime(buffer, at, (*prefix, offset + first), (*prefix, offset + last)))
        return set[str]().union(*touched)

    visit(kernel.body, (), 0)
    return tuple(sorted(out, key=lambda item: item.path))


def _touched(
    block: Block,
    index: int,
    prefix: Path,
    offset: int,
    visit: Callable[[Block, Path, int], set[str]],
) -> set[str]:
    statement = block[index]
    path = (*prefix, offset + index)
    if isinstance(statement, Call):
        return {window.buffer.name for _, window in windows(statement)}
    if isinstance(statement, If):
        then = visit(statement.then, path, 0)
        return then | visit(statement.orelse, path, len(statement.then))
    inner = children(statement)
    return visit(inner, path, 0) if inner else set()


def _ranges(block: Block, touched: list[set[str]]) -> list[tuple[int, Buffer, int, int]]:
    """(index, buffer, first, last) of every allocation of a block."""
    out: list[tuple[int, Buffer, int, int]] = []
    for index, statement in enumerate(block):
        if not isinstance(statement, Alloc):
            continue
        buffer = statement.buffer
        first, last = index, len(block) - 1
        if buffer.space.is_register:
            uses = [i for i in range(index + 1, len(block)) if buffer.name in touched[i]]
            first, last = (uses[0], uses[-1]) if uses else (index, index)
        out.append((index, buffer, first, last))
    return out


def _block(
    block: Block, prefix: Path, offset: int, size: Callable[[Buffer], int]
) -> tuple[_Peaks, set[str]]:
    touched: list[set[str]] = []
    inner: list[_Peaks] = []
    for index, statement in enumerate(block):
        path = (*prefix, offset + index)
        if isinstance(statement, Call):
            touched.append({window.buffer.name for _, window in windows(statement)})
            inner.append({})
        elif isinstance(statement, If):
            then, names = _block(statement.then, path, 0, size)
            other, more = _block(statement.orelse, path, len(statement.then), size)
            touched.append(names | more)
            inner.append(_larger(then, other))
        else:
            found, names = _block(children(statement), path, 0, size)
            touched.append(names)
            inner.append(found)
    _beside(block, inner)
    out: _Peaks = {}
    ranges = _ranges(block, touched)
    if not ranges:
        for found in inner:
            out = _larger(out, found)
        return out, set[str]().union(*touched)
    for index in range(len(block)):
        live = [buffer for _, buffer, first, last in ranges if first <= index <= last]
        spaces = {buffer.space for buffer in live} | set(inner[index])
        for space in spaces:
            held = [buffer for buffer in live if buffer.space is space]
            nested = inner[index].get(space)
            peak = _stack(held, nested, (*prefix, offset + index), size)
            out = _larger(out, {space: peak})
    return out, set[str]().union(*touched)


def _beside(block: Block, inner: list[_Peaks]) -> None:
    """Add up the shared memory of roles that run at once."""
    together: Peak | None = None
    for index, statement in enumerate(block):
        if not (isinstance(statement, Role) and statement.over_warps):
            together = None
            continue
        mine = inner[index].get(MemorySpace.SHARED)
        if mine is not None and together is not None:
            amount = -(-together.amount // mine.alignment) * mine.alignment + mine.amount
            alignment = max(together.alignment, mine.alignment)
            mine = Peak(amount, mine.path, together.holders + mine.holders, alignment)
            inner[index] = {**inner[index], MemorySpace.SHARED: mine}
        together = mine or together


def _stack(
    held: list[Buffer], nested: Peak | None, path: Path, size: Callable[[Buffer], int]
) -> Peak:
    amount = 0
    alignment = 1
    holders: list[tuple[str, int]] = []
    for buffer in held:
        step = 1 if buffer.space.is_register else max(buffer.alignment, 1)
        taken = size(buffer)
        amount = -(-amount // step) * step + taken
        alignment = max(alignment, step)
        holders.append((buffer.name, taken))
    if nested is None:
        return Peak(amount, path, tuple(holders), alignment)
    amount = -(-amount // nested.alignment) * nested.alignment + nested.amount
    alignment = max(alignment, nested.alignment)
    return Peak(amount, nested.path, tuple(holders) + nested.holders, alignment)


def _larger(left: _Peaks, right: _Peaks) -> _Peaks:
    out = dict(left)
    for space, peak in right.items():
        if space not in out or peak.amount > out[space].amount:
            out[space] = peak
    return out
