"""TIR: one kernel as statements over tiles.

Every memory access and every synchronisation is a :class:`Call` of an atom; the rest is
integer control flow. Atoms are named by id and resolved against an atom table, so that this
module knows no instruction set.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from math import prod

from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, as_expr

UNIT = "unit"
"""Name of the variable that holds the index of the executing unit (thread, CTA)."""


class MemorySpace(Enum):
    """Where a buffer lives; the value is its canonical text.

    ``GLOBAL``: arguments. ``SCRATCH``: workspace memory that all units share. ``LOCAL``: memory
    private to one unit. ``REGISTER``: vector or scalar registers of one unit, indexed by
    constants only once unrolled loops are expanded. ``TILE``: matrix registers of one unit.
    ``SHARED``: on-chip memory shared by the threads of one unit.
    """

    GLOBAL = "global"
    SCRATCH = "scratch"
    LOCAL = "local"
    REGISTER = "register"
    TILE = "tile"
    SHARED = "shared"

    @property
    def is_register(self) -> bool:
        """True where buffers have no address."""
        return self in (MemorySpace.REGISTER, MemorySpace.TILE)

    @property
    def is_private(self) -> bool:
        """True where each unit has its own copy."""
        return self not in (MemorySpace.GLOBAL, MemorySpace.SCRATCH)


class Io(Enum):
    """Direction of a kernel argument. ``PREPARED`` is filled by a prepare kernel beforehand."""

    IN = "in"
    OUT = "out"
    INOUT = "inout"
    PREPARED = "prepared"


@dataclass(frozen=True)
class Buffer:
    """A typed array in a memory space.

    ``shape`` and ``strides`` are in elements, outermost first; ``strides`` None means dense
    row-major. ``alignment`` is the guaranteed alignment of the first element in bytes.
    ``layout`` stands instead of strides: one mode a dimension, offsets in elements.
    ``fragment`` names the thread-value layout of a register tile ("" where one thread holds it).
    ``over`` names a buffer whose storage this one shares, from its byte ``at`` on ("": it has its
    own): what is written through one is undefined in the other.
    """

    name: str
    dtype: DType
    shape: tuple[int, ...]
    space: MemorySpace
    strides: tuple[int, ...] | None = None
    alignment: int = 64
    layout: Layout | SwizzledLayout | None = None
    fragment: str = ""
    over: str = ""
    at: int = 0

    @property
    def dense_strides(self) -> tuple[int, ...]:
        """Strides with the dense case filled in, elements; of a buffer without a layout."""
        if self.strides is not None:
            return self.strides
        out: list[int] = []
        step = 1
        for extent in reversed(self.shape):
            out.append(step)
            step *= extent
        return tuple(reversed(out))

    @property
    def bytes(self) -> int:
        """Bytes from the first to past the last element."""
        if 0 in self.shape:
            return 0
        if self.layout is not None:
            return self.layout.cosize * self.dtype.bytes
        last = sum((n - 1) * s for n, s in zip(self.shape, self.dense_strides, strict=True))
        return (last + 1) * self.dtype.bytes


@dataclass(frozen=True)
class Window:
    """A box of a buffer: per dimension a start and an extent (elements).

    Extents that are not literal are the dynamic sizes of partial tiles.
    """

    buffer: Buffer
    starts: tuple[Expr, ...]
    extents: tuple[Expr, ...]

    def __post_init__(self) -> None:
        rank = len(self.buffer.shape)
        if len(self.starts) != rank or len(self.extents) != rank:
            raise ValueError(f"window of {self.buffer.name} must have rank {rank}")


@dataclass(frozen=True)
class Scalar:
    """A literal number handed to an atom (a fill value, a constant of the program)."""

    value: float


Operand = Window | Expr | Scalar


@dataclass(frozen=True)
class Stmt:
    """Base of statements."""


Block = tuple[Stmt, ...]


@dataclass(frozen=True)
class Alloc(Stmt):
    """Bring a buffer to life until the end of the enclosing block. Contents are undefined."""

    buffer: Buffer


@dataclass(frozen=True)
class Let(Stmt):
    """Name an integer value for the rest of the enclosing block."""

    name: str
    value: Expr


class LoopKind(Enum):
    """``SERIAL`` is a loop in the code; ``UNROLLED`` is expanded by the emitter."""

    SERIAL = "for"
    UNROLLED = "unrolled"


@dataclass(frozen=True)
class For(Stmt):
    """``for name in start .. stop step step``; ``unroll`` is a hint to the compiler (1: none)."""

    name: str
    start: Expr
    stop: Expr
    body: Block
    kind: LoopKind = LoopKind.SERIAL
    step: int = 1
    unroll: int = 1


@dataclass(frozen=True)
class If(Stmt):
    """Run ``then`` where the predicate is not 0, ``orelse`` elsewhere."""

    condition: Expr
    then: Block
    orelse: Block = ()


@dataclass(frozen=True)
class Role(Stmt):
    """Who runs the body: units ``first <= unit < last``, or warps of the unit.

    With a ``width`` above 0, ``first`` and ``last`` count warps: every ``width`` of them are an
    instance that runs the body as one collective, and ``instance`` names the variable that
    counts instances from 0 ("" if none). Consecutive such roles of a block run concurrently.
    """

    name: str
    first: int
    last: int
    body: Block
    width: int = 0
    instance: str = ""

    @property
    def over_warps(self) -> bool:
        """True where the role picks warps, not units."""
        return self.width > 0

    @property
    def instances(self) -> int:
        """Collectives that run the body side by side; 1 for a role over units."""
        return max((self.last - self.first) // self.width, 0) if self.width else 1


@dataclass(frozen=True)
class Call(Stmt):
    """Execute an atom on operands, in the order of the atom's contract."""

    atom: str
    operands: tuple[Operand, ...]


@dataclass(frozen=True)
class Box:
    """A descriptor that the host makes of an argument, for copies of whole boxes.

    ``shape``: extents of a box, elements; ``strides``: of the argument, elements; ``swizzle``: of
    the shared memory that a box is copied to or from, offsets in elements.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    swizzle: Swizzle | None = None


@dataclass(frozen=True)
class Param:
    """A kernel argument, with the descriptors that the host makes of it."""

    buffer: Buffer
    io: Io
    boxes: tuple[Box, ...] = ()


@dataclass(frozen=True)
class Kernel:
    """One kernel: ``units`` executing units run ``body`` with ``unit`` = 0 … units-1.

    A unit has ``warps`` warps of ``lanes`` threads, which share ``SHARED`` memory; each thread
    starts with ``registers`` registers (0: not set). Consecutive units are grouped in clusters
    of shape ``cluster``; a unit's rank in its cluster is ``unit % cluster_size``.
    """

    name: str
    params: tuple[Param, ...]
    units: int
    body: Block
    warps: int = 1
    lanes: int = 1
    registers: int = 0
    cluster: tuple[int, ...] = ()

    @property
    def cluster_size(self) -> int:
        """Units of a cluster; 1 without clusters."""
        return prod(self.cluster)


@dataclass(frozen=True)
class Module:
    """The kernels of one candidate: ``main`` last; the others fill its ``PREPARED`` arguments.

    A prepare kernel runs once per set of constant inputs; its ``OUT`` arguments have the names
    of the ``PREPARED`` parameters of ``main``.
    """

    kernels: tuple[Kernel, ...]

    @property
    def main(self) -> Kernel:
        """The kernel that a call runs."""
        return self.kernels[-1]

    @property
    def prepares(self) -> tuple[Kernel, ...]:
        """The kernels that run once ahead of calls."""
        return self.kernels[:-1]


def window(buffer: Buffer, *dims: ExprLike | tuple[ExprLike, ExprLike]) -> Window:
    """A window; each dimension is a start (extent 1) or a pair (start, extent)."""
    starts: list[Expr] = []
    extents: list[Expr] = []
    for dim in dims:
        start, extent = dim if isinstance(dim, tuple) else (dim, 1)
        starts.append(as_expr(start))
        extents.append(as_expr(extent))
    return Window(buffer, tuple(starts), tuple(extents))


def whole(buffer: Buffer) -> Window:
    """The window that is the whole buffer."""
    return Window(
        buffer,
        tuple(Const(0) for _ in buffer.shape),
        tuple(Const(extent) for extent in buffer.shape),
    )


def tile_dims(box: Window, rank: int) -> tuple[int, ...]:
    """The dimensions of a window that make up an operand's tile of the given rank.

    Dimensions of literal extent 1 are left out, from the outermost inwards, until ``rank`` are
    left. Fewer than ``rank`` come back when the buffer itself has fewer.
    """
    kept = list(range(len(box.extents)))
    for dim, extent in enumerate(box.extents):
        if len(kept) > rank and extent == Const(1):
            kept.remove(dim)
    return tuple(kept)
