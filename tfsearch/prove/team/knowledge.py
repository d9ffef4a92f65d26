"""What a collective knows to have happened: vector clocks, fences, completed operations.

Every collective (a range of warps of one unit) has two components of the clock: its threads
together, and its elected thread. A component's epoch grows whenever something is published, so
an access is known to another collective when that knows the access's epoch.
"""

from __future__ import annotations


class Knowledge:
    """Epochs by component, the same as far as fences made them visible, completed operations.

    ``done`` has two bits an operation: ``2 * id`` (its sources were read), ``2 * id + 1``
    (what it wrote is complete); ``shown`` those of them that fences made visible, by proxy.
    """

    __slots__ = ("clock", "done", "fenced", "shown")

    def __init__(self, components: int) -> None:
        self.clock = [0] * components
        self.fenced: dict[str, list[int]] = {}
        self.shown: dict[str, int] = {}
        self.done = 0

    def copy(self) -> Knowledge:
        """Another one that knows as much."""
        new = Knowledge(0)
        new.clock = self.clock.copy()
        new.fenced = {proxy: clock.copy() for proxy, clock in self.fenced.items()}
        new.shown = self.shown.copy()
        new.done = self.done
        return new

    def join(self, other: Knowledge) -> None:
        """Learn what another one knows."""
        self.clock = _larger(self.clock, other.clock)
        self.done |= other.done
        for proxy, clock in other.fenced.items():
            self.show(proxy, clock, other.shown[proxy])

    def show(self, proxy: str, clock: list[int], done: int) -> None:
        """Epochs and operations are visible through a proxy."""
        own = self.fenced.get(proxy)
        self.fenced[proxy] = clock.copy() if own is None else _larger(own, clock)
        self.shown[proxy] = self.shown.get(proxy, 0) | done

    def fence(self, proxies: frozenset[str]) -> None:
        """Make what is known visible through proxies."""
        for proxy in proxies:
            self.show(proxy, self.clock, self.done)


def _larger(left: list[int], right: list[int]) -> list[int]:
    return [a if a > b else b for a, b in zip(left, right, strict=True)]


class Collective:
    """A range of warps of a unit that runs statements together.

    ``know``: what every one of its threads knows. ``lead``: what the elected thread knows; the
    same object where the collective is one warp, whose threads go in step. ``own_done``: operations
    each thread knows to be complete for its own share only. ``joined``: what roles that have
    ended know; the unit as a whole learns it at its next barrier. ``cluster``: the cluster barrier
    that the collective has come to and not waited for (-1: none).
    """

    __slots__ = (
        "cluster",
        "component",
        "epoch",
        "first",
        "joined",
        "know",
        "label",
        "lead",
        "narrow",
        "own_done",
        "streams",
        "unit",
        "width",
    )

    def __init__(self, index: int, components: int, unit: int, first: int, width: int) -> None:
        self.component = 2 * index
        self.unit, self.first, self.width = unit, first, width
        self.narrow = width == 1
        self.epoch = 1
        self.know = Knowledge(components)
        self.lead = self.know if self.narrow else Knowledge(components)
        self.own_done = 0
        self.joined: list[Knowledge] = []
        self.streams: dict[str, Stream] = {}
        self.label = ""
        self.cluster = -1

    def view(self, *, single: bool) -> Knowledge:
        """What the threads that act know: the elected one, or every one."""
        return self.lead if single else self.know

    def publish(self, *, single: bool) -> Knowledge:
        """What an arrival of the elected thread, or of all threads, hands on."""
        out = self.lead.copy()
        if not single or self.narrow:
            out.clock[self.component] = self.epoch
            out.done |= self.own_done
            for member in self.joined:
                out.join(member)
        out.clock[self.component + 1] = self.epoch
        self.epoch += 1
        return out

    def learn(self, news: Knowledge, *, single: bool) -> None:
        """The elected thread, or every thread, learns something."""
        self.lead.join(news)
        if not single and not self.narrow:
            self.know.join(news)

    def fence(self, proxies: frozenset[str], *, single: bool) -> None:
        """Make what is known visible through proxies, each thread's own accesses included."""
        out = self.publish(single=single)
        out.fence(proxies)
        for view in {id(v): v for v in (self.know, self.lead)}.values():
            if view is self.lead or not single:
                for proxy in proxies:
                    view.show(proxy, out.fenced[proxy], out.shown[proxy])

    def start(self, parent: Collective) -> None:
        """Begin a role: the warps know what every thread of the unit knows."""
        self.learn(parent.know, single=False)


class Stream:
    """Groups of asynchronous operations: the open one, and those committed, oldest first."""

    __slots__ = ("closed", "open")

    def __init__(self) -> None:
        self.open: list[int] = []
        self.closed: list[list[int]] = []
