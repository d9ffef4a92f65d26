"""What a trial measured beside its time, for policies with a second objective."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from tfsearch.core.records import Trial
from tfsearch.search.objectives import ENERGY

POWER = "power_w"
"""A condition of devices that report their power, in watts."""


def measured_of(trial: Trial) -> dict[str, float]:
    """Resources of the build and energy, by name; what is not known is not there."""
    found: dict[str, float] = {}
    if trial.build is not None:
        found.update({name: float(value) for name, value in trial.build.resources.items()})
    if trial.measurement is not None:
        power = _power(trial.measurement.conditions)
        if power is not None:
            found[ENERGY] = power * trial.measurement.median_us
    return found


def _power(conditions: Mapping[str, Any]) -> float | None:
    """Watts at the end of timing, when the device was as busy as it gets."""
    told = conditions.get("device")
    if not isinstance(told, Mapping):
        return None
    device = cast("Mapping[str, Any]", told)
    for part in (device.get("after"), device):
        if isinstance(part, Mapping):
            value = cast("Mapping[str, Any]", part).get(POWER)
            if isinstance(value, (int, float)):
                return float(value)
    return None
