"""Barrier objects: initialised, arrived at as often as they count, with the bytes that come."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod

from tfsearch.atoms.contract import Completion, Part, Sync
from tfsearch.ir.tir.nodes import Buffer, For, If, Kernel, Role
from tfsearch.ir.tir.walk import Path, statement_at
from tfsearch.prove.protocol.uses import Use, repeats, roles_of

Finding = tuple[str, Path, str]
MEETINGS = frozenset({Sync.TEAM, Sync.NAMED, Sync.CLUSTER_WAIT, Sync.UNITS})
_ARRIVALS = frozenset({Sync.ARRIVE, Sync.ARRIVE_AFTER, Sync.EXPECT})


def arrival_findings(kernel: Kernel, uses: Sequence[Use]) -> Iterator[Finding]:
    """(code, place, message) for every barrier object that does not add up."""
    barriers: dict[str, Buffer] = {}
    for use in uses:
        if use.barrier is not None:
            barriers.setdefault(use.barrier.name, use.barrier)
    for barrier in barriers.values():
        mine = [u for u in uses if u.barrier is not None and u.barrier.name == barrier.name]
        inits = [u for u in mine if u.sync is Sync.INIT]
        others = [u for u in mine if u.sync is not Sync.INIT]
        faults = list(_start(uses, barrier, inits, others))
        yield from faults or (*_pairs(barrier, others), *_counts(kernel, barrier, inits, others))
        yield from _bytes(kernel, barrier, others)


def _start(
    uses: Sequence[Use], barrier: Buffer, inits: Sequence[Use], others: Sequence[Use]
) -> Iterator[Finding]:
    """Every object is initialised, and all warps meet before another one uses it."""
    if not inits:
        yield (
            "tir.barrier-uninitialised",
            others[0].path,
            f"{barrier.name} is used and never initialised",
        )
        return
    size = prod(barrier.shape)
    reached: set[int] = set()
    for use in inits:
        if use.indices is None:
            return
        reached.update(use.indices)
    if len(reached) < size:
        yield (
            "tir.barrier-uninitialised",
            inits[0].path,
            f"{len(reached)} of the {size} barriers of {barrier.name} are initialised",
        )
    if not others:
        yield "tir.barrier-unpaired", inits[0].path, f"nothing arrives at {barrier.name}"
        return
    last = max(use.path for use in inits)
    for use in others:
        if use.path < last:
            yield (
                "tir.barrier-uninitialised",
                use.path,
                f"{barrier.name} is used before it is initialised",
            )
            return
    first = min(use.path for use in others)
    between = [u for u in uses if last < u.path < first]
    apart = roles_of((*others, *inits))
    if len(apart) > 1 and not any(u.sync in MEETINGS for u in between):
        yield (
            "tir.barrier-init",
            first,
            f"{barrier.name} is used with no barrier of the team after its initialisation; the "
            f"initial state may not be seen",
        )
    shown = any(u.sync is Sync.FENCE and u.atom.effects.fences & {"init", "async"} for u in between)
    needs = [u for u in others if u.atom.is_async or u.atom.find(Part.RANK) >= 0]
    if needs and not shown:
        yield (
            "tir.proxy-fence",
            needs[0].path,
            f"{needs[0].atom.id} lets another proxy or unit use {barrier.name}, and no fence after "
            f"its initialisation makes that visible",
        )


def _pairs(barrier: Buffer, others: Sequence[Use]) -> Iterator[Finding]:
    """What is waited for arrives, and what arrives is waited for."""
    waits = [u for u in others if u.sync is Sync.WAIT]
    arrives = [u for u in others if u.sync in _ARRIVALS]
    if waits and not arrives:
        yield "tir.barrier-unpaired", waits[0].path, f"nothing arrives at {barrier.name}"
    if not waits:
        yield "tir.barrier-unpaired", others[0].path, f"nothing waits for {barrier.name}"


def _counts(
    kernel: Kernel, barrier: Buffer, inits: Sequence[Use], others: Sequence[Use]
) -> Iterator[Finding]:
    """A phase takes as many arrivals as its arrivers make."""
    counts: set[int] = set()
    for use in inits:
        values = use.values.get(Part.COUNT)
        if values is None:
            return
        counts.update(values)
    for rank in range(kernel.cluster_size):
        makers: list[_Maker] = []
        for role in roles_of(u for u in others if u.sync in _ARRIVALS):
            sites = [u for u in others if u.sync in _ARRIVALS and u.role is role]
            sums = _rounds(kernel, sites, rank)
            if sums is None:
                return
            turns = any(use.by_turns for use in sites)
            makers.append(_Maker(role, sums, turns=turns))
        for count in sorted(counts):
            if any(any(maker.sums) for maker in makers) and not _adds_up(count, makers):
                where = f" of rank {rank}" if kernel.cluster_size > 1 else ""
                yield (
                    "tir.barrier-count",
                    inits[0].path,
                    f"{barrier.name}{where} takes {count} arrivals a phase; "
                    f"{', '.join(map(str, makers))}",
                )
                return


class _Maker:
    """A role and the arrivals that its instances make in a phase, in each of the ways it goes."""

    def __init__(self, role: Role | None, sums: frozenset[int], *, turns: bool) -> None:
        self.name = "the team" if role is None else f"role {role.name}"
        instances = 1 if role is None else role.instances
        self.sums = sums
        self.times = range(1, instances + 1) if turns else (instances,)

    def totals(self) -> set[int]:
        """All that the role can make."""
        return {total * n for total in self.sums for n in self.times}

    def __str__(self) -> str:
        return f"{self.name} makes {' or '.join(map(str, sorted(self.totals())))}"


def _adds_up(count: int, makers: Sequence[_Maker]) -> bool:
    """Whether each way that each role goes fits into a phase of so many arrivals."""
    for maker in makers:
        others = [other.totals() for other in makers if other is not maker]
        rests = {sum(pick) for pick in product(*others)}
        for total in maker.sums:
            if not any(total * n + rest == count for n in maker.times for rest in rests):
                return False
    return True


def _rounds(kernel: Kernel, sites: Sequence[Use], rank: int) -> frozenset[int] | None:
    """Arrivals of one instance in a phase, in each of the ways it goes.

    Sites that name the same object in the same loops add up, branches of one condition apart;
    other sites arrive in other phases. Loops over ranks are within a phase.
    """
    rounds: dict[tuple[object, ...], list[tuple[Path, int]]] = {}
    for use in sites:
        arrivals = use.arrivals(kernel)
        if arrivals is None or len(arrivals) != 1 or use.reach is None:
            return None
        key = (_loops(kernel, use), use.index)
        rounds.setdefault(key, []).append((use.path, arrivals[0] * use.reach[rank]))
    out: set[int] = set()
    for each in rounds.values():
        out |= _ways(kernel, each)
    return frozenset(out)


def _loops(kernel: Kernel, use: Use) -> tuple[Path, ...]:
    """The loops around a call, those over ranks left out."""
    around = [use.path[:depth] for depth in range(1, len(use.path))]
    return tuple(
        path
        for path in around
        if isinstance(loop := statement_at(kernel, path), For) and loop.name not in use.rank_names
    )


def _ways(kernel: Kernel, sites: Sequence[tuple[Path, int]], depth: int = 1) -> set[int]:
    """The sums of arrivals with one branch of every condition taken."""
    if len(sites) == 1:
        return {sites[0][1]}
    by_child: dict[Path, list[tuple[Path, int]]] = {}
    for path, arrivals in sites:
        by_child.setdefault(path[:depth], []).append((path, arrivals))
    sums = {0}
    branches: dict[tuple[Path, bool], set[int]] = {}
    parent = sites[0][0][: depth - 1]
    choice = statement_at(kernel, parent) if parent else None
    for child, inside in by_child.items():
        found = (
            {sum(a for _, a in inside)}
            if child == inside[0][0]
            else _ways(kernel, inside, depth + 1)
        )
        if isinstance(choice, If):
            key = (parent, child[-1] < len(choice.then))
            known = branches.get(key, {0})
            branches[key] = {x + y for x in known for y in found}
        else:
            sums = {x + y for x in sums for y in found}
    return set().union(*branches.values()) if branches else sums


def _bytes(kernel: Kernel, barrier: Buffer, others: Sequence[Use]) -> Iterator[Finding]:
    """A phase waits for the bytes that its copies bring."""
    copies = [u for u in others if u.atom.effects.completion is Completion.BARRIER_TRANSACTIONS]
    expects = [u for u in others if u.sync is Sync.EXPECT]
    if copies and not expects:
        yield (
            "tir.barrier-bytes",
            copies[0].path,
            f"{copies[0].atom.id} brings bytes to {barrier.name}, and no arrival expects any",
        )
    blocks = [expect.block for expect in expects]
    if any(not any(u.path[: len(b)] == b for b in blocks) for u in copies):
        return  # Copies of other places join the phase: a run shows whether they are right.
    for expect in expects:
        wanted = expect.values.get(Part.BYTES)
        inside = [u for u in copies if u.path[: len(expect.block)] == expect.block]
        if wanted is None or len([e for e in expects if e.block == expect.block]) > 1:
            continue
        for rank in range(kernel.cluster_size):
            total = _brought(kernel, expect, inside, rank)
            wrong = [value for value in wanted if value != total]
            if total is not None and wrong:
                where = f" of rank {rank}" if kernel.cluster_size > 1 else ""
                yield (
                    "tir.barrier-bytes",
                    expect.path,
                    f"a phase of {barrier.name}{where} expects {wrong[0]} bytes; its copies bring "
                    f"{total}",
                )
                break


def _brought(kernel: Kernel, expect: Use, copies: Sequence[Use], rank: int) -> int | None:
    """Bytes that the copies of one block bring to a rank's barrier; None where that is unknown."""
    total = 0
    for use in copies:
        if use.path[: len(expect.block)] != expect.block or use.index != expect.index:
            return None
        times = repeats(kernel, expect.block, use.path)
        if times is None or use.reach is None:
            return None
        size = sum(touch.bytes for touch in use.touches if touch.access.writes)
        total += times * size * use.reach[rank]
    return total
