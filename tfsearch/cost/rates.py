"""A measured time as rates: floating-point operations a second, share of the roofline."""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.ir.hir.facts import facts_of
from tfsearch.ir.hir.program import Program


@dataclass(frozen=True)
class Rates:
    """``tflops``: useful operations, 1e12 a second. ``roofline_fraction``: lower bound over time.

    None where unknown: a program without operations that count, no bound, no time.
    """

    tflops: float | None
    roofline_fraction: float | None


def rates_of(program: Program, median_us: float | None, bound_us: float) -> Rates:
    """Rates of a program that takes ``median_us``; ``bound_us`` is 0 where it is unknown.

    Dimensions that are not bound count with their largest size, at which they are measured.
    """
    if not median_us:
        return Rates(None, None)
    flops = facts_of(program.bind(program.largest)).flops
    return Rates(
        flops / median_us / 1e6 if flops else None,
        bound_us / median_us if bound_us > 0 else None,
    )
