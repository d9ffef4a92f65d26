"""Whether this machine's measurements can be trusted: each reason why not, one line each."""

from __future__ import annotations

import os
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfsearch.core.errors import TfsearchError, UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.db.artifacts import ArtifactStore
from tfsearch.measure.locks import DeviceLock
from tfsearch.measure.statistics import SLOW_BELOW
from tfsearch.measure.worker import Measurer
from tfsearch.plugin.target import Device, NodeTarget, Target

COARSEST_NS = 1000
"""Longest step of the host's timer: samples are shorter than a hundred of them otherwise."""
PROBES = 9
PROBE_PAUSE_S = 0.1
BUSY_S = 5.0


@dataclass(frozen=True)
class Finding:
    """Something that would poison results: what was checked, and what is wrong with it."""

    check: str
    message: str

    def to_json(self) -> dict[str, str]:
        """The fields as the command line prints them."""
        return {"check": self.check, "message": self.message}


def self_test(target: Target, devices: Sequence[Device], places: Settings) -> list[Finding]:
    """Everything that is wrong with this node; takes a second or two for each device."""
    found = [
        *_toolchain(target),
        *_permissions(places),
        *_locks(places.home / "locks"),
        *_timer(),
    ]
    for device in devices:
        if isinstance(target, NodeTarget):
            found += [Finding("device", text) for text in target.node_problems(device)]
            found += _speed(target, device, places, target.node_probes(device))
    return found


def _toolchain(target: Target) -> Iterator[Finding]:
    rows = target.toolchains()
    if not any(row.usable for row in rows):
        text = "; ".join(f"{row.name}: {row.problem}" for row in rows) or "there is no compiler"
        yield Finding("toolchain", text)


def _permissions(places: Settings) -> Iterator[Finding]:
    home = places.home
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = home.stat()
        with tempfile.TemporaryFile(dir=home) as file:
            file.write(b"x")
    except OSError as error:
        yield Finding("permissions", f"{home} takes no file: {error.strerror}")
        return
    if info.st_uid != os.geteuid() or info.st_mode & 0o022:
        mode = stat.S_IMODE(info.st_mode)
        yield Finding(
            "permissions",
            f"{home} belongs to user id {info.st_uid} and has mode {mode:04o}: it has to be this "
            "user's, and others may not write to it",
        )
    try:
        ArtifactStore(places.artifacts)
    except TfsearchError as error:
        yield Finding("permissions", error.message)


def _locks(folder: Path) -> Iterator[Finding]:
    """A lock that is held has to keep another one out, in the folder that all workers share."""
    name = f"self-test {os.getpid()}"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
        with DeviceLock(folder, name, wait_s=1.0):
            try:
                with DeviceLock(folder, name, wait_s=0.05):
                    yield Finding("locks", f"locks in {folder} do not keep anybody out")
            except UnavailableError:
                pass
        for path in DeviceLock(folder, name, wait_s=0.0).paths:
            path.unlink(missing_ok=True)
    except (OSError, UnavailableError) as error:
        yield Finding("locks", f"{folder} takes no locks: {error}")


def _timer() -> Iterator[Finding]:
    step = timer_step_ns()
    if step > COARSEST_NS:
        yield Finding("clock", f"the timer has steps of {step} ns; {COARSEST_NS} are the most")
    if not time.get_clock_info("perf_counter").monotonic:
        yield Finding("clock", "the timer may run backwards")


def timer_step_ns() -> int:
    """The shortest time between two readings of the timer that differ."""
    best = 1 << 62
    for _ in range(1000):
        start = now = time.perf_counter_ns()
        while now == start:
            now = time.perf_counter_ns()
        best = min(best, now - start)
    return best


def _speed(
    target: Target, device: Device, places: Settings, names: Sequence[str]
) -> Iterator[Finding]:
    """Probes some time apart: none may be in what measurements call the slow mode."""
    seen: dict[str, list[float]] = {name: [] for name in names}
    if not names:
        return
    try:
        with Measurer(
            target.runner, device.selector, lock_folder=places.home / "locks", lock_wait_s=BUSY_S
        ) as measurer:
            for _ in range(PROBES):
                for name, speed in measurer.probe(names).items():
                    seen[name].append(speed)
                time.sleep(PROBE_PAUSE_S)
    except TfsearchError as error:
        yield Finding("speed", f"{device.selector}: {error.message}")
        return
    for name, speeds in seen.items():
        share = min(speeds) / max(speeds) if max(speeds) > 0 else 0.0
        if share < SLOW_BELOW:
            yield Finding(
                "speed",
                f"{device.selector}: the speed of {name} fell to {100 * share:.0f} % within "
                f"{PROBES * PROBE_PAUSE_S:.0f} s; {100 * SLOW_BELOW:.0f} % are the least: "
                "something else runs here, or clocks are not steady",
            )
