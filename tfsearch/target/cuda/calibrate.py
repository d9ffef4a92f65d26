"""Measuring a card: rates of its memories and units, its clock under load, the cost of a launch."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from tfsearch.target.cuda import support
from tfsearch.target.cuda.context import Context
from tfsearch.target.cuda.launching import Configuration, Function, Packed
from tfsearch.target.cuda.nvml import Sensors

SAMPLES = 7
COPY_BYTES = 2 << 30
READ_BYTES = 4 << 30
L2_SHARE = 0.4
"""Share of the L2 that reads of it go over."""
L2_TIMES, SHARED_TIMES, FMA_TIMES = 64, 2000, 4000
LOAD_S = 0.4
"""How long the matrix units are kept busy before the clock is read."""
LAUNCHES = 400
CYCLES = 2_000_000
PIECE = 16
MMA_FLOP, WGMMA_FLOP = 8 * 8 * 2 * 16 * 8 * 16, 2 * 4 * 2 * 64 * 128 * 16
"""Operations of a block in one round: 8 warps of 8 products; 2 warpgroups of 4."""

Facts = dict[str, dict[str, Any]]


class Calibration:
    """One measurement of a card. Rates are medians of :data:`SAMPLES` runs after one that warms."""

    def __init__(self, context: Context, architecture: str, sensors: Sensors) -> None:
        self._context = context
        self._sensors = sensors
        self._architecture = architecture
        self._module = context.load(support.image("calibrate", architecture))
        self._empty = context.load(support.image("timing", architecture))
        self._units = context.attribute("MULTIPROCESSOR_COUNT")
        self._facts: Facts = {}

    def run(self) -> Facts:
        """All facts by name: ``value``, ``unit``, ``conditions``."""
        clock = self._clock_now()
        self._memory()
        self._caches(clock)
        self._arithmetic(clock)
        self._matrix()
        self._launch()
        return self._facts

    def _add(self, name: str, value: float, unit: str, conditions: str) -> None:
        self._facts[name] = {"value": float(value), "unit": unit, "conditions": conditions}

    def _packed(
        self, symbol: str, words: Sequence[int], grid: int, block: int, *, empty: bool = False
    ) -> Packed:
        how = Configuration((grid, 1, 1), (block, 1, 1))
        module = self._empty if empty else self._module
        return Packed(self._context.driver, Function(self._context, module, symbol, how), words)

    def _seconds(self, launch: Callable[[], None], samples: int = SAMPLES) -> float:
        """Median seconds between events around what ``launch`` enqueues."""
        first, last = self._context.events(2)
        found: list[float] = []
        for number in range(samples + 1):
            self._context.record(first)
            launch()
            self._context.record(last)
            self._context.synchronise()
            if number:
                found.append(self._context.elapsed_ns(first, last) * 1e-9)
        return float(np.median(found))

    def _filled(self, size: int) -> int:
        place = self._context.allocate(size)
        self._context.fill(place, 0x3C, size)
        return place

    def _clock_now(self) -> float:
        """GHz of an SM that is busy and no other."""
        found = self._context.allocate(16)
        launch = self._packed("tfs_clock", [CYCLES, found], 1, 1)
        value = np.zeros(2, np.uint64)
        for _ in range(3):
            launch.launch()
            self._context.download(found, value)
        self._context.release(found)
        return float(value[0]) / float(value[1])

    def _memory(self) -> None:
        one, two = self._filled(COPY_BYTES), self._filled(COPY_BYTES)
        words = [two, one, COPY_BYTES // PIECE]
        launch = self._packed("tfs_copy", words, self._units * 8, 512)
        rate = 2 * COPY_BYTES / self._seconds(launch.launch)
        self._add("bandwidth.copy", rate / 1e9, "GB/s", f"{COPY_BYTES >> 20} MiB, read and written")
        self._context.release(one)
        self._context.release(two)
        data, sink = self._filled(READ_BYTES), self._filled(8)
        launch = self._packed(
            "tfs_read", [data, READ_BYTES // PIECE, 1, sink], self._units * 4, 512
        )
        rate = READ_BYTES / self._seconds(launch.launch)
        self._add("bandwidth.read", rate / 1e9, "GB/s", f"{READ_BYTES >> 20} MiB read once")
        self._context.release(data)
        self._context.release(sink)
        self._context.trim()

    def _caches(self, clock: float) -> None:
        l2 = self._context.attribute("L2_CACHE_SIZE")
        size = int(l2 * L2_SHARE) // (1 << 20) << 20
        data, sink = self._filled(size), self._filled(8)
        words = [data, size // PIECE, L2_TIMES, sink]
        launch = self._packed("tfs_read", words, self._units * 4, 512)
        rate = size * L2_TIMES / self._seconds(launch.launch)
        self._add(
            "bandwidth.l2", rate / (clock * 1e9), "B/cycle",
            f"{size >> 20} MiB read {L2_TIMES} times by all SMs at {clock:.3f} GHz",
        )  # fmt: skip
        launch = self._packed("tfs_shared", [SHARED_TIMES, sink], self._units, 1024)
        moved = self._units * 1024 * SHARED_TIMES * 8 * PIECE
        rate = moved / self._seconds(launch.launch) / self._units
        self._add(
            "bandwidth.shared", rate / (clock * 1e9), "B/cycle",
            f"16-byte reads of one SM at {clock:.3f} GHz",
        )  # fmt: skip
        self._context.release(data)
        self._context.release(sink)

    def _arithmetic(self, clock: float) -> None:
        sink = self._filled(8)
        launch = self._packed("tfs_fma", [FMA_TIMES, sink], self._units * 4, 512)
        results = self._units * 4 * 512 * FMA_TIMES * 8 * 16
        rate = results / self._seconds(launch.launch) / self._units
        self._add(
            "rate.f32", rate / (clock * 1e9), "results/cycle",
            f"multiply-adds of one SM at {clock:.3f} GHz",
        )  # fmt: skip
        self._context.release(sink)

    def _matrix(self) -> None:
        sink = self._filled(8)
        own = self._architecture == "sm_90a"
        symbol, flop = ("tfs_wgmma", WGMMA_FLOP) if own else ("tfs_mma", MMA_FLOP)
        times = 4000
        launch = self._packed(symbol, [times, sink], self._units * 2, 256)
        once = self._seconds(launch.launch)
        count = max(1, int(LOAD_S / once))
        first, last = self._context.events(2)
        for _ in range(count):
            launch.launch()
        self._context.record(first)
        for _ in range(count):
            launch.launch()
        self._context.record(last)
        time.sleep(LOAD_S * 1.2)
        told = self._sensors.read()
        self._context.synchronise()
        seconds = self._context.elapsed_ns(first, last) * 1e-9 / count
        rate = self._units * 2 * flop * times / seconds
        clock = told.get("sm_mhz")
        power = told.get("power_w")
        shown = f"{rate / 1e12:.1f} TFLOP/s in bf16, random numbers in registers and shared memory"
        if clock:
            ghz = clock / 1000.0
            self._add("clock", ghz, "GHz", f"matrix units busy, {power} W, {told.get('throttle')}")
            per_cycle = rate / self._units / (ghz * 1e9)
            self._add("rate.matrix_sustained", per_cycle, "FLOP/cycle", shown)
        self._context.release(sink)

    def _launch(self) -> None:
        empty = self._packed("tfs_nothing", [], 1, 32, empty=True)
        spin = self._packed("tfs_spin", [LAUNCHES * 8000], 1, 1, empty=True)
        first, last = self._context.events(2)
        found: list[float] = []
        for number in range(SAMPLES + 1):
            spin.launch()
            self._context.record(first)
            for _ in range(LAUNCHES):
                empty.launch()
            self._context.record(last)
            self._context.synchronise()
            if number:
                found.append(self._context.elapsed_ns(first, last) / LAUNCHES / 1000.0)
        self._add("launch", float(np.median(found)), "us", f"{LAUNCHES} empty kernels in a row")


def calibrated(context: Context, architecture: str, sensors: Sensors) -> Mapping[str, Any]:
    """Measure the card; facts by name."""
    return Calibration(context, architecture, sensors).run()
