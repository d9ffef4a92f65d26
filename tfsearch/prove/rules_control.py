"""Loops, conditions, roles, barriers: control flow that every unit can follow."""

from __future__ import annotations

from collections.abc import Iterable

from tfsearch.ir.tir.nodes import For, LoopKind, Role
from tfsearch.ir.tir.printer import print_expr
from tfsearch.prove.forms import Form, combine
from tfsearch.prove.points import enumerate_points
from tfsearch.prove.site import CallSite, Rule, Site

BARRIER = "unit_barrier"
"""``Effects.synchronises`` of a barrier over all units."""


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
    role, units = site.statement, site.kernel.units
    if isinstance(role, Role) and not 0 <= role.first < role.last <= units:
        yield (
            f"role {role.name} is for units {role.first}..{role.last}; the kernel has units "
            f"0..{units}, and a role at least one of them"
        )


def check_barrier(site: CallSite) -> Iterable[str]:
    """Every unit meets every barrier equally often."""
    if site.atom.effects.synchronises == BARRIER and site.divergent:
        yield (
            f"{site.atom.id} waits for all {site.kernel.units} units, but {site.divergent}; "
            f"every unit must come here equally often"
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
ROLE_RULES: tuple[Rule[Site], ...] = (Rule("tir.role-range", check_role_range),)
BARRIER_RULES: tuple[Rule[CallSite], ...] = (Rule("tir.divergent-barrier", check_barrier),)
