"""One workload bound to every recipe that takes it: one space, predictions, lowering.

This is the part of a target's problem that no target is named in. A target hands over what its
device is like (a :class:`~tfsearch.recipes.recipe.Kit` and a
:class:`~tfsearch.cost.model.Machine`) and adds how a module becomes source.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.records import Refusal
from tfsearch.cost.model import Machine, Prediction, estimate, phase_times
from tfsearch.ir.hir.text import print_program
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.tir.text import print_module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.contraction.recipe import ContractionRecipe
from tfsearch.recipes.map.recipe import Map
from tfsearch.recipes.recipe import Kit, Matched, Recipe
from tfsearch.recipes.rowwise.recipe import Rowwise
from tfsearch.space import Point, Points, Space

RECIPES: tuple[Recipe, ...] = (ContractionRecipe(), Rowwise(), Map())


class BoundRecipes:
    """A workload on a device, as far as recipes go.

    ``space`` joins the spaces of every recipe that matched, in the order of ``recipes``;
    ``refusals`` say why others, or some of their atoms, do not apply.
    """

    def __init__(
        self,
        target: str,
        workload: Workload,
        kit: Kit,
        machine: Machine,
        recipes: Sequence[Recipe] = RECIPES,
    ) -> None:
        """Match every recipe.

        ``RequestError`` when a dimension is open or no recipe takes the program; its code begins
        with ``target``, the name of the target that binds.
        """
        if workload.program.ranges:
            names = ", ".join(workload.program.ranges)
            raise RequestError(
                f"{target}.dynamic",
                f"the {target} target needs every dimension bound; open: {names}",
            )
        self.workload = workload
        self.atoms = kit.atoms
        self.machine = machine
        self._matched: dict[str, Matched] = {}
        self._recipe_of: dict[str, Recipe] = {}
        refusals: list[Refusal] = []
        for recipe in recipes:
            try:
                matched = recipe.match(workload, kit)
            except RequestError as error:
                refusals.append(Refusal(error.code, recipe.name, error.message))
                continue
            refusals.extend(matched.refusals)
            for space in matched.spaces:
                self._matched[space.name] = matched
                self._recipe_of[space.name] = recipe
        self.refusals: Sequence[Refusal] = tuple(refusals)
        if not self._matched:
            reasons = "; ".join(f"{r.where}: {r.message}" for r in refusals)
            raise RequestError(f"{target}.no-recipe", f"no recipe takes the program: {reasons}")
        self.space = Space(
            tuple(
                space
                for matched in dict.fromkeys(self._matched.values())
                for space in matched.spaces
            )
        )

    def predict(self, points: Points, *, cold: bool = False) -> Prediction:
        """Estimates and sound bounds of a batch; ``cold``: for calls with empty caches."""
        facts = self._matched[points.recipe.name].facts(points)
        return estimate(facts, self.machine, cold=cold)

    def phases(self, points: Points) -> Mapping[str, float]:
        """Predicted microseconds of every phase of a batch of one point."""
        facts = self._matched[points.recipe.name].facts(points)
        return {name: float(us[0]) for name, us in phase_times(facts, self.machine).items()}

    def facts(self, points: Points) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
        """Named facts of a batch."""
        return self._matched[points.recipe.name].facts(points).columns

    def lower(self, point: Point, trace: MutableMapping[str, str] | None = None) -> Module:
        """The point as TIR; ``trace`` gets the program and the TIR as text."""
        module = self._matched[point.recipe_name].lower(point.recipe_name, point.params)
        if trace is not None:
            trace["program"] = print_program(self.workload.program)
            trace["tir"] = print_module(module)
        return module

    def reduced(self, point: Point) -> tuple[Workload, Module]:
        """The point's shape at sizes small enough to interpret."""
        matched = self._matched[point.recipe_name]
        workload, params = matched.reduced(point.recipe_name, point.params)
        recipe = self._recipe_of[point.recipe_name]
        return workload, recipe.match(workload, matched.kit).lower(point.recipe_name, params)
