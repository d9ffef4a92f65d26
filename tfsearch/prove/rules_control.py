"""Loops, conditions, roles, barriers: control flow that every unit can follow."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tfsearch.atoms.contract import Sync
from tfsearch.ir.tir.nodes import For, LoopKind, Role
from tfsearch.ir.tir.printer import print_expr
from tfsearch.prove.forms import Form, combine
from tfsearch.prove.points import enumerate_points
from tfsearch.prove.site import CallSite, Rule, Site

BARRIER = Sync.UNITS.value
"""``Effects.synchronises`` of a barrier over all units."""
WHOLE_TEAM = frozenset({Sync.UNITS, Sync.TEAM, Sync.CLUSTER_ARRIVE, Sync.CLUSTER_WAIT})


def loop_of(site: Site) -> For:
    """The statement as a loop."""
    if not isinstance(site.statement, For):
        raise TypeError("not a loop")
    return site.statement


def check_step(site: Site) -> Iterable[str]:
    """Loops go forward."""
    loop = loop_of(site)
    if loop.step < 1:
        yield f"loop {loop.name} has step {loop.step}; a step is at least 1"


def check_unroll_hint(site: Site) -> Iterable[str]:
    """The hint to the compiler is a count."""
    loop = loop_of(site)
    if loop.unroll < 1:
        yield f"loop {loop.name} has unroll {loop.unroll}; the hint is at least 1"


def check_unrolled(site: Site) -> Iterable[str]:
    """What the emitter expands has literal bounds by then."""
    loop = loop_of(site)
    if loop.kind is not LoopKind.UNROLLED:
        return
    if not (site.scope.expands(loop.start) and site.scope.expands(loop.stop)):
        yield (
            f"unrolled loop {loop.name} runs {print_expr(loop.start)}..{print_expr(loop.stop)}; "
            f"both bounds must be literals or expressions of outer unrolled loops' variables"
        )


def check_role_range(site: Site) -> Iterable[str]:
    """Roles name units that exist."""
    role = site.statement
    if not isinstance(role, Role):
        return
    what = "warps" if role.over_warps else "units"
    most = site.kernel.warps if role.over_warps else site.kernel.units
    if not 0 <= role.first < role.last <= most:
        yield (
            f"role {role.name} is for {what} {role.first}..{role.last}; the kernel has {what} "
            f"0..{most}, and a role at least one of them"
        )
    elif role.over_warps and (role.last - role.first) % role.width:
        yield (
            f"role {role.name} has {role.last - role.first} warps, which instances of width "
            f"{role.width} do not share out evenly"
        )


def check_role_nested(site: Site) -> Iterable[str]:
    """A role over warps picks from a whole unit."""
    role = site.statement
    if isinstance(role, Role) and role.over_warps and site.role is not None:
        yield (
            f"role {role.name} stands in role {site.role.name}; roles over warps stand side by side"
        )


def check_barrier(site: CallSite) -> Iterable[str]:
    """Every unit, and every warp of it, meets every barrier for all of them equally often."""
    what = site.atom.effects.synchronises
    if what not in WHOLE_TEAM:
        return
    if what == BARRIER and site.divergent:
        yield (
            f"{site.atom.id} waits for all {site.kernel.units} units, but {site.divergent}; "
            f"every unit must come here equally often"
        )
    if what in (Sync.CLUSTER_ARRIVE, Sync.CLUSTER_WAIT) and site.astray:
        yield (
            f"{site.atom.id} is for every unit of a cluster, but {site.astray}; they must come "
            f"here equally often"
        )
    if site.partial:
        yield (
            f"{site.atom.id} is for all {site.kernel.warps} warps of a unit, but {site.partial}; "
            f"every warp must come here equally often"
        )


def partial_role(site: Site, role: Role) -> str:
    """Why not every warp of a unit runs a role; "" where every one does."""
    if (role.first, role.last) == (0, site.kernel.warps):
        return ""
    return f"role {role.name} is for warps {role.first}..{role.last}"


def astray(site: Site, forms: Sequence[Form], what: str) -> str:
    """Why forms differ between units of one cluster; "" where they are known not to.

    ``what`` says whose forms they are.
    """
    size, scope = site.kernel.cluster_size, site.scope
    if size <= 1 or not any(scope.per_unit(form) for form in forms):
        return ""
    unit = scope.algebra.variable(scope.unit)
    points = enumerate_points(scope, (*forms, unit), site.limits.enumeration_points)
    if points is None or not points.count:
        return ""
    keys = [column for symbol, column in points.columns.items() if symbol != scope.unit]
    rank = points.columns[scope.unit] % size
    cluster = points.columns[scope.unit] // size
    values = [points.value(scope.algebra, form) for form in forms]
    table = np.stack([cluster, *keys, *values])
    seen = [set(map(tuple, table[:, rank == r].T.tolist())) for r in range(size)]
    return (
        f"{what}, which differs between units of a cluster"
        if len(set(map(frozenset, seen))) > 1
        else ""
    )


def loop_divergence(site: Site, loop: For, start: Form, stop: Form) -> str:
    """Why the trip count of a loop differs from unit to unit; "" where it does not."""
    scope = site.scope
    length = combine(stop, start, -1)
    if not scope.per_unit(length) or scope.upper(length) == scope.lower(length):
        return ""
    step = max(loop.step, 1)
    points = enumerate_points(scope, (start, stop), site.limits.enumeration_points)
    if points is not None and points.count:
        trips = -((points.value(scope.algebra, start) - points.value(scope.algebra, stop)) // step)
        trips = trips.clip(0)
        if int(trips.min()) == int(trips.max()):
            return ""
    return (
        f"loop {loop.name} runs {print_expr(loop.start)}..{print_expr(loop.stop)}, which depends "
        f"on the unit"
    )


LOOP_RULES: tuple[Rule[Site], ...] = (
    Rule("tir.loop-step", check_step),
    Rule("tir.loop-unroll", check_unroll_hint),
    Rule("tir.unroll-bounds", check_unrolled),
)
ROLE_RULES: tuple[Rule[Site], ...] = (
    Rule("tir.role-range", check_role_range),
    Rule("tir.role-nested", check_role_nested),
)
BARRIER_RULES: tuple[Rule[CallSite], ...] = (Rule("tir.divergent-barrier", check_barrier),)
