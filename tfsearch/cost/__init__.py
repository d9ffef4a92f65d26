"""Cost: facts and hardware numbers become predicted times and sound bounds."""

from tfsearch.cost.model import Facts, Machine, Phase, Prediction, bound, estimate, phase_times

__all__ = ["Facts", "Machine", "Phase", "Prediction", "bound", "estimate", "phase_times"]
