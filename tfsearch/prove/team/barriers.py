"""What collectives wait for: barrier objects with phases and transactions, and meetings."""

from __future__ import annotations

from dataclasses import dataclass, field

from tfsearch.prove.team.accesses import Record
from tfsearch.prove.team.knowledge import Collective, Knowledge


class BarrierError(Exception):
    """A barrier is used as it cannot be; ``code`` and the message say how."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass
class Barrier:
    """One barrier object: arrivals a phase, what the present phase still waits for, knowledge.

    A wait for a parity is over when the phase of that parity is: a fresh barrier is in phase 0,
    and phase -1 counts as over. ``earlier`` is what the arrivals of completed phases handed on,
    ``present`` those of the present one.
    """

    name: str
    count: int
    record: Record
    pending: int
    earlier: Knowledge
    present: Knowledge
    phase: int = 0
    bytes: int = 0

    def over(self, parity: int) -> bool:
        """Whether the phase of a parity is over."""
        return self.phase & 1 != parity & 1

    def arrive(self, arrivals: int, news: Knowledge) -> bool:
        """Note arrivals; whether the phase is over now."""
        if arrivals > self.pending:
            raise BarrierError(
                "tir.barrier-overflow",
                f"{arrivals} arrivals come to {self.name} in phase {self.phase}, which has "
                f"{self.pending} of {self.count} left",
            )
        self.pending -= arrivals
        self.present.join(news)
        return self._advance()

    def complete(self, size: int, bits: int) -> bool:
        """Note the bytes of a completed operation; whether the phase is over now."""
        self.bytes -= size
        self.present.done |= bits
        return self._advance()

    def _advance(self) -> bool:
        if self.pending or self.bytes:
            return False
        self.earlier.join(self.present)
        self.pending = self.count
        self.phase += 1
        return True

    def __str__(self) -> str:
        return (
            f"{self.name} in phase {self.phase}: {self.pending} of {self.count} arrivals and "
            f"{self.bytes} bytes outstanding"
        )


@dataclass
class Meeting:
    """A barrier without an object: over when as many warps as it takes have come."""

    name: str
    warps: int
    came: int = 0
    generation: int = 0
    news: Knowledge | None = None
    here: set[int] = field(default_factory=set[int])
    over: dict[int, Knowledge] = field(default_factory=dict[int, Knowledge])

    def arrive(self, who: Collective, warps: int) -> int:
        """Note that a collective has come; the generation to wait for."""
        if self.came and warps != self.warps:
            raise BarrierError(
                "tir.barrier-overflow",
                f"{self.name} is for {self.warps} warps to those that wait at it, for {warps} to "
                f"the {who.width} that come now",
            )
        if who.component in self.here:
            raise BarrierError(
                "tir.barrier-overflow",
                f"the same {who.width} warps come to {self.name} twice before it is over",
            )
        self.here.add(who.component)
        self.warps = warps
        self.came += who.width
        if self.came > warps:
            raise BarrierError(
                "tir.barrier-overflow",
                f"{self.came} warps have come to {self.name}, which is for {warps}",
            )
        news = who.publish(single=False)
        if self.news is None:
            self.news = news
        else:
            self.news.join(news)
        mine = self.generation
        if self.came == warps:
            self.over[mine] = self.news
            self.generation += 1
            self.came, self.news = 0, None
            self.here.clear()
        return mine

    def __str__(self) -> str:
        return f"{self.name}: {self.came} of {self.warps} warps have come"
