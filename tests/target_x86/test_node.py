"""What the system tells of clocks and limits; a sound machine has nothing to tell."""

from __future__ import annotations

from pathlib import Path

from tfsearch.target.x86 import node


def system(folder: Path, **files: str) -> Path:
    places = {
        "source": "devices/system/clocksource/clocksource0/current_clocksource",
        "governor": "devices/system/cpu/cpu0/cpufreq/scaling_governor",
        "driver": "devices/system/cpu/cpu0/cpufreq/scaling_driver",
        "limit": "devices/system/cpu/cpu0/cpufreq/scaling_max_freq",
        "most": "devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq",
        "quota": "fs/cgroup/cpu.max",
    }
    for name, text in files.items():
        path = folder / places[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return folder


def test_a_machine_that_tells_nothing_or_only_good_things_has_no_problems(tmp_path: Path) -> None:
    assert list(node.problems(tmp_path)) == []
    good = {"source": "tsc", "governor": "performance", "driver": "acpi-cpufreq"}
    system(tmp_path, **good, limit="3000000", most="3000000", quota="max 100000")
    assert list(node.problems(tmp_path)) == []
    system(tmp_path, governor="powersave", driver="intel_pstate")
    assert list(node.problems(tmp_path)) == []


def test_slow_clocks_moving_frequencies_and_quotas_are_problems(tmp_path: Path) -> None:
    system(tmp_path, source="hpet", governor="powersave", driver="acpi-cpufreq")
    system(tmp_path, quota="150000 100000")
    clock, governor, quota = node.problems(tmp_path)
    assert "clock source is hpet" in clock
    assert "cpu0: the frequency governor is powersave" in governor
    assert "1.5 processors only" in quota
    system(tmp_path, source="tsc", governor="performance", limit="1200000", most="3000000")
    assert "limited to 1200 of 3000 MHz" in next(node.problems(tmp_path))
