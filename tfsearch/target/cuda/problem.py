"""One workload on one GPU: the recipes that take it, emitted as CUDA C++."""

from __future__ import annotations

from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.measure.compare import Baseline
from tfsearch.plugin.target import Source
from tfsearch.recipes.bound import BoundRecipes
from tfsearch.recipes.contraction.ring_recipe import Ring
from tfsearch.recipes.contraction.warps_recipe import Warps
from tfsearch.recipes.domain import as_called
from tfsearch.recipes.map.recipe import Map
from tfsearch.recipes.rowwise.recipe import Rowwise
from tfsearch.space import Point
from tfsearch.target.cuda.device import Gpu
from tfsearch.target.cuda.emit import source_of
from tfsearch.target.cuda.machine import kit_of, machine_of

RECIPES = (Ring(), Warps(), Rowwise(), Map())


class CudaProblem(BoundRecipes):
    """See :class:`tfsearch.plugin.target.Problem`."""

    def __init__(self, workload: Workload, gpu: Gpu, atoms: AtomTable) -> None:
        hardware = gpu.hardware
        self._architecture = hardware.architecture
        super().__init__("cuda", workload, kit_of(hardware, atoms), machine_of(hardware), RECIPES)

    def emit(self, module: Module, point: Point) -> Source:
        """TIR as CUDA C++ for the device's architecture."""
        del point
        text, launch = source_of(module, self.atoms)
        launch = as_called(launch, self.workload.program)
        return Source(text, "cuda", launch, (self._architecture,), ())

    def probes(self, point: Point) -> tuple[str, ...]:
        """None: the record holds the card's clocks, power and throttle reasons instead."""
        del point
        return ()

    def baseline(self) -> Baseline | None:
        """None yet: nothing is timed beside the winner."""
        return None
