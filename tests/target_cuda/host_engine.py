"""An engine whose device is host memory: what device arrays ask for, computed by NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.ir.hir.numeric import erf
from tfsearch.target.cuda.arrays import DeviceArray, Host
from tfsearch.target.cuda.engine import _TYPES, walked

OPS: dict[str, Callable[..., Any]] = {
    "copy": lambda a: a,
    "neg": np.negative, "abs": np.abs, "exp": np.exp, "log": np.log, "sqrt": np.sqrt,
    "tanh": np.tanh, "sin": np.sin, "cos": np.cos, "erf": erf, "floor": np.floor,
    "ceil": np.ceil, "rint": np.rint, "sign": np.sign, "isnan": np.isnan, "isinf": np.isinf,
    "isfinite": np.isfinite, "signbit": np.signbit, "not": lambda a: a == 0,
    "mantissa": lambda a: np.frexp(a)[0], "exponent": lambda a: np.frexp(a)[1],
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide,
    "max": np.maximum, "min": np.minimum, "lt": np.less, "le": np.less_equal,
    "gt": np.greater, "ge": np.greater_equal, "eq": np.equal, "ne": np.not_equal,
    "and": lambda a, b: (a != 0) & (b != 0), "or": lambda a, b: (a != 0) | (b != 0),
    "copysign": np.copysign, "ldexp": lambda a, b: np.ldexp(a, b.astype(int)),
    "where": lambda a, b, c: np.where(a != 0, b, c),
}  # fmt: skip
FOLDS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min, "any": np.any}


@dataclass
class HostMemory:
    """A piece of pretended device memory."""

    data: Host

    @property
    def address(self) -> int:
        return self.data.ctypes.data


class HostEngine:
    """See the module."""

    def __init__(self) -> None:
        self.on_host = 0
        self.calls: list[str] = []

    def types(self) -> Sequence[np.dtype[Any]]:
        return tuple(_TYPES)

    def allocate(self, size: int) -> HostMemory:
        return HostMemory(np.full(size, 0xA5, np.uint8))

    def upload(self, memory: HostMemory, value: Host) -> None:
        memory.data[: value.nbytes] = np.ascontiguousarray(value).reshape(-1).view(np.uint8)

    def download(self, memory: HostMemory, offset: int, value: Host) -> None:
        raw = memory.data[offset : offset + value.nbytes]
        value[...] = raw.view(value.dtype).reshape(value.shape)

    def elements(self, array: DeviceArray, shape: Any = None, strides: Any = None) -> Host:
        """An array's elements by its own strides, or as walked."""
        flat = array.memory.data.view(array.dtype)[array.offset :]
        steps = array.steps if strides is None else strides
        return np.lib.stride_tricks.as_strided(
            flat, array.shape if shape is None else shape, [s * array.itemsize for s in steps]
        )

    def map(self, op: str, out: DeviceArray, inputs: Sequence[DeviceArray | float]) -> None:
        self.calls.append(op)
        assert out.dense
        arrays = [x for x in inputs if isinstance(x, DeviceArray)]
        shape, strides = walked(out.shape, [x.steps for x in arrays])
        steps = iter(strides)
        values = [
            np.broadcast_to(
                self.elements(x, shape, next(steps)).astype(np.float64)
                if isinstance(x, DeviceArray)
                else np.float64(x),
                shape,
            )
            for x in inputs
        ]
        with np.errstate(all="ignore"):
            result = OPS[op](*values)
            self.elements(out)[...] = np.asarray(result).astype(out.dtype).reshape(out.shape)

    def reduce(self, fold: str, out: DeviceArray, rows: DeviceArray) -> None:
        self.calls.append(fold)
        self.elements(out)[...] = FOLDS[fold](self.elements(rows).astype(np.float64), axis=1)

    def product(self, out: DeviceArray, a: DeviceArray, b: DeviceArray) -> None:
        self.calls.append("product")
        self.elements(out)[...] = np.matmul(self.elements(a), self.elements(b))

    def first(self, flags: DeviceArray) -> int:
        found = np.flatnonzero(self.elements(flags))
        return int(found[0]) if found.size else flags.size
