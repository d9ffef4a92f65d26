"""Cost: facts and hardware numbers become predicted times and sound bounds."""

from tfsearch.cost.model import Estimate, Facts, Machine, Phase, bound, estimate, phase_times

__all__ = ["Estimate", "Facts", "Machine", "Phase", "bound", "estimate", "phase_times"]
