"""Arguments in device memory, between guard bands that no correct kernel writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.ir.dtypes import DType
from tfsearch.measure.buffers import GUARD_BYTES, GUARD_PATTERN, bits, span_elements
from tfsearch.target.cuda.arrays import DeviceArray, Engine, new
from tfsearch.target.cuda.context import Context

Array = np.ndarray[Any, np.dtype[Any]]

ALLOCATED = 256
"""Alignment in bytes of what device allocators give."""
PLACED_FROM = 4 << 20
"""Bytes from which arrays are compared, and references computed, on the device."""


class DeviceBuffer:
    """Memory of one argument.

    With ``exact`` its address is a multiple of the argument's alignment and of no higher power
    of two, so that a kernel which relies on more is found out; without, as an allocator gives it.
    """

    def __init__(self, context: Context, spec: ArgumentSpec, *, exact: bool) -> None:
        self.spec = spec
        self.dtype = DType(spec.dtype).numpy
        self.bytes = span_elements(spec.shape, spec.strides) * self.dtype.itemsize
        self.dense = self.bytes == int(np.prod(spec.shape)) * self.dtype.itemsize
        self._context = context
        alignment = max(spec.alignment, self.dtype.itemsize)
        shift = alignment if exact and alignment < ALLOCATED else 0
        self._offset = GUARD_BYTES + shift
        self._size = self.bytes + 2 * GUARD_BYTES + shift
        self._base = context.allocate(self._size)
        context.fill(self._base, GUARD_PATTERN, self._size)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return self._base + self._offset

    def write(self, value: Any) -> None:
        """Overwrite the elements; gaps between them keep the guard's pattern."""
        if isinstance(value, DeviceArray):
            if self.dense and value.dense:
                self._context.copy(self.address, value.address, self.bytes)
                return
            value = value.host()
        if self.dense:
            self._context.upload(self.address, np.ascontiguousarray(bits(value)))
            return
        flat = np.full(self.bytes, GUARD_PATTERN, dtype=np.uint8)
        self._view(flat)[...] = value
        self._context.upload(self.address, flat)

    def read(self) -> Array:
        """A dense copy of the elements."""
        flat = np.empty(self.bytes, dtype=np.uint8)
        self._context.download(self.address, flat)
        return np.ascontiguousarray(self._view(flat)).reshape(self.spec.shape)

    def on_device(self, engine: Engine) -> DeviceArray:
        """A dense copy of the elements in device memory; of dense buffers only."""
        out = new(engine, self.spec.shape, self.dtype)
        self._context.copy(out.address, self.address, self.bytes)
        return out

    def fill(self, pattern: int) -> None:
        """Set the bits of every element."""
        width = self.dtype.itemsize
        count = self.bytes // width
        if self.dense and width <= 4:
            self._context.fill_elements(self.address, pattern, width, count)
            return
        raw = np.frombuffer(pattern.to_bytes(width, "little"), dtype=self.dtype)
        self.write(np.broadcast_to(raw[0], self.spec.shape).copy())

    def damage(self) -> str:
        """What was written outside of the elements, in one line; empty when nothing was."""
        before, after = (
            self._band(self._base, self._offset),
            self._band(self.address + self.bytes, self._size - self._offset - self.bytes),
        )
        for place, band in (("before", before), ("after", after)):
            hit = np.flatnonzero(band != GUARD_PATTERN)
            if hit.size:
                byte = len(band) - int(hit[-1]) if place == "before" else int(hit[0])
                return (
                    f"{self.spec.name}: {hit.size} bytes written {place} the buffer of "
                    f"{self.bytes} bytes, the nearest {byte} bytes {place} it"
                )
        return "" if self.dense else self._gaps()

    def _gaps(self) -> str:
        flat = self._band(self.address, self.bytes)
        fill = np.full(self.dtype.itemsize, GUARD_PATTERN, dtype=np.uint8).view(self.dtype)[0]
        self._view(flat)[...] = fill
        hit = np.flatnonzero(flat != GUARD_PATTERN)
        if not hit.size:
            return ""
        return (
            f"{self.spec.name}: {hit.size} bytes written in the gaps between strided elements, "
            f"the first at byte {int(hit[0])}"
        )

    def _band(self, address: int, size: int) -> Array:
        band = np.empty(size, dtype=np.uint8)
        self._context.download(address, band)
        return band

    def _view(self, flat: Array) -> Array:
        size = self.dtype.itemsize
        return np.lib.stride_tricks.as_strided(
            flat.view(self.dtype),
            shape=self.spec.shape,
            strides=tuple(s * size for s in self.spec.strides),
        )

    def release(self) -> None:
        """Give the memory back."""
        self._context.release(self._base)


class CudaArguments:
    """Arguments of one call: guarded device memory, workspaces of the entries.

    ``stale`` says that an input of a prepare entry was overwritten since it ran. The memory is
    given back with the object.
    """

    def __init__(
        self,
        context: Context,
        launch: LaunchSpec,
        inputs: Mapping[str, Array],
        *,
        exact: bool,
        engine: Engine | None = None,
    ) -> None:
        self._context = context
        self._engine = engine
        self.buffers: dict[str, DeviceBuffer] = {}
        self._workspaces: list[int] = []
        self._prepared_from = {
            a.name for entry in launch.prepares for a in entry.arguments if a.io == "in"
        }
        self.stale = bool(launch.prepares)
        for entry in (launch.main, *launch.prepares):
            for spec in entry.arguments:
                if spec.name not in self.buffers:
                    self.buffers[spec.name] = DeviceBuffer(context, spec, exact=exact)
        for name, buffer in self.buffers.items():
            if buffer.spec.io in ("in", "inout"):
                if name not in inputs:
                    raise InternalError("measure.argument", f"no value for input {name!r}")
                self.write(name, inputs[name])

    def words(self, entry: EntrySpec) -> list[int]:
        """Parameters of an entry: the addresses of its arguments, then of its workspace."""
        found = [self.buffers[argument.name].address for argument in entry.arguments]
        if entry.workspace_bytes:
            place = self._context.allocate(entry.workspace_bytes)
            self._workspaces.append(place)
            self._context.fill(place, 0, entry.workspace_bytes)
            found.append(place)
        return found

    def read(self, name: str) -> Any:
        """A dense copy of an argument; a large one stays on the device where there is an engine."""
        buffer = self.buffers[name]
        if self._engine is not None and buffer.dense and buffer.bytes >= PLACED_FROM:
            return buffer.on_device(self._engine)
        return buffer.read()

    def fill(self, name: str, bits: int) -> None:
        """Set every element of an argument to these bits."""
        self.buffers[name].fill(bits)
        self._touch(name)

    def write(self, name: str, value: Array) -> None:
        """Overwrite an argument bit by bit; the shape and dtype are those of the argument."""
        buffer = self.buffers[name]
        if value.shape != buffer.spec.shape or value.dtype != buffer.dtype:
            raise InternalError(
                "measure.argument",
                f"argument {name!r} is {buffer.dtype}{list(buffer.spec.shape)}, "
                f"not {value.dtype}{list(value.shape)}",
            )
        buffer.write(value)
        self._touch(name)

    def _touch(self, name: str) -> None:
        if name in self._prepared_from:
            self.stale = True

    def damage(self) -> Sequence[str]:
        """See :class:`tfsearch.measure.buffers.Guarded`."""
        return [line for buffer in self.buffers.values() if (line := buffer.damage())]

    def __del__(self) -> None:
        for place in self._workspaces:
            self._context.release(place)
        for buffer in self.buffers.values():
            buffer.release()
