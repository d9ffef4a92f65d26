"""Canonical text of programs and types, printed and parsed back without loss.

::

    program gemm(a: f32[m: 1..64 % 8,512], b: f32[512,256]:col) -> (c: f32[m,256]) {
      %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[m,256]
      return %2
    }

A ranged dimension is spelled out where it first appears and is its name afterwards. Layouts
are dense and row-major, or ``:col`` (the last two dimensions stored transposed), or
``[512,512; strides 520,1]``. ``#`` starts a comment. Constants are Python ``repr`` texts of exact
values.
"""

from __future__ import annotations

from tfsearch.ir.hir.build import canonicalise
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstAttrs,
    ContractAttrs,
    ReduceAttrs,
    TransposeAttrs,
    UnaryAttrs,
)
from tfsearch.ir.hir.parse import parse_program, parse_type
from tfsearch.ir.hir.program import Op, Program
from tfsearch.ir.hir.types import Range, TensorType, column_major, dim_text

__all__ = ["parse_program", "parse_type", "print_program", "print_type"]


def print_type(type_: TensorType, declared: set[str] | None = None) -> str:
    """Text of a type; ranges named in ``declared`` are printed as their name, others are added."""
    declared = declared if declared is not None else set()
    dims: list[str] = []
    for dim in type_.shape:
        if isinstance(dim, Range) and dim.name in declared:
            dims.append(dim.name)
        else:
            dims.append(dim_text(dim))
            if isinstance(dim, Range):
                declared.add(dim.name)
    inner = ",".join(dims)
    if type_.strides is None:
        return f"{type_.dtype.value}[{inner}]"
    if type_.strides == column_major(type_.shape):
        return f"{type_.dtype.value}[{inner}]:col"
    strides = ",".join(map(str, type_.strides))
    return f"{type_.dtype.value}[{inner}; strides {strides}]"


def print_program(program: Program) -> str:
    """Canonical text of the canonical form of a program; ends with a newline."""
    program = canonicalise(program)
    declared: set[str] = set()
    inputs = [f"{i.name}: {print_type(i.type, declared)}" for i in program.inputs]
    outputs = [
        f"{name}: {print_type(type_, declared)}"
        for (name, _), type_ in zip(program.outputs, program.output_types, strict=True)
    ]
    lines = [f"program {program.name}({', '.join(inputs)}) -> ({', '.join(outputs)}) {{"]
    for index in range(len(program.inputs), len(program.ops)):
        lines.append(f"  %{index} = {_op_text(program.ops[index], declared)}")
    lines.append("  return " + ", ".join(f"%{index}" for _, index in program.outputs))
    lines.append("}")
    return "\n".join(lines) + "\n"


def _op_text(op: Op, declared: set[str]) -> str:
    name, attributes = _name_and_attributes(op)
    head = name
    if op.operands:
        head += "(" + ", ".join(f"%{o}" for o in op.operands) + ")"
    if attributes:
        head += " {" + attributes + "}"
    return f"{head} : {print_type(op.type, declared)}"


def _name_and_attributes(op: Op) -> tuple[str, str]:
    match op.attrs:
        case UnaryAttrs(fn):
            return fn.value, ""
        case BinaryAttrs(fn):
            return fn.value, ""
        case CompareAttrs(fn):
            return fn.value, ""
        case ConstAttrs(literal):
            return "const", f"value = {literal}"
        case BroadcastAttrs(dims):
            return "broadcast", f"dims = {_list(dims)}"
        case TransposeAttrs(perm):
            return "transpose", f"perm = {_list(perm)}"
        case ReduceAttrs(fn, axes, acc):
            return "reduce", f"fn = {fn.value}, axes = {_list(axes)}, acc = {acc.value}"
        case ContractAttrs(dims, acc):
            return "contract", f'dims = "{dims}", acc = {acc.value}'
        case _:
            return op.kind.value, ""


def _list(items: tuple[int, ...]) -> str:
    return "[" + ",".join(map(str, items)) + "]"
