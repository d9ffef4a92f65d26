"""One device of this process: its memory, copies, modules, events.

Everything runs on the legacy default stream, so that copies, launches and memory that is used
again stay in order. Addresses are integers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfsearch.target.cuda.device import uuid_text
from tfsearch.target.cuda.driver import CudaMemoryError, Driver

Array = np.ndarray[Any, np.dtype[Any]]

STREAM = 0
"""The legacy default stream."""
SMALL = 512
LARGE = 2 << 20
KEPT_BYTES = 16 << 30
"""Freed memory that is kept for the next allocation of its size."""


class Context:
    """The primary context of a device, made current on the calling thread.

    ``OSError`` when no device has this UUID or its context cannot be made.
    """

    def __init__(self, driver: Driver, uuid: str) -> None:
        self.driver = driver
        self.uuid = uuid
        self.index = self._find(uuid)
        self.device = driver.cuDeviceGet(self.index)
        self._context = driver.cuDevicePrimaryCtxRetain(self.device)
        driver.cuCtxSetCurrent(self._context)
        self._free: dict[int, list[int]] = {}
        self._kept = 0
        self._sizes: dict[int, int] = {}

    def _find(self, uuid: str) -> int:
        found = self.driver
        for index in range(found.cuDeviceGetCount()):
            if uuid_text(found.cuDeviceGetUuid(found.cuDeviceGet(index))) == uuid:
                return index
        raise OSError(f"no GPU {uuid} in this process; check CUDA_VISIBLE_DEVICES")

    def activate(self) -> None:
        """Make the context current on this thread."""
        self.driver.cuCtxSetCurrent(self._context)

    def push(self) -> bool:
        """Make the context current; whether another one was, which :meth:`pop` brings back."""
        current = self.driver.cuCtxGetCurrent()
        if current is not None and int(current) == int(self._context):
            return False
        self.driver.cuCtxPushCurrent(self._context)
        return True

    def pop(self) -> None:
        """Undo a :meth:`push` that answered True."""
        self.driver.cuCtxPopCurrent()

    def attribute(self, name: str) -> int:
        """A device attribute by the part of its name after ``CU_DEVICE_ATTRIBUTE_``."""
        kind = getattr(self.driver.api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
        return int(self.driver.cuDeviceGetAttribute(kind, self.device))

    # Memory

    def allocate(self, size: int) -> int:
        """Address of ``size`` bytes at a multiple of 256, contents undefined.

        ``MemoryError`` when the device has no room.
        """
        step = SMALL if size <= LARGE else LARGE
        size = -(-max(size, 1) // step) * step
        waiting = self._free.get(size)
        if waiting:
            address = waiting.pop()
            self._kept -= size
        else:
            address = self._new(size)
        self._sizes[address] = size
        return address

    def _new(self, size: int) -> int:
        try:
            return int(self.driver.cuMemAlloc(size))
        except CudaMemoryError:
            if not self._kept:
                raise
        self.trim()
        return int(self.driver.cuMemAlloc(size))

    def release(self, address: int) -> None:
        """Give memory back; work that was enqueued before may still use it."""
        size = self._sizes.pop(address)
        if self._kept + size > KEPT_BYTES:
            self.driver.cuMemFree(address)
            return
        self._free.setdefault(size, []).append(address)
        self._kept += size

    def trim(self) -> None:
        """Free memory that is kept for later."""
        for addresses in self._free.values():
            for address in addresses:
                self.driver.cuMemFree(address)
        self._free.clear()
        self._kept = 0

    def upload(self, address: int, value: Array) -> None:
        """Copy a dense host array to the device."""
        if value.nbytes:
            self.driver.cuMemcpyHtoD(address, value.ctypes.data, value.nbytes)

    def download(self, address: int, value: Array) -> None:
        """Fill a dense host array from the device; waits for what was enqueued before."""
        if value.nbytes:
            self.driver.cuMemcpyDtoH(value.ctypes.data, address, value.nbytes)

    def copy(self, target: int, source: int, size: int) -> None:
        """Copy within the device."""
        if size:
            self.driver.cuMemcpyDtoD(target, source, size)

    def fill(self, address: int, byte: int, size: int) -> None:
        """Set bytes."""
        if size:
            self.driver.cuMemsetD8Async(address, byte, size, STREAM)

    def fill_elements(self, address: int, bits: int, width: int, count: int) -> None:
        """Set elements of 1, 2 or 4 bytes."""
        names = {1: "cuMemsetD8Async", 2: "cuMemsetD16Async", 4: "cuMemsetD32Async"}
        if count:
            getattr(self.driver, names[width])(address, bits, count, STREAM)

    # Code

    def load(self, image: bytes) -> Any:
        """A module of a cubin; ``OSError`` when the driver refuses it."""
        return self.driver.cuModuleLoadData(image)

    def function(self, module: Any, symbol: str) -> Any:
        """An entry of a module; ``OSError`` when there is none of this name."""
        return self.driver.cuModuleGetFunction(module, symbol.encode())

    def unload(self, module: Any) -> None:
        """Drop a module."""
        self.driver.cuModuleUnload(module)

    # Order and time

    def synchronise(self) -> None:
        """Wait for all work of this device, on every stream; errors of kernels appear here."""
        self.driver.cuCtxSynchronize()

    def events(self, count: int) -> Sequence[Any]:
        """Events that take times."""
        return [self.driver.cuEventCreate(0) for _ in range(count)]

    def record(self, event: Any) -> None:
        """Note the time when the device gets here."""
        self.driver.cuEventRecord(event, STREAM)

    def elapsed_ns(self, first: Any, last: Any) -> float:
        """Nanoseconds between two events that have passed."""
        return float(self.driver.cuEventElapsedTime(first, last)) * 1e6

    def forget_persisting(self) -> None:
        """Make lines of L2 that were set to persist ordinary ones."""
        self.driver.cuCtxResetPersistingL2Cache()

    def close(self) -> None:
        """Give the context back."""
        self.trim()
        self.driver.cuDevicePrimaryCtxRelease(self.device)
