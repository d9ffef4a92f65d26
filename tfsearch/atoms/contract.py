"""Atoms: one hardware instruction (or a fixed short sequence of them) with its contract.

An atom says what it computes in target-neutral terms (:class:`Computation`), what it asks of
its operands (:class:`OperandSpec`), what it does to memory and when (:class:`Effects`), what
it means on NumPy arrays (``semantics``), what it costs, and how it is written (``template``).
Recipes find atoms by what they compute; the verifier and the interpreter use the contract;
only the emitter looks at the template.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace

Array = np.ndarray[Any, np.dtype[Any]]
Semantics = Callable[[Sequence[Any]], None]


class Access(Enum):
    """What an atom does with an operand."""

    READ = "read"
    WRITE = "write"
    UPDATE = "update"


class Kind(Enum):
    """What class of work an atom does.

    ``LOAD``: memory → register, converting (``dtypes`` = destination, source). ``STORE``:
    register → memory, converting. ``SPLAT``: one element in memory → all lanes. ``FILL``: a
    literal → all lanes. ``MAP``: ``fn`` lane by lane. ``MMA``: ``acc += a · b`` over a tile
    ``shape`` = (m, n, k), ``dtypes`` = (acc, a, b). ``REDUCE``: all lanes of a register into
    one element in every lane of another. ``CONVERT``: register → register of another dtype.
    ``TRANSPOSE``: a 2-D memory tile → its transpose in memory, converting. ``INTERLEAVE``: k
    rows of memory → groups of k adjacent elements. ``CONFIGURE``, ``SYNC``, ``HINT``: state of
    the unit, synchronisation, prefetch.
    """

    LOAD = "load"
    STORE = "store"
    SPLAT = "splat"
    FILL = "fill"
    MAP = "map"
    MMA = "mma"
    REDUCE = "reduce"
    CONVERT = "convert"
    TRANSPOSE = "transpose"
    INTERLEAVE = "interleave"
    CONFIGURE = "configure"
    SYNC = "sync"
    HINT = "hint"


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
class OperandSpec:
    """What an atom asks of one operand.

    ``shape`` is the tile in elements; a window matches when the extents of its tile dimensions
    (:func:`tfsearch.ir.tir.nodes.tile_dims`) equal it and every other extent is 1. Where
    ``partial`` is true for a dimension, a smaller and dynamic extent (at least 0) is legal: only
    those elements are touched. ``dense`` counts the innermost dimensions that must have
    unit-stride layout. ``alignment`` is of the window's address in bytes. ``spaces`` empty means a
    scalar operand: an expression or a literal.
    """

    name: str
    access: Access
    dtype: DType | None
    shape: tuple[int, ...]
    spaces: frozenset[MemorySpace]
    partial: tuple[bool, ...] = ()
    dense: int = 1
    alignment: int = 1


class Completion(Enum):
    """How the completion of an atom's memory effects is signalled."""

    IN_ORDER = "in_order"
    BARRIER_TRANSACTIONS = "barrier_transactions"
    COMMIT_GROUP = "commit_group"
    MATRIX_GROUP = "matrix_group"


@dataclass(frozen=True)
class Effects:
    """What an atom does to memory and when, in target-neutral terms.

    ``proxy`` names the path to memory (``generic``, ``async``, ``tensor``, ``weak_store`` for
    stores that need a fence to be seen by others). ``synchronises`` names what it orders:
    "" for nothing, "unit_barrier" for a barrier over all units, "fence" for a proxy fence.
    """

    completion: Completion = Completion.IN_ORDER
    proxy: str = "generic"
    synchronises: str = ""


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
    """One instruction with its operand contract."""

    id: str
    features: frozenset[str]
    computes: Computation
    operands: tuple[OperandSpec, ...]
    semantics: Semantics
    cost: AtomCost
    template: str
    issuer: str = "thread"
    effects: Effects = field(default_factory=Effects)
    flops: int = 0

    def __post_init__(self) -> None:
        for spec in self.operands:
            if spec.partial and len(spec.partial) != len(spec.shape):
                raise ValueError(f"{self.id}.{spec.name}: partial must have one flag a dimension")
