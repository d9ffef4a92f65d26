"""What NVML tells of a card that spoils times on it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tfsearch.target.cuda.nvml import Sensors

BAD = ("hardware slowdown", "thermal (software)", "thermal (hardware)", "power brake")


def problems(uuid: str, api: Any = None) -> Iterator[str]:
    """One line for each; ``api`` stands for NVML in tests."""
    sensors = Sensors(uuid, api)
    said = sensors.read()
    sensors.close()
    if "nvml" in said:
        yield f"{uuid}: clocks and throttling cannot be read: {said['nvml']}"
        return
    slowed = [one for one in said["throttle"] or () if one in BAD]
    if slowed:
        yield f"{uuid}: the card is held back now: {', '.join(slowed)}"
