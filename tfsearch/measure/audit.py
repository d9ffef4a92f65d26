"""What a kernel does in a row of calls beside computing: keeping results, skipping calls.

A batch is timed on contents that stay the same, so a kernel that compares its inputs with those of
the last call and returns what it kept is fast there and nowhere else. So every timed kernel is
also called with inputs in which two elements change places before each call, beside calls in which
the same stores leave the contents as they are: honest kernels take as long for both.
In the same calls a few elements of an output are poisoned, which every call must overwrite.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfsearch.core.records import Status
from tfsearch.measure.bench import Bench, Fault, Report, phase
from tfsearch.measure.host import HostCallable
from tfsearch.measure.protocols import Audit, Auditing
from tfsearch.measure.statistics import Interval, ratio_interval

SUSPECT = 1.5
"""Times for new contents over times for known ones above which a kernel keeps results."""
CERTAIN = 1.25
"""The whole interval of that ratio lies above this."""
PAIRS = 8
MORE_PAIRS = 16
AUDIT_NS = 1_000_000
"""What one round of calls should take; of slow kernels it takes two calls on each set."""
LONG_NS = 2_000_000
"""From this time of a call on, new contents are compared with the median first."""
EXTRA_CALLS = 3
ROUNDS = 4
"""Rounds in which every call must write: who skips every other call is caught by one of them."""


def require_honest(bench: Bench, index: int, median_us: float, report: Report) -> dict[str, Any]:
    """A :class:`Fault` for a kernel that keeps results or skips calls; else what was looked at.

    ``median_us`` is its time of a call. Its outputs are those of the inputs in place afterwards.
    """
    contestant, runner = bench.contestants[index], bench.runner
    if not isinstance(runner, Auditing) or isinstance(contestant.loaded, HostCallable):
        return {"audited": False}
    with phase("audit", report):
        return {"audited": True, **_Auditor(bench, index, median_us, runner).run()}


class _Auditor:
    def __init__(self, bench: Bench, index: int, median_us: float, runner: Auditing) -> None:
        self._contestant = bench.contestants[index]
        self._keep = tuple(bench.verifier.oracle.constant_inputs)
        self._runner = runner
        self._call_ns = max(1.0, 1000.0 * median_us)
        sets = len(self._contestant.sets)
        fitting = int(AUDIT_NS / (self._call_ns * sets))
        self._calls = max(2, min(fitting, max(2, self._contestant.batch // sets)))
        self._random = random.Random(bench.groups)

    def run(self) -> Mapping[str, Any]:
        """Look; raises a :class:`Fault`."""
        found = [self._once(exchange=True)]
        new_ns = found[0].ns / max(1, found[0].counted)
        if not found[0].exchanged:
            return {"new_over_known": None}
        if self._call_ns >= LONG_NS and new_ns <= SUSPECT * self._call_ns:
            return {"new_over_known": new_ns / self._call_ns}
        for _ in range(ROUNDS - 1):
            self._once(exchange=True)
        ratio = self._pairs(PAIRS)
        if _keeps(ratio):
            ratio = self._pairs(MORE_PAIRS)
        if _keeps(ratio):
            raise Fault(
                Status.IMPLAUSIBLE,
                "measure.kept-results",
                f"it keeps results: a call takes {ratio.median:.3g} times as long on inputs that "
                "it has not seen before as on those of an earlier call",
            )
        return {"new_over_known": ratio.median}

    def _pairs(self, count: int) -> Interval:
        """New contents over known ones, on one set: who keeps one result finds it there."""
        times = np.zeros((count, 2))
        for row in times:
            for column in self._random.sample((0, 1), 2):
                found = self._once(exchange=column == 0, sets=1)
                row[column] = max(1, found.ns) / found.counted
        return ratio_interval(times[:, 0], times[:, 1])

    def _once(self, *, exchange: bool, sets: int | None = None) -> Audit:
        found = self._runner.audit(
            self._contestant.loaded,
            self._contestant.sets[:sets],
            self._calls + self._random.randint(0, EXTRA_CALLS if self._calls > 2 else 0),
            exchange=exchange,
            keep=self._keep,
            seed=self._random.getrandbits(63),
        )
        if found.unwritten:
            code = "verify.late" if found.late else "verify.skipped"
            what = "is written after its return" if found.late else "writes nothing"
            text = f"in a row of calls, call {found.calls} {what}: the output still held the poison"
            raise Fault(Status.WRONG, code, text)
        return found


def _keeps(ratio: Interval) -> bool:
    return ratio.median > SUSPECT and ratio.low > CERTAIN
