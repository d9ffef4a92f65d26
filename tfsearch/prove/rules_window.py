"""Windows stay inside their buffers, for every loop value and every unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from tfsearch.ir.tir.nodes import Buffer
from tfsearch.prove.forms import Form, combine
from tfsearch.prove.points import Points, enumerate_points
from tfsearch.prove.scope import UNBOUNDED, Scope
from tfsearch.prove.site import CallSite, ResolvedWindow, Rule

_WILD = UNBOUNDED >> 2


def check_bounds(site: CallSite) -> Iterable[str]:
    """Messages for windows that can leave their buffer or have negative extents."""
    return [text for text in _verdicts(site) if not text.startswith("cannot")]


def check_unproved(site: CallSite) -> Iterable[str]:
    """Messages for windows that can be neither proved nor refuted within the budget."""
    return [text for text in _verdicts(site) if text.startswith("cannot")]


def _verdicts(site: CallSite) -> list[str]:
    if site.verdicts is not None:
        return site.verdicts
    out: list[str] = []
    site.verdicts = out
    for operand in site.open:
        if not inside(site.scope, operand.buffer, operand.starts, operand.extents):
            text = _decide(site, operand)
            if text:
                out.append(text)
    return out


def inside(scope: Scope, buffer: Buffer, starts: Sequence[Form], extents: Sequence[Form]) -> bool:
    """Whether the window is proved to be inside; False where the symbolic method cannot tell."""
    for start, length, size in zip(starts, extents, buffer.shape, strict=True):
        extent = length
        if not start[1] and not extent[1]:
            if extent[0] < 0 or (extent[0] and not 0 <= start[0] <= size - extent[0]):
                return False
            continue
        if extent[1]:
            if not scope.at_least(extent, 0):
                return False
            # An empty window touches nothing: max(x, 0) needs its bound only where x > 0.
            extent = scope.algebra.clipped(extent)
        if start[1] and not scope.at_least(start, 0):
            return False
        if not start[1] and start[0] < 0:
            return False
        if not scope.at_most(combine(start, extent), size):
            return False
    return True


def _decide(site: CallSite, operand: ResolvedWindow) -> str:
    """Try every point; the message of a violation, or "" where there is none."""
    forms = [form for form in (*operand.starts, *operand.extents) if form[1]]
    budget = site.limits.enumeration_points
    points = enumerate_points(site.scope, forms, budget)
    if points is None:
        points = enumerate_points(site.scope, forms, budget, ends_only=True)
    if points is not None:
        text = _violation(site, operand, points)
        if text or points.complete:
            return text
    return (
        f"cannot prove that {_name(operand)} stays inside {_shape(operand.buffer)}: "
        f"{_ranges(site, operand)}; more than {budget} points to try"
    )


def _violation(site: CallSite, operand: ResolvedWindow, points: Points) -> str:
    buffer = operand.buffer
    if points.count == 0:
        return ""
    algebra = site.scope.algebra
    starts = [points.value(algebra, form) for form in operand.starts]
    extents = [points.value(algebra, form) for form in operand.extents]
    touched = np.logical_and.reduce([extent > 0 for extent in extents])
    for dim, size in enumerate(buffer.shape):
        start, extent = starts[dim], extents[dim]
        wrong = (extent < 0) | (touched & ((start < 0) | (start + extent > size)))
        if wrong.any():
            at = int(np.argmax(wrong))
            values = ", ".join(
                f"{algebra.names[symbol]}={int(column[at])}"
                for symbol, column in sorted(points.columns.items())
            )
            first, count = int(start[at]), int(extent[at])
            return (
                f"{_name(operand)} dimension {dim} covers {first} to {first + count} of "
                f"{_shape(buffer)}" + (f" at {values}" if values else "") + f"; must stay within "
                f"0 to {size}"
            )
    return ""


def _name(operand: ResolvedWindow) -> str:
    return f"operand {operand.spec.name} ({operand.buffer.name})"


def _shape(buffer: Buffer) -> str:
    return f"{buffer.name}[{', '.join(map(str, buffer.shape))}]"


def _ranges(site: CallSite, operand: ResolvedWindow) -> str:
    parts: list[str] = []
    for dim, (start, extent) in enumerate(zip(operand.starts, operand.extents, strict=True)):
        low = site.scope.lower(start)
        high = site.scope.upper(combine(start, extent))
        shown = "is unbounded" if max(abs(low), abs(high)) > _WILD else f"{low} to {high}"
        parts.append(f"dimension {dim} {shown}")
    return ", ".join(parts)


WINDOW_RULES: tuple[Rule[CallSite], ...] = (
    Rule("tir.window-bounds", check_bounds),
    Rule("tir.window-unproved", check_unproved),
)
