"""The state of a team kernel while it runs: units, memories, barriers, operations in flight."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from tfsearch.atoms.contract import Completion
from tfsearch.ir.tir.nodes import Kernel, MemorySpace, Role
from tfsearch.ir.tir.walk import walk
from tfsearch.prove.memory import Array
from tfsearch.prove.team.accesses import Conflict, Index, Memory, Record
from tfsearch.prove.team.barriers import Barrier, BarrierError, Meeting
from tfsearch.prove.team.knowledge import Collective, Knowledge, Stream
from tfsearch.prove.team.program import Place, Prepared


@dataclass(frozen=True)
class Blocked:
    """A wait: when it is over, what for, and at which statement (its number)."""

    ready: Callable[[], bool]
    what: Callable[[], str]
    statement: int


_RANDOM_TASTE = 3
_STRAY = 0.03
"""How often a schedule with preferences goes on with another task all the same."""

Coroutine = Generator[Blocked | None, None, None]


class Stop(Exception):
    """The run cannot go on; the reason has been reported."""


class Reporter(Protocol):
    """Takes what was found; ``stop`` raises :class:`Stop` afterwards."""

    def report(self, code: str, statement: int, operand: int, message: str) -> None:
        """Note a finding at a statement (its number) and operand (-1: the call)."""
        ...

    def stop(self, code: str, statement: int, operand: int, message: str) -> None:
        """Note a finding and end the run."""
        ...

    def where(self, record: Record) -> str:
        """Who made an access, and at which place of the text."""
        ...


@dataclass
class Unit:
    """One unit: its shared memory, barrier objects by (buffer, index), meetings by id."""

    number: int
    shared: dict[str, Memory] = field(default_factory=dict[str, Memory])
    barriers: dict[tuple[str, Index], Barrier] = field(
        default_factory=dict[tuple[str, Index], Barrier]
    )
    meetings: dict[int, Meeting] = field(default_factory=dict[int, Meeting])


@dataclass
class Operand:
    """One window of an execution: where, in which memories (several under multicast)."""

    place: Place
    box: tuple[tuple[int, int], ...]
    index: Index
    memories: tuple[Memory, ...]

    def view(self, memory: Memory) -> Array:
        """The window as the atom's semantics takes it."""
        return shaped(memory.values[self.index], self.place)


def shaped(view: Array, place: Place) -> Array:
    """A window in the rank of its operand."""
    if not place.spec.shape:
        return view.reshape(-1)
    return view[(None,) * place.missing] if place.missing > 0 else view


@dataclass
class Operation:
    """An asynchronous operation between its issue and its completion."""

    number: int
    who: Collective
    call: Prepared
    operands: tuple[Operand, ...]
    arguments: tuple[int | float | Operand, ...]
    targets: tuple[tuple[Barrier, int], ...]
    after: Operation | None
    executed: bool = False

    @property
    def completion(self) -> Completion:
        """How its completion is known."""
        return self.call.atom.effects.completion

    def able(self) -> bool:
        """Whether it may happen now: matrix operations of a stream run in order."""
        return self.after is None or self.after.executed


@dataclass
class Arrival:
    """An arrival that happens once operations are complete; ``news`` is what it hands on."""

    barrier: Barrier
    arrivals: int
    news: Knowledge
    operations: tuple[Operation, ...]
    who: Collective
    statement: int

    def able(self) -> bool:
        """Whether everything it waits for is complete."""
        return all(operation.executed for operation in self.operations)


@dataclass
class Task:
    """A collective on its way through statements."""

    who: Collective
    coroutine: Coroutine
    order: int
    blocked: Blocked | None = None


class Machine:
    """Everything that runs; ``reporter`` takes findings."""

    def __init__(self, kernel: Kernel, memories: Mapping[str, Memory], reporter: Reporter) -> None:
        self.kernel = kernel
        self.memories = dict(memories)
        self.reporter = reporter
        self.history: list[Record] = []
        self.operations: list[Operation] = []
        self.private: dict[tuple[int, str], Memory] = {}
        self.remote: list[tuple[int, Record]] = []
        self.steps = 0
        size = kernel.cluster_size
        warps = kernel.warps
        self.units = [Unit(number) for number in range(kernel.units)]
        self.clusters = [
            Meeting("the cluster barrier", size * warps) for _ in range(-(-kernel.units // size))
        ]
        self.grid = Meeting("the barrier of all units", kernel.units * warps)
        ranges = sorted({(0, warps), *_ranges(kernel)})
        count = 2 * len(ranges) * kernel.units
        self.collectives = {
            (unit, *span): Collective(unit * len(ranges) + index, count, unit, *span)
            for unit in range(kernel.units)
            for index, span in enumerate(ranges)
        }
        self._tasks: list[Task] = []
        self._spawned = 0
        self._flying: list[Operation | Arrival] = []
        # Record 0 stands for "no access".
        self.history.append(Record(self.collectives[0, 0, warps], 0, 0, 0, "", single=False))

    def spawn(self, who: Collective, coroutine: Coroutine) -> Task:
        """Let a collective run."""
        task = Task(who, coroutine, self._spawned)
        self._spawned += 1
        self._tasks.append(task)
        return task

    def running(self, tasks: Iterable[Task]) -> bool:
        """Whether any of the tasks has not ended."""
        return any(task in self._tasks for task in tasks)

    def run(self, seed: int) -> list[Task]:
        """Run to the end; the tasks that wait for ever, [] where all ended.

        Of every four seeds one goes at random; one lets those that began first go on as long as
        they can, one those that began last, both with operations as late as possible; one follows
        random preferences, with operations as early as possible.
        """
        choose = random.Random(seed)
        mode = seed % 4
        eager = (0.4, 0.0, 0.0, 0.9)[mode]
        tasks, flying = self._tasks, self._flying
        tastes: dict[int, float] = {}

        def preference(task: Task) -> float:
            if mode == _RANDOM_TASTE:
                return tastes.setdefault(task.order, choose.random())
            return task.order if mode == 1 else -task.order

        while tasks or flying:
            ready = [t for t in tasks if t.blocked is None or t.blocked.ready()]
            able = [event for event in flying if event.able()]
            if not ready and not able:
                return tasks
            if able and (not ready or choose.random() < eager):
                event = able[choose.randrange(len(able))]
                flying.remove(event)
                if isinstance(event, Operation):
                    self._execute(event)
                else:
                    self._arrive(event)
                continue
            at_random = mode == 0 or choose.random() < _STRAY
            task = choose.choice(ready) if at_random else min(ready, key=preference)
            task.blocked = None
            for _ in range(choose.randrange(1, 9)):
                try:
                    task.blocked = next(task.coroutine)
                except StopIteration:
                    tasks.remove(task)
                    break
                if task.blocked is not None:
                    break
        return []

    def issue(self, operation: Operation) -> None:
        """Start an asynchronous operation."""
        self.operations.append(operation)
        self._flying.append(operation)

    def arrive_later(self, arrival: Arrival) -> None:
        """Let an arrival happen when it can."""
        self._flying.append(arrival)

    def _arrive(self, arrival: Arrival) -> None:
        for operation in arrival.operations:
            arrival.news.done |= 3 << 2 * operation.number
        try:
            arrival.barrier.arrive(arrival.arrivals, arrival.news)
        except BarrierError as error:
            text = f"{arrival.who.label}: {error}"
            self.reporter.stop(error.code, arrival.statement, -1, text)

    def stream(self, who: Collective, name: str) -> Stream:
        """A collective's stream of groups."""
        return who.streams.setdefault(name, Stream())

    def private_memory(self, who: Collective, place: Place, statement: int) -> Memory:
        """Registers and memory of one collective."""
        found = self.private.get((who.component, place.buffer.name))
        if found is None:
            self.reporter.stop(
                "tir.register-owner",
                statement,
                place.position,
                f"{who.label} uses {place.buffer.name}, which another collective allocated",
            )
            raise Stop
        return found

    def note(self, operand: Operand, kind: str, record: Record) -> None:
        """Record an access to every memory of an operand and report what it conflicts with."""
        number = len(self.history)
        self.history.append(record)
        for memory in operand.memories:
            if memory.tracked:
                found = memory.note(kind, operand.index, number, record, self.history)
                if found is not None:
                    self._conflict(operand, kind, record, found)

    def _conflict(self, operand: Operand, kind: str, now: Record, found: Conflict) -> None:
        verbs = {"read": "reads", "write": "writes", "reduce": "reduces into"}
        at = self._element(operand, found.position)
        through = f" through {found.other}" if found.other else ""
        at = [] if found.other else at
        before = self.reporter.where(found.earlier)
        did = "wrote" if found.wrote else "read"
        name = operand.place.buffer.name
        flight = " asynchronously" if now.operation >= 0 else ""
        head = (
            f"{now.who.label}{flight} {verbs[kind]} {name}{at or ''} "
            f"(operand {operand.place.spec.name})"
        )
        match found.code:
            case "tir.in-flight" | "tir.slot-in-use" if found.earlier.operation >= 0:
                does = "writes" if found.wrote else "reads"
                tail = (
                    f"which {before} {does}{through} asynchronously; nothing here has awaited that"
                )
            case "tir.proxy-fence":
                tail = (
                    f"which {before} wrote{through} through the proxy {found.earlier.proxy}; no "
                    f"fence makes that visible to the proxy {now.proxy}"
                )
            case _:
                tail = f"which {before} {did}{through}, and nothing orders the two"
        self.reporter.report(found.code, now.statement, now.operand, f"{head}, {tail}")

    def _element(self, operand: Operand, position: int) -> list[int]:
        at: list[int] = []
        for start, extent in reversed(operand.box):
            at.append(start + position % max(extent, 1))
            position //= max(extent, 1)
        return at[::-1]

    def check_written(self, operand: Operand, who: Collective, statement: int) -> None:
        """Report reads of what nothing has written."""
        for memory in operand.memories:
            mask = memory.mask[operand.index]
            if not mask.all():
                box = operand.box
                self.reporter.report(
                    "tir.read-unwritten",
                    statement,
                    operand.place.position,
                    f"{who.label} reads elements of {operand.place.buffer.name} that nothing has "
                    f"written, operand {operand.place.spec.name}, window at "
                    f"{[start for start, _ in box]} of extent {[extent for _, extent in box]}",
                )

    def perform(
        self,
        call: Prepared,
        operands: tuple[Operand, ...],
        arguments: tuple[int | float | Operand, ...],
        who: Collective,
    ) -> None:
        """Do to memory what the atom does, in each memory that a multicast reaches."""
        for operand in operands:
            if operand.place.spec.access.reads:
                self.check_written(operand, who, call.number)
        copies = max((len(o.memories) for o in operands), default=1)
        for copy in range(copies):
            views = [
                value.view(value.memories[min(copy, len(value.memories) - 1)])
                if isinstance(value, Operand)
                else value
                for value in arguments
            ]
            call.atom.semantics(views)
        for operand in operands:
            if operand.place.spec.access.writes:
                for memory in operand.memories:
                    for peer, elements in memory.shared_with(operand.index):
                        peer.mask[elements] = 0
                    memory.mask[operand.index] = 1

    def _execute(self, operation: Operation) -> None:
        call = operation.call
        try:
            self.perform(call, operation.operands, operation.arguments, operation.who)
        except (ValueError, TypeError, IndexError) as error:
            text = f"the atom cannot run here: {error}"
            self.reporter.stop("tir.semantics", call.number, -1, text)
        operation.executed = True
        bits = 3 << 2 * operation.number
        for barrier, size in operation.targets:
            barrier.complete(size, bits)

    def finish(self) -> None:
        """Report what a kernel leaves behind: operations that nobody awaited, late arrivals."""
        known: list[int] = [0] * len(self.units)
        for who in self.collectives.values():
            known[who.unit] |= who.know.done | who.lead.done | who.own_done
        for operation in self.operations:
            for operand in operation.operands:
                self._awaited(operation, operand, known)
        for unit, record in self.remote:
            clocks = [
                view.clock[record.component]
                for who in self.collectives.values()
                if who.unit == unit
                for view in (who.know, who.lead)
            ]
            if max(clocks) < record.epoch:
                self.reporter.report(
                    "tir.cluster-exit",
                    record.statement,
                    record.operand,
                    f"{record.who.label} arrives at a barrier of unit {unit}, which may have ended "
                    f"by then; a cluster barrier before the end keeps it there",
                )

    def _awaited(self, operation: Operation, operand: Operand, known: list[int]) -> None:
        space = operand.place.buffer.space
        if space in (MemorySpace.GLOBAL, MemorySpace.SCRATCH):
            return
        writes = operand.place.spec.access.writes
        for unit in self._holders(operation, operand):
            if not known[unit] >> (2 * operation.number + writes) & 1:
                does = "writes" if writes else "reads"
                self.reporter.report(
                    "tir.async-unawaited",
                    operation.call.number,
                    operand.place.position,
                    f"unit {unit} ends while {operation.call.atom.id} of {operation.who.label} "
                    f"still {does} its {operand.place.buffer.name}; nothing awaits that",
                )

    def _holders(self, operation: Operation, operand: Operand) -> list[int]:
        name = operand.place.buffer.name
        held = [u.number for u in self.units if u.shared.get(name) in operand.memories]
        return held or [operation.who.unit]


def _ranges(kernel: Kernel) -> list[tuple[int, int]]:
    """(first warp, width) of every instance of every role over warps."""
    out: list[tuple[int, int]] = []
    for _, statement in walk(kernel.body):
        if isinstance(statement, Role) and statement.over_warps:
            for instance in range(statement.instances):
                out.append((statement.first + instance * statement.width, statement.width))
    return out
