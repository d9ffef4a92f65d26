"""One workload on one processor: the recipes that take it, bound together."""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from typing import Any

import numpy as np

from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Refusal
from tfsearch.cost.model import estimate, phase_times
from tfsearch.ir.hir.text import print_program
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.tir.text import print_module
from tfsearch.ir.workload import Workload
from tfsearch.measure.compare import Baseline
from tfsearch.plugin.target import Prediction, Source
from tfsearch.recipes.contraction.recipe import ContractionRecipe
from tfsearch.recipes.domain import as_called
from tfsearch.recipes.map.recipe import Map
from tfsearch.recipes.recipe import Matched, Recipe
from tfsearch.recipes.rowwise.recipe import Rowwise
from tfsearch.space import Point, Points, Space
from tfsearch.target.x86.compiler import feature_flags
from tfsearch.target.x86.device import Processor, document_of
from tfsearch.target.x86.emit import TILE_FEATURE, features_of, source_of
from tfsearch.target.x86.machine import kit_of, machine_of

RECIPES: tuple[Recipe, ...] = (ContractionRecipe(), Rowwise(), Map())


class X86Problem:
    """See :class:`tfsearch.plugin.target.Problem`."""

    def __init__(self, workload: Workload, cpu: Processor, atoms: AtomTable) -> None:
        if workload.program.ranges:
            names = ", ".join(workload.program.ranges)
            raise RequestError(
                "x86.dynamic", f"the x86 target needs every dimension bound; open: {names}"
            )
        self.workload = workload
        self.atoms = atoms
        document = document_of(cpu)
        self.machine = machine_of(document)
        self.refusals: Sequence[Refusal] = ()
        self._matched: dict[str, Matched] = {}
        self._recipe_of: dict[str, Recipe] = {}
        refusals: list[Refusal] = []
        kit = kit_of(cpu, atoms, document)
        for recipe in RECIPES:
            try:
                matched = recipe.match(workload, kit)
            except RequestError as error:
                refusals.append(Refusal(error.code, recipe.name, error.message))
                continue
            refusals.extend(matched.refusals)
            for space in matched.spaces:
                self._matched[space.name] = matched
                self._recipe_of[space.name] = recipe
        self.refusals = tuple(refusals)
        if not self._matched:
            reasons = "; ".join(f"{r.where}: {r.message}" for r in refusals)
            raise RequestError("x86.no-recipe", f"no recipe takes the program: {reasons}")
        self.space = Space(
            tuple(
                space
                for matched in dict.fromkeys(self._matched.values())
                for space in matched.spaces
            )
        )

    def predict(self, points: Points) -> Prediction:
        """Estimates and sound bounds of a batch (warm protocol)."""
        facts = self._matched[points.recipe.name].facts(points)
        times = estimate(facts, self.machine)
        return Prediction(
            times.estimate_us, times.bound_us, self.machine.calibrated, self.machine.document
        )

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

    def emit(self, module: Module, point: Point) -> Source:
        """TIR as C."""
        del point
        text, launch = source_of(module, self.atoms)
        launch = as_called(launch, self.workload.program)
        features = features_of(module, self.atoms)
        if TILE_FEATURE in features:
            launch = LaunchSpec(launch.main, launch.prepares, {"amx": True})
        return Source(text, "c", launch, features, feature_flags(features))

    def probes(self, point: Point) -> tuple[str, ...]:
        """The vector units' speed, and the tile unit's where it is used."""
        return ("fma", "tile") if ".amx." in point.recipe_name else ("fma",)

    def baseline(self) -> Baseline | None:
        """NumPy on the same arrays."""
        return Baseline("numpy", "tfsearch.target.x86.baseline:make")
