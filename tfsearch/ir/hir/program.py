"""Programs: SSA over tensors, validated on construction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.ops import Attrs, InputAttrs, OpKind
from tfsearch.ir.hir.rules import result_type
from tfsearch.ir.hir.types import Range, TensorType, is_name, shape_text


@dataclass(frozen=True)
class Input:
    """A parameter of the call signature."""

    name: str
    type: TensorType


@dataclass(frozen=True)
class Op:
    """One operation: its operands are indices of values defined before it."""

    kind: OpKind
    operands: tuple[int, ...]
    attrs: Attrs
    type: TensorType


@dataclass(frozen=True)
class Value:
    """A value of a program: its index, the op that defines it, its type."""

    index: int
    op: Op
    type: TensorType


@dataclass(frozen=True)
class Program:
    """A tensor program. ``ops[i]`` defines value ``i``; the first ``len(inputs)`` are INPUT ops.

    Outputs are (name, value index). Construction checks every op's type rule and raises
    ``RequestError`` with a ``hir.*`` code. Outputs are stored dense and row-major.
    """

    name: str
    inputs: tuple[Input, ...]
    ops: tuple[Op, ...]
    outputs: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        _check_signature(self)
        for index, op in enumerate(self.ops):
            _check_op(self, index, op)
        self.ranges  # noqa: B018 - conflicting ranges are an error of construction

    def value(self, index: int) -> Value:
        """The value with this index."""
        op = self.ops[index]
        return Value(index, op, op.type)

    @property
    def values(self) -> tuple[Value, ...]:
        """All values in order."""
        return tuple(self.value(i) for i in range(len(self.ops)))

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs in call order."""
        return tuple(i.name for i in self.inputs)

    @property
    def output_types(self) -> tuple[TensorType, ...]:
        """Types of the outputs, dense."""
        return tuple(
            TensorType(self.ops[i].type.dtype, self.ops[i].type.shape) for _, i in self.outputs
        )

    @property
    def ranges(self) -> dict[str, Range]:
        """The named dimensions that are not bound yet, in order of appearance."""
        found: dict[str, Range] = {}
        for op in self.ops:
            for dim in op.type.shape:
                if isinstance(dim, Range) and found.setdefault(dim.name, dim) != dim:
                    raise RequestError(
                        "hir.dimension", f"dimension {dim.name} has two different ranges"
                    )
        return found

    @property
    def largest(self) -> dict[str, int]:
        """The largest size of every dimension that is not bound yet."""
        return {name: dim.largest for name, dim in self.ranges.items()}

    def bind(self, dims: Mapping[str, int]) -> Program:
        """This program with named dimensions replaced by sizes.

        Raises ``RequestError`` for a size outside of its range.
        """
        if not any(name in dims for name in self.ranges):
            return self
        return replace(
            self,
            inputs=tuple(replace(i, type=i.type.bind(dims)) for i in self.inputs),
            ops=tuple(replace(op, type=op.type.bind(dims)) for op in self.ops),
        )

    def renamed(self, name: str) -> Program:
        """The same program under another name."""
        return replace(self, name=name)


def _check_signature(program: Program) -> None:
    if not is_name(program.name):
        raise RequestError("hir.name", f"program name {program.name!r} is no identifier")
    names = [i.name for i in program.inputs] + [name for name, _ in program.outputs]
    for name in names:
        if not is_name(name):
            raise RequestError("hir.name", f"name {name!r} of {program.name} is no identifier")
        if names.count(name) > 1:
            raise RequestError(
                "hir.name", f"name {name!r} is used twice in the signature of {program.name}"
            )
    if not program.outputs:
        raise RequestError("hir.outputs", f"program {program.name} has no output")
    for name, index in program.outputs:
        if not 0 <= index < len(program.ops):
            raise RequestError(
                "hir.outputs", f"output {name} is value %{index}, which is not there"
            )
        if program.ops[index].type.dtype is DType.BOOL:
            raise RequestError(
                "hir.dtype", f"output {name} is bool: select numbers with where(...)"
            )
    for index, item in enumerate(program.inputs):
        expected = Op(OpKind.INPUT, (), InputAttrs(index), item.type)
        if index >= len(program.ops) or program.ops[index] != expected:
            raise RequestError(
                "hir.inputs", f"value %{index} of {program.name} must be input {item.name!r}"
            )


def _check_op(program: Program, index: int, op: Op) -> None:
    if op.kind is OpKind.INPUT and index >= len(program.inputs):
        raise RequestError("hir.inputs", f"value %{index} is an input beyond the signature")
    for operand in op.operands:
        if not 0 <= operand < index:
            raise RequestError(
                "hir.order", f"value %{index} uses %{operand}, which is not defined before it"
            )
    types = [program.ops[o].type for o in op.operands]
    try:
        found = result_type(op.kind, op.attrs, types, op.type)
    except RequestError as error:
        raise RequestError(error.code, f"%{index}: {error.message}") from None
    if found != op.type:
        raise RequestError(
            "hir.result-type",
            f"%{index}: {op.kind.value} gives {found.dtype.value}{shape_text(found.shape)}, not "
            f"{op.type.dtype.value}{shape_text(op.type.shape)}",
        )
