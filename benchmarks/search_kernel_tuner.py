"""Which configurations Kernel Tuner's strategies visit on a recorded space, in what order.

Runs with an interpreter that has ``kernel-tuner`` (1.5.0) and ``scikit-learn``; it needs nothing of
tfsearch, so that the two may live in different environments:

    python benchmarks/search_kernel_tuner.py RECORDED_T4.json.gz --strategy genetic_algorithm \
        --evaluations 400 --seeds 100 --out visited.json

The output maps seeds to row numbers of the recorded file: every configuration once, when it was
first visited. Strategies run with their defaults in simulation mode; the valid set is the recorded
one. Interrupted runs are taken up again from the output file.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np

FAILURES = {"compile": "CompilationFailedConfig", "runtime": "RuntimeFailedConfig"}


def _read(path: Path) -> list[dict[str, Any]]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return json.load(file)["results"]


def _cache(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """The rows in Kernel Tuner's own cache format."""
    names = list(rows[0]["configuration"])
    values = {name: sorted({row["configuration"][name] for row in rows}) for name in names}
    entries: dict[str, Any] = {}
    for row in rows:
        configuration, times = row["configuration"], row["times"]
        right = row["invalidity"] == "correct"
        entries[",".join(str(configuration[name]) for name in names)] = {
            **configuration,
            "time": row["measurements"][0]["value"]
            if right
            else FAILURES.get(row["invalidity"], "RuntimeFailedConfig"),
            "times": times.get("runtimes", []),
            "compile_time": times.get("compilation", 0),
            "verification_time": times.get("validation", 0),
            "benchmark_time": sum(times.get("runtimes", [])),
            "strategy_time": 0,
            "framework_time": times.get("framework", 0),
            "timestamp": row["timestamp"],
        }
    return {
        "device_name": "recorded",
        "kernel_name": "recorded",
        "problem_size": 1,
        "tune_params_keys": names,
        "tune_params": values,
        "objective": "time",
        "cache": entries,
    }


def _visited(
    cache: dict[str, Any], path: str, strategy: str, evaluations: int, seed: int
) -> list[int]:
    import kernel_tuner
    from kernel_tuner import util

    names = cache["tune_params_keys"]
    row_of = {key: row for row, key in enumerate(cache["cache"])}

    def key_of(configuration: dict[str, Any]) -> str:
        return ",".join(str(configuration[name]) for name in names)

    random.seed(seed)
    np.random.seed(seed)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results, _ = kernel_tuner.tune_kernel(
            "recorded",
            "recorded",
            1,
            [],
            cache["tune_params"],
            restrictions=util.infer_restrictions_from_cache(cache),
            lang="CUDA",
            strategy=strategy,
            strategy_options={"max_fevals": evaluations},
            cache=path,
            simulation_mode=True,
            quiet=True,
        )
    return list(dict.fromkeys(row_of[key_of(result)] for result in results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recorded", type=Path)
    parser.add_argument("--strategy", required=True)
    parser.add_argument("--evaluations", type=int, required=True)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    cache = _cache(_read(arguments.recorded))
    known: dict[str, list[int]] = {}
    if arguments.out.exists():
        known = json.loads(arguments.out.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "cache.json"
        path.write_text(json.dumps(cache, indent=""), encoding="utf-8")
        for seed in range(arguments.seeds):
            if str(seed) in known:
                continue
            start = time.perf_counter()
            known[str(seed)] = _visited(
                cache, str(path), arguments.strategy, arguments.evaluations, seed
            )
            arguments.out.write_text(json.dumps(known), encoding="utf-8")
            took = time.perf_counter() - start
            print(f"seed {seed}: {len(known[str(seed)])} visited in {took:.1f} s", flush=True)


if __name__ == "__main__":
    main()
