"""Layouts of shared memory, fragments of registers, descriptors of the host."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from math import gcd, prod
from typing import Any

import numpy as np

from tfsearch.atoms.contract import ANY, BoxRule, TileLayout
from tfsearch.ir.layout import IntTuple, Layout, Swizzle, SwizzledLayout, flatten, product
from tfsearch.ir.tir.nodes import Box, Buffer, MemorySpace
from tfsearch.prove.site import CallSite, ResolvedWindow, Rule

_MOST_OFFSETS = 1 << 20


def plain(layout: Layout | SwizzledLayout) -> Layout:
    """The layout below a swizzle."""
    return layout.layout if isinstance(layout, SwizzledLayout) else layout


def swizzle_of(buffer: Buffer) -> Swizzle | None:
    """The swizzle of a buffer's layout; None without one, or where it changes nothing."""
    layout = buffer.layout
    if isinstance(layout, SwizzledLayout) and layout.swizzle.bits:
        return layout.swizzle
    return None


def layout_faults(buffer: Buffer) -> Iterator[str]:
    """Messages where a buffer's layout or fragment makes no sense."""
    if buffer.fragment and buffer.space is not MemorySpace.REGISTER:
        yield f"{buffer.name} has a fragment in {buffer.space.value}; fragments are of registers"
    layout = buffer.layout
    if layout is None:
        return
    if buffer.space is not MemorySpace.SHARED:
        yield f"{buffer.name} has a layout in {buffer.space.value}; layouts are of shared memory"
    if buffer.strides is not None:
        yield f"{buffer.name} has strides and a layout; it takes one of them"
    modes = plain(layout)
    sizes = tuple(map(product, modes.shape)) if isinstance(modes.shape, tuple) else (modes.size,)
    if sizes != buffer.shape:
        yield f"{buffer.name} has shape {list(buffer.shape)}, but its layout is of {list(sizes)}"
    elif not injective(modes):
        yield f"{buffer.name} has the layout {layout}, in which elements overlap"
    if isinstance(layout, SwizzledLayout):
        period = layout.swizzle.period * buffer.dtype.bytes
        if buffer.alignment % period:
            yield (
                f"{buffer.name} is swizzled with a period of {period} bytes but aligned to "
                f"{buffer.alignment}; the alignment must be a multiple of the period"
            )


@lru_cache(maxsize=4096)
def injective(layout: Layout) -> bool:
    """Whether no two coordinates share an offset."""
    span = 1
    for stride, size in sorted(zip(flatten(layout.stride), flatten(layout.shape), strict=True)):
        if size > 1:
            if stride < span:
                return layout.size <= _MOST_OFFSETS and layout.is_injective()
            span = stride * size
    return True


@lru_cache(maxsize=4096)
def mode_offsets(shape: IntTuple, stride: IntTuple) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Offsets of one mode for every coordinate."""
    out = np.zeros(1, dtype=np.int64)
    for size, step in zip(flatten(shape), flatten(stride), strict=True):
        out = (out[None, :] + (np.arange(size) * step)[:, None]).reshape(-1)
    return out


def element_offsets(buffer: Buffer) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Where every element of a buffer lies, in elements from its start; in the buffer's shape."""
    out = np.zeros(buffer.shape, dtype=np.int64)
    layout = buffer.layout
    for dim, size in enumerate(buffer.shape):
        if layout is None:
            along = np.arange(size, dtype=np.int64) * buffer.dense_strides[dim]
        else:
            mode = plain(layout).modes[dim]
            along = mode_offsets(mode.shape, mode.stride)
        out += along.reshape((-1,) + (1,) * (len(buffer.shape) - dim - 1))
    swizzle = swizzle_of(buffer)
    if swizzle is not None:
        out ^= (out >> swizzle.shift) & (((1 << swizzle.bits) - 1) << swizzle.base)
    return out


def check_layout(site: CallSite) -> Iterable[str]:
    """Shared operands have a layout that the atom takes."""
    out: list[str] = []
    for operand in site.open:
        wanted = operand.spec.layouts
        if not wanted or operand.buffer.space is not MemorySpace.SHARED:
            continue
        extents = tuple(form[0] if not form[1] else -1 for form in operand.extents)
        starts = tuple(
            (form[0], 0) if not form[1] else (0, max(site.scope.multiple(form), 1))
            for form in operand.starts
        )
        key = (operand.buffer.layout, operand.buffer.shape, operand.buffer.strides)
        if not fits(key, operand.dims, starts, extents, wanted):
            names = " or ".join(layout.name for layout in wanted)
            have = operand.buffer.layout or f"strides {list(operand.buffer.dense_strides)}"
            out.append(
                f"operand {operand.spec.name} of {site.atom.id} has the layout {have} in "
                f"dimensions {list(operand.dims)} ({operand.buffer.name}); it takes {names}"
            )
    return out


_Key = tuple[Layout | SwizzledLayout | None, tuple[int, ...], tuple[int, ...] | None]


@lru_cache(maxsize=4096)
def fits(
    key: _Key,
    dims: tuple[int, ...],
    starts: tuple[tuple[int, int], ...],
    extents: tuple[int, ...],
    wanted: tuple[TileLayout, ...],
) -> bool:
    """Whether a window of a buffer lies as one of the wanted layouts says.

    ``starts``: per dimension a literal and 0, or 0 and what the start is a multiple of.
    """
    layout, shape, strides = key
    if layout is None:
        dense = tuple(prod(shape[i + 1 :]) for i in range(len(shape)))
        layout = Layout(shape, strides if strides is not None else dense)
    swizzle = layout.swizzle if isinstance(layout, SwizzledLayout) else None
    modes = plain(layout).modes
    for tile in wanted:
        if _plain_or(swizzle) != _plain_or(tile.swizzle):
            continue
        shapes, steps = _modes(tile)
        if len(shapes) != len(dims):
            continue
        for dim, size, step in zip(dims, shapes, steps, strict=True):
            places = _places(modes[dim], starts[dim], extents[dim])
            if not places or not all(_agrees(found, size, step) for found in places):
                break
        else:
            return True
    return False


def _plain_or(swizzle: Swizzle | None) -> Swizzle | None:
    """None for a swizzle that changes nothing."""
    return swizzle if swizzle is not None and swizzle.bits else None


_Offsets = np.ndarray[Any, np.dtype[np.int64]]


def _places(mode: Layout, start: tuple[int, int], extent: int) -> list[_Offsets]:
    """Offsets of a dimension relative to its start, for every start; [] where there is none."""
    first, step = start
    if extent < 1:
        return []
    offsets = mode_offsets(mode.shape, mode.stride)
    last = len(offsets) - extent
    if not step:
        at = [first] if 0 <= first <= last else []
    else:
        # Where the dimension has one stride all starts are alike.
        at = [0] if isinstance(mode.shape, int) else list(range(0, last + 1, step))
    return [offsets[s : s + extent] - offsets[s] for s in at]


def _modes(tile: TileLayout) -> tuple[tuple[IntTuple, ...], tuple[IntTuple, ...]]:
    if isinstance(tile.shape, int) or isinstance(tile.stride, int):
        return (tile.shape,), (tile.stride,)
    return tile.shape, tile.stride


def _agrees(found: np.ndarray[Any, np.dtype[np.int64]], size: IntTuple, step: IntTuple) -> bool:
    """Whether offsets of one dimension are those of the wanted mode; :data:`ANY` fits anything."""
    sizes, steps = list(flatten(size)), list(flatten(step))
    below = 1
    for position, extent in enumerate(sizes):
        if extent == ANY:
            sizes[position] = max(len(found) // below, 1)
        if steps[position] == ANY:
            steps[position] = int(found[below]) if below < len(found) else 0
        below *= sizes[position]
    wanted = mode_offsets(tuple(sizes), tuple(steps))
    return len(wanted) == len(found) and bool((wanted == found).all())


def laid_out_alignment(site: CallSite, buffer: Buffer, operand: ResolvedWindow) -> int:
    """What the address of a window of a laid-out buffer is known to be a multiple of, bytes.

    The address is the one before the swizzle, which is what copies and matrix operations take.
    """
    layout = buffer.layout
    if layout is None:
        return buffer.alignment
    known = 0
    for start, mode in zip(operand.starts, plain(layout).modes, strict=True):
        if not start[1]:
            known = gcd(known, mode(start[0])) if start[0] < mode.size else known
            continue
        step = max(site.scope.multiple(start), 1)
        known = gcd(known, _common(mode, step))
    return gcd(buffer.alignment, known * buffer.dtype.bytes)


@lru_cache(maxsize=4096)
def _common(mode: Layout, step: int) -> int:
    offsets = mode_offsets(mode.shape, mode.stride)[::step]
    return int(np.gcd.reduce(offsets)) if len(offsets) else 0


def check_fragment(site: CallSite) -> Iterable[str]:
    """Register tiles are fragments, shared out among threads as the atom takes them."""
    for operand in site.windows:
        wanted, have = operand.spec.fragments, operand.buffer.fragment
        if wanted and operand.buffer.space is MemorySpace.REGISTER and have not in wanted:
            shown = f"the fragment {have}" if have else "no fragment"
            yield (
                f"operand {operand.spec.name} of {site.atom.id} has {shown} "
                f"({operand.buffer.name}); it takes {' or '.join(wanted)}"
            )
        elif wanted and operand.buffer.space is MemorySpace.REGISTER:
            rank = len(operand.spec.shape)
            held = operand.buffer.shape[max(len(operand.buffer.shape) - rank, 0) :]
            starts = operand.starts[len(operand.starts) - len(held) :]
            parts = zip(held, operand.spec.shape, starts, strict=False)
            if any(n < tile or site.scope.multiple(at) % tile for n, tile, at in parts):
                yield (
                    f"operand {operand.spec.name} of {site.atom.id} is a whole fragment of "
                    f"{list(operand.spec.shape)}; {operand.buffer.name} holds {list(held)} from "
                    f"{[site.scope.algebra.text(at) for at in starts]} on"
                )


def check_box(site: CallSite) -> Iterable[str]:
    """Copies by descriptor have one that the host makes, and it is legal and fits the kernel."""
    for operand in site.windows:
        rule = operand.spec.box
        if rule is not None and operand.buffer.space is MemorySpace.GLOBAL:
            yield from _box_faults(site, operand, rule)


def _box_faults(site: CallSite, operand: ResolvedWindow, rule: BoxRule) -> Iterator[str]:
    buffer, name = operand.buffer, operand.buffer.name
    boxes = next((p.boxes for p in site.kernel.params if p.buffer.name == name), ())
    missing = len(buffer.shape) - len(operand.spec.shape)
    wanted = (1,) * missing + operand.spec.shape
    matching = [box for box in boxes if box.shape == wanted]
    if not matching:
        have = ", ".join(str(list(box.shape)) for box in boxes) or "none"
        yield (
            f"{site.atom.id} copies boxes of {list(wanted)} of {name}; the host's descriptors have "
            f"{have}"
        )
        return
    other = next(
        (o for o in site.windows if o.buffer.space is MemorySpace.SHARED and o.spec.layouts), None
    )
    swizzle = None if other is None else swizzle_of(other.buffer)
    faults = [list(_one_box(box, buffer, rule, swizzle)) for box in matching]
    if all(faults):
        yield from faults[0]


def _one_box(box: Box, buffer: Buffer, rule: BoxRule, swizzle: Swizzle | None) -> Iterator[str]:
    size, name = buffer.dtype.bytes, buffer.name
    if box.strides != buffer.dense_strides:
        yield (
            f"the host's descriptor of {name} has strides {list(box.strides)}; the argument has "
            f"{list(buffer.dense_strides)}"
        )
    if (box.swizzle if box.swizzle and box.swizzle.bits else None) != swizzle:
        yield (
            f"the host's descriptor of {name} has the swizzle {box.swizzle or 'none'}; the shared "
            f"memory has {swizzle or 'none'}"
        )
    if len(box.shape) > rule.rank or max(box.shape) > rule.extent:
        yield (
            f"the box {list(box.shape)} of {name} has more than {rule.rank} dimensions or "
            f"{rule.extent} elements in one"
        )
    inner = box.shape[-1] * size
    span = rule.span.get("" if swizzle is None else str(swizzle))
    if inner % rule.bytes or span is None or inner > span:
        most = "that swizzle is not offered" if span is None else f"at most {span}"
        yield (
            f"the box {list(box.shape)} of {name} has {inner} bytes inside; it takes a multiple of "
            f"{rule.bytes}, {most}"
        )
    strides = buffer.dense_strides
    uneven = [
        s
        for n, s in zip(buffer.shape[:-1], strides[:-1], strict=True)
        if n > 1 and s * size % rule.bytes
    ]
    if uneven or (strides[-1] != 1 and buffer.shape[-1] > 1) or buffer.alignment % rule.bytes:
        yield (
            f"{name} has strides {list(strides)} of {size} bytes and alignment {buffer.alignment}; "
            f"a descriptor takes an inner stride of 1 and multiples of {rule.bytes} bytes"
        )


LAYOUT_RULES: tuple[Rule[CallSite], ...] = (
    Rule("tir.operand-layout", check_layout),
    Rule("tir.operand-fragment", check_fragment),
    Rule("tir.box", check_box),
)
