"""Atoms of the null target: each evaluates one HIR op on whole buffers with NumPy.

There is one atom for every op, attribute and operand type, so they are not listed: the id spells
the op out (``null.reduce.sum.1.f32.f32x4x8``) and the table makes the atom when it is asked for.
Besides these, ``null.configure`` states the schedule's parameters and ``null.fill`` a constant.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Access, Atom, AtomCost, Computation, Kind, OperandSpec
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import TfsearchError
from tfsearch.ir.dtypes import DATA_TYPES, DType
from tfsearch.ir.hir.evaluate import apply
from tfsearch.ir.hir.ops import (
    ARITY,
    Attrs,
    BinaryAttrs,
    BinaryFn,
    BroadcastAttrs,
    CompareAttrs,
    CompareFn,
    ContractAttrs,
    NoAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    TransposeAttrs,
    UnaryAttrs,
    UnaryFn,
)
from tfsearch.ir.hir.program import Op, Program
from tfsearch.ir.hir.rounding import round_to
from tfsearch.ir.hir.rules import result_type
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.nodes import MemorySpace

PREFIX = "null."
CONFIGURE = "null.configure"
PARAMETERS = ("block", "lanes", "unroll", "stages", "backward")
"""Operands of ``null.configure``, in order."""

_SPACES = frozenset({MemorySpace.GLOBAL, MemorySpace.LOCAL})
_COST = AtomCost(pipe="numpy", cycles=1.0)
_DECLARED = (OpKind.CAST, OpKind.BROADCAST, OpKind.RESHAPE)
_KINDS = {
    OpKind.CAST: Kind.CONVERT,
    OpKind.REDUCE: Kind.REDUCE,
    OpKind.CONTRACT: Kind.MMA,
    OpKind.TRANSPOSE: Kind.TRANSPOSE,
}


def op_atom(program: Program, index: int) -> str:
    """Id of the atom that evaluates value ``index`` of a bound program (no INPUT, no CONST)."""
    op = program.ops[index]
    fields = [op.kind.value, *_attr_fields(op.attrs)]
    fields += [_type_field(program.ops[o].type) for o in op.operands]
    if op.kind in _DECLARED:
        fields.append(_type_field(op.type))
    return PREFIX + ".".join(fields)


def copy_atom(kind: TensorType) -> str:
    """Id of the atom that copies a whole buffer."""
    field = _type_field(kind)
    return f"{PREFIX}cast.{field}.{field}"


def fill_atom(dtype: DType) -> str:
    """Id of the atom that fills a one-element buffer with a literal."""
    return f"{PREFIX}fill.{dtype.value}"


class NullAtoms(AtomTable):
    """The table; atoms of ops are made from their id."""

    def __init__(self) -> None:
        super().__init__([_configure(), *(_fill(dtype) for dtype in DATA_TYPES)], ())
        self._made: dict[str, Atom] = {}

    def __getitem__(self, key: str) -> Atom:
        if key in self._atoms:
            return self._atoms[key]
        if key not in self._made:
            self._made[key] = _op(key)
        return self._made[key]


def _op(atom: str) -> Atom:
    try:
        op, types = _parsed(atom)
    except (ValueError, IndexError, TfsearchError) as error:
        raise KeyError(atom) from error
    result = op.type

    def semantics(values: Sequence[Any]) -> None:
        out, *inputs = values
        arrays = [
            np.asarray(value).astype(np.float64).reshape(kind.sizes)
            for value, kind in zip(inputs, types, strict=True)
        ]
        with np.errstate(all="ignore"):
            outcome = np.asarray(apply(op, arrays), dtype=np.float64)
        out[...] = round_to(result.dtype, outcome).reshape(out.shape)

    return Atom(
        id=atom,
        features=frozenset(),
        computes=Computation(
            _KINDS.get(op.kind, Kind.MAP),
            atom.removeprefix(PREFIX),
            result.sizes,
            (result.dtype, *(kind.dtype for kind in types)),
        ),
        operands=(
            _window("out", Access.WRITE, result),
            *(_window(f"in{i}", Access.READ, kind) for i, kind in enumerate(types)),
        ),
        semantics=semantics,
        cost=_COST,
        template="",
    )


def _window(name: str, access: Access, kind: TensorType) -> OperandSpec:
    sizes = list(kind.sizes)
    while sizes and sizes[0] == 1:
        del sizes[0]
    return OperandSpec(name, access, kind.dtype, tuple(sizes), _SPACES, dense=0)


def _configure() -> Atom:
    def semantics(values: Sequence[Any]) -> None:
        """State the parameters: nothing is computed."""

    return Atom(
        id=CONFIGURE,
        features=frozenset(),
        computes=Computation(Kind.CONFIGURE, "parameters", (), ()),
        operands=tuple(
            OperandSpec(name, Access.READ, None, (), frozenset()) for name in PARAMETERS
        ),
        semantics=semantics,
        cost=_COST,
        template="",
    )


def _fill(dtype: DType) -> Atom:
    def semantics(values: Sequence[Any]) -> None:
        out, literal = values
        out[...] = round_to(dtype, np.asarray(literal, dtype=np.float64))

    return Atom(
        id=fill_atom(dtype),
        features=frozenset(),
        computes=Computation(Kind.FILL, "", (1,), (dtype,)),
        operands=(
            _window("out", Access.WRITE, TensorType(dtype)),
            OperandSpec("value", Access.READ, None, (), frozenset()),
        ),
        semantics=semantics,
        cost=_COST,
        template="",
    )


def _parsed(atom: str) -> tuple[Op, list[TensorType]]:
    """The op that an id spells out, and the types of its operands."""
    if not atom.startswith(PREFIX):
        raise ValueError(atom)
    name, *fields = atom.removeprefix(PREFIX).split(".")
    kind = OpKind(name)
    declares = int(kind in _DECLARED)
    split = len(fields) - ARITY[kind] - declares
    if split < 0 or not ARITY[kind]:
        raise ValueError(atom)
    attrs = _attrs(kind, fields[:split])
    types = [_type(field) for field in fields[split : split + ARITY[kind]]]
    result = result_type(kind, attrs, types, _type(fields[-1]) if declares else None)
    return Op(kind, tuple(range(len(types))), attrs, result), types


def _attr_fields(attrs: Attrs) -> list[str]:
    match attrs:
        case UnaryAttrs(fn) | BinaryAttrs(fn) | CompareAttrs(fn):
            return [fn.value]
        case BroadcastAttrs(dims) | TransposeAttrs(dims):
            return ["d" + "_".join(map(str, dims))]
        case ReduceAttrs(fn, axes, acc):
            return [fn.value, "d" + "_".join(map(str, axes)), acc.value]
        case ContractAttrs(dims, acc):
            return [dims.replace(",", "_").replace("->", "_"), acc.value]
        case _:
            return []


def _attrs(kind: OpKind, fields: Sequence[str]) -> Attrs:
    match kind:
        case OpKind.UNARY:
            return UnaryAttrs(UnaryFn(fields[0]))
        case OpKind.BINARY:
            return BinaryAttrs(BinaryFn(fields[0]))
        case OpKind.COMPARE:
            return CompareAttrs(CompareFn(fields[0]))
        case OpKind.BROADCAST:
            return BroadcastAttrs(_dims(fields[0]))
        case OpKind.TRANSPOSE:
            return TransposeAttrs(_dims(fields[0]))
        case OpKind.REDUCE:
            return ReduceAttrs(ReduceFn(fields[0]), _dims(fields[1]), DType(fields[2]))
        case OpKind.CONTRACT:
            lhs, rhs, out = fields[0].split("_")
            return ContractAttrs(f"{lhs},{rhs}->{out}", DType(fields[1]))
        case _:
            return NoAttrs()


def _dims(field: str) -> tuple[int, ...]:
    return tuple(int(part) for part in field.removeprefix("d").split("_") if part)


def _type_field(kind: TensorType) -> str:
    return "x".join([kind.dtype.value, *map(str, kind.sizes)])


def _type(field: str) -> TensorType:
    dtype, *sizes = field.split("x")
    return TensorType(DType(dtype), tuple(int(size) for size in sizes))
