"""Rates of a measured time, and where there are none."""

from __future__ import annotations

import pytest

from tests.recipes.contractions import gemm
from tfsearch.cost.rates import Rates, rates_of

GEMM = gemm(m=100, n=50, k=20)


def test_operations_and_the_bound_are_held_against_the_time() -> None:
    found = rates_of(GEMM.flops, 10.0, 4.0)
    assert found.tflops == pytest.approx(2 * 100 * 50 * 20 / 10e-6 / 1e12)
    assert found.roofline_fraction == pytest.approx(0.4)


def test_what_is_unknown_is_none() -> None:
    assert rates_of(GEMM.flops, None, 4.0) == Rates(None, None)
    assert rates_of(GEMM.flops, 10.0, 0.0).roofline_fraction is None


def test_open_dimensions_count_with_their_largest_size() -> None:
    assert rates_of(gemm(m="1..100", n=50, k=20).flops, 10.0, 4.0) == rates_of(
        GEMM.flops, 10.0, 4.0
    )
