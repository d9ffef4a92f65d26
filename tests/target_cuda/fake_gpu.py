"""A runner on the pretended driver, and kernels for it: right ones and ones with one fault.

Every kernel computes ``y = 2 x`` on 64 f32 elements; its artifact is the list of its symbols.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.target_cuda.fake_driver import Body, CUresult, FakeDriver, Launch, body
from tfsearch.core import keys
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import WorkloadRecord
from tfsearch.measure.job import Limits, MeasureJob
from tfsearch.target.cuda import support
from tfsearch.target.cuda.device import uuid_text
from tfsearch.target.cuda.driver import Driver
from tfsearch.target.cuda.nvml import Sensors
from tfsearch.target.cuda.runner import CudaRunner

SIZE = 64
PROGRAM = """program twice(x: f32[64]) -> (y: f32[64]) {
  %1 = add(%0, %0) : f32[64]
  return %1
}
"""


@body(2)
def twice(launch: Launch) -> None:
    launch.array(1, (SIZE,), "f4")[:] = 2 * launch.array(0, (SIZE,), "f4")


@body(2)
def past_the_end(launch: Launch) -> None:
    twice(launch)
    launch.driver.view(launch.pointers[1] + 4 * SIZE + 8, (1,), np.dtype("f4"))[:] = 1.0


@body(2)
def changes_input(launch: Launch) -> None:
    twice(launch)
    launch.array(0, (SIZE,), "f4")[3] += 1.0


@body(2)
def short(launch: Launch) -> None:
    launch.array(1, (SIZE,), "f4")[:-1] = 2 * launch.array(0, (SIZE,), "f4")[:-1]


@body(2)
def illegal(launch: Launch) -> None:
    launch.driver.sticky = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS


@body(2)
def hangs(launch: Launch) -> None:
    del launch
    time.sleep(600)


@body(1)
def tfs_spin(launch: Launch) -> None:
    del launch


@body(3)
def tfs_flush(launch: Launch) -> None:
    assert launch.pointers[1] == 2 * 62914560 // 16


KERNELS: dict[str, Body] = {
    f.__name__: f
    for f in (
        twice, past_the_end, changes_input, short, illegal, hangs, tfs_spin, tfs_flush
    )
}  # fmt: skip


class FakeNvml:
    """NVML of a card that gets hotter; it has no power sensor."""

    temperature = 40

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetHandleByUUID(self, uuid: bytes) -> bytes:
        return uuid

    def nvmlDeviceGetClockInfo(self, handle: bytes, kind: int) -> int:
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetPowerUsage(self, handle: bytes) -> int:
        raise RuntimeError("not supported")

    def nvmlDeviceGetTemperature(self, handle: bytes, sensor: int) -> int:
        self.temperature += 1
        return self.temperature

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: bytes) -> int:
        return 0x4 | 0x20


def runner(api: FakeDriver | None = None) -> CudaRunner:
    """A runner on a pretended card; ``support.image`` gives its helpers."""
    support.image = lambda name, architecture: json.dumps(list(KERNELS)).encode()  # type: ignore
    api = api or FakeDriver(kernels=KERNELS)
    uuid = uuid_text(api.cuDeviceGetUuid(0)[1])
    return CudaRunner(Driver(api), uuid, sensors=Sensors(uuid, FakeNvml()))


def make(selector: str) -> CudaRunner:
    """The factory that a measuring process imports."""
    del selector
    api = FakeDriver(kernels=KERNELS)
    api.limit = 1 << 28
    return runner(api)


def launch(symbol: str, alignment: int = 16, **attributes: Any) -> LaunchSpec:
    """How a kernel of this module is launched."""
    spec: Mapping[str, Any] = {"block": [SIZE], **attributes}
    arguments = (
        ArgumentSpec("x", "f32", (SIZE,), (1,), "in", alignment),
        ArgumentSpec("y", "f32", (SIZE,), (1,), "out", alignment),
    )
    return LaunchSpec(EntrySpec(symbol, arguments, 1, 0), (), {symbol: spec})


def job(symbol: str, folder: Path, **fields: Any) -> MeasureJob:
    """A job that measures a kernel of this module."""
    path = folder / f"{symbol}.cubin"
    path.write_text(json.dumps([symbol]))
    workload = WorkloadRecord("twice", {}, "f32", PROGRAM)
    limits = Limits(deadline_s=30.0, budget_s=0.1, most=60)
    digest = keys.digest_bytes(path.read_bytes())
    return MeasureJob(workload, str(path), digest, launch(symbol), limits=limits, **fields)
