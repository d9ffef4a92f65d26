"""Whether the machine was too busy for its times to be trusted, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tfsearch.core.records import Measurement
from tfsearch.measure.job import Comparison

WIDE = 0.05
"""Half width of an interval, as a share of its median, from which a time is noisy: measuring stops
at a hundredth on a quiet machine."""
DRIFTED = 0.1
"""Change from the first to the last third of the samples from which a time is noisy."""


@dataclass(frozen=True)
class Noise:
    """How steady the machine was while the best was timed.

    ``interval``: half the width of its 95 % interval as a share of its median. ``drift``: median of
    the last third of the samples over that of the first. ``slow``: every sample was taken in the
    unit's slow mode. ``undecided``: the final ended with its order open because the ratios are too
    wide, not because the kernels are equally fast.
    """

    interval: float
    drift: float
    slow: bool
    undecided: bool

    @property
    def reasons(self) -> tuple[str, ...]:
        """What was noisy, for people; empty when nothing was."""
        found: list[str] = []
        if self.interval > WIDE:
            found.append(f"the time is known to ±{100 * self.interval:.0f} % only")
        if abs(self.drift - 1) > DRIFTED:
            found.append(f"it changed by {100 * (self.drift - 1):+.0f} % while it was taken")
        if self.slow:
            found.append("the unit was in its slow mode all the time")
        if self.undecided:
            found.append("the final could not tell the best apart")
        return tuple(found)

    @property
    def message(self) -> str:
        """One line that says so and what to do; "" for a steady machine."""
        if not self.reasons:
            return ""
        return (
            f"busy: {', '.join(self.reasons)}; stop other programs and run the same command again "
            "(of what is recorded, only the best few are timed again)"
        )

    def to_json(self) -> dict[str, Any]:
        """The fields as the command line prints them."""
        return {
            "noisy": bool(self.reasons),
            "interval": self.interval,
            "drift": self.drift,
            "slow": self.slow,
            "undecided": self.undecided,
            "message": self.message,
        }


def noise_of(measurement: Measurement, final: Comparison | None) -> Noise:
    """The noise of the best's measurement, and of the final where there was one."""
    low, high = measurement.ci_us
    conditions = measurement.conditions
    wide = final is not None and any(
        standing.ratio is not None
        and standing.ratio_ci is not None
        and (standing.ratio_ci[1] - standing.ratio_ci[0]) / 2 > WIDE * standing.ratio
        for standing in final.standings
    )
    return Noise(
        interval=(high - low) / (2 * measurement.median_us) if measurement.median_us > 0 else 0.0,
        drift=float(conditions.get("drift", 1.0)),
        slow=conditions.get("mode") == "slow",
        undecided=final is not None and not final.decided and wide,
    )
