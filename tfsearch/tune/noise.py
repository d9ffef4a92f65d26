"""Whether the machine was too busy for its times to be trusted, and what to do about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfsearch.core.records import Measurement
from tfsearch.measure.job import Comparison

WIDE = 0.05
"""Half width of an interval, as a share of its median, from which a time is noisy: measuring stops
at a hundredth on a quiet machine."""
DRIFTED = 0.1
"""Change from the first to the last third of the samples from which a time is noisy."""
DISTURBED = 0.2
"""Share of the samples during which the timing thread lost its processor from which it is noisy."""
CROWDED = 0.5
"""Share of all processors that others kept busy from which they are named as the cause."""


@dataclass(frozen=True)
class Noise:
    """How steady the machine was while the best was timed.

    ``interval``: half the width of its 95 % interval as a share of its median. ``drift``: median of
    the last third of the samples over that of the first. ``slow``: every sample was taken in the
    unit's slow mode. ``disturbed``: share of the samples during which the timing thread lost its
    processor. ``others``: share of all processors that other programs kept busy, None where that is
    not known. ``undecided``: the final ended with its order open because the ratios are too
    wide, not because the kernels are equally fast.
    """

    interval: float
    drift: float
    slow: bool
    undecided: bool
    disturbed: float = 0.0
    others: float | None = None

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
        if self.disturbed > DISTURBED:
            found.append(
                f"the processor was taken away in {100 * self.disturbed:.0f} % of the samples"
            )
        if found and self.others is not None and self.others > CROWDED:
            found.append(f"other programs kept {100 * self.others:.0f} % of the processors busy")
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
            "disturbed": self.disturbed,
            "others": self.others,
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
        disturbed=len(conditions.get("disturbed", ())) / max(1, len(measurement.samples_us)),
        others=_others({**conditions, **({} if final is None else final.conditions)}),
    )


def _others(conditions: Mapping[str, Any]) -> float | None:
    busy, processors = conditions.get("others"), conditions.get("processors")
    return float(busy) / float(processors) if busy is not None and processors else None
