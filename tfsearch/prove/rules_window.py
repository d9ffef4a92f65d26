"""Windows stay inside their buffers, for every loop value and every unit."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tfsearch.ir.tir.nodes import Buffer
from tfsearch.prove.forms import Column, Form, combine
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
        dims = unproved(site.scope, operand.buffer, operand.starts, operand.extents)
        if dims:
            text = _decide(site, operand, dims)
            if text:
                out.append(text)
    return out


def unproved(
    scope: Scope, buffer: Buffer, starts: Sequence[Form], extents: Sequence[Form]
) -> list[int]:
    """Dimensions in which the symbolic method cannot tell that the window is inside.

    A window is inside when every dimension is by itself: its extent is not negative, and where
    that is positive its elements are in the buffer.
    """
    shape = zip(starts, extents, buffer.shape, strict=True)
    return [
        dim
        for dim, (start, extent, size) in enumerate(shape)
        if not _holds(scope, start, extent, size)
    ]


def _holds(scope: Scope, start: Form, extent: Form, size: int) -> bool:
    if not start[1] and not extent[1]:
        return extent[0] >= 0 and (not extent[0] or 0 <= start[0] <= size - extent[0])
    if extent[1]:
        if not scope.at_least(extent, 0):
            return False
        # An empty window touches nothing: max(x, 0) needs its bound only where x > 0.
        extent = scope.algebra.clipped(extent)
    if start[1] and not scope.at_least(start, 0):
        return False
    if not start[1] and start[0] < 0:
        return False
    return scope.at_most(combine(start, extent), size)


def _decide(site: CallSite, operand: ResolvedWindow, dims: list[int]) -> str:
    """Try every point; the message of a violation, or "" where there is none.

    Dimensions are tried one by one first: together they have the product of their points.
    """
    dims = [dim for dim in dims if not _holds_at_points(site, operand, dim)]
    if not dims:
        return ""
    budget = site.limits.enumeration_points
    every = (*operand.starts, *operand.extents)
    # The other extents say whether anything is touched; the other starts only name the place.
    needed = (*(operand.starts[dim] for dim in dims), *operand.extents)
    for forms, ends_only in ((every, False), (needed, False), (every, True)):
        points = enumerate_points(
            site.scope, [form for form in forms if form[1]], budget, ends_only=ends_only
        )
        if points is None:
            continue
        text = _violation(site, operand, dims, points)
        if text or points.complete:
            return text
    return (
        f"cannot prove that {_name(operand)} stays inside {_shape(operand.buffer)}: "
        f"{_ranges(site, operand)}; more than {budget} points to try"
    )


def _holds_at_points(site: CallSite, operand: ResolvedWindow, dim: int) -> bool:
    forms = [form for form in (operand.starts[dim], operand.extents[dim]) if form[1]]
    points = enumerate_points(site.scope, forms, site.limits.enumeration_points)
    if points is None:
        return False
    start = points.value(site.scope.algebra, operand.starts[dim])
    extent = points.value(site.scope.algebra, operand.extents[dim])
    return not _wrong(start, extent, extent > 0, operand.buffer.shape[dim]).any()


def _wrong(
    start: Column, extent: Column, touched: NDArray[np.bool_], size: int
) -> NDArray[np.bool_]:
    return (extent < 0) | (touched & ((start < 0) | (start + extent > size)))


def _violation(site: CallSite, operand: ResolvedWindow, dims: Sequence[int], points: Points) -> str:
    buffer = operand.buffer
    if points.count == 0:
        return ""
    algebra = site.scope.algebra
    extents = [points.value(algebra, form) for form in operand.extents]
    touched = np.logical_and.reduce([extent > 0 for extent in extents])
    for dim in dims:
        size, extent = buffer.shape[dim], extents[dim]
        start = points.value(algebra, operand.starts[dim])
        wrong = _wrong(start, extent, touched, size)
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
