"""How the Ray executor scales from 1 to 16 simulated devices of 50 ms a trial, on this machine.

Devices are actors of a local Ray cluster that sleep; artifacts are 64 KiB. The driver's processor
time is that of its whole process, Ray's threads included, over the trials. Trials are
counted once every worker has started.

Marks: 16 devices are at least 14 times as fast as 1; the driver takes at most 2 ms a trial.

    python benchmarks/fleet_scaling.py --assert > reports/fleet/scaling.jsonl
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
)

from _program import begin, end, parser, say

from tfsearch.core import keys
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure import cluster, fleet
from tfsearch.measure.job import MeasureJob
from tfsearch.plugin import registry
from tfsearch.plugin.identity import lowered_source, schedule_of
from tfsearch.space import Point

PREFIX = "tfsearch-device:simulated:sleeper:"
TRIAL_MS = 50


def a_job(folder: Path) -> MeasureJob:
    """A job of the null target with a large artifact, which nobody opens."""
    target = registry.get("null")
    workload = build_workload("gemm", {"m": 8, "n": 8, "k": 8, "dtype": "f32"})
    problem = target.problem(workload, target.nominal())
    (recipe, *_) = problem.space.recipes
    params: dict[str, Any] = {p.name: next(iter(p.values)) for p in recipe.parameters}
    schedule = schedule_of(problem, "null", Point(recipe.name, params))
    launch = lowered_source(problem, "null", schedule).launch
    path = folder / "artifact"
    path.write_bytes(os.urandom(1 << 16))
    return MeasureJob(workload.record, str(path), keys.digest_bytes(path.read_bytes()), launch)


def measured(devices: int, trials: int, job: MeasureJob) -> dict[str, float]:
    """Rate and driver's processor time with a number of devices."""
    cluster.start_local({f"{PREFIX}{TRIAL_MS}-{k}": 1.0 for k in range(devices)})
    try:
        with fleet.RayExecutor(PREFIX, "", server="_sleeper:Sleeper") as executor:
            started = done = warm = 0
            begun = spent = 0.0
            while not warm or done < warm + trials:
                while started - done < executor.slots and (not warm or started < warm + trials):
                    executor.start(started, job)
                    started += 1
                executor.next_ended()
                done += 1
                if not warm and executor.slots == fleet.PIPELINE * devices and done >= 4 * devices:
                    warm = done
                    begun, spent = time.perf_counter(), time.process_time()
            wall = time.perf_counter() - begun
            spent = time.process_time() - spent
    finally:
        cluster.disconnect()
    return {
        "devices": devices,
        "trials": trials,
        "trials_per_s": trials / wall,
        "driver_cpu_ms": 1000.0 * spent / trials,
    }


def main() -> int:
    """Run and say."""
    made = parser(__doc__)
    made.add_argument("--devices", type=int, nargs="*", default=[1, 4, 16])
    args = made.parse_args()
    begin("fleet_scaling", args)
    counts = [1, 2] if args.quick else args.devices
    found: dict[int, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        job = a_job(Path(folder))
        for count in counts:
            found[count] = measured(count, 10 if args.quick else 60 * count, job)
            say(found[count])
    first, last = found[counts[0]], found[counts[-1]]
    speedup = last["trials_per_s"] / first["trials_per_s"]
    whole = not args.quick and counts[0] == 1 and counts[-1] == 16
    marks = {
        "speedup_14": speedup >= 14 if whole else None,
        "driver_2_ms": last["driver_cpu_ms"] <= 2.0 if whole else None,
    }
    return end(args, marks, speedup=speedup)


if __name__ == "__main__":
    sys.exit(main())
