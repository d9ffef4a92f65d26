"""What asking and telling costs a policy, in processor time per trial.

    python benchmarks/ask_overhead.py --trials 200 --assert

Spaces of about 9,000, 30,000 and 100,000 legal points of eight parameters, without a model; a trial
is one ask and one tell, and making the policy (holding the space, features) is shared among them.
``ms`` is processor time of all threads, ``waited_ms`` what passes on the clock: a BLAS with threads
spins in more than one. The mark is on processor time with one (``OPENBLAS_NUM_THREADS=1``).
"""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

import numpy as np
from _program import say, told
from x86_common import machine_facts

from tfsearch.core.records import Status
from tfsearch.search import Result, make_policy
from tfsearch.space import Constraint, Kind, Parameter, Points, RecipeSpace, Space

MARK_MS = 2.0
SIZES = (4, 7, 11)
POLICIES = ("local", "evolutionary", "surrogate", "portfolio")


class _Problem:
    def __init__(self, space: Space) -> None:
        self.space = space

    def predict(self, points: Points) -> Any:
        return _Unknown(len(points))


class _Unknown:
    def __init__(self, count: int) -> None:
        self.estimate_us = np.full(count, np.nan)
        self.bound_us = np.zeros(count)


def _space(size: int) -> Space:
    tiles = tuple(16 * count for count in range(1, size + 1))
    powers = tuple(2**power for power in range(size // 4 + 3))
    parameters = (
        Parameter("x", tiles, Kind.ORDINAL),
        Parameter("y", tiles, Kind.ORDINAL),
        Parameter("u", powers, Kind.ORDINAL),
        Parameter("v", powers, Kind.ORDINAL),
        Parameter("stages", (1, 2, 3, 4), Kind.ORDINAL),
        Parameter("order", ("a", "b", "c"), Kind.CATEGORICAL),
        Parameter("p", (False, True), Kind.BOOLEAN),
        Parameter("q", (False, True), Kind.BOOLEAN),
    )
    limit = Constraint("bench.area", f"x * y <= {128 * size * size}", "{x}·{y} is too large")
    narrow = Constraint("bench.unroll", "u <= v * 4", "{u} is too much for {v}")
    return Space((RecipeSpace("bench", 1, parameters, constraints=(limit, narrow)),))


def _time(params: Any) -> float:
    value = abs(params["x"] - 80) / 40 + abs(params["y"] - 48) / 30 + abs(params["u"] - 4) / 3
    return 10.0 + value + 2 * params["p"] + 0.5 * abs(params["stages"] - 3)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--assert", dest="check", action="store_true")
    arguments = parser.parse_args()
    say({"benchmark": "ask_overhead", "machine": machine_facts(), "args": told(arguments)})
    worst = 0.0
    for size in SIZES:
        space = _space(size)
        legal = space.count().legal
        space.legal_set()
        for name in POLICIES:
            spent: list[float] = []
            waited: list[float] = []
            for seed in range(arguments.seeds):
                begun, start = time.perf_counter(), time.process_time()
                policy = make_policy(name, _Problem(space), seed=seed)
                for _ in range(arguments.trials):
                    (point,) = policy.ask(1)
                    policy.tell([Result(point, Status.OK, _time(point.params))])
                waited.append((time.perf_counter() - begun) / arguments.trials * 1e3)
                spent.append((time.process_time() - start) / arguments.trials * 1e3)
            middle = float(np.median(spent))
            worst = max(worst, middle)
            line = {"policy": name, "legal": legal, "trials": arguments.trials, "ms": middle}
            line["waited_ms"] = float(np.median(waited))
            say(line)
    met = worst <= MARK_MS
    say({"marks": {"asking": met}, "met": met, "worst_ms": worst})
    if arguments.check and not met:
        sys.exit(1)


if __name__ == "__main__":
    main()
