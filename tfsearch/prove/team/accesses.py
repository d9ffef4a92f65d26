"""Accesses to memory, and which of them nothing orders.

Every access is recorded: who, when, through which proxy. A buffer keeps for each element the last
write and the last read of every reader; a new access conflicts with those among them that the
acting threads do not know to have happened.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tfsearch.atoms.contract import GENERIC
from tfsearch.ir.tir.nodes import Buffer, MemorySpace
from tfsearch.prove.memory import Array
from tfsearch.prove.rules_layout import element_offsets
from tfsearch.prove.team.knowledge import Collective

Index = tuple[Any, ...]
Ids = np.ndarray[Any, np.dtype[np.int32]]
Offsets = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(slots=True)
class Record:
    """One access.

    ``operation``: the id of the asynchronous operation that it belongs to, or -1. ``stream``: the
    matrix stream within which operations run in order ("" elsewhere). ``single``: by the elected
    thread. ``share`` and ``box``: how threads share out which window.
    """

    who: Collective
    epoch: int
    statement: int
    operand: int
    proxy: str
    single: bool
    operation: int = -1
    stream: str = ""
    share: str = ""
    box: tuple[tuple[int, int], ...] = ()

    @property
    def component(self) -> int:
        """The component of the clock that the epoch belongs to."""
        return self.who.component + self.single


@dataclass(frozen=True)
class Conflict:
    """Two accesses that nothing orders: the code, the earlier one, and the element's place.

    ``other``: the buffer that the earlier one went through, where that is another one over the
    same storage.
    """

    code: str
    earlier: Record
    wrote: bool
    position: int
    other: str = ""


class Memory:
    """One buffer's memory in the team interpreter: values, what was written, who accessed it.

    Arrays have the buffer's shape; where elements lie does not matter here, but where buffers
    share storage (see :meth:`lie_over`).
    """

    __slots__ = (
        "_owner", "_places", "buffer", "last", "mask", "peers", "reads", "reduces", "tracked",
        "values",
    )  # fmt: skip

    def __init__(self, buffer: Buffer, *, tracked: bool = True) -> None:
        self.buffer = buffer
        self.values: Array = np.zeros(buffer.shape, dtype=buffer.dtype.numpy)
        self.mask = np.zeros(buffer.shape, dtype=np.uint8)
        self.tracked = tracked
        self.last: Ids = np.zeros(buffer.shape if tracked else (0,), dtype=np.int32)
        self.reads: dict[int, Ids] = {}
        self.reduces: dict[int, Ids] = {}
        self.peers: list[Memory] = []
        """Other memories that share bytes with this one."""
        self._places: Offsets | None = None
        self._owner: Offsets | None = None

    def lie_over(self, base: Memory) -> None:
        """Share the storage of another memory, and of those that lie over it already."""
        for other in (base, *base.peers):
            self.peers.append(other)
            other.peers.append(self)
        for memory in (self, *self.peers):
            memory._place(base.buffer.bytes)

    def _place(self, size: int) -> None:
        """Find out which bytes of the shared storage each element has, and the other way."""
        if self._places is not None:
            return
        width = self.buffer.dtype.bytes
        places = self.buffer.at + element_offsets(self.buffer) * width
        owner = np.full(size, -1, dtype=np.int64)
        for byte in range(width):
            owner[places.reshape(-1) + byte] = np.arange(places.size)
        self._places, self._owner = places, owner

    def shared_with(self, index: Index) -> Iterator[tuple[Memory, Index]]:
        """The elements of other memories that lie where those of this one do."""
        if not self.peers or self._places is None:
            return
        width = self.buffer.dtype.bytes
        first = self._places[index].reshape(-1)
        taken = (first[:, None] + np.arange(width)).reshape(-1)
        for peer in self.peers:
            if peer._owner is not None:
                hit = np.unique(peer._owner[taken])
                hit = hit[hit >= 0]
                if hit.size:
                    yield peer, np.unravel_index(hit, peer.buffer.shape)

    def poison(self) -> None:
        """Forget that anything was written."""
        self.mask[...] = 0

    def note(
        self, kind: str, index: Index, number: int, record: Record, history: list[Record]
    ) -> Conflict | None:
        """Record an access (``read``, ``write``, ``reduce``); what it conflicts with, if anything.

        ``number`` is the record's place in ``history``. Storage that other buffers lie over is
        accessed with it.
        """
        found = self._note(kind, index, number, record, history)
        for peer, elements in self.shared_with(index):
            other = peer._note(kind, elements, number, record, history)
            if other is not None and found is None:
                found = replace(other, other=peer.buffer.name)
        return found

    def _note(
        self, kind: str, index: Index, number: int, record: Record, history: list[Record]
    ) -> Conflict | None:
        found: Conflict | None = None
        for ids, writes, where in self._others(kind):
            view = ids[index]
            if not view.size:
                return None
            first = int(view.flat[0])
            uniform = bool((view == first).all())
            for other in (first,) if uniform else np.unique(view).tolist():
                if other and found is None:
                    code = self._verdict(record, history[other], wrote=writes, kind=kind)
                    if code:
                        position = int(np.argmax(view == other))
                        found = Conflict(code, history[other], where != "read", position)
        key = record.component if record.operation < 0 else -1 - record.who.component
        match kind:
            case "write":
                self.last[index] = number
            case "read":
                self._of(self.reads, key)[index] = number
            case _:
                self._of(self.reduces, key)[index] = number
        return found

    def rewritten(self, index: Index, history: list[Record]) -> Record | None:
        """The earlier write of an element that is written again with no read in between."""
        last = self.last[index]
        unread = last > 0
        for ids in self.reads.values():
            unread &= ids[index] < last
        if not unread.any():
            return None
        return history[int(last[unread].flat[0])]

    def _others(self, kind: str) -> Iterator[tuple[Ids, bool, str]]:
        yield self.last, True, "write"
        if kind != "read":
            for ids in self.reads.values():
                yield ids, False, "read"
        if kind != "reduce":
            for ids in self.reduces.values():
                yield ids, True, "reduce"

    def _of(self, ids: dict[int, Ids], key: int) -> Ids:
        found = ids.get(key)
        if found is None:
            found = ids[key] = np.zeros(self.buffer.shape, dtype=np.int32)
        return found

    def _verdict(self, now: Record, before: Record, *, wrote: bool, kind: str) -> str:
        """The code of the refusal where ``before`` is not known to have happened; else ""."""
        known = now.who.view(single=now.single)
        if before.operation >= 0:
            code = _unfinished(now, before, wrote=wrote)
            hidden = wrote and before.proxy == GENERIC and now.proxy != GENERIC
            if (
                not code
                and hidden
                and not known.shown.get(now.proxy, 0) >> (2 * before.operation + 1) & 1
            ):
                return "tir.proxy-fence"
            return code
        register = self.buffer.space is MemorySpace.REGISTER
        if not register and known.clock[before.component] < before.epoch and not _same(now, before):
            if now.operation >= 0 and not wrote and kind == "write":
                return "tir.slot-in-use"
            return "tir.race"
        if wrote and now.proxy not in (GENERIC, before.proxy):
            fenced = known.fenced.get(now.proxy)
            if fenced is None or fenced[before.component] < before.epoch:
                return "tir.proxy-fence"
        return ""


def _same(now: Record, before: Record) -> bool:
    """Whether program order puts one access of a collective after the other."""
    if now.who is not before.who:
        return False
    if now.who.narrow or (now.single and before.single):
        return True
    same = now.single == before.single and now.share == before.share != ""
    return same and now.box == before.box


def _unfinished(now: Record, before: Record, *, wrote: bool) -> str:
    known = now.who.view(single=now.single)
    if known.done >> (2 * before.operation + wrote) & 1:
        return ""
    if now.operation == before.operation:
        return ""
    if now.who is before.who:
        if now.stream and now.stream == before.stream:
            return ""
        done = now.who.own_done >> (2 * before.operation + wrote) & 1
        if done and now.share == before.share != "" and now.box == before.box:
            return ""
    if now.operation >= 0 and not wrote:
        return "tir.slot-in-use"
    return "tir.in-flight"
