"""What is alive at once: the peak of every memory space with its holders.

Memory lives from its allocation to the end of the block. Registers and tiles live from the
first to the last statement of their block that touches them: what a register allocator sees.
Shared memory has one place for each buffer for as long as a kernel runs: bytes are shared by
those buffers only that say so (``over``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfsearch.atoms.contract import Atom
from tfsearch.ir.tir.nodes import Alloc, Block, Buffer, Call, If, Kernel, Let, MemorySpace
from tfsearch.ir.tir.walk import Path, children, walk, windows


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
    out = _block(kernel.body, (), 0, size)[0]
    shared = shared_layout(kernel)
    if shared.offsets:
        held = tuple((name, taken) for name, taken in shared.holders.items())
        out[MemorySpace.SHARED] = Peak(shared.bytes, shared.last, held, shared.alignment)
    return out


@dataclass(frozen=True)
class SharedLayout:
    """Where the shared buffers of a unit lie.

    ``offsets``: bytes from a start that is a multiple of ``alignment``; ``holders``: bytes of the
    buffers with storage of their own; ``bytes``: past the last; ``last``: the last allocation.
    """

    offsets: dict[str, int]
    holders: dict[str, int]
    bytes: int
    alignment: int
    last: Path

    def requested(self, given: int) -> int:
        """Bytes to ask for where the start is only known to be a multiple of ``given`` bytes.

        0: it is one of whatever is needed.
        """
        return self.bytes + (max(self.alignment - given, 0) if given and self.bytes else 0)


def shared_of_atoms(kernel: Kernel, atoms: Mapping[str, Atom]) -> int:
    """Shared memory that the atoms of a kernel declare beside its buffers, bytes."""
    used = {s.atom for _, s in walk(kernel.body) if isinstance(s, Call)}
    return sum(atoms[name].shared_bytes for name in used if name in atoms)


def shared_layout(kernel: Kernel) -> SharedLayout:
    """The layout of shared memory: in order of the text, each buffer at its own alignment."""
    offsets: dict[str, int] = {}
    holders: dict[str, int] = {}
    top, most = 0, 1
    last: Path = ()
    for path, statement in walk(kernel.body):
        if not (isinstance(statement, Alloc) and statement.buffer.space is MemorySpace.SHARED):
            continue
        buffer = statement.buffer
        most = max(most, buffer.alignment)
        if buffer.over:
            offsets[buffer.name] = offsets.get(buffer.over, 0) + buffer.at
            continue
        step = max(buffer.alignment, 1)
        offsets[buffer.name] = -(-top // step) * step
        holders[buffer.name] = buffer.bytes
        top, last = offsets[buffer.name] + buffer.bytes, path
    return SharedLayout(offsets, holders, top, most, last)


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
    """How much is alive of one space as a sweep goes through a block."""

    amount: int = 0
    alignment: int = 1

    def add(self, buffer: Buffer, taken: int) -> None:
        """Registers add up; memory is laid out in order, each buffer at its alignment."""
        step = 1 if buffer.space.is_register else max(buffer.alignment, 1)
        self.amount = -(-self.amount // step) * step + taken
        self.alignment = max(self.alignment, step)

    def drop(self, taken: int) -> None:
        """A register is free again."""
        self.amount -= taken

    def with_nested(self, nested: Peak | None) -> int:
        """The amount together with the peak of what is inside a statement."""
        if nested is None:
            return self.amount
        return -(-self.amount // nested.alignment) * nested.alignment + nested.amount


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
    ranges = [item for item in ranges if item[1].space is not MemorySpace.SHARED]
    for index, buffer, first, last in ranges:
        item = (index, buffer, size(buffer))
        begins.setdefault(first, []).append(item)
        if buffer.space.is_register:
            ends.setdefault(last + 1, []).append(item)
    levels: dict[MemorySpace, _Level] = {}
    most: dict[MemorySpace, tuple[int, int, int]] = {}
    for at, nested in enumerate(inner):
        changed = set(nested)
        for item in ends.get(at, ()):
            levels[item[1].space].drop(item[2])
        for item in begins.get(at, ()):
            levels.setdefault(item[1].space, _Level()).add(item[1], item[2])
            changed.add(item[1].space)
        for space in changed:
            level = levels.get(space) or _Level()
            amount = level.with_nested(nested.get(space))
            if space not in most or amount > most[space][0]:
                most[space] = (amount, at, level.alignment)
    out: _Peaks = {}
    for space, (amount, at, alignment) in most.items():
        held = tuple(
            (buffer.name, size(buffer))
            for _, buffer, first, last in ranges
            if buffer.space is space
            and first <= at
            and (last >= at or not buffer.space.is_register)
        )
        nested = inner[at].get(space)
        if nested is None:
            out[space] = Peak(amount, (*prefix, offset + at), held, alignment)
        else:
            most_aligned = max(alignment, nested.alignment)
            out[space] = Peak(amount, nested.path, held + nested.holders, most_aligned)
    return out


def _larger(left: _Peaks, right: _Peaks) -> _Peaks:
    if not right:
        return left
    out = dict(left)
    for space, peak in right.items():
        if space not in out or peak.amount > out[space].amount:
            out[space] = peak
    return out
