"""Guarded host buffers: arguments in ordinary memory whose surroundings are watched.

A target that runs on the host gets its :class:`~tfsearch.measure.protocols.Arguments` from
here: strided as the launch specification says, aligned to exactly what the kernel may rely
on, and surrounded by bytes that no correct kernel writes.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, LaunchSpec
from tfsearch.core.memory import aligned_bytes
from tfsearch.ir.dtypes import DType

GUARD_BYTES = 4096
GUARD_PATTERN = 0xC3
PAGE = mmap.PAGESIZE
_PROT_READ, _PROT_WRITE = 1, 2  # <sys/mman.h>

Array = NDArray[Any]

# Signalling NaNs (quiet bit clear, IEEE 754-2019 section 6.2.1) that are recognisable in a hex
# dump; integers get the bytes themselves. The second pattern differs in every element.
_POISON: dict[DType, tuple[int, int]] = {
    DType.F64: (0x7FF5A5A5A5A5A5A5, 0xFFF25A5A5A5A5A5A),
    DType.F32: (0x7FA5A5A5, 0xFF9A5A5A),
    DType.F16: (0x7DA5, 0xFD5A),
    DType.BF16: (0x7FA5, 0xFF9A),
}
_UNSIGNED = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@runtime_checkable
class Guarded(Protocol):
    """Arguments that know whether something was written outside of them."""

    def damage(self) -> Sequence[str]:
        """One line for each argument whose guard bands or gaps were written; none is good."""
        ...


def bits(array: Array) -> Array:
    """The same elements as unsigned integers of the same width (shape kept, may copy)."""
    dense = array if array.flags.c_contiguous else array.copy(order="C")
    return dense.view(_UNSIGNED[array.dtype.itemsize])


def poison_bits(dtype: np.dtype[Any], variant: int = 0) -> int:
    """The poison of one element as an unsigned integer; ``variant`` 0 or 1."""
    try:
        kind = DType.of_numpy(dtype)
    except KeyError:
        kind = None
    if kind in _POISON:
        return _POISON[kind][variant]
    return int.from_bytes(bytes([0xA5, 0x5A][variant : variant + 1]) * dtype.itemsize, "little")


def poison(shape: tuple[int, ...], dtype: np.dtype[Any], variant: int = 0) -> Array:
    """A dense array full of poison: signalling NaNs for floats, 0xA5 or 0x5A bytes otherwise."""
    unsigned = _UNSIGNED[dtype.itemsize]
    return np.full(shape, poison_bits(dtype, variant), dtype=unsigned).view(dtype)


def span_elements(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Elements from the first to the last one of a strided array, gaps included."""
    if any(n == 0 for n in shape):
        return 0
    return 1 + sum(s * (n - 1) for n, s in zip(shape, strides, strict=True))


def strided_empty(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype[Any]) -> Array:
    """An uninitialised array with the given strides in elements."""
    flat = np.empty(max(1, span_elements(shape, strides)), dtype=dtype)
    return _view(flat, shape, strides)


def _view(flat: Array, shape: Sequence[int], strides: Sequence[int]) -> Array:
    size = flat.dtype.itemsize
    return np.lib.stride_tricks.as_strided(
        flat, shape=tuple(shape), strides=tuple(s * size for s in strides)
    )


class GuardedBuffer:
    """Memory of one argument between two guard bands.

    The address is a multiple of ``alignment`` and of no higher power of two, so that a kernel
    which relies on more than was promised is found out here rather than at a user's call. With
    ``aligned`` it is the first of a page, as a user's large array may be.
    """

    def __init__(self, spec: ArgumentSpec, *, aligned: bool = False) -> None:
        self.spec = spec
        self.dtype = DType(spec.dtype).numpy
        self._bytes = span_elements(spec.shape, spec.strides) * self.dtype.itemsize
        alignment = max(spec.alignment, self.dtype.itemsize, PAGE if aligned else 0)
        space = self._bytes + 2 * GUARD_BYTES + 2 * alignment
        # Prepared arguments lie where a call's own memory would; others where users' arrays do.
        kept = spec.io == "prepared"
        raw = aligned_bytes(space, GUARD_BYTES) if kept else np.empty(space, dtype=np.uint8)
        start = (raw.ctypes.data + GUARD_BYTES) % (2 * alignment)
        wanted = 0 if aligned else alignment
        offset = GUARD_BYTES + (wanted - start) % (2 * alignment)
        self._offset = offset
        self._raw = raw
        self._dense = self._bytes == int(np.prod(spec.shape)) * self.dtype.itemsize
        self._raw[:] = GUARD_PATTERN
        self.array = self._view_of(self._raw)

    @property
    def address(self) -> int:
        """Address of the first element."""
        return int(self._raw.ctypes.data) + self._offset

    @property
    def dense(self) -> bool:
        """Whether the elements lie one behind the other, without gaps."""
        return self._dense

    @property
    def pages(self) -> tuple[int, int]:
        """Start and size of the pages that hold elements and nothing of anybody else."""
        raw = int(self._raw.ctypes.data)
        first = max(self.address // PAGE * PAGE, -(-raw // PAGE) * PAGE)
        last = min(-(-(self.address + self._bytes) // PAGE), (raw + self._raw.nbytes) // PAGE)
        return first, max(0, last * PAGE - first)

    def damage(self) -> str:
        """What was written outside of the elements, in one line; empty when nothing was."""
        before = self._raw[: self._offset]
        after = self._raw[self._offset + self._bytes :]
        for place, band in (("before", before), ("after", after)):
            hit = np.flatnonzero(band != GUARD_PATTERN)
            if hit.size:
                byte = len(band) - int(hit[-1]) if place == "before" else int(hit[0])
                return (
                    f"{self.spec.name}: {hit.size} bytes written {place} the buffer of "
                    f"{self._bytes} bytes, the nearest {byte} bytes {place} it"
                )
        if not self._dense:
            covered = self._raw.copy()
            fill = np.full(self.dtype.itemsize, GUARD_PATTERN, dtype=np.uint8)
            self._view_of(covered)[...] = fill.view(self.dtype)[0]
            inside = covered[self._offset : self._offset + self._bytes]
            hit = np.flatnonzero(inside != GUARD_PATTERN)
            if hit.size:
                return (
                    f"{self.spec.name}: {hit.size} bytes written in the gaps between strided "
                    f"elements, the first at byte {int(hit[0])}"
                )
        return ""

    def _view_of(self, raw: Array) -> Array:
        flat = raw[self._offset : self._offset + self._bytes].view(self.dtype)
        return _view(flat, self.spec.shape, self.spec.strides)


class HostArguments:
    """Arguments of one call in guarded host memory.

    ``arrays`` are views with the layouts of the launch specification, ``address(name)`` what to
    hand to a C function. Arguments that are neither inputs nor outputs (``prepared``) are
    allocated too; running the prepare entries is the loader's business. ``aligned``: see
    :class:`GuardedBuffer`.
    """

    def __init__(
        self, launch: LaunchSpec, inputs: Mapping[str, Array], *, aligned: bool = False
    ) -> None:
        specs: dict[str, ArgumentSpec] = {}
        for entry in (launch.main, *launch.prepares):
            for spec in entry.arguments:
                specs.setdefault(spec.name, spec)
        self.buffers = {n: GuardedBuffer(spec, aligned=aligned) for n, spec in specs.items()}
        self._read = [a.name for a in launch.main.arguments if a.io == "in"]
        self.arrays = {name: buffer.array for name, buffer in self.buffers.items()}
        for name, spec in specs.items():
            if spec.io in ("in", "inout"):
                if name not in inputs:
                    raise InternalError("measure.argument", f"no value for input {name!r}")
                self.write(name, inputs[name])

    def address(self, name: str) -> int:
        """Address of an argument's first element."""
        return self.buffers[name].address

    def read(self, name: str) -> Array:
        """A dense copy of an argument."""
        return self.arrays[name].copy(order="C")

    def write(self, name: str, value: Array) -> None:
        """Overwrite an argument bit by bit; the shape and dtype are those of the argument."""
        target = self.arrays[name]
        if value.shape != target.shape or value.dtype != target.dtype:
            raise InternalError(
                "measure.argument",
                f"argument {name!r} is {target.dtype}{list(target.shape)}, "
                f"not {value.dtype}{list(value.shape)}",
            )
        # Through unsigned integers: a float copy may quieten signalling NaNs.
        unsigned = _UNSIGNED[target.dtype.itemsize]
        target.view(unsigned)[...] = value.view(unsigned)

    @contextlib.contextmanager
    def sealed(self) -> Iterator[None]:
        """See :class:`tfsearch.measure.protocols.Sealing`."""
        places = [self.buffers[name].pages for name in self._read]
        try:
            for start, size in places:
                _protect(start, size, _PROT_READ)
            yield
        finally:
            for start, size in places:
                _protect(start, size, _PROT_READ | _PROT_WRITE)

    def damage(self) -> Sequence[str]:
        """See :class:`Guarded`."""
        return [line for buffer in self.buffers.values() if (line := buffer.damage())]


def _protect(start: int, size: int, how: int) -> None:
    """Set what may be done with whole pages; ``OSError`` where the system refuses."""
    if not size:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size), how):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
