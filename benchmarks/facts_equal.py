"""Whether the integer facts of the cost model are those of the lowered kernels.

For every program, target and pipeline, points are sampled, lowered, and analysed; every fact that
both the vectorised cost model and the analysis of the TIR state is compared, exactly. Points whose
work is shared out over several units are compared in what does not depend on that.

Mark: no fact differs, on at least 200 points of every pipeline, or all that its spaces have.

    nice python benchmarks/facts_equal.py --points 200 --assert > facts.jsonl
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from math import prod
from typing import Any

import numpy as np
from _program import begin, end, parser, say
from mutants import PROGRAMS, problems

from tfsearch.atoms.contract import Completion, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import Buffer, Call, MemorySpace, Module
from tfsearch.ir.tir.walk import walk, windows
from tfsearch.prove.analyze import KernelFacts, analyze
from tfsearch.recipes.contraction.match import match
from tfsearch.search.scan import points_of
from tfsearch.space import Point

LOADS = frozenset({Kind.LOAD, Kind.SPLAT, Kind.TRANSPOSE})
STORES = frozenset({Kind.STORE, Kind.TRANSPOSE})


def calls(found: KernelFacts, atoms: AtomTable, kinds: frozenset[Kind]) -> int:
    """Calls of atoms of some kinds by all units."""
    return sum(w.total for w in found.work if atoms[w.atom].computes.kind in kinds)


def counted(module: Module, atoms: AtomTable) -> dict[str, int]:
    """What profiles count: calls, loads, stores, operations."""
    found = analyze(module, atoms).main
    return {
        "calls": sum(w.total for w in found.work),
        "loads": calls(found, atoms, LOADS),
        "stores": calls(found, atoms, STORES),
        "flops": found.flops,
    }


def filled(module: Module, atoms: AtomTable) -> int:
    """Bytes of the shared buffers that copies with barriers fill."""
    slots: dict[str, Buffer] = {}
    for _, statement in walk(module.main.body):
        if not isinstance(statement, Call):
            continue
        atom = atoms[statement.atom]
        if atom.effects.completion is not Completion.BARRIER_TRANSACTIONS:
            continue
        for at, window in windows(statement):
            buffer = window.buffer
            inside = buffer.space is MemorySpace.SHARED and buffer.dtype is not DType.BARRIER
            if inside and atom.operands[at].access.writes:
                slots[buffer.name] = buffer
    return sum(prod(buffer.shape) * buffer.dtype.bytes for buffer in slots.values())


def tiles(
    point: Point, module: Module, atoms: AtomTable, facts: Mapping[str, int]
) -> Iterator[tuple[str, int, int]]:
    """Of rings of slots: products of all units, of the busiest, and the slots' bytes."""
    found = analyze(module, atoms).main
    products = [w for w in found.work if atoms[w.atom].computes.kind is Kind.MMA]
    rows, _, depth = atoms[products[0].atom].computes.shape
    each = int(point.params["tile_m"]) // rows * (int(point.params["tile_k"]) // depth)
    by_unit = np.sum([w.calls for w in products], axis=0)
    yield "tiles x steps", facts["tiles"] * facts["steps"] * each, int(by_unit.sum())
    yield "turns x steps", facts["turns"] * facts["steps"] * each, int(by_unit.max())
    yield "shared_bytes", facts["shared_bytes"], filled(module, atoms)


def compared(
    problem: Any, point: Point, module: Module, facts: Mapping[str, int]
) -> Iterator[tuple[str, int, int]]:
    """(fact, of the cost model, of the TIR) for everything that both state."""
    atoms = problem.atoms
    if "loads" in facts:
        for name, value in counted(module, atoms).items():
            yield name, facts[name], value
    if "tiles" in facts and "turns" in facts:
        yield from tiles(point, module, atoms, facts)
    if "multiply_adds" in facts:
        found = analyze(module, atoms).main
        if int(point.params.get("units", 1)) == 1:
            # Pipelines of one atom have its name behind their own.
            named = [w.total for w in found.work if point.recipe_name.endswith(w.atom)]
            products = sum(named) if named else calls(found, atoms, frozenset({Kind.MMA}))
            yield "multiply_adds", facts["multiply_adds"], products
        yield from _factors(problem, found, point, facts, atoms)


def _factors(
    problem: Any, found: KernelFacts, point: Point, facts: Mapping[str, int], atoms: AtomTable
) -> Iterator[tuple[str, int, int]]:
    if "reductions" in facts:
        yield "reductions", facts["reductions"], calls(found, atoms, frozenset({Kind.REDUCE}))
        program = problem.workload.program
        matched = match(program)
        for side, factor in (("a", matched.a), ("b", matched.b)):
            read = {t.buffer: sum(t.read) for t in found.traffic}
            name = program.input_names[factor.source]
            if name in read:
                yield f"{side}_read_bytes", facts[f"{side}_read_bytes"], read[name]
    held = {a.buffer: a.bytes for a in found.allocations}
    for side, how in (("a", "pack_a"), ("b", "pack_b")):
        # Rows that are copied one by one are padded to cache lines, which facts do not count.
        if f"{side}_block" in held and point.params.get(how) not in ("rows", "none", "ahead"):
            yield f"{side}_block_bytes", facts[f"{side}_block_bytes"], held[f"{side}_block"]


def facts_at(problem: Any, point: Point) -> dict[str, int]:
    """The facts of one point."""
    ((_, batch),) = points_of(problem.space, [point])
    return {name: int(column[0]) for name, column in problem.facts(batch).items()}


def sampled(problem: Any, pipeline: str, count: int, rng: np.random.Generator) -> list[Point]:
    """Points of a pipeline; of those whose products depend on how units share them, on one unit."""
    space = problem.space.only(pipeline)
    (first,) = space.sample(1, rng)
    if "multiply_adds" in facts_at(problem, first) and "units" in first.params:
        space = space.fix({"units": 1})
    return list(space.sample(count, rng))


def main() -> int:
    made = parser(__doc__)
    made.add_argument("--points", type=int, default=200, help="points of every pipeline")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--only", default="", help="targets and programs whose name begins so")
    args = made.parse_args()
    begin("facts_equal", args)
    wanted = 3 if args.quick else args.points
    rng = np.random.default_rng(args.seed)
    seen: Counter[str] = Counter()
    whole: defaultdict[str, bool] = defaultdict(bool)
    facts_seen, differ = 0, 0
    programs = (PROGRAMS[0], PROGRAMS[7]) if args.quick else PROGRAMS
    bound = [(n, p, s.name) for n, _, p in problems(programs) for s in p.space.recipes]
    share = {name: sum(s == name for _, _, s in bound) for _, _, name in bound}
    for name, problem, pipeline in bound:
        if not name.startswith(args.only):
            continue
        began, mine, wrong = time.process_time(), 0, 0
        names: set[str] = set()
        asked = -(-wanted // share[pipeline])
        points = sampled(problem, pipeline, asked, rng)
        # A space with fewer points is compared as a whole.
        whole[f"{name.split(' ')[0]} {pipeline}"] |= len(points) < asked
        for point in points:
            facts = facts_at(problem, point)
            pairs = list(compared(problem, point, problem.lower(point), facts))
            for fact, mine_, other in pairs:
                facts_seen += 1
                names.add(fact)
                if mine_ != other:
                    wrong += 1
                    say({"differs": fact, "of": f"{name} {pipeline}", "model": mine_, "tir": other,
                         "point": dict(point.params)})  # fmt: skip
            mine += bool(pairs)
        seen[f"{name.split(' ')[0]} {pipeline}"] += mine
        differ += wrong
        say({"of": f"{name} {pipeline}", "points": mine, "facts": sorted(names), "differ": wrong,
             "cpu_s": time.process_time() - began})  # fmt: skip
    marks = {
        "equal": differ == 0,
        "enough": args.quick or all(whole[p] or n >= min(wanted, 200) for p, n in seen.items()),
    }
    return end(args, marks, points=dict(seen), facts=facts_seen, differ=differ)


if __name__ == "__main__":
    sys.exit(main())
