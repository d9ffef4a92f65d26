"""The choices of a row-wise candidate, read from the parameters of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.core.records import ParamValue
from tfsearch.recipes.domain import flat_size
from tfsearch.recipes.rowwise.match import Domain, Pipeline

REREAD, STAGED, REGISTERS = "reread", "staged", "registers"
EXACT, RECIPROCAL = "exact", "reciprocal"


@dataclass(frozen=True)
class Schedule:
    """One candidate.

    ``unroll`` fragments along the lanes and ``rows`` lines are in flight at once. ROWS: a line is
    a row, each of its reductions has ``unroll`` accumulators. COLUMNS: ``unroll`` neighbouring
    fragments share a walk down the rows, with ``rows`` accumulators each. ``beside``: successive
    passes walk along successive groups together (ROWS).
    """

    lanes: int
    unroll: int
    rows: int
    staging: str
    divide: str
    prefetch: bool
    stream: bool
    units: int
    beside: bool = False

    @staticmethod
    def of(params: Mapping[str, ParamValue]) -> Schedule:
        """Read the parameters that :mod:`tfsearch.recipes.rowwise.parameters` declares."""
        return Schedule(
            lanes=int(params["lanes"]),
            unroll=int(params["unroll"]),
            rows=int(params["rows"]),
            staging=str(params["staging"]),
            divide=str(params["divide"]),
            prefetch=bool(params["prefetch"]),
            stream=bool(params["stream"]),
            units=int(params["units"]),
            beside=bool(params["beside"]),
        )


@dataclass(frozen=True)
class Geometry:
    """Sizes that the loops of a pipeline run over.

    ``lines`` are the places outside of a walk, ``extent`` the elements along the lane axis,
    ``deep`` the places of the reduced axes beside the lanes. ROWS: ``lines`` rows, each ``deep``
    times ``extent``. COLUMNS: ``lines`` places of the kept axes but the lanes.
    """

    pipeline: Pipeline
    lines: int
    extent: int
    deep: int

    @staticmethod
    def of(domain: Domain) -> Geometry:
        """Sizes of a domain."""
        extents = domain.extents
        kept = [a for a in domain.kept if a != domain.lane]
        reduced = [a for a in domain.reduced if a != domain.lane]
        return Geometry(
            domain.pipeline,
            flat_size(kept, extents),
            extents[domain.lane],
            flat_size(reduced, extents),
        )
