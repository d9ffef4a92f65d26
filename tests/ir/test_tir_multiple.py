"""What divides every value of an index expression, and what that says of a window's address."""

from __future__ import annotations

import pytest

from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.expr import Const, Expr, Var, minimum, multiple_of
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, window
from tfsearch.recipes.fragments import alignment_of

A, B = Var("i"), Var("j")


@pytest.mark.parametrize(
    ("expr", "divisor"),
    [
        (Const(0), 0),
        (Const(-12), 12),
        (A, 1),
        (A * 8, 8),
        (A * 8 + B * 12, 4),
        (A * 8 + 2, 2),
        ((A * 4) * (B * 6), 24),
        (minimum(A * 6, Const(9)), 3),
        (A * 8 // 2, 1),
        (A * 0 + 16, 16),
    ],
)
def test_the_divisor_is_found(expr: Expr, divisor: int) -> None:
    assert multiple_of(expr) == divisor
    for i in range(5):
        for j in range(5):
            if divisor > 1:
                assert _value(expr, i, j) % divisor == 0


def _value(expr: Expr, i: int, j: int) -> int:
    from tfsearch.ir.tir.expr import evaluate

    return evaluate(expr, {"i": i, "j": j})


@pytest.mark.parametrize(
    ("shape", "strides", "start", "aligned"),
    [
        ((4, 64), None, (A, B * 8), 16),
        ((4, 64), None, (A, B * 4), 8),
        ((4, 63), None, (A, B * 8), 2),
        ((4, 63), (64, 1), (A, B * 8), 16),
        ((4, 64), None, (0, 0), 16),
        ((4, 64), None, (A, 3), 2),
    ],
)
def test_a_windows_alignment_follows_from_its_starts(
    shape: tuple[int, ...],
    strides: tuple[int, ...] | None,
    start: tuple[Expr | int, ...],
    aligned: int,
) -> None:
    buffer = Buffer("x", DType.BF16, shape, MemorySpace.GLOBAL, strides, 16)
    assert alignment_of(window(buffer, start[0], (start[1], 8))) == aligned
