"""What is said of wrong products: the part of the computation that explains them."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from tests.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import _ring_faults
import h200_ring_check

GENERATOR = np.random.default_rng(3)
A, B = GENERATOR.standard_normal((2, 128, 128))
WANTED = A @ B.T
ALLOWED = np.full_like(WANTED, 1e-6)


def swapped(x: Any) -> Any:
    out = x.copy()
    out[[8, 9]] = x[[9, 8]]
    return out


def holed(x: Any) -> Any:
    out = x.copy()
    out[64:, :64] = np.nan
    return out


CASES: dict[str, tuple[Any, str]] = {
    "a slice is missing": (A[:, 16:] @ B[:, 16:].T, "along the sum: 0 1 1"),
    "transposed": (WANTED.T, "the result is transposed"),
    "unswizzled": (_ring_faults._unswizzled(A) @ B.T, "the first factor were read without"),
    "both": (
        _ring_faults._unswizzled(A) @ _ring_faults._unswizzled(B).T,
        "right but for the weights",
    ),
    "a factor is turned": (A @ _ring_faults._turned(B).T, "the second factor were transposed"),
    "rows": (swapped(WANTED), "rows change places: 8 holds 9, 9 holds 8"),
    "columns": (swapped(WANTED.T).T, "columns change places: 8 holds 9, 9 holds 8"),
    "unwritten": (holed(WANTED), "4096 not written (or NaN): [[0, 0], [4096, 0]]"),
    "zeros": (np.zeros_like(WANTED), "all of them are 0"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_is_named(name: str) -> None:
    got, said = CASES[name]
    lines = _ring_faults.faults(got, A, B, ALLOWED)
    if name == "both":
        assert lines == [] or not any(said in line for line in lines)
    else:
        assert any(said in line for line in lines), lines


def test_nothing_is_said_of_a_right_product() -> None:
    assert _ring_faults.faults(WANTED, A, B, ALLOWED) == []


def test_every_step_of_the_ladder_is_legal() -> None:
    from tfsearch.ir.hir.named import named_workload
    from tfsearch.space import Point
    from tfsearch.target.cuda import target

    for step in h200_ring_check.LADDER:
        m, n, k = map(str, step.sizes)
        options = {"m": m, "n": n, "k": k, "dtype": "bf16", "out_dtype": "bf16"}
        options |= {"trans_b": "true", **step.options}
        problem = target.problem(named_workload("gemm", options), target.nominal())
        point = Point("ring", {**h200_ring_check.ONE, **step.changes})
        assert problem.space.check(point) == (), step.name
