"""Arrays at the door: what callers hand in, what they get back, and what is checked.

Anything with ``__array_interface__`` or, on the CPU, ``__dlpack__`` is taken without a copy.
"""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec
from tfsearch.core.memory import aligned_bytes
from tfsearch.ir.dtypes import DType

Array = np.ndarray[Any, np.dtype[Any]]

ALIGNMENT = 64
"""Bytes; what arrays that are allocated here are aligned to."""

_first_byte: Callable[[Any], ctypes.c_char] = ctypes.c_char.from_buffer
_address_of = ctypes.addressof

_DLPACK_HOST = (1, 3, 11)
"""Device types of host memory in dlpack.h: kDLCPU, kDLCUDAHost, kDLROCMHost."""


def on_host(value: Any) -> bool:
    """Whether the host can read an object's memory, or it is no array at all."""
    if isinstance(value, np.ndarray) or hasattr(value, "__array_interface__"):
        return True
    if hasattr(value, "__dlpack_device__"):
        return int(value.__dlpack_device__()[0]) in _DLPACK_HOST
    return not hasattr(value, "__cuda_array_interface__")


def as_host(name: str, value: object) -> Array:
    """The argument as a NumPy array over the same memory.

    ``RequestError`` (``array.kind``) for something that is no array or lives on another device.
    """
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__array_interface__"):
        return np.asarray(value)
    if hasattr(value, "__dlpack__"):
        return _from_dlpack(name, value)
    raise RequestError(
        "array.kind",
        f"argument {name!r} is a {type(value).__name__}, not an array (NumPy, DLPack on the CPU, "
        "or __array_interface__)",
    )


def _from_dlpack(name: str, value: Any) -> Array:
    device = value.__dlpack_device__()
    if int(device[0]) not in _DLPACK_HOST:
        raise RequestError(
            "array.device",
            f"argument {name!r} is on DLPack device {tuple(map(int, device))}; this kernel takes "
            "host memory",
        )
    if "bfloat16" in str(getattr(value, "dtype", "")) and hasattr(value, "view"):
        # NumPy's DLPack has no bfloat16: hand over the bits as 16-bit integers.
        words = getattr(_library(value), "int16", None)
        if words is not None:
            return np.from_dlpack(value.view(words)).view(DType.BF16.numpy)
    try:
        return np.from_dlpack(value)
    except (BufferError, RuntimeError, TypeError) as error:
        raise RequestError(
            "array.kind", f"argument {name!r} cannot be read through DLPack: {error}"
        ) from error


def like(first: object, array: Array) -> Any:
    """``array`` as the same kind of object as ``first``, over the same memory.

    A library without ``from_dlpack`` gets the NumPy array.
    """
    if isinstance(first, np.ndarray):
        return array
    library = _library(first)
    make = getattr(library, "from_dlpack", None)
    if make is None:
        return array
    if array.dtype == DType.BF16.numpy:
        wide = getattr(library, "bfloat16", None)
        if wide is None:
            return array
        return make(array.view(np.int16)).view(wide)
    return make(array)


def _library(value: object) -> Any:
    """The array library of an object: the first package of its type's module."""
    top = type(value).__module__.partition(".")[0]
    return sys.modules.get(top) or import_module(top)


def empty(
    shape: Sequence[int],
    dtype: DType | np.dtype[Any] | type[np.generic] | str,
    alignment: int = ALIGNMENT,
) -> Array:
    """An uninitialised dense array whose first element is aligned to ``alignment`` bytes.

    ``dtype`` is an element type of tfsearch or what NumPy takes as one.
    """
    kind = dtype.numpy if isinstance(dtype, DType) else np.dtype(dtype)
    nbytes = math.prod(shape) * kind.itemsize
    raw = np.empty(nbytes + alignment, np.uint8)
    return np.ndarray(tuple(shape), kind, raw, -address(raw) % alignment)


def lasting(shape: Sequence[int], kind: np.dtype[Any], alignment: int) -> Array:
    """The same for memory that is filled once and read often: in large pages where it is large."""
    memory = aligned_bytes(math.prod(shape) * kind.itemsize, alignment)
    return np.ndarray(tuple(shape), kind, memory)


def address(array: Array) -> int:
    """Address of the first element."""
    try:
        # Five times as fast as the array interface, which builds a dictionary.
        return _address_of(_first_byte(array))
    except (TypeError, ValueError, BufferError):
        # Read-only or strided memory, and types that the buffer protocol does not know.
        return array.__array_interface__["data"][0]


def alignment_of(array: Array, most: int = 4096) -> int:
    """The largest power of two up to ``most`` that divides the array's address."""
    place = address(array) | most
    return place & -place


def element_strides(name: str, array: Array) -> tuple[int, ...]:
    """Strides in elements, those of dimensions of size one as in dense storage.

    ``RequestError`` (``array.strides``) for strides that are no whole number of elements.
    """
    size = array.itemsize
    if any(stride % size for stride in array.strides):
        raise RequestError(
            "array.strides",
            f"argument {name!r} has strides {list(array.strides)} B, not whole elements "
            f"of {size} B",
        )
    return _normal(array.shape, tuple(stride // size for stride in array.strides))


def _normal(shape: Sequence[int], strides: Sequence[int]) -> tuple[int, ...]:
    """Strides with those of dimensions of size one replaced by what dense storage has."""
    out: list[int] = []
    step = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        out.append(step if size == 1 else stride)
        step *= size
    return tuple(reversed(out))


class Checked:
    """One argument of a kernel: what an array must be to be handed to it.

    ``span`` is the bytes from its first to its last element.
    """

    __slots__ = (
        "_byte_strides",
        "_mask",
        "_strides",
        "dtype",
        "kind",
        "name",
        "shape",
        "span",
        "spec",
    )

    def __init__(self, spec: ArgumentSpec) -> None:
        self.spec = spec
        self.name = spec.name
        self.kind = DType(spec.dtype)
        self.dtype = self.kind.numpy
        self.shape = spec.shape
        self._strides = _normal(spec.shape, spec.strides)
        self._byte_strides = tuple(s * self.dtype.itemsize for s in self._strides)
        self._mask = spec.alignment - 1
        last = sum(s * (n - 1) for s, n in zip(self._strides, self.shape, strict=True))
        self.span = (last + 1) * self.dtype.itemsize

    def address(self, array: Array) -> int:
        """Address of an array that fits.

        ``RequestError``: ``array.shape``, ``array.dtype``, ``array.strides``,
        ``array.alignment``, each naming the argument, what is needed and what came.
        """
        if (
            array.shape != self.shape
            or array.dtype != self.dtype
            or array.strides != self._byte_strides
        ):
            self._complain(array)
        place = address(array)
        if place & self._mask:
            raise RequestError(
                "array.alignment",
                f"argument {self.name!r} must start at a multiple of {self.spec.alignment} B, it "
                f"starts {place & self._mask} B after one; copy it into "
                "tfsearch.runtime.empty(...)",
            )
        return place

    def output_address(self, array: Array) -> int:
        """Address of an output that fits and can be written; also ``array.read-only``."""
        if not array.flags.writeable:
            raise RequestError(
                "array.read-only", f"output {self.name!r} is read-only; give a writable array"
            )
        return self.address(array)

    def _complain(self, array: Array) -> None:
        if array.shape != self.shape:
            raise RequestError(
                "array.shape",
                f"argument {self.name!r} must have shape {list(self.shape)}, it has "
                f"{list(array.shape)}",
            )
        if array.dtype != self.dtype:
            raise RequestError(
                "array.dtype",
                f"argument {self.name!r} must be {self.kind.value} ({self.dtype}), it is "
                f"{array.dtype}",
            )
        if element_strides(self.name, array) != self._strides:
            raise RequestError(
                "array.strides",
                f"argument {self.name!r} must have strides {list(self._byte_strides)} B for shape "
                f"{list(self.shape)}, it has {list(array.strides)} B; np.ascontiguousarray copies "
                "it into dense order",
            )


class Overwritten(Checked):
    """An argument that the kernel reads and writes."""

    __slots__ = ()

    def address(self, array: Array) -> int:
        """Address of an array that fits and can be written."""
        if not array.flags.writeable:
            raise RequestError(
                "array.read-only", f"argument {self.name!r} is read-only, and the kernel writes it"
            )
        return super().address(array)


def _share(a: Array, b: Array) -> bool:
    if not np.may_share_memory(a, b):
        return False
    try:
        return np.shares_memory(a, b, max_work=10_000)  # pyright: ignore[reportArgumentType]
    except np.exceptions.TooHardError:
        return True  # not known to be apart


def check_apart(name: str, array: Array, other_name: str, other: Array) -> None:
    """``RequestError`` (``array.overlap``) when an output shares memory with another argument."""
    if _share(array, other):
        raise RequestError(
            "array.overlap",
            f"output {name!r} shares memory with argument {other_name!r}; give it memory of its "
            "own",
        )
