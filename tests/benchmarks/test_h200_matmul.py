"""The rows of the matmul benchmark, and what its marks say of a report."""

from __future__ import annotations

import sys
from typing import Any

from tests.repository import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))

import h200_matmul
from h200_matmul_rows import LARGE, MEDIUM, ODD, ROWS, ROWS_OF, SKINNY, WEIGHTS


def test_there_are_ninety_rows_of_weights_and_twenty_more() -> None:
    assert len({row.name for row in ROWS}) == len(ROWS) == 110
    first = [(row.m, row.n, row.k) for row in ROWS[:90]]
    assert set(first) == {(m, n, k) for m in ROWS_OF for n, k in WEIGHTS}
    assert {row.kind for row in ROWS} == {LARGE, MEDIUM, SKINNY, ODD}
    assert any(row.a_across for row in ROWS)
    assert any(row.b_across for row in ROWS)
    assert h200_matmul.WHOLE in {row.name for row in ROWS}


def lines(ratio: float, **others: float) -> list[dict[str, Any]]:
    made: list[dict[str, Any]] = []
    for row in ROWS:
        one = {"ratio": others.get(row.name, ratio), "half_width": 0.004}
        made.append(
            {
                "row": row.name, "kind": row.kind, "m": row.m, "n": row.n, "k": row.k,
                "torch": one, "cublaslt": one, "copy_share": 0.95,
            }
        )  # fmt: skip
    return made


def test_marks_are_met_missed_or_not_measured() -> None:
    assert set(h200_matmul.judged(lines(1.2), 110).values()) == {True}
    slow = h200_matmul.judged(lines(1.2, **{h200_matmul.WHOLE: 0.98}), 110)
    missed = {name for name, value in slow.items() if value is False}
    assert missed == {"torch: no row below 0.99", f"{h200_matmul.WHOLE} >= 1.00"}
    assert h200_matmul.judged(lines(1.2)[:50], 110)["every row measured"] is False
    assert h200_matmul.judged([], 110)["torch: geometric mean >= 1.15"] is None


def test_one_fast_row_does_not_make_up_for_others() -> None:
    many = lines(1.0)
    many[0]["torch"] = {"ratio": 1e6, "half_width": 0.0}
    assert h200_matmul.judged(many, 110)["torch: geometric mean >= 1.15"] is False
