"""The contraction recipe bound to a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Facts
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.contraction import dot as dot_pipeline
from tfsearch.recipes.contraction.blocked import lower
from tfsearch.recipes.contraction.dot import Dot, DotSchedule, dots
from tfsearch.recipes.contraction.dot_facts import DotFacts
from tfsearch.recipes.contraction.dot_parameters import dot_space
from tfsearch.recipes.contraction.facts import ContractionFacts
from tfsearch.recipes.contraction.match import Contraction, K, M, N, match
from tfsearch.recipes.contraction.parameters import space_of
from tfsearch.recipes.contraction.schedule import Schedule
from tfsearch.recipes.contraction.shared import resized
from tfsearch.recipes.contraction.unit import MatrixUnit, matrix_units, narrower, vector_lanes
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Points, RecipeSpace

REDUCED_TILES = 3


class ContractionRecipe:
    """One sum of products with elementwise work around it."""

    name = "contraction"

    def match(self, workload: Workload, kit: Kit) -> MatchedContraction:
        """Bind a workload; ``RequestError`` when it is no single contraction or no unit fits."""
        return MatchedContraction(workload, match(workload.program), kit)


class MatchedContraction:
    """See :class:`tfsearch.recipes.recipe.Matched`."""

    def __init__(self, workload: Workload, contraction: Contraction, kit: Kit) -> None:
        self.workload = workload
        self.contraction = contraction
        self.kit = kit
        usable, refusals = matrix_units(contraction, kit.atoms)
        units = [unit for unit in usable if self._worth(unit)]
        self._usable = usable
        self.refusals: Sequence[Refusal]
        if not units:
            reasons = "; ".join(f"{r.where}: {r.message}" for r in refusals[:3])
            raise RequestError(
                "recipe.contraction",
                f"no instruction multiplies {contraction.a.dtype.value} by "
                f"{contraction.b.dtype.value} into {contraction.acc.value} ({reasons})",
            )
        source = contraction.b.source
        constant = (
            source is not None and workload.program.inputs[source].name in workload.constant_inputs
        )
        self._units: dict[str, MatrixUnit] = {}
        spaces: list[RecipeSpace] = []
        for unit in units:
            space = space_of(contraction, unit, kit, constant)
            self._units[space.name] = unit
            spaces.append(space)
        self._dots: dict[str, Dot] = {}
        found, refused = dots(contraction, kit)
        for dot in found:
            self._dots[dot.name] = dot
            spaces.append(dot_space(dot, kit))
        self.refusals = (*refusals, *refused)
        self.spaces: Sequence[RecipeSpace] = tuple(spaces)

    def _worth(self, unit: MatrixUnit) -> bool:
        """Widths that the kit wants tried, the narrowest that covers a narrow result."""
        if not unit.is_vector:
            return unit.tile[1] <= 2 * self.contraction.n and self.kit.tiles > 0
        return vector_lanes(unit) in self.kit.lanes

    def lanes(self, unit: MatrixUnit) -> int:
        """Vector width of packing and epilogue."""
        if unit.is_vector:
            return unit.tile[1]
        for lanes in self.kit.lanes:
            load = Computation(Kind.LOAD, "", (lanes,), (unit.acc, unit.acc))
            if self.kit.atoms.usable(load) is not None:
                return lanes
        raise RequestError("recipe.no-atom", f"no vector load of {unit.acc.value}")

    def facts(self, points: Points) -> Facts:
        """Facts of a batch of points."""
        dot = self._dots.get(points.recipe.name)
        if dot is not None:
            return DotFacts(dot, self.kit).of(points)
        unit = self._units[points.recipe.name]
        alignment, narrow = self.workload.alignment, self._narrow(unit)
        facts = ContractionFacts(
            self.contraction, unit, self.kit, self.lanes(unit), alignment, narrow
        )
        return facts.of(points)

    def _narrow(self, unit: MatrixUnit) -> MatrixUnit | None:
        """A unit for short last vectors of columns, where one takes less time."""
        return narrower(unit, self._usable, self.kit.cycles)

    def lower(self, space: str, params: Mapping[str, ParamValue]) -> Module:
        """A point as TIR."""
        dot = self._dots.get(space)
        if dot is not None:
            return dot_pipeline.lower(
                dot,
                DotSchedule.of(params),
                self.kit.atoms,
                self.workload.accuracy,
                self.workload.alignment,
            )
        unit = self._units[space]
        return lower(
            self.contraction,
            Schedule.of(unit, params, self._narrow(unit)),
            self.kit.atoms,
            self.lanes(unit),
            self.workload.accuracy,
            self.workload.alignment,
        )

    def reduced(
        self, space: str, params: Mapping[str, ParamValue]
    ) -> tuple[Workload, Mapping[str, ParamValue]]:
        """The workload and parameters at sizes that take milliseconds to interpret.

        Three tiles a unit and a tail along rows and columns, two blocks and a tail along k where
        the point blocks it; what is one block in the point stays one block.
        """
        dot = self._dots.get(space)
        if dot is not None:
            extents = dot_pipeline.reduced(dot, DotSchedule.of(params))
            return replace(self.workload, program=resized(self.contraction, extents)), params
        unit = self._units[space]
        schedule = Schedule.of(unit, params, self._narrow(unit))
        uk = unit.tile[2]
        _, grid_m, grid_n = schedule.grid
        m = schedule.tile_m * REDUCED_TILES * grid_m + max(1, schedule.tile_m // 3)
        n = schedule.tile_n * REDUCED_TILES * grid_n + self._reduced_rest(schedule)
        depth = 2 * max(uk, self.lanes(unit))
        blocks = 2 * schedule.grid_k
        k = blocks * depth + max(1, uk // 2 + 1)
        blocked = schedule.kc < self.contraction.k
        sizes = {M: m, N: n, K: k}
        if schedule.pack_a == "none" and not unit.is_vector:
            sizes[K], sizes[M] = blocks * depth + uk, schedule.tile_m * REDUCED_TILES * grid_m
        if schedule.finish == "beside":
            sizes[N] = schedule.tile_n * REDUCED_TILES * grid_n
        for axis in self.contraction.outer:
            sizes[axis] = min(3, self.contraction.extents[axis])
        # An axis of extent one stays so: beside it, other axes are contiguous that else are not.
        sizes.update({axis: 1 for axis in sizes if self.contraction.extents[axis] == 1})
        new = {
            **params,
            "kc": depth if blocked else -(-sizes[K] // uk) * uk,
            "m_tiles": _block(
                schedule.m_tiles, schedule.tile_m, grid_m, self.contraction.m, sizes[M]
            ),
            "n_tiles": _block(
                schedule.n_tiles, schedule.tile_n, grid_n, self.contraction.n, sizes[N]
            ),
        }
        return replace(self.workload, program=resized(self.contraction, sizes)), new

    def _reduced_rest(self, schedule: Schedule) -> int:
        """Elements of a short tile of columns; its last vector is narrow where the point's is."""
        lanes = schedule.unit.tile[1]
        rest = max(1, schedule.tile_n // 3)
        if schedule.narrow_for(self.contraction.n % lanes) is not None:
            return rest // lanes * lanes + 1
        return (
            rest if schedule.narrow_for(rest % lanes) is None else rest // lanes * lanes + lanes - 1
        )


def _block(block: int, tile: int, parts: int, extent: int, reduced: int) -> int:
    """A block size for the reduced extent: all of a share stays all, else at most two tiles."""

    def share(of: int) -> int:
        tiles = -(-of // tile)
        return -(-tiles // parts)

    if block < share(extent):
        return min(block, 2)
    covering = 1
    while covering < share(reduced):
        covering *= 2
    return covering
