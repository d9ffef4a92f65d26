"""Passes of neighbouring groups side by side: one walk does pass 1 of a group, pass 2 of the
group before it, and so on.

Reading, computing and writing overlap in every step, where passes one after another leave memory or
the arithmetic units idle. What a row's passes hand on waits in memory of the unit, in slots that
groups take in turn.
"""

from __future__ import annotations

from collections.abc import Callable

from tfsearch.atoms.contract import Kind
from tfsearch.ir.tir.expr import Expr, as_expr
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, Window, window
from tfsearch.recipes.domain import places
from tfsearch.recipes.fragments import Lanes
from tfsearch.recipes.rowwise.plan import Pass, Plan
from tfsearch.recipes.rowwise.walk import Active, Line, Walker


def staged_slots(plan: Plan) -> int:
    """Groups whose staged values are alive at once."""
    stored = {v: n for n, one in enumerate(plan.passes) for v in one.stores}
    spans = [n - stored[v] for n, one in enumerate(plan.passes) for v in one.loads if v in stored]
    return 1 + max(spans, default=0)


class Beside:
    """Emits the pipeline over the groups ``first`` to before ``last`` of a unit.

    There are at least as many groups as passes.
    """

    def __init__(
        self, walker: Walker, outer: list[str], walk: Callable[[Expr, list[Active]], None]
    ) -> None:
        self.walker = walker
        self.builder = walker.builder
        self.plan = walker.plan
        self.schedule = walker.schedule
        self.outer = outer
        self.walk = walk
        self.kept: dict[int, Buffer] = {}

    @property
    def count(self) -> int:
        """Passes that walk along rows."""
        return len(self.plan.passes) - 1

    def allocate(self) -> None:
        """Memory for the row values that passes hand on, in all lanes of a register."""
        shape = (self.count, self.schedule.rows, self.schedule.lanes)
        for one in self.plan.passes[1:-1]:
            for value, dtype in self.walker.handed_on(one).items():
                self.kept[value] = self.builder.alloc("kept", dtype, shape, MemorySpace.LOCAL)

    def emit(self, first: Expr, last: Expr) -> None:
        """Fill the pipeline, run it, drain it."""
        count = self.count
        for step in range(count - 1):
            self.stage(as_expr(first + step), range(1, step + 2))
        with self.builder.loop("g", last, start=first + (count - 1)) as group:
            self.stage(group, range(1, count + 1))
        for step in range(count - 1):
            self.stage(as_expr(last + step), range(step + 2, count + 1))

    def stage(self, newest: Expr, passes: range) -> None:
        """One walk: pass n is at the group that is n - 1 before ``newest``."""
        active = [self.activate(number, as_expr(newest - (number - 1))) for number in passes]
        self.walk(newest, active)
        for each in active:
            for line in each.lines:
                self.walker.end(each.one, line, each.acc)
                self.keep(each.one, line)

    def activate(self, number: int, group: Expr) -> Active:
        """The rows of a group as a pass needs them: with what earlier passes found."""
        walker, schedule, domain = self.walker, self.schedule, self.walker.domain
        lanes = Lanes.of(schedule.lanes, domain.lane)
        one = self.plan.passes[number]
        lines: list[Line] = []
        for i in range(schedule.rows):
            row = group * schedule.rows + i
            line = walker.line(i, places(self.builder, row, self.outer, domain.extents), lanes)
            line.slot = group % staged_slots(self.plan) * schedule.rows + i
            line.turn = group % self.count
            for earlier in self.plan.passes[1:number]:
                for value in walker.handed_on(earlier):
                    line.tile.leaves[value] = self.fetch(value, line)
            lines.append(line)
        return Active(one, lines, walker.begin(one, len(lines)))

    def place(self, value: int, line: Line) -> Window:
        """Where a row value waits."""
        return window(self.kept[value], line.turn, line.index, (0, self.schedule.lanes))

    def fetch(self, value: int, line: Line) -> Window:
        """A row value that an earlier pass kept."""
        dtype = self.kept[value].dtype
        out = line.tile.register("k", dtype)
        line.tile.call(Kind.LOAD, "", (dtype, dtype), out, self.place(value, line))
        return out

    def keep(self, one: Pass, line: Line) -> None:
        """Write down what later passes read of a row."""
        for value, dtype in self.walker.handed_on(one).items():
            if value in self.kept:
                source = line.tile.leaves[value]
                line.tile.call(Kind.STORE, "", (dtype, dtype), self.place(value, line), source)
