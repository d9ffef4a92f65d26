"""The kernels behind device arrays: elementwise work, reductions, products in float64."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfsearch.ir.dtypes import DType
from tfsearch.target.cuda import support
from tfsearch.target.cuda.arrays import BOOL, F64, DeviceArray, Host, Memory, new
from tfsearch.target.cuda.context import Context
from tfsearch.target.cuda.launching import Configuration, Function, config_of

RANK, INPUTS = 6, 3
_NAMES = """
copy neg abs exp log sqrt tanh sin cos erf floor ceil rint sign isnan isinf isfinite signbit not
mantissa exponent add sub mul div max min lt le gt ge eq ne and or copysign ldexp where
"""
OPS = tuple(_NAMES.split())
FOLDS = ("sum", "prod", "max", "min", "any")
"""In the order of the enumerations of ``clib/reference.cu``."""
_TYPES = {
    np.dtype(np.float64): 0,
    np.dtype(np.float32): 1,
    np.dtype(np.float16): 2,
    DType.BF16.numpy: 3,
    np.dtype(np.int32): 4,
    np.dtype(np.int8): 5,
    np.dtype(np.uint8): 6,
    BOOL: 6,
    np.dtype(np.uint16): 7,
    np.dtype(np.uint32): 8,
}
THREADS, TILE, PRODUCT_THREADS = 256, 64, 128
BLOCKS_PER_UNIT = 8
LONG_ROW = 64
"""From this many elements on a row gets a block of its own."""
MOST_GRID_Z = 65535


class _View(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_uint64),
        ("constant", ctypes.c_double),
        ("strides", ctypes.c_int64 * RANK),
        ("type", ctypes.c_int64),
    )


class _Map(ctypes.Structure):
    _fields_ = (
        ("op", ctypes.c_int64),
        ("rank", ctypes.c_int64),
        ("size", ctypes.c_int64),
        ("shape", ctypes.c_int64 * RANK),
        ("inputs", _View * INPUTS),
        ("out", ctypes.c_uint64),
        ("out_type", ctypes.c_int64),
    )


class _Reduce(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "fold", "rows", "length", "pieces", "row_stride", "stride", "source", "out", "type"
        )
    )  # fmt: skip


class _Product(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in (
            "m", "n", "k", "batches", "a_batch", "a_row", "a_column", "b_batch", "b_row",
            "b_column", "a", "b", "c",
        )
    )  # fmt: skip


class CudaMemory:
    """A piece of a context's memory, given back with the object."""

    def __init__(self, context: Context, size: int) -> None:
        self._context = context
        self.address = context.allocate(size)

    def __del__(self) -> None:
        if hasattr(self, "address"):
            self._context.release(self.address)


class CudaEngine:
    """See :class:`tfsearch.target.cuda.arrays.Engine`.

    ``UnavailableError`` when no compiler here builds the kernels.
    """

    def __init__(self, context: Context, architecture: str) -> None:
        self.on_host = 0
        self._context = context
        self._units = context.attribute("MULTIPROCESSOR_COUNT")
        module = context.load(support.image("reference", architecture))
        self._functions = {
            name: Function(context, module, name, Configuration((1, 1, 1), (1, 1, 1)))
            for name in ("tfs_map", "tfs_reduce", "tfs_reduce_rows", "tfs_first", "tfs_product")
        }

    def types(self) -> Sequence[np.dtype[Any]]:
        """Element types that the kernels read."""
        return tuple(_TYPES)

    def allocate(self, size: int) -> Memory:
        """Memory of so many bytes; ``MemoryError`` when the card has not as much."""
        return CudaMemory(self._context, size)

    def upload(self, memory: Memory, value: Host) -> None:
        """Copy a dense host array."""
        self._context.upload(memory.address, value)

    def download(self, memory: Memory, offset: int, value: Host) -> None:
        """Fill a dense host array from ``offset`` bytes on."""
        self._context.download(memory.address + offset, value)

    def map(self, op: str, out: DeviceArray, inputs: Sequence[DeviceArray | float]) -> None:
        """One op element by element."""
        work = _Map(op=OPS.index(op), size=out.size, out=out.address)
        work.out_type = _TYPES[out.dtype]
        arrays = [x for x in inputs if isinstance(x, DeviceArray)]
        shape, strides = walked(out.shape, [x.steps for x in arrays])
        work.rank = len(shape)
        work.shape[: len(shape)] = shape
        place = 0
        for slot, value in zip(work.inputs, inputs, strict=False):
            if isinstance(value, DeviceArray):
                slot.address, slot.type = value.address, _TYPES[value.dtype]
                slot.strides[: len(shape)] = strides[place]
                place += 1
            else:
                slot.constant = value
        self._launch("tfs_map", work, (self._blocks(out.size), 1, 1), THREADS)

    def reduce(self, fold: str, out: DeviceArray, rows: DeviceArray) -> None:
        """Rows into one element each."""
        count, length = rows.shape
        row_stride, stride = rows.steps
        work = _Reduce(
            fold=FOLDS.index(fold), rows=count, length=length, pieces=1, row_stride=row_stride,
            stride=stride, source=rows.address, out=out.address, type=_TYPES[rows.dtype],
        )  # fmt: skip
        across = row_stride == 1 and stride != 1 and count >= THREADS
        if length < LONG_ROW or across:
            grid = (self._blocks(count), 1, 1)
            self._launch("tfs_reduce_rows", work, grid, THREADS)
            return
        blocks = self._units * BLOCKS_PER_UNIT
        pieces = max(1, min(blocks // max(count, 1), length // (4 * THREADS)))
        if pieces > 1:
            parts = new(rows.engine, (count, pieces), F64)
            work.pieces, work.out = pieces, parts.address
            self._launch("tfs_reduce", work, (count * pieces, 1, 1), THREADS)
            self.reduce(fold, out, parts)
            return
        self._launch("tfs_reduce", work, (min(count, 1 << 20), 1, 1), THREADS)

    def product(self, out: DeviceArray, a: DeviceArray, b: DeviceArray) -> None:
        """Batched products of matrices."""
        batches, m, n = out.shape
        work = _Product(
            m=m, n=n, k=a.shape[2], batches=batches,
            a_batch=a.steps[0], a_row=a.steps[1], a_column=a.steps[2],
            b_batch=b.steps[0], b_row=b.steps[1], b_column=b.steps[2],
            a=a.address, b=b.address, c=out.address,
        )  # fmt: skip
        grid = (-(-m // TILE), -(-n // TILE), min(batches, MOST_GRID_Z))
        self._launch("tfs_product", work, grid, PRODUCT_THREADS)

    def first(self, flags: DeviceArray) -> int:
        """Index of the first flag that is set, else their number."""
        found = new(self, (1,), F64)
        value = np.array([flags.size], dtype=np.uint64)
        self._context.upload(found.address, value)
        words = (ctypes.c_uint64 * 3)(flags.address, flags.size, found.address)
        start = ctypes.addressof(words)
        slots = (ctypes.c_void_p * 3)(start, start + 8, start + 16)
        self._enqueue("tfs_first", slots, (self._blocks(flags.size), 1, 1), THREADS)
        self._context.download(found.address, value)
        return int(value[0])

    def _blocks(self, size: int) -> int:
        return max(1, min(-(-size // THREADS), self._units * BLOCKS_PER_UNIT))

    def _launch(
        self, name: str, work: ctypes.Structure, grid: tuple[int, int, int], threads: int
    ) -> None:
        slots = (ctypes.c_void_p * 1)(ctypes.addressof(work))
        self._enqueue(name, slots, grid, threads)

    def _enqueue(self, name: str, slots: Any, grid: tuple[int, int, int], threads: int) -> None:
        driver = self._context.driver
        config = config_of(driver, Configuration(grid, (threads, 1, 1)))
        handle = self._functions[name].handle
        driver.cuLaunchKernelEx(config, handle, ctypes.addressof(slots), 0)


def walked(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """A dense shape and the strides of inputs with neighbouring dimensions joined where all allow.

    At most :data:`RANK` dimensions are left; ``ValueError`` for more.
    """
    sizes: list[int] = []
    steps: list[list[int]] = [[] for _ in strides]
    for d, extent in enumerate(shape):
        if extent == 1:
            continue
        pairs = list(zip(steps, strides, strict=True))
        if sizes and all(own[-1] == s[d] * extent for own, s in pairs):
            sizes[-1] *= extent
            for own, s in pairs:
                own[-1] = s[d]
        else:
            sizes.append(extent)
            for own, s in pairs:
                own.append(s[d])
    if len(sizes) > RANK:
        raise ValueError(f"{len(sizes)} dimensions cannot be walked at once; {RANK} can")
    return sizes, steps
