"""The ring pipeline as a recipe: contractions by teams of warps with asynchronous copies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Facts
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Side, match
from tfsearch.recipes.contraction.ring import RingContraction, lower
from tfsearch.recipes.contraction.ring_atoms import ring_atoms
from tfsearch.recipes.contraction.ring_facts import RingFacts
from tfsearch.recipes.contraction.ring_parameters import ring_space
from tfsearch.recipes.contraction.ring_schedule import RingSchedule
from tfsearch.recipes.contraction.shared import (
    require_equal_factors,
    resized,
    stored_widths,
)
from tfsearch.recipes.fragments import compute_dtype
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Points, RecipeSpace

NAME = "ring"


class Ring:
    """One sum of products of two inputs, by teams of warps."""

    name = NAME

    def match(self, workload: Workload, kit: Kit) -> MatchedRing:
        """Bind a workload; ``RequestError`` (``recipe.*``) when it does not fit."""
        return MatchedRing(workload, kit)


class MatchedRing:
    """See :class:`tfsearch.recipes.recipe.Matched`."""

    def __init__(self, workload: Workload, kit: Kit) -> None:
        self.workload = workload
        self.kit = kit
        c = match(workload.program)
        if kit.crew is None:
            raise RequestError("recipe.ring", "the target has no teams of warps")
        if len(c.outer) > 1:
            raise RequestError("recipe.ring", f"the product has {len(c.outer)} outer axes")
        if any(o.labels != (*c.outer, M, N) for o in c.outputs if c.outer):
            raise RequestError("recipe.ring", "the outer axis is not the result's first")
        acc = compute_dtype(c.acc)
        require_equal_factors(c, "recipe.ring")
        sides = ((c.a, M), (c.b, N))
        a, b = (_across(c, side, axis, workload.alignment) for side, axis in sides)
        atoms = ring_atoms(kit.atoms, c.a.dtype, acc, (a, b))
        widths = stored_widths(c, kit.atoms, atoms.rows, acc, "recipe.ring")
        self.ring = RingContraction(
            c, atoms, widths, kit, kit.crew, workload.accuracy, workload.alignment, (a, b)
        )
        self.spaces: Sequence[RecipeSpace] = (ring_space(self.ring, NAME),)
        self.refusals: Sequence[Refusal] = ()
        # What the epilogue needs is known once a point is lowered.
        point = {p.name: p.values[0] for p in self.spaces[0].parameters}
        lower(self.ring, RingSchedule.of(point))

    def facts(self, points: Points) -> Facts:
        """Facts of a batch of points."""
        return RingFacts(self.ring).of(points)

    def lower(self, space: str, params: Mapping[str, ParamValue]) -> Module:
        """A point as TIR."""
        del space
        return lower(self.ring, RingSchedule.of(params))

    def reduced(
        self, space: str, params: Mapping[str, ParamValue]
    ) -> tuple[Workload, Mapping[str, ParamValue]]:
        """Two clusters with two turns and a tail each, more steps than slots, a tail along k."""
        del space
        s, c = RingSchedule.of(params), self.ring.contraction
        clusters = 2
        odd = 8
        sizes = {
            M: s.tile_m * s.high + (odd if self.ring.across[0] else 5),
            N: 2 * s.tile_n * s.wide + odd if c.n % odd == 0 else 2 * s.tile_n * s.wide + 3,
            K: s.tile_k * (s.stages + 1) + odd,
        }
        if c.k <= s.tile_k:
            sizes[K] = c.k
        sizes |= dict.fromkeys(c.outer, 2)
        program = resized(c, sizes)
        return replace(self.workload, program=program), {**params, "units": clusters * s.size}


def _across(c: Contraction, side: Side, axis: str, alignment: int) -> bool:
    """Whether a factor is stored across the sum; it is an input that can be copied in boxes."""
    size = side.dtype.bytes
    if side.source is None:
        raise RequestError("recipe.ring", "a factor is computed before it is multiplied")
    name, kind = c.program.inputs[side.source].name, c.program.inputs[side.source].type
    inner = side.source_labels[-2:]
    planes = side.source_labels[:-2] in ((), c.outer)
    if not planes or inner not in ((axis, K), (K, axis)) or kind.element_strides[-1] != 1:
        raise RequestError("recipe.ring", f"{name} is not stored row by row")
    if any(step * size % 16 for step in kind.element_strides[:-1]) or alignment % 16:
        apart = ", ".join(f"{step * size} B" for step in reversed(kind.element_strides[:-1]))
        raise RequestError(
            "recipe.ring",
            f"{name} has rows {apart} apart at multiples of {alignment} B; copies of boxes take "
            "multiples of 16",
        )
    return inner[0] == K
