"""bf16 matmul on the AMX tile unit against PyTorch's oneDNN, one thread, interleaved.

Each row is tuned with the given trials; then the winner and torch are timed in rounds of random
order in this process, with probes of the machine around each round. Only rounds in the fast mode
of the vector and the tile unit count; the discarded fraction is printed. The fast mode is that of
the fastest probe of the whole program, which starts with two seconds of probes; what the tile
unit did around the rounds that count is printed too. Two rows a size: B packed ahead by both, or
by neither. Torch reads tensors in memory of its own. Prints one JSON object a row, then a summary.

    python benchmarks/x86_bf16_amx.py --trials 48 > reports/x86/bf16-amx.jsonl

Exit code 5, with one line on stderr, when the processor has no AMX, when the system does not let
this process use it, or when torch is not installed.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from x86_common import machine_facts, winner

from tfsearch.core import settings
from tfsearch.core.errors import TfsearchError
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.measure.inputs import Pass, make_inputs
from tfsearch.measure.statistics import ratio_interval, split_modes
from tfsearch.target.x86 import support
from tfsearch.target.x86.device import processor
from tfsearch.target.x86.runner import SELECTOR, X86Loaded, X86Runner, make
from tfsearch.tune import TuneRequest, tune

SIZES = (256, 384, 512, 768, 1024, 1536, 2048)
MODES = ("neither", "ahead")
FEATURES = ("amx_tile", "amx_bf16")
PROBES = ("fma", "tile")
SETS = 2
ALIGNMENT = 64
"""Bytes to which torch aligns its tensors, and the arguments of ours are aligned."""
ROUND_S = 2e-3
LEAST_ROUNDS = 15
PATIENCE = 5
"""How many times the seconds of a row are spent while too few rounds are in the fast mode."""
NOT_AVAILABLE = 5
WANTED, FLOOR = 1.5, 1.2
SEARCH_S = 2.0
"""Seconds of probes in which the fast mode of the units is looked for."""


def missing() -> list[str]:
    """What this machine lacks, one sentence each."""
    out: list[str] = []
    absent = sorted(set(FEATURES) - set(processor().features))
    if absent:
        out.append(f"the processor lacks {', '.join(absent)}: run on Sapphire Rapids or newer")
    elif code := support.loaded().tfs_amx_enable():
        out.append(f"the system does not let this process use AMX (arch_prctl gave {code})")
    try:
        import torch
    except ImportError:
        out.append("torch is not installed: pip install torch")
    else:
        if not torch.backends.mkldnn.is_available():
            out.append("this torch was built without oneDNN")
    return out


def tensor_of(array: np.ndarray[Any, Any]) -> Any:
    """A bf16 tensor in torch's own memory with a bf16 array's numbers."""
    import torch

    return torch.from_numpy(array.view(np.int16)).view(torch.bfloat16).clone()


class Torch:
    """``torch.matmul`` into a given result, or oneDNN's linear with B in oneDNN's own order."""

    def __init__(self, mode: str, inputs: Sequence[Mapping[str, np.ndarray[Any, Any]]]) -> None:
        import torch

        torch.set_num_threads(1)
        self._torch = torch
        self._mode = mode
        self.results = [
            torch.empty(one["a"].shape[0], one["b"].shape[1], dtype=torch.bfloat16)
            for one in inputs
        ]
        self._a = [tensor_of(one["a"]) for one in inputs]
        self._b = [tensor_of(one["b"]) for one in inputs]
        if mode == "ahead":
            self._b = [self._packed(a, b) for a, b in zip(self._a, self._b, strict=True)]

    def _packed(self, a: Any, b: Any) -> Any:
        """B in oneDNN's own order. Older releases take it as an opaque tensor, newer ones plain."""
        reorder = self._torch.ops.mkldnn._reorder_linear_weight
        weight = b.t().contiguous()
        try:
            return reorder(weight, a.shape[0])
        except (NotImplementedError, RuntimeError):
            return reorder(weight.to_mkldnn(), a.shape[0])

    def batch(self, calls: int) -> float:
        """Seconds of some calls that rotate over the argument sets."""
        torch, a, b, out = self._torch, self._a, self._b, self.results
        with torch.inference_mode():
            if self._mode == "ahead":
                linear = torch.ops.mkldnn._linear_pointwise
                start = time.perf_counter()
                for index in range(calls):
                    at = index % SETS
                    out[at] = linear(a[at], b[at], None, "none", [], "")
            else:
                start = time.perf_counter()
                for index in range(calls):
                    at = index % SETS
                    torch.matmul(a[at], b[at], out=out[at])
            return time.perf_counter() - start

    def result(self, at: int) -> np.ndarray[Any, Any]:
        """The result of a set as f64."""
        return self.results[at].float().numpy().astype(np.float64)


class Ours:
    """The tuned winner on the same numbers."""

    def __init__(self, loaded: X86Loaded, runner: X86Runner, inputs: Sequence[Any]) -> None:
        self._loaded, self._runner = loaded, runner
        self._arguments = [loaded.bind(one) for one in inputs]
        for one in self._arguments:
            loaded.call(one)

    def batch(self, calls: int) -> float:
        """Seconds of some calls that rotate over the argument sets, timed in C."""
        kernels, arguments = [self._loaded], [self._arguments]
        times = self._runner.time(kernels, arguments, [calls], 1, cold=False, seed=0)
        return float(times[0, 0]) * 1e-9

    def result(self, at: int) -> np.ndarray[Any, Any]:
        """The result of a set as f64."""
        return self._arguments[at].read("c").astype(np.float64)


def calls_for(participant: Ours | Torch) -> int:
    """Calls of a timed batch of about two milliseconds, after a warm-up."""
    participant.batch(3)
    once = min(participant.batch(1) for _ in range(3))
    return int(np.clip(ROUND_S / max(once, 1e-7), 1, 10_000))


class Fastest:
    """The fastest probe of every unit so far."""

    def __init__(self, runner: X86Runner) -> None:
        self.seen = dict.fromkeys(PROBES, 0.0)
        self._runner = runner
        end = time.monotonic() + SEARCH_S
        while time.monotonic() < end:
            self.probe()

    def probe(self) -> dict[str, float]:
        """Speeds now, FLOP/s."""
        now = dict(self._runner.probe(PROBES))
        self.seen = {name: max(self.seen[name], now[name]) for name in PROBES}
        return now


def rounds(
    ours: Ours, torch_side: Torch, fastest: Fastest, args: argparse.Namespace
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any], float]:
    """Microseconds a call [rounds, 2], which rounds were in the fast mode, the tile unit's rate."""
    both = (ours, torch_side)
    calls = [calls_for(one) for one in both]
    shuffler = random.Random(args.seed)
    times: list[list[float]] = []
    probes = [fastest.probe()]
    start = time.monotonic()
    while True:
        now = [0.0, 0.0]
        for side in shuffler.sample((0, 1), 2):
            now[side] = both[side].batch(calls[side]) / calls[side] * 1e6
        times.append(now)
        probes.append(fastest.probe())
        kept = split_modes(probes[:-1], probes[1:], fastest.seen).kept
        spent = time.monotonic() - start
        enough = kept.sum() >= LEAST_ROUNDS
        if enough and (spent > args.seconds or len(times) >= args.rounds):
            break
        if spent > PATIENCE * args.seconds:
            break
    rates = [one["tile"] for one, fast in zip(probes[1:], kept, strict=True) if fast]
    return np.array(times), kept, float(np.median(rates)) if rates else 0.0


def disagreement(ours: Ours, torch_side: Torch, inputs: Sequence[Any]) -> float:
    """The largest distance of the two results, over |A| |B| and the rounding of bf16."""
    worst = 0.0
    for at, one in enumerate(inputs):
        a, b = (np.abs(one[name].astype(np.float32)) for name in "ab")
        scale = (a @ b).astype(np.float64) * float(ml_dtypes.finfo(ml_dtypes.bfloat16).eps)
        distance = np.abs(ours.result(at) - torch_side.result(at))
        worst = max(worst, float((distance / scale).max()))
    return worst


def row(
    size: int,
    mode: str,
    args: argparse.Namespace,
    store: Any,
    call_us: float,
    fastest: Fastest,
) -> dict[str, Any]:
    """Tune one size in one mode and compare. ``call_us``: what an empty call of torch takes."""
    workload: Workload = build_workload(
        "gemm",
        {"m": size, "n": size, "k": size, "dtype": "bf16"},
        constant_inputs=("b",) if mode == "ahead" else (),
        alignment=ALIGNMENT,
    )
    request = TuneRequest(
        workload,
        target="x86",
        trials=args.trials,
        policy=args.policy,
        fix={"units": 1},
        baseline=False,
        seed=args.seed,
    )
    started = time.monotonic()
    report = tune(request, store=store)
    tune_s = time.monotonic() - started
    inputs = [make_inputs(workload.program, Pass.NORMAL, 7 + i) for i in range(SETS)]
    runner = make(SELECTOR)
    ours, torch_side = Ours(winner(report, store), runner, inputs), Torch(mode, inputs)
    times, kept, rate = rounds(ours, torch_side, fastest, args)
    fast = times[kept]
    head = {"size": size, "mode": mode, "rounds": len(times), "discarded": 1 - float(kept.mean())}
    if len(fast) < LEAST_ROUNDS:
        return {**head, "error": f"only {len(fast)} rounds in the fast mode; run again"}
    ratio = ratio_interval(fast[:, 1], fast[:, 0])
    median = [float(x) for x in np.median(fast, axis=0)]
    return {
        **head,
        "ours_us": median[0],
        "torch_us": median[1],
        "tile_gflops": rate / 1e9,
        "gflops": 2 * size**3 / median[0] / 1e3,
        "torch_gflops": 2 * size**3 / median[1] / 1e3,
        "ratio": ratio.median,
        "ratio_ci": [ratio.low, ratio.high],
        "ratio_less_call": (median[1] - call_us) / median[0],
        "disagreement": disagreement(ours, torch_side, inputs),
        "tune_s": tune_s,
        "recipe": report.best.schedule.recipe,
        "params": dict(report.best.schedule.params),
    }


def summary(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Geometric means by mode and over all, and the rows that fall short."""

    def mean(of: Sequence[Mapping[str, Any]]) -> float | None:
        return math.exp(sum(math.log(r["ratio"]) for r in of) / len(of)) if of else None

    measured = [r for r in rows if "ratio" in r]
    return {
        "geomean": mean(measured),
        "wanted": WANTED,
        **{mode: mean([r for r in measured if r["mode"] == mode]) for mode in MODES},
        f"below_{FLOOR}": [[r["size"], r["mode"]] for r in measured if r["ratio"] < FLOOR],
        "not_measured": [[r["size"], r["mode"]] for r in rows if "ratio" not in r],
    }


def facts() -> dict[str, Any]:
    """The machine's facts and torch's, and what one call of torch costs beside its work."""
    import torch

    tiny = [{name: np.zeros((16, 16), ml_dtypes.bfloat16) for name in "ab"}] * SETS
    call_us = {mode: min(Torch(mode, tiny).batch(1000) for _ in range(5)) * 1e3 for mode in MODES}
    lines = torch.__config__.show().splitlines()
    onednn = next((line.strip(" -") for line in lines if "MKL-DNN" in line), "")
    return {
        **machine_facts(),
        "torch": torch.__version__,
        "onednn": onednn,
        "torch_call_us": call_us,
    }


def main() -> int:
    """Run the rows asked for; see the module's text."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=48)
    parser.add_argument("--policy", default="ranked")
    parser.add_argument("--sizes", type=int, nargs="+", default=list(SIZES))
    parser.add_argument("--modes", nargs="+", choices=MODES, default=list(MODES))
    parser.add_argument("--rounds", type=int, default=301)
    parser.add_argument("--seconds", type=float, default=4.0, help="of timing a row")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--db", default="", help="SQLAlchemy URL; the user's own by default")
    args = parser.parse_args()
    lack = missing()
    if lack:
        print(f"{Path(__file__).name}: {'; '.join(lack)}", file=sys.stderr)
        return NOT_AVAILABLE
    store = open_store(args.db or settings.load().database_url)
    machine = facts()
    print(json.dumps({"machine": machine, "args": vars(args)}), flush=True)
    rows: list[dict[str, Any]] = []
    fastest = Fastest(make(SELECTOR))
    for size in args.sizes:
        for mode in args.modes:
            try:
                rows.append(row(size, mode, args, store, machine["torch_call_us"][mode], fastest))
            except TfsearchError as error:
                rows.append({"size": size, "mode": mode, "error": error.message})
            print(json.dumps(rows[-1]), flush=True)
    store.close()
    print(json.dumps({"summary": summary(rows)}), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
