"""Processor time of the driver for a trial of a whole session, on the null target.

A session runs as ``tfsearch tune`` does: policy, proof, emission, build, measuring process, record.
Counted is the processor time of the driver's process with all its threads, between the end of the
session's first trials and the end of its last: not start-up, not the final, not the measuring
process. The simulated device answers at once; waiting for a slower one costs no processor time.

Mark: at most 2 ms a trial.

    python benchmarks/driver_cpu.py FOLDER --assert
    python benchmarks/driver_cpu.py FOLDER --database postgresql+psycopg://USER@HOST/NAME --assert
"""

from __future__ import annotations

import cProfile
import pstats
import resource
import sys
import time
from pathlib import Path

from _program import begin, end, parser, say

from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure.job import Limits
from tfsearch.tune import TrialEnded, TuneRequest, tune
from tfsearch.tune.observer import Silent

WARM = 32
CPU_MS = 2.0


class Clock(Silent):
    """Notes times at the end of every trial (user, system, this thread's, wall), in seconds.

    ``profile`` runs between the trials ``warm`` and ``last``.
    """

    def __init__(self, warm: int, last: int, profile: cProfile.Profile | None) -> None:
        self.times: list[tuple[float, float, float, float]] = []
        self._warm, self._last, self._profile = warm, last, profile

    def trial(self, event: TrialEnded) -> None:
        """A trial ended."""
        del event
        used = resource.getrusage(resource.RUSAGE_SELF)
        self.times.append((used.ru_utime, used.ru_stime, time.thread_time(), time.perf_counter()))
        if self._profile is not None and len(self.times) == self._warm:
            self._profile.enable()
        if self._profile is not None and len(self.times) == self._last:
            self._profile.disable()


def main() -> int:
    """Run and say."""
    made = parser(__doc__)
    made.add_argument("folder", type=Path, help="for the session's files")
    made.add_argument("--database", default="", help="URL; a file in the folder if not given")
    made.add_argument("--trials", type=int, default=500)
    made.add_argument("--policy", default="ranked")
    made.add_argument("--profile", type=int, default=0, help="print so many functions to stderr")
    args = made.parse_args()
    places = Settings(args.folder, args.database or f"sqlite:///{args.folder}/driver.db")
    del args.folder
    args.database = places.database_url.partition(":")[0]  # it may have a password
    begin("driver_cpu", args)
    warm, trials = (2, 6) if args.quick else (WARM, args.trials + WARM)
    profile = cProfile.Profile() if args.profile else None
    clock = Clock(warm, trials, profile)
    workload = build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})
    request = TuneRequest(
        workload,
        target="null",
        trials=trials,
        policy=args.policy,
        baseline=False,
        converge=0.0,
        resume=False,
        limits=Limits(budget_s=0.05),
    )
    store = open_store(places.database_url)
    report = tune(request, store=store, settings=places, observer=clock)
    recorded = len(store.trials(session=report.session))
    store.close()
    counted = len(clock.times) - warm
    spent = [
        1000.0 * (after - before) / counted
        for before, after in zip(clock.times[warm - 1], clock.times[-1], strict=True)
    ]
    cpu_ms = spent[0] + spent[1]
    say(
        {
            "trials": counted,
            "recorded": recorded,
            "reused": report.trials.reused,
            "cpu_ms": cpu_ms,
            **dict(zip(("user_ms", "system_ms", "main_thread_ms", "wall_ms"), spent, strict=True)),
        }
    )
    if profile is not None:
        pstats.Stats(profile, stream=sys.stderr).sort_stats("cumulative").print_stats(args.profile)
    whole = None if args.quick or profile is not None else cpu_ms <= CPU_MS
    return end(args, {"every_trial": recorded == trials, "cpu": whole})


if __name__ == "__main__":
    sys.exit(main())
