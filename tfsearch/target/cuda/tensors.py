"""Arrays of other libraries in device memory: what they are, whose stream is current, new ones.

Arrays come through DLPack, or else the CUDA array interface; no library is imported that the
caller has not imported.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.plugin.target import ArrayPlace
from tfsearch.target.cuda.arrays import dense_strides
from tfsearch.target.cuda.device import Gpu
from tfsearch.target.cuda.driver import driver

CUDA, MANAGED = 2, 13
"""Device types in dlpack.h: kDLCUDA, kDLCUDAManaged."""
LEGACY = 1
"""The legacy default stream as DLPack names it; -1 asks for no synchronisation."""
_CODES = {
    (2, 64): DType.F64,
    (2, 32): DType.F32,
    (2, 16): DType.F16,
    (4, 16): DType.BF16,
    (0, 32): DType.I32,
    (0, 8): DType.I8,
}
_TYPESTR = {"<f8": DType.F64, "<f4": DType.F32, "<f2": DType.F16, "<i4": DType.I32, "|i1": DType.I8}
_TORCH = {
    DType.F64: "float64",
    DType.F32: "float32",
    DType.F16: "float16",
    DType.BF16: "bfloat16",
    DType.I32: "int32",
    DType.I8: "int8",
}


@dataclass(frozen=True)
class Tensor:
    """An array in device memory; strides in elements, None where it is dense."""

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    kind: DType | None
    device: int | None
    writable: bool = True


class _DlTensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype = ctypes.c_void_p
_pointer_of.argtypes = [ctypes.py_object, ctypes.c_char_p]


def describe(name: str, value: Any, *, synchronised: bool = False) -> Tensor:
    """An argument as the device sees it.

    With ``synchronised`` its library makes what it enqueued visible to the legacy default stream.
    ``RequestError``: ``array.kind`` for something that is no array of a GPU, ``array.device`` for
    one in host memory.
    """
    if hasattr(value, "__dlpack_device__"):
        where = value.__dlpack_device__()
        if int(where[0]) not in (CUDA, MANAGED):
            raise _in_host_memory(name, value)
        return _from_dlpack(name, value, LEGACY if synchronised else -1)
    interface = getattr(value, "__cuda_array_interface__", None)
    if interface is not None:
        return _from_interface(name, interface)
    if hasattr(value, "__array_interface__"):
        raise _in_host_memory(name, value)
    raise RequestError(
        "array.kind",
        f"argument {name!r} is a {type(value).__name__}, not an array of a GPU (DLPack, or "
        "__cuda_array_interface__)",
    )


def _in_host_memory(name: str, value: object) -> RequestError:
    return RequestError(
        "array.device",
        f"argument {name!r} is a {type(value).__name__} in host memory; this kernel takes arrays "
        "of a GPU",
    )


def _from_dlpack(name: str, value: Any, stream: int) -> Tensor:
    try:
        capsule = value.__dlpack__(stream=stream)
    except (BufferError, RuntimeError, TypeError) as error:
        raise RequestError(
            "array.kind", f"argument {name!r} cannot be read through DLPack: {error}"
        ) from error
    tensor = _DlTensor.from_address(_pointer_of(capsule, b"dltensor"))
    count = tensor.ndim
    kind = _CODES.get((tensor.code, tensor.bits)) if tensor.lanes == 1 else None
    return Tensor(
        (tensor.data or 0) + tensor.byte_offset,
        tuple(tensor.shape[:count]),
        tuple(tensor.strides[:count]) if tensor.strides else None,
        kind,
        tensor.device_id,
    )


def _from_interface(name: str, interface: Any) -> Tensor:
    kind = _TYPESTR.get(interface["typestr"])
    strides = interface.get("strides")
    if strides is not None and kind is not None:
        if any(step % kind.bytes for step in strides):
            raise RequestError(
                "array.strides", f"argument {name!r} has strides {list(strides)} B, not whole "
                f"elements of {kind.bytes} B",
            )  # fmt: skip
        strides = tuple(step // kind.bytes for step in strides)
    address, read_only = interface["data"]
    return Tensor(address, tuple(interface["shape"]), strides, kind, None, not read_only)


def place_of(name: str, value: Any, gpus: Sequence[Gpu]) -> ArrayPlace:
    """Where an array lies, with the UUID of its GPU among those that code is generated for.

    ``RequestError``: ``array.kind``, ``array.device``, ``array.dtype``.
    """
    found = describe(name, value)
    index = _device_of(found.address) if found.device is None else found.device
    gpu = next((gpu for gpu in gpus if gpu.index == index), None)
    if gpu is None:
        raise RequestError(
            "array.device",
            f"argument {name!r} is on GPU {index}, for which no code is generated here",
        )
    if found.kind is None:
        raise RequestError(
            "array.dtype", f"argument {name!r} has an element type that no program has"
        )
    strides = found.strides
    if strides is None:
        strides = dense_strides(found.shape)
    return ArrayPlace(found.address, found.shape, strides, found.kind.value, gpu.uuid)


def _device_of(address: int) -> int:
    """The driver's index of the GPU that an address belongs to."""
    known = driver()
    kind = known.api.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
    return int(known.cuPointerGetAttribute(kind, address))


def library_of(value: object) -> str:
    """The first package of a value's type."""
    return type(value).__module__.partition(".")[0]


def stream_of(value: object, device: int) -> int | None:
    """The current stream of an array's library; None for a library that does not tell."""
    library = library_of(value)
    if library == "torch":
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)
    if library == "cupy":
        return int(sys.modules["cupy"].cuda.get_current_stream().ptr)
    return None


def empty_like(first: Any, shape: Sequence[int], kind: DType, device: int) -> Any:
    """A new dense array of the library of another one.

    ``RequestError`` (``array.output``) for a library in which none can be made; give ``out``.
    """
    library = library_of(first)
    if library == "torch":
        torch = sys.modules["torch"]
        dtype = getattr(torch, _TORCH[kind])
        return torch.empty(tuple(shape), dtype=dtype, device=f"cuda:{device}")
    if library == "cupy":
        cupy = sys.modules["cupy"]
        with cupy.cuda.Device(device):
            return cupy.empty(tuple(shape), dtype=kind.numpy)
    raise RequestError(
        "array.output",
        f"no new array of {library} can be made for the output; give one as out=",
    )
