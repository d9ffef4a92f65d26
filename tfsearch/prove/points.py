"""The values that loop variables take at a place, enumerated as columns.

Only the loops and conditions that matter to the forms at hand are expanded. A loop that does
not matter still removes the points where it would not run.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tfsearch.prove.forms import Algebra, Column, Form, combine
from tfsearch.prove.scope import Condition, Loop, Scope


@dataclass(frozen=True)
class Points:
    """``columns`` maps variables to their value at each of ``count`` points.

    ``complete`` is False where only the first two and last two iterations of long loops were
    taken.
    """

    columns: dict[int, Column]
    count: int
    complete: bool

    def value(self, algebra: Algebra, form: Form) -> Column:
        """The form at every point."""
        with np.errstate(all="ignore"):
            value = algebra.value(form, self.columns)
        return np.broadcast_to(np.asarray(value, dtype=np.int64), (self.count,))


def enumerate_points(
    scope: Scope, forms: Iterable[Form], budget: int, *, ends_only: bool = False
) -> Points | None:
    """Every point that the forms can be evaluated at here; None beyond ``budget`` points."""
    wanted = _closure(scope, forms)
    points = Points({}, 1, True)
    algebra = scope.algebra
    for entry in scope.entries:
        if isinstance(entry, Condition):
            if algebra.variables_of(entry.form) <= wanted:
                points = _select(points, points.value(algebra, entry.form) != 0)
        elif entry.symbol in wanted:
            grown = expand(points, algebra, entry, budget, ends_only=ends_only)
            if grown is None:
                return None
            points = grown
        else:
            length = combine(entry.stop, entry.start, -1)
            if length[1] and algebra.variables_of(length) <= wanted:
                points = _select(points, points.value(algebra, length) > 0)
    return points


def expand(
    points: Points, algebra: Algebra, loop: Loop, budget: int, *, ends_only: bool = False
) -> Points | None:
    """The points inside a loop; None beyond ``budget``."""
    start = points.value(algebra, loop.start)
    stop = points.value(algebra, loop.stop)
    step = max(loop.step, 1)
    trips = np.maximum(0, -((start - stop) // step))
    counts = np.minimum(trips, 4) if ends_only else trips
    total = int(counts.sum())
    if total > budget:
        return None
    index = np.repeat(np.arange(points.count), counts)
    number = np.arange(total) - np.repeat(np.cumsum(counts) - counts, counts)
    complete = points.complete
    if ends_only:
        skipped = (trips - counts)[index]
        number = np.where(number >= 2, number + skipped, number)
        complete = complete and not skipped.any()
    columns = {symbol: column[index] for symbol, column in points.columns.items()}
    columns[loop.symbol] = start[index] + step * number
    return Points(columns, total, complete)


def _select(points: Points, keep: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> Points:
    if bool(keep.all()):
        return points
    columns = {symbol: column[keep] for symbol, column in points.columns.items()}
    return Points(columns, int(keep.sum()), points.complete)


def _closure(scope: Scope, forms: Iterable[Form]) -> frozenset[int]:
    """The variables that decide which points exist for the forms."""
    algebra = scope.algebra
    wanted: frozenset[int] = frozenset()
    for form in forms:
        wanted |= algebra.variables_of(form)
    while True:
        before = wanted
        for entry in reversed(scope.entries):
            if isinstance(entry, Condition):
                related = algebra.variables_of(entry.form)
                if related & wanted:
                    wanted |= related
            else:
                related = algebra.variables_of(entry.start) | algebra.variables_of(entry.stop)
                if entry.symbol in wanted or related & wanted:
                    wanted |= related
        if wanted == before:
            return wanted
