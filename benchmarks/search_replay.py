"""Policies on recorded spaces beside Kernel Tuner's strategies, by the standard score.

    python benchmarks/search_replay.py SPACES --policy portfolio --seeds 100 \
        --kernel-tuner PYTHON --cache FOLDER --out replay.json

``SPACES`` is a folder of ``KERNEL/DEVICE_T4.json.gz``. With ``--kernel-tuner``, an interpreter that
has ``kernel-tuner`` 1.5.0, its strategies are run with their defaults (``search_kernel_tuner.py``),
and kept in the cache folder. No policy has a setting for a space, and none sees a model. The score
is that of ``tfsearch/search/score.py``; random search runs beside every policy as the control.
The searches' own time is charged to none of them; ours is printed in milliseconds of
processor time per point.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import numpy as np
from _program import told
from _recorded import RecordedProblem, load
from synthetic_spaces import SYNTHETIC, make
from x86_common import machine_facts

STRATEGIES = ("genetic_algorithm", "simulated_annealing", "pso", "diff_evo", "bayes_opt")
AFTER = (20, 50, 100, 200)
SLACK = 1.1
"""Searches go on a little beyond the time that is scored."""


def _strategies(
    problem: RecordedProblem, path: Path, interpreter: str, cache: Path, seeds: int
) -> dict[str, list[list[int]]]:
    """Rows visited by Kernel Tuner's strategies, from the cache where they are in it."""
    evaluations = int(SLACK * problem.recorded.span[1]) + 1
    found: dict[str, list[list[int]]] = {}
    for strategy in STRATEGIES:
        out = cache / f"{problem.name.replace('/', '-')}-{strategy}.json"
        subprocess.run(
            [
                interpreter,
                str(Path(__file__).with_name("search_kernel_tuner.py")),
                str(path),
                *("--strategy", strategy, "--evaluations", str(evaluations)),
                *("--seeds", str(seeds), "--out", str(out)),
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        known = json.loads(out.read_text(encoding="utf-8"))
        found[strategy] = [known[str(seed)] for seed in range(seeds)]
    return found


def _runs(
    problem: RecordedProblem, policy: str, arguments: argparse.Namespace
) -> tuple[list[list[int]], float]:
    """Rows visited by a policy of ours, and milliseconds of processor time per point.

    With ``--keep`` finished runs are kept in the cache folder, under the name of this state of the
    search layer, and an interrupted benchmark goes on there.
    """
    name = f"ours-{problem.name}-{policy}-{_state()}.json".replace("/", "-").replace(":", "-")
    place = arguments.cache / name
    known: dict[str, Any] = {}
    if arguments.keep and place.exists():
        known = json.loads(place.read_text(encoding="utf-8"))
    limit = SLACK * float(problem.recorded.grid[-1])
    for seed in range(arguments.seeds):
        if str(seed) in known:
            continue
        start = time.process_time()
        visited = problem.run(policy, seed, limit)
        known[str(seed)] = {"visited": visited, "s": time.process_time() - start}
        if arguments.keep:
            place.write_text(json.dumps(known), encoding="utf-8")
    chosen = [known[str(seed)] for seed in range(arguments.seeds)]
    runs = [one["visited"] for one in chosen]
    return runs, sum(one["s"] for one in chosen) / sum(map(len, runs)) * 1e3


def _state() -> str:
    """A digest of the search layer's and the space layer's sources."""
    import tfsearch

    found = hashlib.sha256()
    for folder in ("search", "space"):
        for path in sorted((Path(tfsearch.__file__).parent / folder).rglob("*.py")):
            found.update(path.read_bytes())
    return found.hexdigest()[:12]


def _line(problem: RecordedProblem, runs: list[list[int]]) -> dict[str, Any]:
    recorded = problem.recorded
    scored = recorded.score(runs)
    single = np.array([recorded.single(run) for run in runs])
    half = 1.96 * float(single.std(ddof=1)) / len(single) ** 0.5 if len(single) > 1 else 0.0
    after = {
        str(count): float(
            np.nanmedian([recorded.best(run)[min(count, len(run)) - 1] for run in runs])
            / recorded.optimum
        )
        for count in AFTER
    }
    return {
        "score": [scored.score, scored.low, scored.high],
        "single": [float(single.mean()), float(single.mean()) - half, float(single.mean()) + half],
        "best_over_optimum_after": after,
        "evaluations": float(np.mean([len(run) for run in runs])),
        "seeds": len(runs),
    }


def _show(name: str, line: dict[str, Any], extra: str = "") -> None:
    low, high = line["score"][1:]
    one, least, most = line["single"]
    after = "  ".join(f"{value:.3f}" for value in line["best_over_optimum_after"].values())
    print(
        f"  {name:22s} {line['score'][0]:7.3f} [{low:.3f}, {high:.3f}]"
        f"  single {one:7.3f} [{least:.3f}, {most:.3f}]  best/optimum {after}  {extra}",
        flush=True,
    )


def _judge(problem: RecordedProblem, arguments: argparse.Namespace, path: Path | None) -> Any:
    recorded = problem.recorded
    print(
        f"{problem.name}: {len(recorded.times)} points, scored over evaluations "
        f"{recorded.span[0]} … {recorded.span[1]}; best/optimum after {AFTER}",
        flush=True,
    )
    document: dict[str, Any] = {"span": list(recorded.span), "policies": {}, "kernel_tuner": {}}
    theirs: dict[str, list[list[int]]] = {}
    if arguments.kernel_tuner and path is not None:
        theirs = _strategies(
            problem, path, arguments.kernel_tuner, arguments.cache, arguments.seeds
        )
    for name, runs in theirs.items():
        document["kernel_tuner"][name] = _line(problem, runs)
        _show(name, document["kernel_tuner"][name])
    best = max(theirs, key=lambda name: document["kernel_tuner"][name]["score"][0], default=None)
    for policy in dict.fromkeys(["random", *arguments.policy]):
        runs, each = _runs(problem, policy, arguments)
        line = {**_line(problem, runs), "ms_per_point": each}
        extra = f"{each:.2f} ms"
        if best is not None and policy != "random":
            gap = recorded.difference(runs, theirs[best])
            line["above_best_strategy"] = [gap.score, gap.low, gap.high]
            extra += f"  above {best}: {gap.score:.3f} [{gap.low:.3f}, {gap.high:.3f}]"
        document["policies"][policy] = line
        _show(policy, line, extra)
    return document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("spaces", type=Path, nargs="?", help="folder of KERNEL/DEVICE_T4.json.gz")
    parser.add_argument("--only", action="append", default=[], help="KERNEL/DEVICE, repeatable")
    parser.add_argument("--synthetic", action="store_true", help="landscapes made here as well")
    parser.add_argument("--policy", action="append", default=[])
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--kernel-tuner", metavar="PYTHON")
    parser.add_argument("--cache", type=Path, default=Path("."))
    parser.add_argument("--keep", action="store_true", help="keep our own runs in the cache too")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    document: dict[str, Any] = {"machine": machine_facts(), "args": told(arguments)}
    paths = sorted(arguments.spaces.glob("*/*_T4.json*")) if arguments.spaces else []
    for path in paths:
        name = f"{path.parent.name}/{path.name.split('_T4')[0]}"
        if not arguments.only or name in arguments.only:
            document[name] = _judge(load(path), arguments, path)
    for name in SYNTHETIC if arguments.synthetic else ():
        if not arguments.only or name in arguments.only:
            document[name] = _judge(make(name), arguments, None)
    if arguments.out:
        arguments.out.write_text(json.dumps(document, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
