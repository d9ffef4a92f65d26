"""Arrays in device memory that speak NumPy: references and checks run on the card unchanged.

NumPy hands its functions over to an array that has ``__array_ufunc__`` and
``__array_function__``. What is here covers what the evaluator of programs, their error bounds and
the checks of outputs use; anything else is done on the host and counted in
:attr:`Engine.on_host`, so it is right all the same.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

Host = np.ndarray[Any, np.dtype[Any]]
Operand = Any
"""A device array, a host array or a number."""

F64, BOOL = np.dtype(np.float64), np.dtype(np.bool_)
MOST_RANK = 6


class Memory(Protocol):
    """A piece of device memory that is given back with its last reference."""

    address: int


class Engine(Protocol):
    """What computes on device arrays."""

    on_host: int
    """Calls that were done on the host for want of a kernel."""

    def types(self) -> Sequence[np.dtype[Any]]:
        """Element types that :meth:`map` reads."""
        ...

    def allocate(self, size: int) -> Memory:
        """Memory of so many bytes."""
        ...

    def upload(self, memory: Memory, value: Host) -> None:
        """Copy a dense host array."""
        ...

    def download(self, memory: Memory, offset: int, value: Host) -> None:
        """Fill a dense host array from ``offset`` bytes on."""
        ...

    def map(self, op: str, out: DeviceArray, inputs: Sequence[DeviceArray | float]) -> None:
        """``out`` (dense) element by element from inputs of its shape, or numbers."""
        ...

    def reduce(self, fold: str, out: DeviceArray, rows: DeviceArray) -> None:
        """``out`` [n] in float64 from ``rows`` [n, length], of any strides."""
        ...

    def product(self, out: DeviceArray, a: DeviceArray, b: DeviceArray) -> None:
        """``out`` [batch, m, n], dense, from a [batch, m, k] and b [batch, k, n], float64."""
        ...

    def first(self, flags: DeviceArray) -> int:
        """Index of the first element of dense flags that is not 0; their number if none is."""
        ...


def dense_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Strides in elements of a dense array."""
    out: list[int] = []
    step = 1
    for extent in reversed(shape):
        out.append(step)
        step *= extent
    return tuple(reversed(out))


def regrouped(
    shape: Sequence[int], steps: Sequence[int], wanted: Sequence[int]
) -> tuple[int, ...] | None:
    """Strides of the same elements in another shape; None where no strides give them."""
    if 0 in shape:
        return dense_strides(wanted)
    own = [(n, s) for n, s in zip(shape, steps, strict=True) if n != 1]
    out: list[int] = []
    rest = 1
    stride = 0
    for extent in wanted:
        if extent == 1:
            out.append(0)
            continue
        if rest == 1:
            if not own:
                return None
            rest, stride = own.pop(0)
            # Join what follows until the extent fits.
            while rest % extent and own and stride == own[0][0] * own[0][1]:
                count, stride = own.pop(0)
                rest *= count
        if rest % extent:
            return None
        rest //= extent
        out.append(stride * rest)
    return tuple(out) if rest == 1 and not own else None


class DeviceArray(NDArrayOperatorsMixin):
    """A strided array in device memory; strides are in elements, views share memory."""

    __array_priority__ = 1000

    def __init__(
        self,
        engine: Engine,
        memory: Memory,
        shape: Sequence[int],
        dtype: np.dtype[Any],
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> None:
        self.engine = engine
        self.memory = memory
        self.shape = tuple(shape)
        self.dtype = np.dtype(dtype)
        self.steps = dense_strides(self.shape) if strides is None else tuple(strides)
        self.offset = offset

    # What arrays are asked

    @property
    def ndim(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of the elements."""
        return self.size * self.itemsize

    @property
    def address(self) -> int:
        """Address of the first element."""
        return self.memory.address + self.offset * self.itemsize

    @property
    def dense(self) -> bool:
        """Whether the elements lie one after the other."""
        own = zip(self.shape, self.steps, dense_strides(self.shape), strict=True)
        return self.size == 0 or all(n == 1 or s == d for n, s, d in own)

    @property
    def flags(self) -> SimpleNamespace:
        """As of NumPy's arrays, as far as it is asked."""
        return SimpleNamespace(c_contiguous=self.dense)

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"DeviceArray({self.dtype}{list(self.shape)})"

    def __array__(self, dtype: Any = None, copy: Any = None) -> Host:
        del copy
        host = self.host()
        return host if dtype is None else host.astype(dtype)

    def host(self) -> Host:
        """The elements as a NumPy array."""
        source = self if self.dense else self.copy()
        out = np.empty(self.shape, self.dtype)
        if out.size:
            source.engine.download(source.memory, source.offset * source.itemsize, out)
        return out

    def item(self) -> Any:
        """The one element."""
        return self.host().item()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __bool__(self) -> bool:
        return bool(self.item())

    # Views

    def _view(
        self, shape: Sequence[int], strides: Sequence[int], offset: int | None = None
    ) -> DeviceArray:
        place = self.offset if offset is None else offset
        return DeviceArray(self.engine, self.memory, shape, self.dtype, strides, place)

    def transpose(self, *axes: Any) -> DeviceArray:
        """The dimensions in another order; reversed without ``axes``."""
        order = axes[0] if len(axes) == 1 and not isinstance(axes[0], int) else axes
        order = tuple(order) if order else tuple(reversed(range(self.ndim)))
        return self._view([self.shape[a] for a in order], [self.steps[a] for a in order])

    def reshape(self, *shape: Any) -> DeviceArray:
        """Another shape; a copy where the elements do not lie one after the other."""
        wanted = list(shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape)
        if -1 in wanted:
            known = math.prod(n for n in wanted if n != -1)
            wanted[wanted.index(-1)] = self.size // max(known, 1)
        if math.prod(wanted) != self.size:
            raise ValueError(f"cannot reshape {self.shape} into {tuple(wanted)}")
        strides = dense_strides(wanted) if self.dense else regrouped(self.shape, self.steps, wanted)
        if strides is None:
            return self.copy()._view(wanted, dense_strides(wanted), 0)
        return self._view(wanted, strides)

    def view(self, dtype: Any) -> DeviceArray:
        """The same memory as elements of another type of the same width."""
        kind = np.dtype(dtype)
        if kind.itemsize != self.itemsize:
            raise ValueError(f"cannot view {self.dtype} as {kind}")
        return DeviceArray(self.engine, self.memory, self.shape, kind, self.steps, self.offset)

    def broadcast_to(self, shape: Sequence[int]) -> DeviceArray:
        """Repeated along dimensions of extent 1 and new outer ones."""
        lead = len(shape) - self.ndim
        own = (*(1,) * lead, *self.shape)
        steps = (*(0,) * lead, *self.steps)
        for have, want in zip(own, shape, strict=True):
            if have not in (1, want):
                raise ValueError(f"cannot broadcast {self.shape} to {tuple(shape)}")
        found = [s if have == want else 0 for s, have, want in zip(steps, own, shape, strict=True)]
        return self._view(shape, found)

    def __getitem__(self, key: Any) -> Any:
        parts = self._basic(key)
        if parts is None:
            self.engine.on_host += 1
            return self.host()[np.asarray(key) if isinstance(key, DeviceArray) else key]
        shape: list[int] = []
        strides: list[int] = []
        offset = self.offset
        for part, extent, step in zip(parts, self.shape, self.steps, strict=True):
            if isinstance(part, slice):
                first, last, stride = part.indices(extent)
                shape.append(len(range(first, last, stride)))
                strides.append(step * stride)
            else:
                first = part + extent if part < 0 else part
                if not 0 <= first < extent:
                    raise IndexError(f"index {part} of {extent}")
            offset += first * step
        found = self._view(shape, strides, offset)
        return found.host()[()] if not shape and self.ndim else found

    def _basic(self, key: Any) -> list[int | slice] | None:
        """One slice or index for every dimension; None for other ways to pick elements."""
        given = list(key) if isinstance(key, tuple) else [key]
        whole = sum(part is Ellipsis for part in given)
        if whole:
            at = next(i for i, part in enumerate(given) if part is Ellipsis)
            fill = [slice(None)] * (self.ndim - len(given) + 1)
            given = [*given[:at], *fill, *given[at + 1 :]]
        given += [slice(None)] * (self.ndim - len(given))
        out: list[int | slice] = []
        for part in given:
            if isinstance(part, (int, np.integer)) and not isinstance(part, (bool, np.bool_)):
                out.append(int(part))
            elif isinstance(part, slice):
                out.append(part)
            else:
                return None
        return out

    def __setitem__(self, key: Any, value: Any) -> None:
        """Elements where a mask of the same shape holds, or any by way of the host.

        Only of an array that owns all of its dense memory; views of it keep the old elements.
        """
        if isinstance(key, DeviceArray) and key.shape == self.shape and np.ndim(value) == 0:
            changed = mapped(self.engine, "where", self.dtype, (key, value, self))
        else:
            self.engine.on_host += 1
            host = self.host()
            host[np.asarray(key) if isinstance(key, DeviceArray) else key] = np.asarray(value)
            changed = uploaded(self.engine, host)
        self.memory, self.offset, self.steps = changed.memory, changed.offset, changed.steps

    # Copies

    def copy(self, order: str = "C") -> DeviceArray:
        """A dense copy."""
        del order
        return self.astype(self.dtype)

    def astype(self, dtype: Any, copy: bool = True) -> DeviceArray:
        """A dense copy of another type, each element rounded once."""
        kind = np.dtype(dtype)
        if kind == self.dtype and not copy:
            return self
        same = _SAME_WIDTH.get(kind.itemsize)
        if kind == self.dtype and same is not None and kind != same:
            # Moved as bits: a copy of a float must not quieten a NaN.
            return self.view(same).astype(same).view(kind)
        if kind not in WRITTEN or self.dtype not in self.engine.types():
            self.engine.on_host += 1
            return uploaded(self.engine, self.host().astype(kind))
        return mapped(self.engine, "copy", kind, (self,))

    def erf(self) -> DeviceArray:
        """The error function; NumPy has none."""
        return mapped(self.engine, "erf", F64, (self,))

    # Reductions as methods

    def sum(self, axis: Any = None) -> Any:
        """Sum over axes, float64."""
        return folded("sum", self, axis)

    def max(self, axis: Any = None, initial: float | None = None) -> Any:
        """Maximum over axes."""
        return folded("max", self, axis, initial)

    def min(self, axis: Any = None, initial: float | None = None) -> Any:
        """Minimum over axes."""
        return folded("min", self, axis, initial)

    def any(self, axis: Any = None) -> Any:
        """Whether any element is not 0."""
        return folded("any", self, axis)

    def all(self, axis: Any = None) -> Any:
        """Whether every element is not 0."""
        found = folded("any", self == 0, axis)
        return ~found if isinstance(found, DeviceArray) else not found

    # NumPy's protocols

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        engine = self.engine
        if method == "__call__" and not options:
            if ufunc is np.matmul:
                return _matmul(engine, *inputs)
            if ufunc is np.frexp:
                whole = mapped(engine, "exponent", np.dtype(np.int32), inputs)
                return mapped(engine, "mantissa", F64, inputs), whole
            from tfsearch.target.cuda.functions import UFUNCS

            found = UFUNCS.get(ufunc)
            if found is not None and all(_known(engine, x) for x in inputs):
                op, kind = found
                return mapped(engine, op, _result(kind, inputs), inputs)
        engine.on_host += 1
        hosts = [np.asarray(x) if isinstance(x, DeviceArray) else x for x in inputs]
        given = {n: np.asarray(x) if isinstance(x, DeviceArray) else x for n, x in options.items()}
        return getattr(ufunc, method)(*hosts, **given)

    def __array_function__(
        self, function: Any, types: Any, args: Sequence[Any], options: Any
    ) -> Any:
        del types
        from tfsearch.target.cuda.functions import FUNCTIONS

        own = FUNCTIONS.get(function)
        if own is not None:
            answer = own(self.engine, *args, **options)
            if answer is not NotImplemented:
                return answer
        self.engine.on_host += 1
        return function(*map(_hosted, args), **{n: _hosted(x) for n, x in options.items()})


def _hosted(value: Any) -> Any:
    if isinstance(value, DeviceArray):
        return value.host()
    if isinstance(value, (list, tuple)):
        return type(value)(_hosted(x) for x in value)
    return value


_SAME_WIDTH = {1: np.dtype(np.uint8), 2: np.dtype(np.uint16), 4: np.dtype(np.int32)}
WRITTEN = frozenset(
    np.dtype(t)
    for t in (np.float64, np.float32, np.float16, np.int32, np.int8, np.uint8, np.bool_, np.uint16)
)


def new(engine: Engine, shape: Sequence[int], dtype: np.dtype[Any]) -> DeviceArray:
    """A dense array of undefined contents."""
    memory = engine.allocate(max(1, math.prod(shape)) * dtype.itemsize)
    return DeviceArray(engine, memory, shape, dtype)


def uploaded(engine: Engine, host: Host) -> DeviceArray:
    """A host array on the device; what is repeated by strides of 0 is sent once."""
    once = host[tuple(slice(0, 1) if s == 0 else slice(None) for s in host.strides)]
    dense = np.array(once, order="C")
    out = new(engine, dense.shape, dense.dtype)
    if dense.size:
        engine.upload(out.memory, dense)
    return out if dense.shape == host.shape else out.broadcast_to(host.shape)


def _known(engine: Engine, value: Operand) -> bool:
    if isinstance(value, (DeviceArray, np.ndarray)):
        return value.dtype in engine.types()
    return isinstance(value, (int, float, bool, np.number, np.bool_))


def mapped(
    engine: Engine, op: str, dtype: np.dtype[Any], operands: Sequence[Operand]
) -> DeviceArray:
    """One op over operands that are broadcast together."""
    inputs: list[DeviceArray | float] = []
    for operand in operands:
        if isinstance(operand, DeviceArray):
            inputs.append(operand)
        elif np.ndim(operand) == 0:
            inputs.append(float(operand))
        else:
            inputs.append(uploaded(engine, np.asarray(operand)))
    shape = np.broadcast_shapes(*(x.shape for x in inputs if isinstance(x, DeviceArray)))
    out = new(engine, shape, dtype)
    if out.size:
        spread = [x.broadcast_to(shape) if isinstance(x, DeviceArray) else x for x in inputs]
        engine.map(op, out, spread)
    return out


def _result(kind: str, inputs: Sequence[Operand]) -> np.dtype[Any]:
    if kind == "bool":
        return BOOL
    if kind == "same":
        own = [x.dtype for x in inputs if isinstance(x, (DeviceArray, np.ndarray))]
        if all(d == own[0] for d in own) and own[0] in (np.dtype(np.int32), BOOL):
            whole = all(isinstance(x, (DeviceArray, np.ndarray, int, np.integer)) for x in inputs)
            return own[0] if whole else F64
    return F64


def _matmul(engine: Engine, a: Operand, b: Operand) -> Any:
    left, right = (
        x if isinstance(x, DeviceArray) else uploaded(engine, np.asarray(x)) for x in (a, b)
    )
    if left.ndim != 3 or right.ndim != 3 or {left.dtype, right.dtype} != {F64}:
        engine.on_host += 1
        return np.matmul(left.host(), right.host())
    batch = max(left.shape[0], right.shape[0])
    left = left.broadcast_to((batch, *left.shape[1:]))
    right = right.broadcast_to((batch, *right.shape[1:]))
    out = new(engine, (batch, left.shape[1], right.shape[2]), F64)
    if out.size:
        engine.product(out, left, right)
    return out


def folded(fold: str, x: DeviceArray, axis: Any = None, initial: float | None = None) -> Any:
    """A reduction over axes (all of them for None); a host scalar when nothing is left."""
    axes = range(x.ndim) if axis is None else (axis,) if isinstance(axis, int) else axis
    gone = sorted(a % x.ndim for a in axes)
    kept = [a for a in range(x.ndim) if a not in gone]
    shape = [x.shape[a] for a in kept]
    length = math.prod(x.shape[a] for a in gone)
    if not length or not math.prod(shape):
        host = {"sum": np.sum, "max": np.max, "min": np.min, "any": np.any, "prod": np.prod}
        more = {} if initial is None else {"initial": initial}
        return host[fold](x.host(), axis=None if axis is None else tuple(gone), **more)
    source = x if x.dtype in x.engine.types() else x.astype(F64)
    rows = source.transpose([*kept, *gone]) if x.ndim else source
    flat = _two(rows, len(kept), math.prod(shape), length)
    out = new(x.engine, (math.prod(shape),), F64)
    x.engine.reduce(fold, out, flat)
    if shape:
        found = out.reshape(shape)
        return found.astype(BOOL) if fold == "any" else found
    value = out.host()[0]
    if initial is not None:
        value = {"max": max, "min": min}[fold](value, initial)
    return bool(value) if fold == "any" else value


def _two(x: DeviceArray, split: int, rows: int, length: int) -> DeviceArray:
    """[rows, length] without a copy where the strides allow it."""
    first, second = (
        _joined(x.shape[:split], x.steps[:split]),
        _joined(x.shape[split:], x.steps[split:]),
    )
    if first is None or second is None:
        return x.copy().reshape(rows, length)
    return x._view((rows, length), (first, second))


def _joined(shape: Sequence[int], steps: Sequence[int]) -> int | None:
    """The stride of dimensions walked as one, None where there is none."""
    pairs = [(n, s) for n, s in zip(shape, steps, strict=True) if n != 1]
    for (_, outer), (n, inner) in itertools.pairwise(pairs):
        if outer != n * inner:
            return None
    return pairs[-1][1] if pairs else 0
