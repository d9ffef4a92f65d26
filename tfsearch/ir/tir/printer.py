"""Canonical text of TIR, printed and (with :mod:`tfsearch.ir.tir.parser`) read back without loss.

::

    kernel gemm units 2 (
      in a: f32[512, 512] global align 64,
      out c: f32[512, 512] global strides [600, 1] align 64,
    ) {
      alloc acc: f32[4, 16] register align 64
      for i in 0..64 {
        unrolled j in 0..4 {
          x86.avx512.load.f32x16(acc[j, 0 :+ 16], a[i * 8 + j, 0 :+ min(16, 512 - i * 16)])
        }
      }
      if unit == 0 {
        x86.fill.f32x16(acc[0, 0 :+ 16], 0.5)
      } else {
        x86.barrier()
      }
    }

A window dimension is ``start`` (extent 1) or ``start :+ extent``. A sum with a negative
literal prints as a difference (``x - 3``); a difference whose right side is a literal keeps
parentheses (``x - (3)``), so that the tree comes back as it was. Names that are not plain
identifiers, or are words of the language, are quoted as JSON strings.

What concurrent kernels say more (only where it differs from a unit of one thread)::

    kernel g units 4 warps 12 lanes 32 registers 168 cluster [2, 1] (
      in a: f32[64, 64] global align 128 box [32, 8] strides [64, 1] swizzle "sw(1,2,3)",
    ) {
      alloc full: barrier[4] shared align 8
      alloc ring: f32[4, 32, 8] shared layout "sw(1,2,3) o (4,32,8):(256,8,1)" align 1024
      alloc out: f32[32, 8] shared align 128 over ring at 1024
      role maths warps 4..12 width 4 as w {
        alloc acc: f32[32, 16] register fragment "m32n16" align 4
      }
    }
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var
from tfsearch.ir.tir.nodes import (
    Alloc,
    Block,
    Box,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    Let,
    LoopKind,
    Module,
    Operand,
    Role,
    Scalar,
    Stmt,
    Window,
)
from tfsearch.ir.tir.walk import Path

_WORDS = """
kernel units in out inout prepared alloc let for unrolled if else role step unroll align strides
global scratch local register tile shared min max and or inf nan
"""
WORDS = frozenset(_WORDS.split())
"""Words that cannot stand unquoted as names."""

PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
PLAIN_ATOM = re.compile(r"[A-Za-z_][A-Za-z0-9_]*(\.[A-Za-z0-9_]+)*")

PRECEDENCE: dict[Operator, int] = {
    Operator.OR: 1,
    Operator.AND: 2,
    Operator.LT: 3,
    Operator.LE: 3,
    Operator.EQ: 3,
    Operator.NE: 3,
    Operator.ADD: 4,
    Operator.SUB: 4,
    Operator.MUL: 5,
    Operator.FLOORDIV: 5,
    Operator.MOD: 5,
}


@dataclass(frozen=True)
class Place:
    """Where a statement stands in canonical text: 1-based line and column, and its line."""

    line: int
    column: int
    text: str

    def __str__(self) -> str:
        return f"{self.line}:{self.column}: {self.text}"


def quote(name: str) -> str:
    """A name as it stands in the text."""
    if PLAIN_NAME.fullmatch(name) and name not in WORDS:
        return name
    return json.dumps(name)


def print_expr(expr: Expr) -> str:
    """Canonical text of an expression."""
    return _expr(expr, 0)


def print_operand(operand: Operand) -> str:
    """Canonical text of an operand of a call."""
    match operand:
        case Window(buffer, starts, extents):
            dims = ", ".join(_dim(s, e) for s, e in zip(starts, extents, strict=True))
            return f"{quote(buffer.name)}[{dims}]"
        case Scalar(value):
            return _float(value)
        case _:
            return print_expr(operand)


def print_buffer(buffer: Buffer) -> str:
    """Canonical text of a buffer's declaration."""
    shape = ", ".join(map(str, buffer.shape))
    strides = ""
    if buffer.strides is not None:
        strides = f" strides {_integers(buffer.strides)}"
    if buffer.layout is not None:
        strides += f" layout {json.dumps(str(buffer.layout))}"
    if buffer.fragment:
        strides += f" fragment {json.dumps(buffer.fragment)}"
    text = (
        f"{quote(buffer.name)}: {buffer.dtype.value}[{shape}] {buffer.space.value}{strides}"
        f" align {buffer.alignment}"
    )
    text += f" over {quote(buffer.over)}" if buffer.over else ""
    return text + (f" at {buffer.at}" if buffer.at else "")


def print_box(box: Box) -> str:
    """Canonical text of a descriptor."""
    swizzle = "" if box.swizzle is None else f" swizzle {json.dumps(str(box.swizzle))}"
    return f"box {_integers(box.shape)} strides {_integers(box.strides)}{swizzle}"


def _integers(values: tuple[int, ...]) -> str:
    return f"[{', '.join(map(str, values))}]"


def print_module(module: Module) -> str:
    """Canonical text of a module: its kernels, separated by an empty line."""
    return "\n".join(print_kernel(kernel) for kernel in module.kernels)


def print_kernel(kernel: Kernel) -> str:
    """Canonical text of a kernel, ending in a newline."""
    return "\n".join(_Printer(kernel).lines) + "\n"


def places(kernel: Kernel, *, first_line: int = 1) -> dict[Path, Place]:
    """The place of every statement; ``()`` is the kernel's own first line.

    ``first_line`` is the line of ``kernel`` in the text of its module.
    """
    printer = _Printer(kernel)
    out: dict[Path, Place] = {}
    for path, index in printer.starts.items():
        text = printer.lines[index]
        body = text.lstrip(" ")
        out[path] = Place(first_line + index, len(text) - len(body) + 1, body)
    return out


def place(kernel: Kernel, path: Path, *, first_line: int = 1) -> Place:
    """The place of one statement in canonical text; ``KeyError`` if there is none."""
    return places(kernel, first_line=first_line)[path]


def first_lines(module: Module) -> tuple[int, ...]:
    """The line of each kernel of a module in the module's canonical text."""
    out: list[int] = []
    line = 1
    for kernel in module.kernels:
        out.append(line)
        line += len(_Printer(kernel).lines) + 1
    return tuple(out)


class _Printer:
    def __init__(self, kernel: Kernel) -> None:
        self.lines: list[str] = []
        self.starts: dict[Path, int] = {(): 0}
        head = f"kernel {quote(kernel.name)} units {kernel.units}"
        head += f" warps {kernel.warps}" if kernel.warps != 1 else ""
        head += f" lanes {kernel.lanes}" if kernel.lanes != 1 else ""
        head += f" registers {kernel.registers}" if kernel.registers else ""
        head += f" cluster {_integers(kernel.cluster)}" if kernel.cluster else ""
        head += " ("
        if kernel.params:
            self.lines.append(head)
            for param in kernel.params:
                boxes = "".join(f" {print_box(box)}" for box in param.boxes)
                self.lines.append(f"  {param.io.value} {print_buffer(param.buffer)}{boxes},")
            self.lines.append(") {")
        else:
            self.lines.append(head + ") {")
        self._block(kernel.body, (), 0, 1)
        self.lines.append("}")

    def _block(self, block: Block, prefix: Path, offset: int, depth: int) -> None:
        for index, statement in enumerate(block):
            self._statement(statement, (*prefix, offset + index), depth)

    def _statement(self, statement: Stmt, path: Path, depth: int) -> None:
        self.starts[path] = len(self.lines)
        pad = "  " * depth
        self.lines.append(pad + head_text(statement))
        match statement:
            case For() | Role():
                self._block(statement.body, path, 0, depth + 1)
                self.lines.append(pad + "}")
            case If(_, then, orelse):
                self._block(then, path, 0, depth + 1)
                if orelse:
                    self.lines.append(pad + "} else {")
                    self._block(orelse, path, len(then), depth + 1)
                self.lines.append(pad + "}")
            case _:
                pass


def head_text(statement: Stmt) -> str:
    """The first line of a statement, without indentation."""
    match statement:
        case Alloc(buffer):
            return f"alloc {print_buffer(buffer)}"
        case Let(name, value):
            return f"let {quote(name)} = {print_expr(value)}"
        case For(name, start, stop, _, kind, step, unroll):
            word = "for" if kind is LoopKind.SERIAL else "unrolled"
            text = f"{word} {quote(name)} in {print_expr(start)}..{print_expr(stop)}"
            text += f" step {step}" if step != 1 else ""
            text += f" unroll {unroll}" if unroll != 1 else ""
            return text + " {"
        case If(condition, _, _):
            return f"if {print_expr(condition)} {{"
        case Role(name, first, last, _, width, instance):
            if not width:
                return f"role {quote(name)} units {first}..{last} {{"
            text = f"role {quote(name)} warps {first}..{last} width {width}"
            return text + (f" as {quote(instance)} {{" if instance else " {")
        case Call(atom, operands):
            name = atom if PLAIN_ATOM.fullmatch(atom) and atom not in WORDS else json.dumps(atom)
            return f"{name}({', '.join(print_operand(operand) for operand in operands)})"
        case _:
            raise TypeError(f"not a statement: {statement!r}")


def _dim(start: Expr, extent: Expr) -> str:
    if isinstance(extent, Const) and extent.value == 1:
        return print_expr(start)
    return f"{print_expr(start)} :+ {print_expr(extent)}"


def _expr(expr: Expr, context: int) -> str:
    match expr:
        case Const(value):
            return str(value)
        case Var(name):
            return quote(name)
        case Binary(Operator.MIN | Operator.MAX as op, left, right):
            return f"{op.value}({_expr(left, 0)}, {_expr(right, 0)})"
        case Binary(op, left, right):
            text = _infix(op, left, right)
            return f"({text})" if PRECEDENCE[op] < context else text
        case _:
            raise TypeError(f"not an expression: {expr!r}")


def _infix(op: Operator, left: Expr, right: Expr) -> str:
    level = PRECEDENCE[op]
    comparison = PRECEDENCE[Operator.LT]
    first = _expr(left, level + 1 if level == comparison else level)
    if isinstance(right, Const):
        if op is Operator.ADD and right.value < 0:
            return f"{first} - {-right.value}"
        if op is Operator.SUB:
            return f"{first} - ({right.value})"
    return f"{first} {op.value} {_expr(right, level + 1)}"


def _float(value: float) -> str:
    return repr(float(value))
