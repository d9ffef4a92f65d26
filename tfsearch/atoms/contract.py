"""Atoms: one hardware instruction (or a fixed short sequence of them) with its contract.

An atom says what it computes in target-neutral terms (:class:`Computation`), what it asks of
its operands (:class:`OperandSpec`), what it does to memory and when (:class:`Effects`), what
it means on NumPy arrays (``semantics``), what it costs, and how it is written (``template``).
Recipes find atoms by what they compute; the verifier and the interpreter use the contract;
only the emitter looks at the template.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum, StrEnum
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import IntTuple, Swizzle
from tfsearch.ir.tir.nodes import MemorySpace

Array = np.ndarray[Any, np.dtype[Any]]
Semantics = Callable[[Sequence[Any]], None]


class Access(Enum):
    """What an atom does with an operand.

    ``UPDATE`` reads and writes; ``REDUCE`` updates atomically and in no order, so that units may
    reduce into one place at once.
    """

    READ = "read"
    WRITE = "write"
    UPDATE = "update"
    REDUCE = "reduce"

    @property
    def reads(self) -> bool:
        """True where earlier contents matter."""
        return self is not Access.WRITE

    @property
    def writes(self) -> bool:
        """True where contents change."""
        return self is not Access.READ


class Part(Enum):
    """What an operand is to its atom.

    ``TILE``: what is worked on. ``BARRIER``: a barrier object. ``COUNT``: arrivals. ``BYTES``: what
    a barrier's phase waits for. ``PARITY``: of a phase, 0 or 1. ``PENDING``: groups that may
    stay open. ``ID``: of a named barrier, ``WARPS`` its size. ``RANK``: of a unit in its cluster.
    ``MASK``: a set of ranks, one bit each. ``REGISTERS``: of one thread.
    """

    TILE = "tile"
    BARRIER = "barrier"
    COUNT = "count"
    BYTES = "bytes"
    PARITY = "parity"
    PENDING = "pending"
    ID = "id"
    WARPS = "warps"
    RANK = "rank"
    MASK = "mask"
    REGISTERS = "registers"


class Kind(Enum):
    """What class of work an atom does.

    ``LOAD``: memory → register, converting (``dtypes`` = destination, source). ``STORE``:
    register → memory, converting. ``SPLAT``: one element in memory → all lanes. ``FILL``: a
    literal → all lanes. ``MAP``: ``fn`` lane by lane. ``MMA``: ``acc += a · b`` over a tile
    ``shape`` = (m, n, k), ``dtypes`` = (acc, a, b). ``REDUCE``: all lanes of a register into
    one element in every lane of another. ``CONVERT``: register → register of another dtype.
    ``COPY``: memory → memory (``dtypes`` = destination, source).
    ``TRANSPOSE``: a 2-D memory tile → its transpose in memory, converting. ``INTERLEAVE``: k
    rows of memory → groups of k adjacent elements. ``CONFIGURE``, ``SYNC``, ``HINT``: state of
    the unit, synchronisation, prefetch. ``OPAQUE``: something else; it counts as reading and
    writing everything that it is handed.
    """

    LOAD = "load"
    STORE = "store"
    SPLAT = "splat"
    FILL = "fill"
    MAP = "map"
    MMA = "mma"
    REDUCE = "reduce"
    CONVERT = "convert"
    COPY = "copy"
    TRANSPOSE = "transpose"
    INTERLEAVE = "interleave"
    CONFIGURE = "configure"
    SYNC = "sync"
    HINT = "hint"
    OPAQUE = "opaque"


@dataclass(frozen=True)
class Computation:
    """What an atom computes.

    ``fn`` is an HIR function name for ``MAP`` and ``REDUCE`` (or ``fma``: a MAP that adds the
    products of two registers to a third), else a variant ("", "stream").
    ``shape`` is (lanes,) or (m, n, k) or (rows, columns). ``dtypes`` as :class:`Kind` says;
    for ``MAP`` and ``REDUCE`` the element type once. ``accuracy`` is "precise" or "fast".
    ``partial`` marks the variant that touches only the first lanes of a tile.
    """

    kind: Kind
    fn: str
    shape: tuple[int, ...]
    dtypes: tuple[DType, ...]
    accuracy: str = "precise"
    partial: bool = False


@dataclass(frozen=True)
class TileLayout:
    """A layout that an operand takes: shape and strides of the tile, elements, and its swizzle.

    The top-level modes are the tile's dimensions. A stride of :data:`ANY` is free.
    """

    name: str
    shape: IntTuple
    stride: IntTuple
    swizzle: Swizzle | None = None


ANY = -1
"""A stride of a :class:`TileLayout` that may be any multiple of an element."""


@dataclass(frozen=True)
class BoxRule:
    """What a copy by the host's descriptor asks of it.

    ``extent``: the most elements of a box in a dimension. ``bytes``: the innermost extent and all
    strides but the innermost (which is 1) are multiples of as many bytes. ``span``: the most bytes
    of the innermost extent for a swizzle ``str(swizzle)``; swizzles that are not in it are refused.
    """

    extent: int
    bytes: int
    rank: int
    span: Mapping[str, int] = field(default_factory=dict[str, int])


@dataclass(frozen=True)
class OperandSpec:
    """What an atom asks of one operand.

    ``shape`` is the tile in elements; a window matches when the extents of its tile dimensions
    (:func:`tfsearch.ir.tir.nodes.tile_dims`) equal it and every other extent is 1. Where
    ``partial`` is true for a dimension, a smaller and dynamic extent (at least 0) is legal: only
    those elements are touched. ``dense`` counts the innermost dimensions that must have
    unit-stride layout. ``alignment`` is of the window's address in bytes. ``spaces`` empty means a
    scalar operand: an expression or a literal.

    ``part`` says what the operand is. ``proxy`` is the path to its memory ("": the atom's).
    ``layouts`` and ``fragments`` name what is taken of shared memory and of registers (empty: any).
    ``box``: the operand is an argument that is reached by a descriptor of the host, whose box is
    the tile. ``share`` names how the threads of a collective share out the tile: two accesses by
    one collective to one window with the same share need no barrier between ("": unknown).
    """

    name: str
    access: Access
    dtype: DType | None
    shape: tuple[int, ...]
    spaces: frozenset[MemorySpace]
    partial: tuple[bool, ...] = ()
    dense: int = 1
    alignment: int = 1
    part: Part = Part.TILE
    proxy: str = ""
    layouts: tuple[TileLayout, ...] = ()
    fragments: tuple[str, ...] = ()
    share: str = ""
    box: BoxRule | None = None


class Sync(StrEnum):
    """What an atom synchronises; the operands it takes for that are found by their ``part``.

    ``UNITS``: all units meet. ``TEAM``: all warps of the unit meet. ``NAMED``, ``NAMED_ARRIVE``:
    as many warps as the operand says, by id; the second does not wait. ``CLUSTER_ARRIVE``,
    ``CLUSTER_WAIT``: all warps of the cluster. ``INIT``: a barrier object takes COUNT arrivals a
    phase. ``ARRIVE``: one arrival (or COUNT) per issuing thread, in unit RANK of the cluster.
    ``ARRIVE_AFTER``: the same once all operations of the stream that the threads have issued are
    complete; it does not wait. ``EXPECT``: an arrival that adds BYTES to what the phase waits for.
    ``WAIT``: until the phase of PARITY is over. ``COMMIT``: close the group of what was issued.
    ``WAIT_GROUP``: until at most PENDING groups are open. ``FENCE``: what is known here becomes
    visible through the proxies ``Effects.fences``. ``SET_REGISTERS``: every thread has REGISTERS
    registers from here on.
    """

    NONE = ""
    UNITS = "unit_barrier"
    TEAM = "team_barrier"
    NAMED = "named_barrier"
    NAMED_ARRIVE = "named_arrive"
    CLUSTER_ARRIVE = "cluster_arrive"
    CLUSTER_WAIT = "cluster_wait"
    INIT = "barrier_init"
    ARRIVE = "barrier_arrive"
    ARRIVE_AFTER = "barrier_arrive_after"
    EXPECT = "barrier_expect"
    WAIT = "barrier_wait"
    COMMIT = "commit"
    WAIT_GROUP = "wait_group"
    FENCE = "fence"
    SET_REGISTERS = "set_registers"


class Completion(Enum):
    """How the completion of an atom's memory effects is signalled.

    ``BARRIER_TRANSACTIONS``: the bytes of every written tile, over-hanging parts included, count on
    the barrier operand, in every unit that is written. ``COMMIT_GROUP``, ``MATRIX_GROUP``: the
    group of stream ``Effects.group`` that the operation is committed to; matrix operations of
    one collective run in order.
    """

    IN_ORDER = "in_order"
    BARRIER_TRANSACTIONS = "barrier_transactions"
    COMMIT_GROUP = "commit_group"
    MATRIX_GROUP = "matrix_group"


GENERIC = "generic"
"""The usual path to memory."""
WEAK_STORE = "weak_store"
"""The proxy of stores that only a fence of it makes visible to others."""


@dataclass(frozen=True)
class Effects:
    """What an atom does to memory and when, in target-neutral terms.

    ``proxy`` names the path to memory (``generic``, ``async``, ``tensor``, ``weak_store`` for
    stores that need a fence to be seen by others). ``synchronises`` is a :class:`Sync`. ``group``
    is the stream of groups that an asynchronous atom, a commit or a wait belongs to;
    ``reads_only``: a wait after which sources may be overwritten, while what was written is not
    known to be complete. ``fences``: the proxies of a fence.

    ``configures`` and ``releases`` name a mode of the unit that is on, or off, from here; ``needs``
    the one in which the atom works.
    """

    completion: Completion = Completion.IN_ORDER
    proxy: str = GENERIC
    synchronises: str = ""
    group: str = ""
    reads_only: bool = False
    fences: frozenset[str] = frozenset()
    configures: str = ""
    releases: str = ""
    needs: str = ""

    def __post_init__(self) -> None:
        Sync(self.synchronises)
        needs_group = self.synchronises in (Sync.COMMIT, Sync.WAIT_GROUP, Sync.ARRIVE_AFTER)
        if needs_group and not self.group:
            raise ValueError(f"{self.synchronises} names the group that it is about")


NEEDS: Mapping[str, frozenset[Part]] = {
    Sync.NAMED: frozenset({Part.ID, Part.WARPS}),
    Sync.NAMED_ARRIVE: frozenset({Part.ID, Part.WARPS}),
    Sync.INIT: frozenset({Part.BARRIER, Part.COUNT}),
    Sync.ARRIVE: frozenset({Part.BARRIER}),
    Sync.ARRIVE_AFTER: frozenset({Part.BARRIER}),
    Sync.EXPECT: frozenset({Part.BARRIER, Part.BYTES}),
    Sync.WAIT: frozenset({Part.BARRIER, Part.PARITY}),
    Sync.WAIT_GROUP: frozenset({Part.PENDING}),
    Sync.SET_REGISTERS: frozenset({Part.REGISTERS}),
}
"""Parts that an atom has which synchronises so."""
ISSUERS = ("thread", "warp", "all")
"""Who of a collective issues an atom: one thread, one thread of every warp, every thread."""


@dataclass(frozen=True)
class AtomCost:
    """Cost facts of one execution: the pipe it occupies and the work it does.

    ``cycles`` is the reciprocal throughput on the architecture document's reference clock;
    ``latency`` in cycles. Origin is stated where the atom is declared.
    """

    pipe: str
    cycles: float
    latency: float = 1.0


@dataclass(frozen=True)
class Atom:
    """One instruction with its operand contract.

    ``issuer``: ``thread`` (one elected thread of the collective), ``warp`` (one thread of each of
    its warps) or ``all`` (every thread). ``issuing_warps``: the collective's width that it takes
    (0: any); ``warp_alignment`` divides the first warp of the collective. ``shared_bytes``: shared
    memory that the atom's own code declares, once a kernel however often it is called.
    """

    id: str
    features: frozenset[str]
    computes: Computation
    operands: tuple[OperandSpec, ...]
    semantics: Semantics
    cost: AtomCost
    template: str
    issuer: str = "thread"
    issuing_warps: int = 0
    warp_alignment: int = 1
    effects: Effects = field(default_factory=Effects)
    flops: int = 0
    shared_bytes: int = 0

    @cached_property
    def parts(self) -> Mapping[Part, int]:
        """The position of the first operand of each part."""
        places = [(spec.part, place) for place, spec in enumerate(self.operands)]
        return dict(reversed(places))

    def find(self, part: Part) -> int:
        """The position of the first operand that is this part; -1 if there is none."""
        return self.parts.get(part, -1)

    @cached_property
    def is_laid_out(self) -> bool:
        """True where an operand asks for a layout, a fragment or a descriptor."""
        return any(spec.layouts or spec.fragments or spec.box for spec in self.operands)

    @cached_property
    def has_proxies(self) -> bool:
        """True where memory is reached by another path than the usual one."""
        default = self.effects.proxy
        return any(spec.spaces and (spec.proxy or default) != GENERIC for spec in self.operands)

    @cached_property
    def is_plain(self) -> bool:
        """True where a unit of one thread that does one thing after another is all it needs."""
        return not (
            self.is_async
            or self.effects.synchronises not in (Sync.NONE, Sync.UNITS, Sync.FENCE)
            or any(spec.access is Access.REDUCE for spec in self.operands)
        )

    @property
    def is_async(self) -> bool:
        """True where the atom's memory effects are not complete when it ends."""
        return self.effects.completion is not Completion.IN_ORDER

    def __post_init__(self) -> None:
        missing = NEEDS.get(self.effects.synchronises, frozenset()) - set(self.parts)
        if missing:
            names = ", ".join(sorted(part.value for part in missing))
            raise ValueError(f"{self.id}: {self.effects.synchronises} takes an operand for {names}")
        if self.issuer not in ISSUERS:
            raise ValueError(f"{self.id}: issuer {self.issuer} is none of {', '.join(ISSUERS)}")
        for spec in self.operands:
            if spec.partial and len(spec.partial) != len(spec.shape):
                raise ValueError(f"{self.id}.{spec.name}: partial must have one flag a dimension")
            opaque = self.computes.kind is Kind.OPAQUE and bool(spec.spaces)
            if opaque and spec.access is not Access.UPDATE:
                raise ValueError(f"{self.id}.{spec.name}: an opaque call updates what it is handed")
