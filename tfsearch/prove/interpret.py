"""The interpreter: TIR on NumPy arrays, tile by tile, to find what structure cannot show.

Units run as coroutines under a seeded scheduler. Every element carries whether it was ever
written; accesses to shared memory are checked for races; windows are checked again. Kernels whose
units are teams, or that do anything asynchronously, run in :mod:`tfsearch.prove.team`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Sync
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Refusal
from tfsearch.ir.tir.nodes import Call, Io, Kernel, MemorySpace, Module, Window
from tfsearch.ir.tir.printer import Place, first_lines, places
from tfsearch.ir.tir.walk import walk
from tfsearch.prove import schedule
from tfsearch.prove.compile import Hooks, Program, compile_kernel
from tfsearch.prove.limits import Limits
from tfsearch.prove.memory import Array, Store
from tfsearch.prove.races import Clock, Tracker
from tfsearch.prove.team.program import called, needs_team
from tfsearch.prove.team.run import TeamRun
from tfsearch.prove.verify import verify

STRUCTURAL = frozenset(
    {
        "tir.module-empty",
        "tir.statement",
        "tir.atom-unknown",
        "tir.atom-unavailable",
        "tir.operand-count",
        "tir.operand-kind",
        "tir.operand-dtype",
        "tir.operand-shape",
        "tir.write-to-input",
        "tir.buffer-unknown",
        "tir.buffer-mismatch",
        "tir.buffer-empty",
        "tir.buffer-layout",
        "tir.alloc-space",
        "tir.name-duplicate",
        "tir.name-shadowed",
        "tir.variable-unbound",
        "tir.division-by-zero",
        "tir.loop-step",
        "tir.units",
        "tir.prepare-mismatch",
        "tir.prepare-duplicate",
        "tir.prepare-missing",
        "tir.prepare-unused",
        "tir.prepare-io",
        "tir.completion",
        "tir.role-range",
        "tir.role-nested",
        "tir.role-overlap",
        "tir.barrier-space",
        "tir.storage-over",
    }
)
"""Refusals of the verifier that leave nothing to execute."""

SCHEDULES = 8
"""Schedules under which a kernel with barrier objects or named barriers is run."""
_HANDED_ON = frozenset({Sync.WAIT, Sync.NAMED})
_ANY = Limits(
    dict.fromkeys(MemorySpace, 1 << 62),
    max_units=1 << 20,
    max_refusals=1 << 20,
    max_warps=1 << 20,
    max_cluster=1 << 20,
)


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    ``outputs``: ``OUT`` and ``INOUT`` arguments of main by name, dense arrays in their own dtype.
    ``refusals``: what was found, each once per statement. ``steps``: atom calls executed.
    """

    outputs: Mapping[str, Array]
    refusals: tuple[Refusal, ...]
    steps: int


class _Stop(Exception):
    """The run cannot go on; the reason is among the refusals."""


def interpret(
    module: Module,
    atoms: AtomTable,
    arguments: Mapping[str, Array],
    *,
    seed: int = 0,
    detect_races: bool = True,
) -> Outcome:
    """Run a module: prepare kernels first, then main.

    ``arguments`` holds an array per ``IN`` and ``INOUT`` parameter of every kernel, in the
    parameter's shape and dtype; a missing or unfit one is a ``RequestError``. Neither the
    arrays nor anything outside is changed. The same seed gives the same run.
    """
    broken = tuple(r for r in verify(module, atoms, _ANY) if r.code in STRUCTURAL)
    if broken:
        return Outcome({}, broken, 0)
    shared: dict[str, Store] = {}
    refusals: list[Refusal] = []
    steps = 0
    for index, kernel in enumerate(module.kernels):
        line = first_lines(module)[index]
        stores = _bind(kernel, arguments, shared)
        team = needs_team(kernel, atoms)
        run = (TeamRun if team else _Run)(kernel, atoms, stores, line, detect_races=detect_races)
        steps += run.execute(seed)
        refusals.extend(run.refusals)
        if kernel is module.main and not run.stopped:
            refusals.extend(_unwritten_outputs(kernel, stores, line))
        if run.stopped:
            return Outcome({}, tuple(refusals), steps)
        shared.update({p.buffer.name: stores[p.buffer.name] for p in kernel.params})
    outputs = {
        param.buffer.name: np.array(shared[param.buffer.name].values)
        for param in module.main.params
        if param.io in (Io.OUT, Io.INOUT)
    }
    return Outcome(outputs, tuple(refusals), steps)


def schedules(module: Module, atoms: AtomTable) -> range:
    """The seeds that together show what one cannot: which order of things is not enforced.

    What units of one thread do, and warps that only meet, does not depend on the order as far as
    findings go; who passes a barrier object that the wrong one has released does.
    """
    count = 1
    for kernel in module.kernels:
        if needs_team(kernel, atoms):
            used = {atoms[name].effects.synchronises for name in called(kernel.body)}
            count = max(count, SCHEDULES if used & _HANDED_ON else 2)
    return range(count)


def _bind(
    kernel: Kernel, arguments: Mapping[str, Array], shared: Mapping[str, Store]
) -> dict[str, Store]:
    stores: dict[str, Store] = {}
    for param in kernel.params:
        buffer = param.buffer
        if param.io is Io.PREPARED:
            stores[buffer.name] = shared[buffer.name]
            continue
        store = stores[buffer.name] = Store(buffer)
        if param.io is Io.OUT:
            continue
        given = arguments.get(buffer.name)
        wanted = f"{buffer.dtype.value}{list(buffer.shape)}"
        if given is None:
            raise RequestError("interpret.argument", f"argument {buffer.name} {wanted} is missing")
        if given.shape != buffer.shape or given.dtype != buffer.dtype.numpy:
            raise RequestError(
                "interpret.argument",
                f"argument {buffer.name} is {given.dtype}{list(given.shape)}; it must be {wanted}",
            )
        store.values[...] = given
        store.mask[...] = 1
    return stores


def _unwritten_outputs(kernel: Kernel, stores: Mapping[str, Store], line: int) -> Iterator[Refusal]:
    """Outputs that are not fully written."""
    for param in kernel.params:
        store = stores[param.buffer.name]
        if param.io is Io.OUT and not store.mask.all():
            missing = np.argwhere(store.mask == 0)
            yield Refusal(
                "tir.output-unwritten",
                f"{kernel.name}:{places(kernel, first_line=line)[()]}",
                f"{len(missing)} of {store.mask.size} elements of {param.buffer.name} "
                f"were never written, the first at {missing[0].tolist()}",
            )


@dataclass
class _Run(Hooks):
    kernel: Kernel
    atoms: AtomTable
    arguments: dict[str, Store]
    first_line: int
    detect_races: bool = field(kw_only=True)
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    stopped: bool = False

    def __post_init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()
        self._places: dict[Any, Place] | None = None
        self._program = self._compile()
        self._clock = Clock(self.kernel.units, len(self._program.paths))

    def execute(self, seed: int) -> int:
        """Run every unit to its end; the number of atom calls."""
        program, units = self._program, self.kernel.units
        shared: dict[int, Store] = {}
        trackers: dict[int, Tracker] = {}
        for number, buffer in enumerate(program.buffers):
            if buffer.name in self.arguments:
                shared[number] = self.arguments[buffer.name]
            elif not buffer.space.is_private:
                shared[number] = Store(buffer)
            if buffer.name in self._tracked:
                trackers[number] = Tracker(buffer)
        coroutines: list[schedule.Coroutine] = []
        for unit in range(units):
            stores = {
                number: shared[number] if number in shared else Store(buffer)
                for number, buffer in enumerate(program.buffers)
            }
            coroutines.append(
                program.make(unit, stores, self._clock, trackers, self, schedule.Wait)
            )
        try:
            with np.errstate(all="ignore"):
                steps, deadlock = schedule.run(coroutines, seed, self._clock.advance)
        except _Stop:
            self.stopped = True
            return 0
        except (ValueError, TypeError, IndexError) as error:
            self._broken(error)
            return 0
        if deadlock is not None:
            self.stopped = True
            self._deadlock(deadlock)
        return steps

    def outside(self, statement: int, operand: int, box: tuple[tuple[int, int], ...]) -> None:
        name, buffer = self._operand(statement, operand)
        ranges = ", ".join(f"{start} to {start + extent}" for start, extent in box)
        self._refuse(
            "tir.window-bounds",
            statement,
            operand,
            f"operand {name} covers {ranges} of {buffer}, or more than the atom's tile",
        )
        raise _Stop

    def unwritten(
        self, unit: int, statement: int, operand: int, box: tuple[tuple[int, int], ...]
    ) -> None:
        name, buffer = self._operand(statement, operand)
        self._refuse(
            "tir.read-unwritten",
            statement,
            operand,
            f"unit {unit} reads elements of {buffer} that nothing has written, operand {name}, "
            f"window at {[start for start, _ in box]} of extent {[extent for _, extent in box]}",
        )

    def race(
        self,
        unit: int,
        statement: int,
        operand: int,
        box: tuple[tuple[int, int], ...],
        found: tuple[int, int, int, str],
    ) -> None:
        position, other, there, kind = found
        name, buffer = self._operand(statement, operand)
        inner = np.unravel_index(position, tuple(max(extent, 1) for _, extent in box))
        index = [start + int(step) for (start, _), step in zip(box, inner, strict=True)]
        self._refuse(
            "tir.race",
            statement,
            operand,
            f"unit {unit} accesses {buffer} at {index} (operand {name}), which unit {other} "
            f"{kind} at {self._place(there)} with no barrier between",
        )

    def _compile(self) -> Program:
        units = self.kernel.units
        shared: set[str] = set()
        if units > 1:
            for _, statement in walk(self.kernel.body):
                if isinstance(statement, Call):
                    for operand in statement.operands:
                        if isinstance(operand, Window) and not operand.buffer.space.is_private:
                            shared.add(operand.buffer.name)
            shared -= {p.buffer.name for p in self.kernel.params if p.io in (Io.IN, Io.PREPARED)}
        names = frozenset(shared)
        self._tracked = names if self.detect_races else frozenset[str]()
        return compile_kernel(self.kernel, self.atoms, self._tracked, names)

    def _operand(self, statement: int, operand: int) -> tuple[str, str]:
        call = self._program.calls[statement]
        window = call.operands[operand]
        buffer = window.buffer.name if isinstance(window, Window) else ""
        return self.atoms[call.atom].operands[operand].name, buffer

    def _place(self, statement: int) -> Place:
        if self._places is None:
            self._places = places(self.kernel, first_line=self.first_line)
        return self._places[self._program.paths[statement]]

    def _refuse(self, code: str, statement: int, operand: int, message: str) -> None:
        key = (code, statement, operand)
        if key not in self._seen:
            self._seen.add(key)
            where = f"{self.kernel.name}:{self._place(statement)}"
            self.refusals.append(Refusal(code, where, message))

    def _deadlock(self, deadlock: schedule.Deadlock) -> None:
        waits = "; ".join(
            f"unit {unit} waits at {self._place(wait.statement)}"
            for unit, wait in sorted(deadlock.waiting.items())
        )
        ended = ", ".join(map(str, deadlock.ended))
        first = min(deadlock.waiting)
        self._refuse(
            "tir.deadlock",
            deadlock.waiting[first].statement,
            -1,
            f"a barrier waits for units that have ended ({ended}): {waits}",
        )

    def _broken(self, error: Exception) -> None:
        """An atom's semantics could not work on its operands."""
        self.stopped = True
        trace = error.__traceback__
        statement = None
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == self._program.filename:
                statement = self._program.lines.get(trace.tb_lineno)
            trace = trace.tb_next
        if statement is None:
            raise error
        self._refuse("tir.semantics", statement, -1, f"the atom cannot run here: {error}")
