"""How many wrong kernels the proof lets through: mutants of legal candidates of every recipe.

Mutants come from the grammar of TIR (``_mutate.py``): every statement kind and every field; drop,
duplicate, swap, off by one, another legal value; and from families of mistakes that people make
(``_families.py``), one for every two of the grammar's. They are made of the reduced forms of
candidates of every recipe and pipeline of every target, and of the concurrent kernels of the tests
(rings with barriers and asynchronous copies, commit groups, reductions across warps, clusters,
atomics).

A mutant is *refused* by the verifier, or *caught* by the interpreter as a session runs it, or
*equivalent*: its emitted source is that of the original, or it runs free of findings with equal
results under several schedules and inputs. Every other one is *missed*, and is listed.

Marks: at least 99 % of 2,000 mutants or more are refused or caught or equivalent; no candidate of
5,000 sampled over all recipes is refused (``--alarms``).

    nice python benchmarks/mutants.py --mutants 3000 --alarms 5000 --assert > mutants.jsonl
"""

from __future__ import annotations

import random
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from _families import families
from _mutate import Mutant, mutants
from _program import begin, end, parser, say

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tests.prove.loom import LIMITS, TABLE
from tests.prove.test_team import CASES
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError, TfsearchError, UnavailableError
from tfsearch.core.records import Refusal
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.named import named_workload
from tfsearch.ir.hir.trace import Tensor, trace
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.nodes import Io, Module
from tfsearch.ir.tir.text import print_module
from tfsearch.ir.workload import Workload
from tfsearch.plugin import registry
from tfsearch.plugin.target import Problem, Target
from tfsearch.prove.interpret import interpret, schedules
from tfsearch.prove.limits import Limits
from tfsearch.prove.verify import verify
from tfsearch.tune.proof import FULL, QUICK, prove_reduced, shape_of

MARK = 0.99
SEEDS = range(10, 20)
"""Schedules of a thorough run; others than those of a session."""


def quantised(x: Tensor) -> dict[str, Tensor]:
    """Rows scaled by their largest absolute value, as i8."""
    scale = lang.abs(x).max(axis=1, keepdims=True) / 127.0
    return {"q": lang.round(x / scale).cast("i8"), "scale": scale}


def shifted(x: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """Elementwise work on all elements."""
    return {"y": lang.gelu(x + bias)}


TRACED: Mapping[str, tuple[Callable[..., Any], Mapping[str, TensorType]]] = {
    "quantised": (quantised, {"x": TensorType(DType.F32, (9, 75))}),
    "shifted": (
        shifted,
        {"x": TensorType(DType.F32, (9, 75)), "bias": TensorType(DType.F32, (9, 75), (80, 1))},
    ),
}
WIDE = {"m": 1000, "n": 1040, "k": 528, "dtype": "bf16", "out_dtype": "bf16"}
"""Sizes and types that pipelines of matrix units take."""
Program = tuple[str, Mapping[str, Any]]
PROGRAMS: tuple[Program, ...] = (
    ("gemm", {"m": 37, "n": 45, "k": 83, "dtype": "f32"}),
    ("gemm", {"m": 37, "n": 45, "k": 83, "dtype": "f32", "epilogue": "bias+gelu"}),
    ("gemm", {"m": 21, "n": 19, "k": 45, "dtype": "f64", "trans_a": "true"}),
    ("gemm", {"m": 5, "n": 19, "k": 83, "dtype": "f32", "trans_b": "true"}),
    ("gemm", {"m": 37, "n": 45, "k": 83, "dtype": "bf16"}),
    ("gemm", {"m": 37, "n": 45, "k": 83, "dtype": "i8"}),
    ("gemm", {"m": 37, "n": 45, "k": 83, "dtype": "f16", "epilogue": "relu"}),
    ("gemm", {"m": 37, "n": 45, "k": 83, "dtype": "f32", "constant_inputs": ["b"]}),
    ("gemm", {**WIDE, "trans_b": "true"}),
    ("gemm", {**WIDE, "trans_a": "true", "epilogue": "bias+relu"}),
    ("gemm", {**WIDE, "dtype": "f16", "out_dtype": "f32", "trans_b": "true"}),
    ("softmax", {"rows": 9, "cols": 75, "dtype": "f32"}),
    ("rms_norm", {"rows": 9, "cols": 75, "dtype": "f32"}),
    ("layer_norm", {"rows": 9, "cols": 75, "dtype": "bf16"}),
    ("quantised", {}),
    ("shifted", {}),
)


def workload_of(op: str, options: Mapping[str, Any]) -> Workload:
    """A built-in workload, or one of those traced here."""
    if op not in TRACED:
        return named_workload(op, options)
    body, inputs = TRACED[op]
    return Workload(trace(body, inputs, op), op)


@dataclass(frozen=True)
class Subject:
    """A legal kernel to make mutants of.

    ``run`` gives the interpreter's findings, the wrong results among them; ``thorough`` under more
    schedules and inputs. ``source`` is the emitted text, "" where nothing is emitted.
    """

    name: str
    module: Module
    atoms: AtomTable
    limits: Limits
    run: Callable[[Module, bool], Sequence[Refusal]]
    source: Callable[[Module], str]

    def prove_s(self) -> float:
        """CPU seconds of the proof of the legal kernel, as a session makes it."""
        began = time.process_time()
        found = self.run(self.module, False)
        if found:
            raise AssertionError(f"{self.name} is no legal kernel: {found[0]}")
        return time.process_time() - began


def teams() -> Iterator[Subject]:
    """The concurrent kernels of the tests."""
    for name, make in CASES.items():
        module, arguments, expected = make()

        def run(
            mutant: Module,
            thorough: bool,
            arguments: Mapping[str, Any] = arguments,
            expected: Mapping[str, Any] = expected,
        ) -> Sequence[Refusal]:
            for seed in SEEDS if thorough else schedules(mutant, TABLE):
                outcome = interpret(mutant, TABLE, arguments, seed=seed)
                if outcome.refusals:
                    return outcome.refusals
                for key, value in expected.items():
                    if key not in outcome.outputs or (outcome.outputs[key] != value).any():
                        return (Refusal("proof.wrong-result", key, "differs from the reference"),)
            return ()

        yield Subject(f"team {name}", module, TABLE, LIMITS, run, lambda _: "")


def problems(programs: Sequence[Program]) -> Iterator[tuple[str, Target, Problem]]:
    """(name, target, problem) of every program on the nominal device of every target."""
    for name in registry.names():
        if name == "null":
            continue  # It has no recipes.
        try:
            target = registry.get(name)
        except UnavailableError:
            continue  # Its own packages are not installed.
        for op, options in programs:
            try:
                problem = target.problem(workload_of(op, options), target.nominal())
            except RequestError:
                continue  # No recipe of the target takes the program.
            yield f"{name} {op}", target, problem


def recipes(count: int, seed: int, programs: Sequence[Program]) -> Iterator[Subject]:
    """Reduced forms of ``count`` candidates of every pipeline of every program and target."""
    rng = np.random.default_rng(seed)
    for name, target, problem in problems(programs):
        device = target.nominal()
        atoms, limits = target.atoms(device), target.limits(device)
        for space in problem.space.recipes:
            for point in problem.space.only(space.name).sample(count, rng):
                workload, module = problem.reduced(point)

                def run(
                    mutant: Module,
                    thorough: bool,
                    w: Any = workload,
                    held: tuple[AtomTable, Limits] = (atoms, limits),
                ) -> Sequence[Refusal]:
                    return prove_reduced(w, mutant, *held, FULL if thorough else QUICK)

                def source(mutant: Module, p: Any = problem, at: Any = point) -> str:
                    try:
                        return p.emit(mutant, at).text
                    except (TfsearchError, KeyError, ValueError):
                        return ""

                yield Subject(f"{name} {space.name}", module, atoms, limits, run, source)


def judge(subject: Subject, mutant: Module) -> tuple[str, str]:
    """("refused" | "caught" | "equivalent" | "missed", why)."""
    found = verify(mutant, subject.atoms, subject.limits)
    if found:
        return "refused", found[0].code
    if _signature(mutant) != _signature(subject.module):
        return "caught", "other arguments"
    first = subject.run(mutant, False)
    if first:
        return "caught", first[0].code
    text = subject.source(mutant)
    if text and text == subject.source(subject.module):
        return "equivalent", "same source"
    more = subject.run(mutant, True)
    return ("missed", f"{more[0].code}: {more[0].message}") if more else ("equivalent", "equal")


def _signature(module: Module) -> list[tuple[str, tuple[int, ...], Any]]:
    """What a call hands over: the arrays that kernels read, and what main writes."""
    given = [
        (p.buffer.name, p.buffer.shape, p.buffer.dtype)
        for kernel in module.kernels
        for p in kernel.params
        if p.io in (Io.IN, Io.INOUT)
    ]
    main = [p for p in module.main.params if p.io in (Io.OUT, Io.INOUT)]
    return given + [(p.buffer.name, p.buffer.shape, p.buffer.dtype) for p in main]


def campaign(
    subjects: Sequence[Subject], total: int, seed: int, *, listed: bool, minutes: float
) -> Counter[str]:
    """Judge ``total`` mutants, as many of each subject as it has and as are asked for.

    Missed ones are listed, and equivalent ones if ``listed``. After ``minutes`` (0: no limit) no
    subject is begun any more; those that were not are named.
    """
    choose = random.Random(seed)
    verdicts: Counter[str] = Counter()
    by_operator: Counter[tuple[str, str]] = Counter()
    reasons: Counter[tuple[str, str]] = Counter()
    share = -(-total // len(subjects))
    slowest = 0.0
    began_at = time.monotonic()
    for subject in subjects:
        if minutes and time.monotonic() - began_at > 60 * minutes:
            say({"not_reached": subject.name})
            continue
        every = list(mutants(subject.module, subject.atoms))
        own = list(families(subject.module, subject.atoms))
        picked = _spread(every, share - share // 3, choose) + _spread(own, share // 3, choose)
        began, mine = time.process_time(), Counter[str]()
        for mutant in picked:
            try:
                module = mutant.make()
            except ValueError:
                continue  # The nodes themselves refuse it.
            if module == subject.module or not module.kernels:
                continue
            verdict, why = judge(subject, module)
            mine[verdict] += 1
            by_operator[_group(mutant.operator), verdict] += 1
            reasons[verdict, why if verdict != "missed" else "missed"] += 1
            if verdict == "missed" or (listed and verdict == "equivalent"):
                say({verdict: subject.name, "operator": mutant.operator, "why": why,
                     "text": _difference(subject.module, module)})  # fmt: skip
        verdicts.update(mine)
        used = time.process_time() - began
        legal = subject.prove_s()
        slowest = max(slowest, legal)
        say({"subject": subject.name, "mutants": len(every) + len(own), "judged": dict(mine),
             "cpu_s": used, "proved_in_s": legal})  # fmt: skip
    say({"slowest_proof_s": slowest})
    say({"operators": _table(by_operator)})
    say({"reasons": {f"{v} {why}": n for (v, why), n in reasons.most_common()}})
    return verdicts


def _spread(every: Sequence[Mutant], count: int, choose: random.Random) -> list[Mutant]:
    """A sample in which every operator has its turn before any comes again."""
    groups: dict[str, list[Mutant]] = {}
    for mutant in every:
        groups.setdefault(mutant.operator, []).append(mutant)
    for group in groups.values():
        choose.shuffle(group)
    order = list(groups)
    choose.shuffle(order)
    out: list[Mutant] = []
    while len(out) < count and order:
        for name in list(order):
            if groups[name]:
                out.append(groups[name].pop())
            else:
                order.remove(name)
    return out[:count]


def _group(operator: str) -> str:
    words = operator.split(" ")
    return " ".join(words[:2]) if words[0] == "family" else words[0]


def _difference(old: Module, new: Module) -> list[str]:
    before, after = print_module(old).splitlines(), print_module(new).splitlines()
    gone = [f"- {line.strip()}" for line in before if line not in after]
    come = [f"+ {line.strip()}" for line in after if line not in before]
    return [*gone, *come][:6]


def _table(counts: Counter[tuple[str, str]]) -> dict[str, dict[str, int]]:
    out: dict[str, dict[str, int]] = {}
    for (name, verdict), number in sorted(counts.items()):
        out.setdefault(name, {})[verdict] = number
    return out


def alarms(total: int, seed: int, programs: Sequence[Program], most: int) -> tuple[int, int]:
    """(candidates, refused): legal candidates sampled over all recipes, verified at their sizes
    and, each shape once (``most`` shapes), run at reduced ones; and the concurrent kernels.
    """
    rng = np.random.default_rng(seed)
    seen, refused = 0, 0
    shapes: set[str] = set()
    spaces = [
        (target, problem, space.name)
        for _, target, problem in problems(programs)
        for space in problem.space.recipes
    ]
    used = 0.0
    for target, problem, name in spaces:
        device = target.nominal()
        atoms, limits = target.atoms(device), target.limits(device)
        for point in problem.space.only(name).sample(-(-total // len(spaces)), rng):
            module = problem.lower(point)
            began = time.process_time()
            found: Sequence[Refusal] = verify(module, atoms, limits)
            used += time.process_time() - began
            if not found and len(shapes) < most:
                workload, small = problem.reduced(point)
                shape = shape_of(workload, small)
                found = () if shape in shapes else prove_reduced(workload, small, atoms, limits)
                shapes.add(shape)
            seen += 1
            if found:
                refused += 1
                say({"alarm": name, "point": dict(point.params), "why": str(found[0])})
    for subject in teams():
        seen += 1
        found = verify(subject.module, TABLE, LIMITS) or subject.run(subject.module, True)
        if found:
            refused += 1
            say({"alarm": subject.name, "why": str(found[0])})
    say({"candidates": seen, "shapes": len(shapes), "verify_ms": used / max(seen, 1) * 1e3})
    return seen, refused


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--mutants", type=int, default=3000, help="mutants to judge")
    made.add_argument("--alarms", type=int, default=0, help="legal candidates to verify")
    made.add_argument("--shapes", type=int, default=1 << 30, help="most shapes to interpret")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--list", action="store_true", help="list equivalent mutants too")
    made.add_argument("--minutes", type=float, default=0.0, help="begin no subject after so long")
    made.add_argument("--only", default="", help="subjects whose name begins so")
    args = made.parse_args()
    begin("mutants", args)
    total = 40 if args.quick else args.mutants
    programs = (PROGRAMS[0], PROGRAMS[-1]) if args.quick else PROGRAMS
    subjects = [*teams(), *recipes(1, args.seed, programs)]
    subjects = [subject for subject in subjects if subject.name.startswith(args.only)]
    random.Random(args.seed).shuffle(subjects)
    verdicts = campaign(subjects[:: max(len(subjects) // 4, 1)] if args.quick else subjects,
                        total, args.seed, listed=args.list, minutes=args.minutes)  # fmt: skip
    judged = sum(verdicts.values())
    good = judged - verdicts["missed"]
    marks: dict[str, bool | None] = {
        "found": good >= MARK * judged,
        "enough": judged >= 2000 or args.quick,
    }
    seen, refused = 0, 0
    if args.quick or args.alarms:
        candidates = 20 if args.quick else args.alarms
        seen, refused = alarms(candidates, args.seed, programs, args.shapes)
    marks["no_alarm"] = (not refused) if seen else None
    share = good / max(judged, 1)
    return end(args, marks, **verdicts, judged=judged, share=share, candidates=seen)


if __name__ == "__main__":
    sys.exit(main())
