"""Buffers of the interpreter: values, and beside each element whether it was ever written."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfsearch.ir.tir.nodes import Buffer

Array = np.ndarray[Any, np.dtype[Any]]


class Store:
    """One buffer's memory.

    ``flat`` holds every element from the first to the last address, ``values`` is the same
    memory in the buffer's shape; ``valid`` has one byte an address (1: written) and ``mask`` is
    the same bytes in the buffer's shape.
    """

    __slots__ = ("_blank", "buffer", "flat", "mask", "valid", "values")

    def __init__(self, buffer: Buffer, *, valid: bool = False) -> None:
        size = buffer.bytes // buffer.dtype.bytes
        self.buffer = buffer
        self.flat: Array = np.zeros(size, dtype=buffer.dtype.numpy)
        self.values = shaped(self.flat, buffer)
        self._blank = bytes(size)
        self.valid = bytearray(b"\x01" * size) if valid else bytearray(size)
        self.mask = shaped(np.frombuffer(self.valid, dtype=np.uint8), buffer)

    def poison(self) -> None:
        """Forget that anything was written."""
        self.valid[:] = self._blank


def shaped(flat: Array, buffer: Buffer) -> Array:
    """A flat array of addresses seen in the buffer's shape."""
    strides = tuple(stride * flat.itemsize for stride in buffer.dense_strides)
    return np.lib.stride_tricks.as_strided(flat, shape=buffer.shape, strides=strides)
