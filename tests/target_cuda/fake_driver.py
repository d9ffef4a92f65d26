"""A driver whose device is host memory: the calls that the target makes, and no others.

Kernels are Python functions by symbol. They run at once, so streams keep their order by
themselves; what is checked is that every pointer is of memory that was allocated and not freed,
and that nothing is used after an error that a real device would not recover from.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from types import SimpleNamespace
from typing import Any

import numpy as np

BYTES = 1 << 26


class CUresult(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_NO_DEVICE = 100
    CUDA_ERROR_INVALID_IMAGE = 200
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_SYSTEM_DRIVER_MISMATCH = 803


class _Names:
    """Enumerations whose members are their own names."""

    def __getattr__(self, name: str) -> str:
        if name.startswith("__"):
            raise AttributeError(name)
        return name


@dataclass
class Card:
    """One pretended GPU."""

    name: str = "NVIDIA H200"
    capability: tuple[int, int] = (9, 0)
    units: int = 132
    memory: int = 150754820096
    uuid: bytes = bytes(range(16))
    attributes: dict[str, int] = field(default_factory=dict[str, int])

    def attribute(self, name: str) -> int:
        known = {
            "MULTIPROCESSOR_COUNT": self.units,
            "COMPUTE_CAPABILITY_MAJOR": self.capability[0],
            "COMPUTE_CAPABILITY_MINOR": self.capability[1],
            "L2_CACHE_SIZE": 62914560,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232448,
            "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR": 233472,
            "CLOCK_RATE": 1980000,
            "MAX_PERSISTING_L2_CACHE_SIZE": 39321600,
            **self.attributes,
        }
        return known[name.removeprefix("CU_DEVICE_ATTRIBUTE_")]


Body = Callable[["Launch"], None]


@dataclass
class Launch:
    """What a kernel's body sees: the driver, the arguments' addresses, the configuration."""

    driver: FakeDriver
    pointers: Sequence[int]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int

    def array(self, index: int, shape: Sequence[int], dtype: Any) -> np.ndarray[Any, Any]:
        """An argument as an array over the pretended device memory."""
        return self.driver.view(self.pointers[index], shape, np.dtype(dtype))


class FakeDriver:
    """See the module. ``kernels`` maps symbols to bodies; ``fail`` maps calls to a status."""

    CUresult = CUresult
    CUdevice_attribute = _Names()
    CUfunction_attribute = _Names()
    CUlaunchAttributeID = _Names()
    CUstreamCaptureStatus = SimpleNamespace(CU_STREAM_CAPTURE_STATUS_NONE=0)
    CUpointer_attribute = _Names()

    def __init__(
        self,
        cards: Sequence[Card] = (Card(),),
        *,
        version: int = 13000,
        kernels: dict[str, Body] | None = None,
    ) -> None:
        self.cards = list(cards)
        self.version = version
        self.kernels = kernels or {}
        self.fail: dict[str, CUresult] = {}
        self.calls: list[str] = []
        self.sticky: CUresult | None = None
        self.live: dict[int, Any] = {}
        self.functions: dict[int, Any] = {}
        self.launches: list[Launch] = []
        self.streams: list[int] = []
        self.launched: list[str] = []
        self.current = 0
        self.stack: list[int] = []
        self._numbers = itertools.count(1000)
        self.limit = BYTES

    def __getattribute__(self, name: str) -> Any:
        found = super().__getattribute__(name)
        if not name.startswith("cu") or not callable(found):
            return found

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            status = self.fail.get(name) or self.sticky
            if status is not None and name not in ("cuGetErrorString", "cuInit"):
                return (status,)
            if name == "cuInit" and name in self.fail:
                return (self.fail[name],)
            return found(*arguments)

        return call

    # Devices

    def cuInit(self, flags: int) -> Any:
        return (CUresult.CUDA_SUCCESS if self.cards else CUresult.CUDA_ERROR_NO_DEVICE,)

    def cuGetErrorString(self, status: CUresult) -> Any:
        return CUresult.CUDA_SUCCESS, f"text of {status.name}".encode()

    def cuDriverGetVersion(self) -> Any:
        return 0, self.version

    def cuDeviceGetCount(self) -> Any:
        return 0, len(self.cards)

    def cuDeviceGet(self, index: int) -> Any:
        return 0, index

    def cuDeviceGetName(self, size: int, device: int) -> Any:
        return 0, self.cards[device].name.encode().ljust(size, b"\0")

    def cuDeviceGetAttribute(self, attribute: str, device: int) -> Any:
        return 0, self.cards[device].attribute(attribute)

    def cuDeviceTotalMem(self, device: int) -> Any:
        return 0, self.cards[device].memory

    def cuDeviceGetUuid(self, device: int) -> Any:
        return 0, SimpleNamespace(bytes=self.cards[device].uuid)

    def cuDevicePrimaryCtxRetain(self, device: int) -> Any:
        self.current = 500 + device
        return 0, 500 + device

    def cuDevicePrimaryCtxRelease(self, device: int) -> Any:
        return (0,)

    def cuCtxSetCurrent(self, context: Any) -> Any:
        return (0,)

    def cuCtxGetCurrent(self) -> Any:
        return 0, self.current

    def cuCtxPushCurrent(self, context: int) -> Any:
        self.stack.append(self.current)
        self.current = context
        return (0,)

    def cuCtxPopCurrent(self) -> Any:
        context, self.current = self.current, self.stack.pop()
        return 0, context

    def cuCtxSynchronize(self) -> Any:
        return (0,)

    def cuCtxResetPersistingL2Cache(self) -> Any:
        return (0,)

    # Memory

    def cuMemAlloc(self, size: int) -> Any:
        if size > self.limit:
            return (CUresult.CUDA_ERROR_OUT_OF_MEMORY,)
        memory = (ctypes.c_uint8 * (size + 512))()
        address = -(-ctypes.addressof(memory) // 512) * 512
        self.live[address] = (memory, size)
        return 0, address

    def cuMemFree(self, address: int) -> Any:
        del self.live[int(address)]
        return (0,)

    def _inside(self, address: int, size: int) -> bool:
        return any(a <= address and address + size <= a + n for a, (_, n) in self.live.items())

    def view(self, address: int, shape: Sequence[int], dtype: np.dtype[Any]) -> Any:
        size = int(np.prod(shape)) * dtype.itemsize
        if not self._inside(address, size):
            self.sticky = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
            raise IndexError(address)
        memory = (ctypes.c_uint8 * size).from_address(address)
        return np.frombuffer(memory, dtype=np.uint8).view(dtype).reshape(tuple(shape))

    def _copy(self, target: int, source: int, size: int, device: int) -> Any:
        if not self._inside(int(device), size):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        ctypes.memmove(int(target), int(source), size)
        return (0,)

    def cuMemcpyHtoD(self, target: int, source: int, size: int) -> Any:
        return self._copy(target, source, size, target)

    def cuMemcpyDtoH(self, target: int, source: int, size: int) -> Any:
        return self._copy(target, source, size, source)

    def cuMemcpyDtoD(self, target: int, source: int, size: int) -> Any:
        if not self._inside(int(source), size):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        return self._copy(target, source, size, target)

    def cuMemsetD8Async(self, target: int, value: int, size: int, stream: Any) -> Any:
        if not self._inside(int(target), size):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        ctypes.memset(int(target), value, size)
        return (0,)

    def _fill(self, target: int, value: int, count: int, width: int) -> Any:
        if not self._inside(int(target), count * width):
            return (CUresult.CUDA_ERROR_INVALID_VALUE,)
        self.view(int(target), (count,), np.dtype(f"u{width}"))[:] = value
        return (0,)

    def cuMemsetD16Async(self, target: int, value: int, count: int, stream: Any) -> Any:
        return self._fill(target, value, count, 2)

    def cuMemsetD32Async(self, target: int, value: int, count: int, stream: Any) -> Any:
        return self._fill(target, value, count, 4)

    # Code

    def cuModuleLoadData(self, image: bytes) -> Any:
        try:
            symbols = json.loads(image)
        except ValueError:
            return (CUresult.CUDA_ERROR_INVALID_IMAGE,)
        return 0, ("module", tuple(symbols))

    def cuModuleUnload(self, module: Any) -> Any:
        return (0,)

    def cuModuleGetFunction(self, module: Any, name: bytes) -> Any:
        symbol = name.decode()
        if symbol not in module[1]:
            return (CUresult.CUDA_ERROR_NOT_FOUND,)
        return 0, symbol

    def cuFuncSetAttribute(self, function: str, attribute: str, value: int) -> Any:
        self.functions[hash((function, attribute))] = value
        return (0,)

    def cuLaunchKernelEx(self, config: Any, function: str, parameters: int, extra: int) -> Any:
        count = self.kernels[function].arguments  # type: ignore[attr-defined]
        slots = (ctypes.c_void_p * count).from_address(int(parameters))
        pointers = [ctypes.c_uint64.from_address(slot).value for slot in slots]
        launch = Launch(
            self,
            pointers,
            (config.gridDimX, config.gridDimY, config.gridDimZ),
            (config.blockDimX, config.blockDimY, config.blockDimZ),
            config.sharedMemBytes,
        )
        self.launches.append(launch)
        self.launched.append(function)
        self.streams.append(config.hStream)
        try:
            self.kernels[function](launch)
        except IndexError:
            self.sticky = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
        return (0,)

    # Streams and events

    def cuStreamCreate(self, flags: int) -> Any:
        return 0, next(self._numbers)

    def cuStreamDestroy(self, stream: int) -> Any:
        return (0,)

    def cuStreamSynchronize(self, stream: int) -> Any:
        return (0,)

    def cuStreamWaitEvent(self, stream: int, event: Any, flags: int) -> Any:
        return (0,)

    def cuEventCreate(self, flags: int) -> Any:
        return 0, SimpleNamespace(at=0.0)

    def cuEventDestroy(self, event: Any) -> Any:
        return (0,)

    def cuEventRecord(self, event: Any, stream: int) -> Any:
        event.at = time.perf_counter()
        return (0,)

    def cuEventSynchronize(self, event: Any) -> Any:
        return (0,)

    def cuEventElapsedTime(self, first: Any, last: Any) -> Any:
        return 0, (last.at - first.at) * 1e3

    class CUlaunchConfig(SimpleNamespace):
        """Fields are set one by one."""

    class CUlaunchAttribute(SimpleNamespace):
        """Fields are set one by one."""

        def __init__(self) -> None:
            super().__init__(
                id=None, value=SimpleNamespace(clusterDim=SimpleNamespace(x=1, y=1, z=1))
            )


def body(arguments: int) -> Callable[[Body], Body]:
    """Mark a function as the body of a kernel with so many pointer arguments."""

    def mark(function: Body) -> Body:
        function.arguments = arguments  # type: ignore[attr-defined]
        return function

    return mark
