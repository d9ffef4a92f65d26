"""An event simulation of fleets too large to have: which part is the bottleneck.

One driver (a server that handles one thing at a time: asking, proving, emitting, recording),
compile slots, devices with two jobs under way each, an artifact store on the driver's network
link, and devices that fail now and then, whose jobs go elsewhere. Durations are drawn; their
means are options, and figures measured by `fleet_scaling.py` and `tune_times.py` belong there.

Mark: every trial ends once, none is lost and none comes twice.

    python benchmarks/fleet_events.py --workers 1000 --trials 1000000 > reports/fleet/events.jsonl
"""

from __future__ import annotations

import argparse
import heapq
import random
import sys
import time
from collections import deque

from _program import begin, end, parser, say

PIPELINE = 2


class Fleet:
    """The state of one simulation; see the module for what is simulated."""

    def __init__(self, args: argparse.Namespace, workers: int, trials: int) -> None:
        self.args = args
        self.workers = workers
        self.trials = trials
        self.now = 0.0
        self.events: list[tuple[float, int, str, int, int]] = []
        self.serial = 0
        self.chance = random.Random(args.seed)
        self.asked = self.ended = self.retried = self.doubled = 0
        self.driver_free = self.link_free = 0.0
        self.driver_busy = self.link_busy = self.device_busy = self.compile_busy = 0.0
        self.compiling = 0
        self.to_compile: deque[int] = deque()
        self.to_measure: deque[int] = deque()
        self.queues: list[deque[int]] = [deque() for _ in range(workers)]
        self.room = deque(w for _ in range(PIPELINE) for w in range(workers))
        self.seen = bytearray(trials)

    def run(self) -> None:
        """Until every trial has ended."""
        depth = min(self.trials, 2 * PIPELINE * self.workers + 2 * self.args.compilers)
        for _ in range(depth):
            self._ask()
        while self.events:
            self.now, _, kind, trial, worker = heapq.heappop(self.events)
            getattr(self, f"_{kind}")(trial, worker)

    def shares(self) -> dict[str, float]:
        """How busy each part was, from 0 to 1."""
        return {
            "driver": self.driver_busy / self.now,
            "link": self.link_busy / self.now,
            "devices": self.device_busy / self.now / self.workers,
            "compilers": self.compile_busy / self.now / self.args.compilers,
        }

    def _at(self, when: float, kind: str, trial: int, worker: int = -1) -> None:
        self.serial += 1
        heapq.heappush(self.events, (when, self.serial, kind, trial, worker))

    def _drive(self, milliseconds: float) -> float:
        """When the driver has done something that takes so long."""
        self.driver_free = max(self.now, self.driver_free) + milliseconds / 1000.0
        self.driver_busy += milliseconds / 1000.0
        return self.driver_free

    def _ask(self) -> None:
        if self.asked < self.trials:
            self._at(self._drive(self.args.prepare_ms), "prepared", self.asked)
            self.asked += 1

    def _prepared(self, trial: int, _: int) -> None:
        self.to_compile.append(trial)
        self._compile()

    def _compile(self) -> None:
        while self.to_compile and self.compiling < self.args.compilers:
            self.compiling += 1
            seconds = self.chance.expovariate(1000.0 / self.args.compile_ms)
            self.compile_busy += seconds
            self._at(self.now + seconds, "compiled", self.to_compile.popleft())

    def _compiled(self, trial: int, _: int) -> None:
        self.compiling -= 1
        self.to_measure.append(trial)
        self._compile()
        self._send()

    def _send(self) -> None:
        while self.to_measure and self.room:
            trial, worker = self.to_measure.popleft(), self.room.popleft()
            # The artifact goes to the driver and on to the device.
            seconds = 2 * self.args.artifact_kib * 8192 / (self.args.link_gbit * 1e9)
            self.link_free = max(self._drive(self.args.send_ms), self.link_free) + seconds
            self.link_busy += seconds
            self._at(self.link_free, "arrived", trial, worker)

    def _arrived(self, trial: int, worker: int) -> None:
        self.queues[worker].append(trial)
        if len(self.queues[worker]) == 1:
            self._measure(worker)

    def _measure(self, worker: int) -> None:
        trial = self.queues[worker][0]
        seconds = self.args.trial_ms / 1000.0 * self.chance.uniform(0.5, 1.5)
        self.device_busy += seconds
        failed = self.chance.random() < self.args.loss
        self._at(self.now + seconds, "failed" if failed else "measured", trial, worker)

    def _next(self, worker: int) -> None:
        self.queues[worker].popleft()
        self.room.append(worker)
        if self.queues[worker]:
            self._measure(worker)

    def _failed(self, trial: int, worker: int) -> None:
        self.retried += 1
        self._next(worker)
        self.to_measure.append(trial)
        self._send()

    def _measured(self, trial: int, worker: int) -> None:
        self._next(worker)
        self._at(self._drive(self.args.record_ms), "recorded", trial)
        self._send()

    def _recorded(self, trial: int, _: int) -> None:
        self.doubled += self.seen[trial]
        self.seen[trial] = 1
        self.ended += 1
        self._ask()


def main() -> int:
    """Run and say."""
    made = parser(__doc__)
    made.add_argument("--workers", type=int, nargs="*", default=[1, 16, 100, 1000])
    made.add_argument("--trials", type=int, default=1_000_000)
    made.add_argument("--trial-ms", type=float, default=300.0, help="device time of a trial")
    made.add_argument("--compile-ms", type=float, default=800.0, help="of one compilation")
    made.add_argument("--compilers", type=int, default=4000, help="compilations at a time")
    made.add_argument("--prepare-ms", type=float, default=5.0, help="driver: ask, prove, emit")
    made.add_argument("--send-ms", type=float, default=1.0, help="driver: put a job under way")
    made.add_argument("--record-ms", type=float, default=5.0, help="driver: record and tell")
    made.add_argument("--artifact-kib", type=float, default=64.0)
    made.add_argument("--link-gbit", type=float, default=10.0)
    made.add_argument("--loss", type=float, default=0.001, help="share of trials a worker loses")
    made.add_argument("--seed", type=int, default=0)
    args = made.parse_args()
    begin("fleet_events", args)
    right = True
    for workers in args.workers:
        trials = 2000 if args.quick else args.trials
        fleet = Fleet(args, workers, trials)
        started = time.perf_counter()
        fleet.run()
        shares = fleet.shares()
        right &= fleet.ended == trials == sum(fleet.seen) and not fleet.doubled
        say(
            {
                "workers": workers,
                "trials": trials,
                "simulated_s": fleet.now,
                "trials_per_s": trials / fleet.now,
                "retried": fleet.retried,
                "lost": trials - sum(fleet.seen),
                "doubled": fleet.doubled,
                "busy": shares,
                "bottleneck": max(shares, key=lambda part: shares[part]),
                "seconds": time.perf_counter() - started,
            }
        )
    return end(args, {"nothing_lost_or_doubled": right})


if __name__ == "__main__":
    sys.exit(main())
