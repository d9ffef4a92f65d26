"""Named barriers, groups of asynchronous operations, clusters."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfsearch.atoms.contract import Completion, Part, Sync
from tfsearch.ir.tir.nodes import Kernel, MemorySpace
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.protocol.uses import Use, roles_of

Finding = tuple[str, Path, str]
_NAMED = frozenset({Sync.NAMED, Sync.NAMED_ARRIVE})


def named_findings(kernel: Kernel, uses: Sequence[Use]) -> Iterator[Finding]:
    """(code, place, message) for named barriers that are for other warps than come to them."""
    by_id: dict[int, list[Use]] = {}
    for use in uses:
        if use.sync in _NAMED:
            if use.comers is None:
                return
            for key in use.comers:
                by_id.setdefault(key, []).append(use)
    for key, sites in sorted(by_id.items()):
        counts = {value for use in sites for value in use.values.get(Part.WARPS) or ()}
        if len(counts) > 1:
            yield (
                "tir.named-barrier",
                sites[0].path,
                f"named barrier {key} is for {' and for '.join(map(str, sorted(counts)))} warps",
            )
            continue
        if not any(use.sync is Sync.NAMED for use in sites):
            yield "tir.named-barrier", sites[0].path, f"nothing waits at named barrier {key}"
        come = _warps(kernel, key, sites)
        for count in counts:
            if count != come:
                yield (
                    "tir.named-barrier",
                    sites[0].path,
                    f"named barrier {key} is for {count} warps; those that come to it have {come}",
                )


def _warps(kernel: Kernel, key: int, sites: Sequence[Use]) -> int:
    """Warps of everyone that comes to a named barrier."""
    total = 0
    for role in roles_of(sites):
        if role is None:
            total += kernel.warps
            continue
        mine = [use.comers or {} for use in sites if use.role is role]
        total += role.width * len(frozenset[int]().union(*(c.get(key, ()) for c in mine)))
    return total


def group_findings(uses: Sequence[Use]) -> Iterator[Finding]:
    """(code, place, message) for operations that nothing commits or awaits."""
    for role in roles_of(uses):
        mine = [use for use in uses if use.role is role]
        for use in mine:
            effects = use.atom.effects
            if effects.completion not in (Completion.COMMIT_GROUP, Completion.MATRIX_GROUP):
                continue
            same = [u for u in mine if u.atom.effects.group == effects.group]
            if any(u.sync is Sync.ARRIVE_AFTER for u in same):
                continue
            commits = [u for u in same if u.sync is Sync.COMMIT]
            waits = [u for u in same if u.sync is Sync.WAIT_GROUP]
            lacks = "commits" if not commits else "awaits" if not waits else ""
            if lacks:
                yield (
                    "tir.group-unpaired",
                    use.path,
                    f"{use.atom.id} joins a group of {effects.group} that nothing {lacks} here",
                )
                break
        for use in mine:
            group = use.atom.effects.group
            if use.sync in (Sync.COMMIT, Sync.WAIT_GROUP) and not any(
                u.atom.is_async and u.atom.effects.group == group for u in mine
            ):
                yield (
                    "tir.group-unpaired",
                    use.path,
                    f"{use.atom.id} is about groups of {group}, to which nothing here belongs",
                )
                break


def cluster_findings(kernel: Kernel, uses: Sequence[Use]) -> Iterator[Finding]:
    """(code, place, message) for units that reach others before those begin or after they end."""
    if kernel.cluster_size <= 1:
        return
    far = [u for u in uses if u.atom.find(Part.RANK) >= 0 or u.atom.find(Part.MASK) >= 0]
    arrives = [u.path for u in uses if u.sync is Sync.CLUSTER_ARRIVE]
    waits = [u.path for u in uses if u.sync is Sync.CLUSTER_WAIT]
    if bool(arrives) != bool(waits) or len(arrives) != len(waits):
        yield (
            "tir.barrier-unpaired",
            (arrives or waits)[0],
            f"the cluster barrier is arrived at in {len(arrives)} places and awaited in "
            f"{len(waits)}",
        )
        return
    if not far:
        return
    if not any(path < far[0].path for path in waits):
        yield (
            "tir.cluster-start",
            far[0].path,
            f"{far[0].atom.id} reaches other units of the cluster, which may not have begun; a "
            f"cluster barrier comes first",
        )
    if not any(path > far[-1].path for path in waits) and _outlives(far):
        yield (
            "tir.cluster-exit",
            far[-1].path,
            f"{far[-1].atom.id} reaches other units of the cluster, which may have ended; a "
            f"cluster barrier at the end keeps them",
        )


def _outlives(far: Sequence[Use]) -> bool:
    """Whether what reaches other units is in their shared memory."""
    return any(
        use.barrier is not None
        or any(touch.buffer.space is MemorySpace.SHARED for touch in use.touches)
        for use in far
    )
