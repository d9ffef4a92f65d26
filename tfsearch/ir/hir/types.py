"""Tensor types: element type, dimensions (constants or ranges), strides."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType

MAX_RANK = 8
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


def is_name(text: str) -> bool:
    """True for an identifier of the text syntax: ``[A-Za-z_][A-Za-z0-9_]*``."""
    return _NAME.match(text) is not None


@dataclass(frozen=True)
class Range:
    """A dimension known only as ``lo ≤ name ≤ hi``, a multiple of ``multiple``."""

    name: str
    lo: int
    hi: int
    multiple: int = 1

    def __post_init__(self) -> None:
        if not is_name(self.name):
            raise RequestError("hir.dimension", f"dimension name {self.name!r} is no identifier")
        if not 1 <= self.lo <= self.hi:
            raise RequestError(
                "hir.dimension",
                f"dimension {self.name}: {self.lo}..{self.hi} is not a range of positive sizes",
            )
        if self.multiple < 1 or self.hi // self.multiple * self.multiple < self.lo:
            raise RequestError(
                "hir.dimension",
                f"dimension {self.name}: no multiple of {self.multiple} lies in "
                f"{self.lo}..{self.hi}",
            )

    def holds(self, size: int) -> bool:
        """True when ``size`` is one of the sizes of this range."""
        return self.lo <= size <= self.hi and size % self.multiple == 0

    @property
    def largest(self) -> int:
        """The largest size of this range."""
        return self.hi // self.multiple * self.multiple

    @property
    def smallest(self) -> int:
        """The smallest size of this range."""
        return -(-self.lo // self.multiple) * self.multiple


Dim = int | Range
Shape = tuple[Dim, ...]


def dim_text(dim: Dim) -> str:
    """A dimension in the text syntax: ``512`` or ``m: 1..64 % 8``."""
    if isinstance(dim, int):
        return str(dim)
    step = f" % {dim.multiple}" if dim.multiple != 1 else ""
    return f"{dim.name}: {dim.lo}..{dim.hi}{step}"


def shape_text(shape: Shape) -> str:
    """A shape for messages: ``[m,512]``."""
    return "[" + ",".join(d.name if isinstance(d, Range) else str(d) for d in shape) + "]"


def bind_dim(dim: Dim, dims: Mapping[str, int]) -> Dim:
    """The size that ``dims`` gives to a range; other dimensions unchanged.

    Raises ``RequestError`` when the size is outside of the range.
    """
    if isinstance(dim, int) or dim.name not in dims:
        return dim
    size = dims[dim.name]
    if not dim.holds(size):
        raise RequestError(
            "hir.dimension-range", f"dimension {dim.name} = {size} is outside of {dim_text(dim)}"
        )
    return size


def row_major(shape: Shape) -> tuple[int, ...] | None:
    """Dense row-major strides in elements; ``None`` when they depend on a range."""
    strides: list[int] = []
    step = 1
    for index, dim in reversed(list(enumerate(shape))):
        strides.append(step)
        if isinstance(dim, int):
            step *= dim
        elif index:
            return None
    return tuple(reversed(strides))


def column_major(shape: Shape) -> tuple[int, ...] | None:
    """Strides with the last two dimensions stored transposed; ``None`` if undefined."""
    if len(shape) < 2:
        return None
    swapped = (*shape[:-2], shape[-1], shape[-2])
    dense = row_major(swapped)
    return None if dense is None else (*dense[:-2], dense[-1], dense[-2])


@dataclass(frozen=True)
class TensorType:
    """Element type, shape and strides (in elements; ``None`` = dense row-major).

    Strides that say the same as ``None`` are stored as ``None``, and the stride of a dimension
    of size one is the dense one, so equal layouts are equal types. Scalars have rank 0.
    """

    dtype: DType
    shape: Shape = ()
    strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        if len(self.shape) > MAX_RANK:
            raise RequestError(
                "hir.rank", f"rank {len(self.shape)} exceeds the limit of {MAX_RANK} dimensions"
            )
        named: dict[str, Range] = {}
        for dim in self.shape:
            if isinstance(dim, Range):
                if named.setdefault(dim.name, dim) != dim:
                    raise RequestError(
                        "hir.dimension", f"dimension {dim.name} has two different ranges"
                    )
            elif dim < 1:
                raise RequestError(
                    "hir.dimension", f"dimension {dim} in {shape_text(self.shape)} is not positive"
                )
        if self.strides is not None:
            object.__setattr__(self, "strides", _checked_strides(self.shape, self.strides))

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    @property
    def is_dense(self) -> bool:
        """True for dense row-major storage."""
        return self.strides is None

    @property
    def sizes(self) -> tuple[int, ...]:
        """The shape as integers; ``RequestError`` when a dimension is a range."""
        out: list[int] = []
        for dim in self.shape:
            if isinstance(dim, Range):
                raise RequestError(
                    "hir.unbound", f"dimension {dim.name} has no size yet: bind it first"
                )
            out.append(dim)
        return tuple(out)

    @property
    def count(self) -> int:
        """Number of elements (all dimensions bound)."""
        return math.prod(self.sizes)

    @property
    def bytes(self) -> int:
        """Bytes of the elements, without gaps (all dimensions bound)."""
        return self.count * self.dtype.bytes

    @property
    def element_strides(self) -> tuple[int, ...]:
        """Strides in elements, dense ones spelled out (all dimensions bound)."""
        if self.strides is not None:
            return self.strides
        dense = row_major(self.sizes)
        return dense if dense is not None else ()

    def bind(self, dims: Mapping[str, int]) -> TensorType:
        """This type with the named ranges replaced by sizes."""
        return TensorType(self.dtype, tuple(bind_dim(d, dims) for d in self.shape), self.strides)

    def with_dtype(self, dtype: DType) -> TensorType:
        """Dense type of the same shape and another element type."""
        return TensorType(dtype, self.shape)

    def with_shape(self, shape: Shape) -> TensorType:
        """Dense type of the same element type and another shape."""
        return TensorType(self.dtype, shape)


def _checked_strides(shape: Shape, strides: tuple[int, ...]) -> tuple[int, ...] | None:
    if len(strides) != len(shape):
        raise RequestError(
            "hir.strides", f"{len(strides)} strides for {len(shape)} dimensions {shape_text(shape)}"
        )
    if any(s < 1 for s in strides):
        raise RequestError("hir.strides", f"strides {list(strides)} must all be positive")
    dense = row_major(shape)
    if dense is not None:
        strides = tuple(d if n == 1 else s for s, d, n in zip(strides, dense, shape, strict=True))
        if strides == dense:
            return None
    reach = 0
    largest = [
        (s, d.largest if isinstance(d, Range) else d) for s, d in zip(strides, shape, strict=True)
    ]
    for stride, size in sorted(largest):
        if size == 1:
            continue
        if stride <= reach:
            raise RequestError(
                "hir.strides",
                f"strides {list(strides)} of {shape_text(shape)} make elements overlap: stride "
                f"{stride} must exceed {reach}",
            )
        reach += stride * (size - 1)
    return strides
