"""One workload on one processor: the recipes that take it, emitted as C."""

from __future__ import annotations

from tfsearch.atoms.table import AtomTable
from tfsearch.core.launch import LaunchSpec
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.measure.compare import Baseline
from tfsearch.plugin.target import Source
from tfsearch.recipes.bound import BoundRecipes
from tfsearch.recipes.domain import as_called
from tfsearch.space import Point
from tfsearch.target.x86.compiler import feature_flags
from tfsearch.target.x86.device import Processor, document_of
from tfsearch.target.x86.emit import TILE_FEATURE, features_of, source_of
from tfsearch.target.x86.machine import kit_of, machine_of


class X86Problem(BoundRecipes):
    """See :class:`tfsearch.plugin.target.Problem`."""

    def __init__(self, workload: Workload, cpu: Processor, atoms: AtomTable) -> None:
        document = document_of(cpu)
        super().__init__("x86", workload, kit_of(cpu, atoms, document), machine_of(document))

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
