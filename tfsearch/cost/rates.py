"""A measured time as rates: floating-point operations a second, share of the roofline."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Rates:
    """``tflops``: useful operations, 1e12 a second. ``roofline_fraction``: lower bound over time.

    None where unknown: a program without operations that count, no bound, no time.
    """

    tflops: float | None
    roofline_fraction: float | None


def rates_of(flops: float | None, median_us: float | None, bound_us: float) -> Rates:
    """Rates of ``flops`` useful operations in ``median_us``; ``bound_us`` is 0 where unknown."""
    if not median_us:
        return Rates(None, None)
    return Rates(
        flops / median_us / 1e6 if flops else None,
        bound_us / median_us if bound_us > 0 else None,
    )
