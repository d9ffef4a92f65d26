"""One kernel of teams, run under a seed; findings with their places."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Refusal
from tfsearch.ir.tir.nodes import Io, Kernel
from tfsearch.ir.tir.printer import Place, places
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.memory import Store
from tfsearch.prove.team.accesses import Memory, Record
from tfsearch.prove.team.execute import Executor
from tfsearch.prove.team.machine import Machine, Stop, Task
from tfsearch.prove.team.program import Program


@dataclass
class TeamRun:
    """A kernel whose calls satisfy their contracts, on the arguments' memory.

    ``refusals``: what was found, each once per statement and operand. ``stopped``: the run did
    not come to its end.
    """

    kernel: Kernel
    atoms: AtomTable
    arguments: Mapping[str, Store]
    first_line: int
    detect_races: bool = True
    refusals: list[Refusal] = field(default_factory=list[Refusal])
    stopped: bool = False

    def __post_init__(self) -> None:
        self._seen: set[tuple[str, int, int]] = set()
        self._places: dict[Path, Place] | None = None
        self._program = Program(self.kernel, self.atoms)

    def execute(self, seed: int) -> int:
        """Run every unit to its end; the number of atom calls."""
        memories = {name: self._memory(name, store) for name, store in self.arguments.items()}
        machine = Machine(self.kernel, memories, self)
        once = frozenset(p.buffer.name for p in self.kernel.params if p.io is Io.OUT)
        executor = Executor(machine, self._program, once)
        for unit in range(self.kernel.units):
            executor.start(unit)
        try:
            with np.errstate(all="ignore"):
                waiting = machine.run(seed)
        except Stop:
            self.stopped = True
            return machine.steps
        except (ValueError, TypeError, IndexError) as error:
            self._broken(error, executor.current)
            return machine.steps
        if waiting:
            self.stopped = True
            self._deadlock(waiting)
        elif not self.refusals:
            machine.finish()
        return machine.steps

    def _memory(self, name: str, store: Store) -> Memory:
        io = next(p.io for p in self.kernel.params if p.buffer.name == name)
        tracked = self.detect_races and io in (Io.OUT, Io.INOUT)
        memory = Memory(store.buffer, tracked=tracked)
        memory.values, memory.mask = store.values, store.mask
        return memory

    def report(self, code: str, statement: int, operand: int, message: str) -> None:
        """Note a finding; the first of each code at each operand of a statement counts."""
        key = (code, statement, operand)
        if key not in self._seen:
            self._seen.add(key)
            where = f"{self.kernel.name}:{self._place(statement)}"
            self.refusals.append(Refusal(code, where, message))

    def stop(self, code: str, statement: int, operand: int, message: str) -> None:
        """Note a finding and end the run."""
        self.report(code, statement, operand, message)
        raise Stop

    def where(self, record: Record) -> str:
        """Who made an access, and at which place of the text."""
        return f"{record.who.label} at {self._place(record.statement)}"

    def _place(self, statement: int) -> Place:
        if self._places is None:
            self._places = places(self.kernel, first_line=self.first_line)
        return self._places[self._program.paths[statement]]

    def _deadlock(self, waiting: list[Task]) -> None:
        blocked = [(task.who, task.blocked) for task in waiting]
        waits = [
            f"{who.label} waits {wait.what()} at {self._place(wait.statement)}"
            for who, wait in blocked
            if wait is not None
        ]
        first = next(wait for _, wait in reversed(blocked) if wait is not None)
        self.report("tir.deadlock", first.statement, -1, f"nobody can go on: {'; '.join(waits)}")

    def _broken(self, error: Exception, statement: int) -> None:
        """An atom's semantics could not work on its operands."""
        self.stopped = True
        if statement < 0:
            raise error
        self.report("tir.semantics", statement, -1, f"the atom cannot run here: {error}")
