"""The warps pipeline as a recipe: contractions by warps with tiles in registers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import gcd

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Facts
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Side, match
from tfsearch.recipes.contraction.shared import (
    require_equal_factors,
    resized,
    stored_widths,
)
from tfsearch.recipes.contraction.warps import WarpsContraction, lower
from tfsearch.recipes.contraction.warps_atoms import warps_atoms
from tfsearch.recipes.contraction.warps_facts import WarpsFacts
from tfsearch.recipes.contraction.warps_parameters import warps_space
from tfsearch.recipes.contraction.warps_schedule import WarpsSchedule
from tfsearch.recipes.fragments import compute_dtype
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Points, RecipeSpace

NAME = "warps"
WIDEST = 16
"""Bytes of the widest access that anything is aligned for."""


class Warps:
    """One sum of products of two inputs, by warps."""

    name = NAME

    def match(self, workload: Workload, kit: Kit) -> MatchedWarps:
        """Bind a workload; ``RequestError`` (``recipe.*``) when it does not fit."""
        return MatchedWarps(workload, kit)


class MatchedWarps:
    """See :class:`tfsearch.recipes.recipe.Matched`."""

    def __init__(self, workload: Workload, kit: Kit) -> None:
        self.workload = workload
        self.kit = kit
        c = match(workload.program)
        if kit.crew is None:
            raise RequestError("recipe.warps", "the target has no teams of warps")
        acc = compute_dtype(c.acc)
        require_equal_factors(c, "recipe.warps")
        sides = ((c.a, M), (c.b, N))
        a, b = (_across(c, side, axis) for side, axis in sides)
        atoms = warps_atoms(kit.atoms, c.a.dtype, acc, workload.accuracy.value, (a, b))
        widths = stored_widths(c, kit.atoms, atoms.shape[0], acc, "recipe.warps")
        aligned = tuple(_aligned(c, side, workload.alignment) for side, _ in sides)
        self.whole = WarpsContraction(
            c, atoms, widths, kit, kit.crew, workload.accuracy, workload.alignment, (a, b),
            (aligned[0], aligned[1]),
        )  # fmt: skip
        self.spaces: Sequence[RecipeSpace] = (warps_space(self.whole, NAME),)
        self.refusals: Sequence[Refusal] = ()
        # What the epilogue needs is known once a point is lowered.
        point = {p.name: p.values[-1] for p in self.spaces[0].parameters}
        lower(self.whole, WarpsSchedule.of({**point, "tile_m": 64, "tile_n": 64, "high": 1}))

    def facts(self, points: Points) -> Facts:
        """Facts of a batch of points."""
        return WarpsFacts(self.whole).of(points)

    def lower(self, space: str, params: Mapping[str, ParamValue]) -> Module:
        """A point as TIR."""
        del space
        return lower(self.whole, WarpsSchedule.of(params))

    def reduced(
        self, space: str, params: Mapping[str, ParamValue]
    ) -> tuple[Workload, Mapping[str, ParamValue]]:
        """Two tiles in each direction and more steps than stages, tails where the sizes have any.

        Sizes keep what rows are aligned to, so that the same instructions serve them.
        """
        del space
        s, c = WarpsSchedule.of(params), self.whole.contraction
        group = min(s.group, 2)
        rows = group + 1 if s.group > 1 and -(-c.m // s.tile_m) % s.group else 2
        steps = min(-(-c.k // s.tile_k), s.stages + 1)
        sizes = {
            M: _reduced(c.m, s.tile_m, min(rows, -(-c.m // s.tile_m))),
            N: _reduced(c.n, s.tile_n, min(2, -(-c.n // s.tile_n))),
            K: _reduced(c.k, s.tile_k, steps),
            **{axis: min(c.extents[axis], 2) for axis in c.outer},
        }
        program = resized(c, sizes)
        return replace(self.workload, program=program), {**params, "group": group}


def _reduced(extent: int, tile: int, count: int) -> int:
    """So many tiles, the last one partial where the last of the extent is, equally aligned."""
    rest = extent % tile
    if not rest:
        return count * tile
    if extent < tile:
        return extent
    unit = gcd(extent, WIDEST)
    return (count - 1) * tile + (3 * unit if 3 * unit < tile else unit)


def _across(c: Contraction, side: Side, axis: str) -> bool:
    """Whether a factor is stored across the sum; it is an input whose rows lie together."""
    if side.source is None:
        raise RequestError("recipe.warps", "a factor is computed before it is multiplied")
    name, kind = c.program.inputs[side.source].name, c.program.inputs[side.source].type
    inner = [label for label in side.source_labels if label in (axis, K)]
    last = side.source_labels[-1]
    if len(inner) != 2 or last not in (axis, K) or kind.element_strides[-1] != 1:
        raise RequestError("recipe.warps", f"{name} is not stored row by row")
    return last == axis


def _aligned(c: Contraction, side: Side, alignment: int) -> int:
    """Bytes that places of a factor's rows are multiples of."""
    assert side.source is not None
    kind = c.program.inputs[side.source].type
    found = gcd(alignment, WIDEST)
    for stride in kind.element_strides[:-1]:
        found = gcd(found, stride * kind.dtype.bytes)
    return found
