"""Layouts: functions from coordinates to offsets, as nested shapes and strides.

A layout ``shape:stride`` maps a coordinate to the sum of its parts times their strides. A linear
index stands for the coordinate that enumerates the shape with its first mode fastest, so a
layout is also a function on 0 … size-1. The operations follow the published algebra (C. Cecka,
"CuTe Layout Representation and Algebra", NVIDIA Research, 2025; J. Shah, "A Note on the Algebra of
CuTe Layouts", Colfax Research, 2024): each docstring states the law that defines it, and where the
result would not be a layout a ``RequestError`` ``layout.*`` says why.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from tfsearch.core.errors import RequestError

IntTuple = int | tuple["IntTuple", ...]


def product(shape: IntTuple) -> int:
    """Product of all integers of a nested tuple."""
    return shape if isinstance(shape, int) else math.prod(product(s) for s in shape)


def flatten(shape: IntTuple) -> tuple[int, ...]:
    """The integers of a nested tuple from left to right."""
    return (shape,) if isinstance(shape, int) else tuple(i for s in shape for i in flatten(s))


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """True when two nested tuples have the same nesting."""
    if isinstance(a, int) or isinstance(b, int):
        return isinstance(a, int) and isinstance(b, int)
    return len(a) == len(b) and all(congruent(x, y) for x, y in zip(a, b, strict=True))


def compact_strides(shape: IntTuple, start: int = 1) -> IntTuple:
    """Strides of a dense layout whose first mode is contiguous ("column-major")."""
    if isinstance(shape, int):
        return start
    strides: list[IntTuple] = []
    for mode in shape:
        strides.append(compact_strides(mode, start))
        start *= product(mode)
    return tuple(strides)


def crd2idx(coordinate: IntTuple, shape: IntTuple, stride: IntTuple) -> int:
    """Offset of a coordinate, which may be coarser than the shape (an integer for a mode)."""
    if isinstance(shape, int):
        if not isinstance(coordinate, int) or not isinstance(stride, int):
            raise RequestError(
                "layout.coordinate", f"coordinate {coordinate} is finer than {shape}"
            )
        return coordinate * stride
    assert isinstance(stride, tuple)
    if isinstance(coordinate, int):
        offset = 0
        for i, (mode, step) in enumerate(zip(shape, stride, strict=True)):
            last = i == len(shape) - 1
            part = coordinate if last else coordinate % product(mode)
            offset += crd2idx(part, mode, step)
            coordinate //= product(mode)
        return offset
    if len(coordinate) != len(shape):
        raise RequestError("layout.coordinate", f"coordinate {coordinate} does not fit {shape}")
    return sum(crd2idx(*part) for part in zip(coordinate, shape, stride, strict=True))


@dataclass(frozen=True)
class Layout:
    """A nested shape of positive integers with strides of the same nesting (0 or more)."""

    shape: IntTuple
    stride: IntTuple

    def __post_init__(self) -> None:
        if not congruent(self.shape, self.stride):
            raise RequestError(
                "layout.nesting", f"shape {self.shape} and stride {self.stride} nest differently"
            )
        if any(s < 1 for s in flatten(self.shape)):
            raise RequestError("layout.shape", f"shape {self.shape} has a size below 1")
        if any(d < 0 for d in flatten(self.stride)):
            raise RequestError("layout.stride", f"stride {self.stride} is negative")

    @staticmethod
    def compact(shape: IntTuple) -> Layout:
        """Dense layout with the first mode contiguous."""
        return Layout(shape, compact_strides(shape))

    @staticmethod
    def row_major(shape: Sequence[int]) -> Layout:
        """Dense layout with the last mode contiguous."""
        strides = [math.prod(shape[i + 1 :]) for i in range(len(shape))]
        return Layout(tuple(shape), tuple(strides))

    @property
    def modes(self) -> tuple[Layout, ...]:
        """The top-level modes as layouts (the layout itself when it is one integer)."""
        if isinstance(self.shape, int):
            return (self,)
        assert isinstance(self.stride, tuple)
        return tuple(Layout(s, d) for s, d in zip(self.shape, self.stride, strict=True))

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return product(self.shape)

    @property
    def cosize(self) -> int:
        """One more than the largest offset."""
        pairs = zip(flatten(self.shape), flatten(self.stride), strict=True)
        return 1 + sum((s - 1) * d for s, d in pairs)

    @property
    def rank(self) -> int:
        """Number of top-level modes."""
        return 1 if isinstance(self.shape, int) else len(self.shape)

    @property
    def depth(self) -> int:
        """Levels of nesting: 0 for a plain integer."""
        return _depth(self.shape)

    def __call__(self, coordinate: IntTuple) -> int:
        """Offset of a coordinate or of a linear index (0 ≤ index < size)."""
        return crd2idx(coordinate, self.shape, self.stride)

    def __getitem__(self, mode: int) -> Layout:
        """A top-level mode."""
        return self.modes[mode]

    def offsets(self) -> list[int]:
        """Offsets of all linear indices in order."""
        return [self(i) for i in range(self.size)]

    def is_injective(self) -> bool:
        """True when no two coordinates share an offset."""
        return len(set(self.offsets())) == self.size

    def __str__(self) -> str:
        return f"{_text(self.shape)}:{_text(self.stride)}"


def _depth(shape: IntTuple) -> int:
    return 0 if isinstance(shape, int) else 1 + max((_depth(s) for s in shape), default=0)


def _text(value: IntTuple) -> str:
    return str(value) if isinstance(value, int) else "(" + ",".join(map(_text, value)) + ")"


def make_layout(*modes: Layout) -> Layout:
    """The layout whose top-level modes are the given layouts."""
    return Layout(tuple(m.shape for m in modes), tuple(m.stride for m in modes))


def _flat_modes(layout: Layout) -> list[tuple[int, int]]:
    return list(zip(flatten(layout.shape), flatten(layout.stride), strict=True))


def _from_flat(modes: Sequence[tuple[int, int]]) -> Layout:
    if not modes:
        return Layout(1, 0)
    if len(modes) == 1:
        return Layout(*modes[0])
    return Layout(tuple(s for s, _ in modes), tuple(d for _, d in modes))


def coalesce(layout: Layout) -> Layout:
    """The simplest layout with the same offsets: same size, same function of linear indices,
    depth at most 1.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in _flat_modes(layout):
        if size == 1:
            continue
        if merged and merged[-1][0] * merged[-1][1] == stride:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, stride))
    return _from_flat(merged)


def composition(outer: Layout, inner: Layout) -> Layout:
    """``outer ∘ inner``: the shape is compatible with ``inner`` and
    result(c) = outer(inner(c)) for every coordinate c of ``inner``.

    Refused where sizes do not divide, where ``inner`` leaves the size of ``outer``, and where
    modes of ``inner`` add up across a mode of ``outer`` (a carry is no layout).
    """
    if inner.cosize > outer.size:
        raise RequestError(
            "layout.composition", f"{outer} ∘ {inner} reads beyond size {outer.size}"
        )
    modes = _flat_modes(coalesce(outer))
    reach = [0] * len(modes)
    found = _compose(outer, modes, inner, reach)
    for (extent, step), used in zip(modes[:-1], reach[:-1], strict=True):
        if used >= extent:
            raise RequestError(
                "layout.composition",
                f"{outer} ∘ {inner} is no layout: indices carry out of mode {extent}:{step}",
            )
    return found


def _compose(
    outer: Layout, modes: Sequence[tuple[int, int]], inner: Layout, reach: list[int]
) -> Layout:
    if isinstance(inner.shape, tuple):
        return make_layout(*(_compose(outer, modes, mode, reach) for mode in inner.modes))
    assert isinstance(inner.stride, int)
    return _compose_mode(outer, modes, (inner.shape, inner.stride), reach)


def _compose_mode(
    outer: Layout,
    modes: Sequence[tuple[int, int]],
    inner: tuple[int, int],
    reach: list[int],
) -> Layout:
    """One mode of the composition; adds to ``reach`` how far it goes in each mode of outer."""
    rest, skip = inner
    if skip == 0 or rest == 1:
        return Layout(rest, 0)
    taken: list[tuple[int, int]] = []
    for position, (extent, step) in enumerate(modes):
        last = position == len(modes) - 1
        if skip >= extent and not last:
            if skip % extent:
                raise _indivisible(outer, inner)
            skip //= extent
            continue
        whole = last or (rest - 1) * skip < extent
        if not whole and extent % skip:
            raise _indivisible(outer, inner)
        available = rest if whole else extent // skip
        if rest % available:
            raise _indivisible(outer, inner)
        if available > 1:
            taken.append((available, skip * step))
            reach[position] += (available - 1) * skip
        rest //= available
        skip = 1
        if rest == 1:
            break
    return _from_flat(taken)


def _indivisible(outer: Layout, inner: tuple[int, int]) -> RequestError:
    size, stride = inner
    return RequestError(
        "layout.composition", f"{outer} ∘ {size}:{stride} is no layout: sizes do not divide"
    )


def complement(layout: Layout, extent: int) -> Layout:
    """A layout of the offsets that ``layout`` leaves out, with increasing offsets, such that
    ``(layout, complement)`` is injective and covers at least 0 … extent-1.
    """
    strided = sorted((d, s) for s, d in _flat_modes(layout) if s > 1 and d > 0)
    if any(s > 1 and d == 0 for s, d in _flat_modes(layout)):
        raise RequestError("layout.complement", f"{layout} repeats offsets: it has no complement")
    gaps: list[tuple[int, int]] = []
    covered = 1
    for stride, size in strided:
        if stride % covered:
            raise RequestError(
                "layout.complement",
                f"{layout} has no complement: stride {stride} is no multiple of {covered}",
            )
        gaps.append((stride // covered, covered))
        covered = stride * size
    gaps.append((-(-extent // covered), covered))
    return coalesce(_from_flat(gaps))


def logical_divide(layout: Layout, tile: Layout) -> Layout:
    """``layout ∘ (tile, complement(tile))``: mode 0 runs inside a tile, mode 1 over the tiles."""
    return composition(layout, make_layout(tile, complement(tile, layout.size)))


def zipped_divide(layout: Layout, tiler: Sequence[Layout | int]) -> Layout:
    """Every mode divided by its tile; mode 0 gathers the insides, mode 1 the tiles.

    An integer tile is ``tile:1``. Modes without a tile go to mode 1 whole.
    """
    modes = layout.modes
    if len(tiler) > len(modes):
        raise RequestError(
            "layout.divide", f"{len(tiler)} tiles for {len(modes)} modes of {layout}"
        )
    inside: list[Layout] = []
    over: list[Layout] = []
    for mode, tile in zip(modes, tiler, strict=False):
        divided = logical_divide(mode, Layout(tile, 1) if isinstance(tile, int) else tile)
        inside.append(divided[0])
        over.append(divided[1])
    over.extend(modes[len(tiler) :])
    return make_layout(make_layout(*inside), make_layout(*over))


def tile(layout: Layout, *sizes: int) -> Layout:
    """:func:`zipped_divide` by contiguous tiles of the given sizes."""
    return zipped_divide(layout, sizes)


def logical_product(layout: Layout, repeat: Layout) -> Layout:
    """``(layout, complement(layout) ∘ repeat)``: mode 1 repeats mode 0 at offsets it leaves out."""
    spread = complement(layout, layout.size * repeat.cosize)
    return make_layout(layout, composition(spread, repeat))


def right_inverse(layout: Layout) -> Layout:
    """A layout R on 0 … n-1 with layout(R(i)) = i for every i < n, n as far as the offsets of
    the layout's modes follow on each other from 0.
    """
    modes = _flat_modes(layout)
    below = 1
    placed: list[tuple[int, int, int]] = []
    for size, stride in modes:
        placed.append((stride, size, below))
        below *= size
    result: list[tuple[int, int]] = []
    reached = 1
    for stride, size, weight in sorted(placed):
        if size == 1:
            continue
        if stride != reached:
            if stride > reached:
                break
            continue
        result.append((size, weight))
        reached *= size
    return coalesce(_from_flat(result))


@dataclass(frozen=True)
class Swizzle:
    """Offsets with ``bits`` bits, starting at ``base``, xored with those ``shift`` further up."""

    bits: int
    base: int
    shift: int

    def __post_init__(self) -> None:
        if self.bits < 0 or self.base < 0 or self.shift < self.bits:
            raise RequestError(
                "layout.swizzle",
                f"swizzle {self.bits},{self.base},{self.shift}: need shift ≥ bits ≥ 0, base ≥ 0",
            )

    def __call__(self, offset: int) -> int:
        """The permuted offset; an involution on every aligned block of its period."""
        mask = ((1 << self.bits) - 1) << self.base
        return offset ^ ((offset >> self.shift) & mask)

    @property
    def period(self) -> int:
        """Number of offsets after which the permutation repeats."""
        return 1 << (self.base + self.bits + self.shift) if self.bits else 1

    def __str__(self) -> str:
        return f"sw({self.bits},{self.base},{self.shift})"


@dataclass(frozen=True)
class SwizzledLayout:
    """A swizzle composed on top of a layout: offset = swizzle(layout(coordinate))."""

    swizzle: Swizzle
    layout: Layout

    @property
    def size(self) -> int:
        """Number of coordinates."""
        return self.layout.size

    @property
    def shape(self) -> IntTuple:
        """Shape of the coordinates."""
        return self.layout.shape

    @property
    def cosize(self) -> int:
        """An exclusive upper bound of the offsets (exact without a swizzle)."""
        period = self.swizzle.period
        return self.layout.cosize if period == 1 else -(-self.layout.cosize // period) * period

    def __call__(self, coordinate: IntTuple) -> int:
        """Offset of a coordinate or of a linear index."""
        return self.swizzle(self.layout(coordinate))

    def __str__(self) -> str:
        return f"{self.swizzle} o {self.layout}"


_SWIZZLED = re.compile(r"\s*sw\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)\s*o\s+(.*)\Z", re.DOTALL)


def parse_layout(text: str) -> Layout | SwizzledLayout:
    """A layout such as ``((2,4),8):((1,2),8)`` or ``sw(3,4,3) o (8,64):(64,1)``.

    Raises ``RequestError`` ``layout.parse`` with the column of what is wrong.
    """
    found = _SWIZZLED.match(text)
    if found:
        bits, base, shift, rest = found.groups()
        swizzle = Swizzle(int(bits), int(base), int(shift))
        return SwizzledLayout(swizzle, _LayoutParser(text, len(text) - len(rest)).layout())
    return _LayoutParser(text, 0).layout()


def parse_swizzle(text: str) -> Swizzle:
    """A swizzle such as ``sw(3,4,3)``; ``RequestError`` ``layout.parse`` for anything else."""
    found = re.fullmatch(r"\s*sw\(\s*(\d+)\s*,\s*(\d+)\s*,\s*(\d+)\s*\)\s*", text)
    if found is None:
        raise RequestError("layout.parse", f"swizzle {text!r}: expected sw(bits,base,shift)")
    bits, base, shift = map(int, found.groups())
    return Swizzle(bits, base, shift)


class _LayoutParser:
    def __init__(self, text: str, start: int) -> None:
        self.text = text
        self.at = start

    def layout(self) -> Layout:
        shape = self.tuple()
        self.expect(":")
        stride = self.tuple()
        if self.peek():
            raise self.error("the end")
        return Layout(shape, stride)

    def tuple(self) -> IntTuple:
        if self.peek() != "(":
            return self.number()
        self.at += 1
        parts: list[IntTuple] = []
        if self.peek() == ")":
            self.at += 1
            return ()
        while True:
            parts.append(self.tuple())
            if self.peek() == ")":
                self.at += 1
                return cast("IntTuple", tuple(parts))
            self.expect(",")

    def number(self) -> int:
        self.peek()
        found = re.compile(r"\d+").match(self.text, self.at)
        if found is None:
            raise self.error("a number or '('")
        self.at = found.end()
        return int(found.group())

    def peek(self) -> str:
        while self.at < len(self.text) and self.text[self.at].isspace():
            self.at += 1
        return self.text[self.at : self.at + 1]

    def expect(self, mark: str) -> None:
        if self.peek() != mark:
            raise self.error(repr(mark))
        self.at += 1

    def error(self, wanted: str) -> RequestError:
        found = self.text[self.at : self.at + 1] or "the end"
        return RequestError(
            "layout.parse",
            f"layout {self.text!r}, column {self.at + 1}: expected {wanted}, found {found!r}",
        )
