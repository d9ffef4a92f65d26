"""What of a machine spoils times on its processor, as ``/sys`` tells it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

# Documentation/admin-guide/pm/cpufreq.rst: these follow the load with a delay.
FOLLOWING = ("ondemand", "conservative", "powersave", "schedutil")
SELF_GOVERNED = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose ``powersave`` is the processor's own choice of clock, not the lowest one."""
SLOW_CLOCKS = ("hpet", "acpi_pm", "jiffies", "refined-jiffies", "pit")
SYSTEM = Path("/sys")


def problems(root: Path = SYSTEM) -> Iterator[str]:
    """One line for each; a file that is not there says nothing."""
    source = _read(root / "devices/system/clocksource/clocksource0/current_clocksource")
    if source in SLOW_CLOCKS:
        yield f"the kernel's clock source is {source}, which takes long to read; tsc is wanted"
    for folder in sorted((root / "devices/system/cpu").glob("cpu[0-9]*/cpufreq")):
        said = next(_frequency(folder), None)
        if said is not None:
            yield f"{folder.parent.name}: {said}"
            break  # the others are no different, and one line says it
    quota, _, period = _read(root / "fs/cgroup/cpu.max").partition(" ")
    if quota.isdigit() and period.isdigit():
        share = int(quota) / int(period)
        yield f"the control group may use {share:g} processors only, and is paused beyond that"


def _frequency(folder: Path) -> Iterator[str]:
    governor, driver = _read(folder / "scaling_governor"), _read(folder / "scaling_driver")
    if governor in FOLLOWING and not (governor == "powersave" and driver in SELF_GOVERNED):
        yield f"the frequency governor is {governor}; set performance"
    limit, most = _read(folder / "scaling_max_freq"), _read(folder / "cpuinfo_max_freq")
    if limit.isdigit() and most.isdigit() and int(limit) < int(most):
        yield f"the frequency is limited to {int(limit) // 1000} of {int(most) // 1000} MHz"


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""
