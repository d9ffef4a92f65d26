"""What a target offers: capacities that the verifier holds kernels against."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tfsearch.ir.tir.nodes import Buffer, MemorySpace


@dataclass(frozen=True)
class Limits:
    """Capacities of a target and the verifier's own budgets.

    ``capacity``: per space, bytes (``LOCAL``, ``SHARED``: per unit; ``SCRATCH``: in all) or a
    count (``REGISTER``: registers of ``register_bytes``; ``TILE``: tiles of ``tile_bytes``); a
    space without an entry does not exist on the target. ``GLOBAL`` is never allocated.
    ``enumeration_points``: how many points of loop variables may be tried where bounds cannot
    be proved symbolically. ``max_refusals``: where a report stops.

    Of teams: ``max_warps`` of a unit, each of ``lanes`` threads (0: any), ``max_cluster`` units of
    a cluster, ``named_barriers`` of a unit, of which the first ``reserved_barriers`` are not for
    kernels; ``register_file``: registers of a unit (0: not known), of which a thread has
    ``register_least`` to ``register_most``, in steps of ``register_step``. ``shared_given``: bytes
    that a unit's shared memory is known to start at a multiple of (0: of whatever is asked for);
    buffers aligned to more cost as many bytes as it takes to get there.
    """

    capacity: Mapping[MemorySpace, int]
    register_bytes: int = 64
    tile_bytes: int = 1024
    max_units: int = 1024
    enumeration_points: int = 200_000
    max_refusals: int = 32
    max_warps: int = 1
    lanes: int = 0
    max_cluster: int = 1
    named_barriers: int = 16
    reserved_barriers: int = 0
    register_file: int = 0
    register_least: int = 1
    register_most: int = 255
    register_step: int = 8
    shared_given: int = 0


def footprint(buffer: Buffer, limits: Limits) -> int:
    """What a buffer takes of its space: bytes, or a count of registers or tiles.

    A register holds (part of) the last dimension, a tile (part of) the last two.
    """
    size = buffer.dtype.bytes
    if buffer.space is MemorySpace.REGISTER:
        return prod(buffer.shape[:-1]) * -(-buffer.shape[-1] * size // limits.register_bytes)
    if buffer.space is MemorySpace.TILE:
        return prod(buffer.shape[:-2]) * -(-prod(buffer.shape[-2:]) * size // limits.tile_bytes)
    return buffer.bytes
