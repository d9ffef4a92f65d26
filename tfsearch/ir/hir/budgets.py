"""What rounding a kernel may do: the error budgets of the accuracy classes.

PRECISE: +, -, ×, max, min and casts are correctly rounded; each maths function is within the
ulps of ``ULPS`` of the exact function of its argument (a "few ulp", what current C libraries
promise for their vector functions; one ulp for f16 and bf16, which are computed in f32); sums
of k terms are within λ·√k·u of Σ|terms|, u the unit roundoff of the accumulator (the form of
the probabilistic bound of Higham and Mary, "A new approach to probabilistic rounding error
analysis", SIAM J. Sci. Comput. 41, 2019, theorem 2.4; summing in several chains, as kernels
do, leaves more room still).

FAST (asked for, part of the workload's key): maths functions of f32, f16 and bf16 are within a
relative error of 2**-10 plus an absolute error of 2**-18, which admits the hardware's
approximations (PTX ISA, ``tanh.approx.f32``: relative error 2**-11; ``ex2.approx``,
``lg2.approx``, ``sin.approx``: absolute errors of 2**-20.5 and below; Intel SDM, ``VRCP14PS`` and
``VRSQRT14PS``: relative error 2**-14). Division, square roots and reciprocals are within 2**-12.
f64 has no fast class. Sums and products are as in PRECISE.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.ops import BinaryFn, UnaryFn
from tfsearch.ir.hir.rounding import smallest_normal, smallest_subnormal

LAMBDA = 4.0
REFERENCE_ROUNDOFF = 2.0**-53

ULPS: dict[UnaryFn, float] = {
    UnaryFn.EXP: 4.0,
    UnaryFn.LOG: 4.0,
    UnaryFn.TANH: 4.0,
    UnaryFn.SIN: 4.0,
    UnaryFn.COS: 4.0,
    UnaryFn.ERF: 4.0,
    UnaryFn.SIGMOID: 4.0,
    UnaryFn.SQRT: 1.0,
    UnaryFn.RSQRT: 2.0,
    UnaryFn.RECIP: 1.0,
}
DIVISION_ULPS = 1.0
FAST_MATHS = (2.0**-10, 2.0**-18)
FAST_DIVISION = (2.0**-12, 0.0)
_ALGEBRAIC = frozenset({UnaryFn.SQRT, UnaryFn.RSQRT, UnaryFn.RECIP})


@dataclass(frozen=True)
class Budget:
    """Allowed error of one op: ``relative·|result| + absolute``."""

    relative: float
    absolute: float


def floor_of(dtype: DType) -> float:
    """Absolute error always allowed, for results near zero.

    The smallest subnormal of f16; the smallest normal number of the others, because units such
    as AMX tiles flush subnormal numbers to zero whatever the mode (Intel SDM, ``TDPBF16PS``).
    """
    return smallest_subnormal(dtype) if dtype is DType.F16 else smallest_normal(dtype)


def rounding(dtype: DType, ulps: float = 0.5) -> Budget:
    """The budget of an op that is within ``ulps`` of the exact result (0.5: correctly rounded).

    The error of the float64 reference itself is added, which matters for f64 alone.
    """
    if not dtype.is_float:
        return Budget(0.0, 0.0)
    relative = 2.0 * ulps * dtype.unit_roundoff + 2.0 * REFERENCE_ROUNDOFF
    return Budget(relative, floor_of(dtype))


def unary_budget(fn: UnaryFn, dtype: DType, accuracy: Accuracy) -> Budget:
    """The budget of a maths function; zero for functions that are exact (neg, floor, …)."""
    if fn not in ULPS:
        return Budget(0.0, 0.0)
    narrow = dtype in (DType.F16, DType.BF16)
    precise = rounding(dtype, min(ULPS[fn], 1.0) if narrow else ULPS[fn])
    if accuracy is Accuracy.PRECISE or dtype is DType.F64:
        return precise
    return _widened(precise, FAST_DIVISION if fn in _ALGEBRAIC else FAST_MATHS)


def binary_budget(fn: BinaryFn, dtype: DType, accuracy: Accuracy) -> Budget:
    """The budget of an elementwise op; zero for max and min, and for integers."""
    if fn in (BinaryFn.MAX, BinaryFn.MIN):
        return Budget(0.0, 0.0)
    if fn is not BinaryFn.DIV:
        return rounding(dtype)
    precise = rounding(dtype, DIVISION_ULPS)
    if accuracy is Accuracy.PRECISE or dtype is DType.F64:
        return precise
    return _widened(precise, FAST_DIVISION)


def _widened(budget: Budget, fast: tuple[float, float]) -> Budget:
    relative, absolute = fast
    return Budget(budget.relative + relative, budget.absolute + absolute)
