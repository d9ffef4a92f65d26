"""The operations of HIR and their attributes."""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from enum import Enum

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.rounding import integer_range, round_values


class OpKind(Enum):
    """What an op does. The type rule of each kind is in :mod:`tfsearch.ir.hir.rules`."""

    INPUT = "input"
    CONST = "const"
    UNARY = "unary"
    BINARY = "binary"
    COMPARE = "compare"
    SELECT = "select"
    CAST = "cast"
    BROADCAST = "broadcast"
    TRANSPOSE = "transpose"
    RESHAPE = "reshape"
    REDUCE = "reduce"
    CONTRACT = "contract"


class UnaryFn(Enum):
    """Functions of one value. ``ROUND`` rounds half to even; ``RECIP`` is 1/x."""

    NEG = "neg"
    ABS = "abs"
    EXP = "exp"
    LOG = "log"
    SQRT = "sqrt"
    RSQRT = "rsqrt"
    RECIP = "recip"
    TANH = "tanh"
    SIN = "sin"
    COS = "cos"
    ERF = "erf"
    SIGMOID = "sigmoid"
    FLOOR = "floor"
    CEIL = "ceil"
    ROUND = "round"
    SIGN = "sign"


INTEGER_UNARY = frozenset({UnaryFn.NEG, UnaryFn.ABS, UnaryFn.SIGN})


class BinaryFn(Enum):
    """Functions of two values; ``MAX`` and ``MIN`` give NaN when either operand is NaN."""

    ADD = "add"
    SUB = "sub"
    MUL = "mul"
    DIV = "div"
    MAX = "max"
    MIN = "min"


class CompareFn(Enum):
    """Comparisons; the result is a ``bool`` tensor."""

    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"
    EQ = "eq"
    NE = "ne"


class ReduceFn(Enum):
    """Reductions over axes."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"
    PROD = "prod"


@dataclass(frozen=True)
class NoAttrs:
    """For kinds that their operands and result type determine: SELECT, CAST, RESHAPE."""


@dataclass(frozen=True)
class InputAttrs:
    """Position of the input in the call signature."""

    index: int


@dataclass(frozen=True)
class ConstAttrs:
    """A scalar constant as its canonical literal, so that equality is equality of bits.

    Floats are written as Python's ``repr`` of the exact value (``inf``, ``-inf``, ``nan``
    included), integers in decimal.
    """

    literal: str

    @property
    def value(self) -> float | int:
        """The exact value: an ``int`` for integer literals, a ``float`` otherwise."""
        digits = self.literal.removeprefix("-")
        return int(self.literal) if digits.isdigit() else float(self.literal)

    @staticmethod
    def of(value: float | int, dtype: DType) -> ConstAttrs:
        """The constant nearest to ``value`` in ``dtype``.

        Raises ``RequestError`` for a fraction or a number out of range as an integer, and for a
        finite number that overflows a float type.
        """
        if dtype.is_integer:
            low, high = integer_range(dtype)
            if not low <= value <= high or int(value) != value:
                raise RequestError(
                    "hir.constant", f"constant {value!r} is no {dtype.value}: need {low}..{high}"
                )
            return ConstAttrs(str(int(value)))
        if not dtype.is_float:
            raise RequestError("hir.constant", f"a constant cannot be {dtype.value}")
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        rounded = float(round_values(dtype, np.array(number))[()])
        if math.isinf(rounded) and not (isinstance(value, float) and math.isinf(value)):
            raise RequestError("hir.constant", f"constant {value!r} overflows {dtype.value}")
        return ConstAttrs("nan" if math.isnan(rounded) else repr(rounded))


@dataclass(frozen=True)
class UnaryAttrs:
    """Which function of one value."""

    fn: UnaryFn


@dataclass(frozen=True)
class BinaryAttrs:
    """Which function of two values."""

    fn: BinaryFn


@dataclass(frozen=True)
class CompareAttrs:
    """Which comparison."""

    fn: CompareFn


@dataclass(frozen=True)
class BroadcastAttrs:
    """``dims[i]`` is the result dimension that operand dimension ``i`` becomes (increasing).

    Result dimensions that are not listed repeat the operand.
    """

    dims: tuple[int, ...]


@dataclass(frozen=True)
class TransposeAttrs:
    """Result dimension ``i`` is operand dimension ``perm[i]``."""

    perm: tuple[int, ...]


@dataclass(frozen=True)
class ReduceAttrs:
    """Reduction over ``axes`` (increasing; dropped from the result), accumulated in ``acc``."""

    fn: ReduceFn
    axes: tuple[int, ...]
    acc: DType


@dataclass(frozen=True)
class ContractAttrs:
    """A sum of products in einsum notation, ``"mk,kn->mn"``, accumulated in ``acc``.

    Batch labels are in both operands and the result, contracted labels in both operands only,
    free labels in one operand and the result.
    """

    dims: str
    acc: DType

    def __post_init__(self) -> None:
        lhs, rhs, out = self._parts()
        for part in (lhs, rhs, out):
            if len(set(part)) != len(part) or any(c not in string.ascii_letters for c in part):
                raise _bad_dims(self.dims, "labels are distinct letters")
        if set(out) != (set(lhs) ^ set(rhs)) | (set(out) & set(lhs) & set(rhs)):
            raise _bad_dims(
                self.dims, "a label of one operand must be in the result, and the reverse"
            )
        if not self.contracted:
            raise _bad_dims(self.dims, "at least one label must be contracted")

    def _parts(self) -> tuple[str, str, str]:
        operands, arrow, out = self.dims.partition("->")
        lhs, comma, rhs = operands.partition(",")
        if not arrow or not comma:
            raise _bad_dims(self.dims, 'the form is "lhs,rhs->out"')
        return lhs, rhs, out

    @property
    def lhs(self) -> str:
        """Labels of the first operand."""
        return self._parts()[0]

    @property
    def rhs(self) -> str:
        """Labels of the second operand."""
        return self._parts()[1]

    @property
    def out(self) -> str:
        """Labels of the result."""
        return self._parts()[2]

    @property
    def batch(self) -> str:
        """Labels in both operands and the result, in the result's order."""
        lhs, rhs, out = self._parts()
        return "".join(c for c in out if c in lhs and c in rhs)

    @property
    def lhs_free(self) -> str:
        """Labels in the first operand and the result only, in the result's order."""
        lhs, rhs, out = self._parts()
        return "".join(c for c in out if c in lhs and c not in rhs)

    @property
    def rhs_free(self) -> str:
        """Labels in the second operand and the result only, in the result's order."""
        lhs, rhs, out = self._parts()
        return "".join(c for c in out if c in rhs and c not in lhs)

    @property
    def contracted(self) -> str:
        """Labels in both operands only, in the first operand's order."""
        lhs, rhs, out = self._parts()
        return "".join(c for c in lhs if c in rhs and c not in out)


def _bad_dims(dims: str, why: str) -> RequestError:
    return RequestError("hir.contract-dims", f"contraction {dims!r}: {why}")


Attrs = (
    NoAttrs
    | InputAttrs
    | ConstAttrs
    | UnaryAttrs
    | BinaryAttrs
    | CompareAttrs
    | BroadcastAttrs
    | TransposeAttrs
    | ReduceAttrs
    | ContractAttrs
)

ATTRS_OF: dict[OpKind, type[Attrs]] = {
    OpKind.INPUT: InputAttrs,
    OpKind.CONST: ConstAttrs,
    OpKind.UNARY: UnaryAttrs,
    OpKind.BINARY: BinaryAttrs,
    OpKind.COMPARE: CompareAttrs,
    OpKind.SELECT: NoAttrs,
    OpKind.CAST: NoAttrs,
    OpKind.BROADCAST: BroadcastAttrs,
    OpKind.TRANSPOSE: TransposeAttrs,
    OpKind.RESHAPE: NoAttrs,
    OpKind.REDUCE: ReduceAttrs,
    OpKind.CONTRACT: ContractAttrs,
}
ARITY: dict[OpKind, int] = {
    OpKind.INPUT: 0,
    OpKind.CONST: 0,
    OpKind.UNARY: 1,
    OpKind.BINARY: 2,
    OpKind.COMPARE: 2,
    OpKind.SELECT: 3,
    OpKind.CAST: 1,
    OpKind.BROADCAST: 1,
    OpKind.TRANSPOSE: 1,
    OpKind.RESHAPE: 1,
    OpKind.REDUCE: 1,
    OpKind.CONTRACT: 2,
}
ELEMENTWISE = frozenset({OpKind.UNARY, OpKind.BINARY, OpKind.COMPARE, OpKind.SELECT, OpKind.CAST})
