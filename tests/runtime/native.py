"""Native artifacts without a compiler: entries are Python functions behind C addresses."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import ScheduleRecord, ServedBy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.workload import Workload
from tfsearch.runtime.kernel import Kernel
from tfsearch.runtime.kernelrecord import KernelRecord

Array = np.ndarray[Any, np.dtype[Any]]
Body = Callable[[dict[str, Array], Array, Sequence[int]], int]
TAIL = (0x1234, 0x5678)


class PythonNative:
    """Entries by symbol: functions of (arguments by name, workspace bytes, the tail)."""

    def __init__(self, launch: LaunchSpec, bodies: dict[str, Body]) -> None:
        self.launch = launch
        self.calls: list[str] = []
        self._functions: dict[str, Any] = {}
        for spec in (launch.main, *launch.prepares):
            self._functions[spec.symbol] = self._entry(spec, bodies[spec.symbol])

    def _entry(self, spec: EntrySpec, body: Body) -> Any:
        def entry(block: int) -> int:
            count = len(spec.arguments)
            pointers = (ctypes.c_void_p * (count + 1 + len(TAIL))).from_address(block)
            arrays = {a.name: _view(pointers[i], a) for i, a in enumerate(spec.arguments)}
            work = np.zeros(0, np.uint8)
            if spec.workspace_bytes:
                place: Any = (ctypes.c_uint8 * spec.workspace_bytes).from_address(pointers[count])
                work = np.frombuffer(place, np.uint8)
            self.calls.append(spec.symbol)
            return body(arrays, work, [pointers[count + 1 + i] for i in range(len(TAIL))])

        return ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(entry)

    def tail(self, entry: EntrySpec) -> Sequence[int]:
        return TAIL

    def entry_address(self, symbol: str) -> int:
        return ctypes.cast(self._functions[symbol], ctypes.c_void_p).value or 0

    def bind(self, inputs: Any) -> Any:
        raise AssertionError("native artifacts are called without copies")

    def call(self, arguments: Any) -> None:
        raise AssertionError("native artifacts are called without copies")


def _view(place: int | None, spec: ArgumentSpec) -> Array:
    kind = DType(spec.dtype).numpy
    span = 1 + sum(s * (n - 1) for s, n in zip(spec.strides, spec.shape, strict=True))
    memory: Any = (ctypes.c_uint8 * (span * kind.itemsize)).from_address(place or 0)
    flat = np.frombuffer(memory, kind)
    strides = tuple(s * kind.itemsize for s in spec.strides)
    return np.lib.stride_tricks.as_strided(flat, spec.shape, strides)


def argument(name: str, shape: tuple[int, ...], io: str, alignment: int = 16) -> ArgumentSpec:
    strides = tuple(int(np.prod(shape[i + 1 :])) for i in range(len(shape)))
    return ArgumentSpec(name, "f32", shape, strides, io, alignment)


def kernel(workload: Workload, loaded: Any) -> Kernel:
    record = workload.record
    schedule = ScheduleRecord(record.op, record.key, "test", "whole", 1, {})
    return Kernel(KernelRecord(record, "test", schedule, 1.0, (1.0, 1.0)), loaded, ServedBy.EXACT)
