"""What is alive at once: the peak of every memory space with its holders.

Memory lives from its allocation to the end of the block. Registers and tiles live from the
first to the last statement of their block that touches them: what a register allocator sees.
Roles over warps that stand side by side run at once, so that what each allocates in shared memory
is alive together.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable
from dataclasses import dataclass, field

from tfsearch.ir.tir.nodes import Alloc, Block, Buffer, Call, If, Kernel, Let, MemorySpace, Role
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
    first_use: dict[str, int] = {}
    last_use: dict[str, int] = {}
    for index, names in enumerate(touched):
        for name in names:
            first_use.setdefault(name, index)
            last_use[name] = index
    out: list[tuple[int, Buffer, int, int]] = []
    for index, statement in enumerate(block):
        if not isinstance(statement, Alloc):
            continue
        buffer = statement.buffer
        first, last = index, len(block) - 1
        if buffer.space.is_register:
            first = first_use.get(buffer.name, index)
            last = last_use.get(buffer.name, index)
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
        elif isinstance(statement, (Alloc, Let)):
            touched.append(set())
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
    ranges = _ranges(block, touched)
    names = set[str]().union(*touched)
    if ranges:
        return _sweep(ranges, inner, (prefix, offset), size), names
    out: _Peaks = {}
    for found in inner:
        out = _larger(out, found)
    return out, names


@dataclass
class _Level:
    """What is alive of one space as a sweep goes through a block."""

    amount: int = 0
    alignment: int = 1
    held: list[tuple[int, str, int]] = field(default_factory=list[tuple[int, str, int]])

    def add(self, index: int, buffer: Buffer, taken: int) -> None:
        """Registers add up; memory is laid out in order, each buffer at its alignment."""
        step = 1 if buffer.space.is_register else max(buffer.alignment, 1)
        self.amount = -(-self.amount // step) * step + taken
        self.alignment = max(self.alignment, step)
        insort(self.held, (index, buffer.name, taken))

    def drop(self, index: int, buffer: Buffer, taken: int) -> None:
        """A register is free again."""
        self.amount -= taken
        self.held.remove((index, buffer.name, taken))

    def with_nested(self, nested: Peak | None) -> int:
        """The amount together with the peak of what is inside a statement."""
        if nested is None:
            return self.amount
        return -(-self.amount // nested.alignment) * nested.alignment + nested.amount

    def peak(self, nested: Peak | None, path: Path) -> Peak:
        """What is alive now, as a peak."""
        holders = tuple((name, taken) for _, name, taken in self.held)
        amount = self.with_nested(nested)
        if nested is None:
            return Peak(amount, path, holders, self.alignment)
        alignment = max(self.alignment, nested.alignment)
        return Peak(amount, nested.path, holders + nested.holders, alignment)


def _sweep(
    ranges: list[tuple[int, Buffer, int, int]],
    inner: list[_Peaks],
    place: tuple[Path, int],
    size: Callable[[Buffer], int],
) -> _Peaks:
    """The peaks of a block: amounts grow only where something begins to live or is nested."""
    prefix, offset = place
    begins: dict[int, list[tuple[int, Buffer, int]]] = {}
    ends: dict[int, list[tuple[int, Buffer, int]]] = {}
    for index, buffer, first, last in ranges:
        item = (index, buffer, size(buffer))
        begins.setdefault(first, []).append(item)
        if buffer.space.is_register:
            ends.setdefault(last + 1, []).append(item)
    levels: dict[MemorySpace, _Level] = {}
    out: _Peaks = {}
    for at, nested in enumerate(inner):
        changed = set(nested)
        for item in ends.get(at, ()):
            levels[item[1].space].drop(*item)
        for item in begins.get(at, ()):
            levels.setdefault(item[1].space, _Level()).add(*item)
            changed.add(item[1].space)
        for space in changed:
            level = levels.get(space) or _Level()
            best = out.get(space)
            if best is None or level.with_nested(nested.get(space)) > best.amount:
                out[space] = level.peak(nested.get(space), (*prefix, offset + at))
    return out


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


def _larger(left: _Peaks, right: _Peaks) -> _Peaks:
    if not right:
        return left
    out = dict(left)
    for space, peak in right.items():
        if space not in out or peak.amount > out[space].amount:
            out[space] = peak
    return out
