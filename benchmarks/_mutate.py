"""Mutants of a module of TIR, generated from the grammar: every statement kind, every field.

Operators: drop, duplicate, swap with what follows, off by one, another legal value. A change of a
declaration is made wherever the buffer is used, so that it is not refused for being inconsistent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from enum import Enum
from functools import partial
from typing import Any

from tfsearch.atoms.contract import Atom
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var
from tfsearch.ir.tir.nodes import (
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    Let,
    Module,
    Param,
    Role,
    Scalar,
    Stmt,
    Window,
)
from tfsearch.ir.tir.walk import children, replace_at, transform, walk

_CLASSES = (
    (Operator.ADD, Operator.SUB, Operator.MUL),
    (Operator.FLOORDIV, Operator.MOD),
    (Operator.MIN, Operator.MAX),
    (Operator.LT, Operator.LE, Operator.EQ, Operator.NE),
    (Operator.AND, Operator.OR),
)
NAMES = frozenset({"name", "instance"})
"""Fields that only name something: another name is the same kernel."""


@dataclass(frozen=True)
class Mutant:
    """One change: the operator ``Kind.field what`` it comes from, where, and how to make it."""

    operator: str
    where: str
    make: Callable[[], Module]


@dataclass(frozen=True)
class Context:
    """What other legal values there are at a place."""

    atoms: Mapping[str, Atom]
    variables: tuple[str, ...]
    buffers: tuple[Buffer, ...]


def with_kernel(module: Module, number: int, new: Kernel) -> Module:
    """The module with another kernel in one's place."""
    kernels = list(module.kernels)
    kernels[number] = new
    return Module(tuple(kernels))


def mutants(module: Module, atoms: Mapping[str, Atom]) -> Iterator[Mutant]:
    """Every mutant of a module, in the order of its text."""
    for number, kernel in enumerate(module.kernels):
        put = partial(with_kernel, module, number)
        if len(module.kernels) > 1:
            rest = tuple(k for k in module.kernels if k is not kernel)
            yield Mutant("Module.kernels drop", kernel.name, lambda rest=rest: Module(rest))
        for label, make in _kernel(kernel, atoms):
            yield Mutant(label, kernel.name, lambda make=make, put=put: put(make()))


_Made = tuple[str, Callable[[], Kernel]]


def _kernel(kernel: Kernel, atoms: Mapping[str, Atom]) -> Iterator[_Made]:
    for field in fields(Kernel):
        if field.name in ("name", "params", "body"):
            continue
        for label, value in _values(getattr(kernel, field.name), Context(atoms, (), ())):
            yield (
                f"Kernel.{field.name} {label}",
                lambda f=field.name, v=value: replace(kernel, **{f: v}),
            )
    for index, param in enumerate(kernel.params):
        yield from _param(kernel, index, param)
    yield from _block(kernel, kernel.body, (), 0, Context(atoms, ("unit",), _buffers(kernel)))


def _buffers(kernel: Kernel) -> tuple[Buffer, ...]:
    out = [param.buffer for param in kernel.params]
    out += [s.buffer for _, s in walk(kernel.body) if isinstance(s, Alloc)]
    return tuple(out)


def _param(kernel: Kernel, index: int, param: Param) -> Iterator[_Made]:
    def put(new: Param) -> Kernel:
        return replace(kernel, params=(*kernel.params[:index], new, *kernel.params[index + 1 :]))

    for label, value in _values(param.io, None):
        yield f"Param.io {label}", lambda v=value: put(replace(param, io=v))
    for label, value in _declarations(param.buffer):
        yield (
            f"Param.buffer.{label}",
            lambda v=value: renew(put(replace(param, buffer=v)), param.buffer, v),
        )
    boxes = param.boxes
    for at, box in enumerate(boxes):
        rest = (*boxes[:at], *boxes[at + 1 :])
        yield "Param.boxes drop", lambda r=rest: put(replace(param, boxes=r))
        for label, value in _fields(box, None):
            changed = (*boxes[:at], value, *boxes[at + 1 :])
            yield f"Box.{label}", lambda c=changed: put(replace(param, boxes=c))


def _declarations(buffer: Buffer) -> Iterator[tuple[str, Buffer]]:
    yield from _fields(buffer, None)


def renew(kernel: Kernel, old: Buffer, new: Buffer) -> Kernel:
    """The kernel with a buffer's declaration changed wherever it is used."""

    def change(statement: Stmt) -> Block:
        match statement:
            case Alloc(buffer) if buffer == old:
                return (Alloc(new),)
            case Call(atom, operands):
                return (
                    Call(
                        atom,
                        tuple(
                            replace(o, buffer=new)
                            if isinstance(o, Window) and o.buffer == old
                            else o
                            for o in operands
                        ),
                    ),
                )
            case _:
                return (statement,)

    return replace(kernel, body=transform(kernel.body, change))


def _block(
    kernel: Kernel, block: Block, prefix: tuple[int, ...], offset: int, context: Context
) -> Iterator[_Made]:
    names = list(context.variables)
    for index, statement in enumerate(block):
        path = (*prefix, offset + index)
        kind = type(statement).__name__
        here = replace(context, variables=tuple(names))
        follows = block[index + 1] if index + 1 < len(block) else None
        yield from _structure(kernel, path, kind, statement, follows)
        if isinstance(statement, Alloc):
            for label, value in _declarations(statement.buffer):
                yield (
                    f"Alloc.buffer.{label}",
                    lambda o=statement.buffer, v=value: renew(kernel, o, v),
                )
        else:
            for label, value in _fields(statement, here):
                yield (
                    f"{kind}.{label}",
                    lambda p=path, v=value: replace_at(kernel, p, (v,)),
                )
        inner = names.copy()
        if isinstance(statement, Let):
            names.append(statement.name)
        elif isinstance(statement, For):
            inner.append(statement.name)
        elif isinstance(statement, Role) and statement.instance:
            inner.append(statement.instance)
        below = replace(context, variables=tuple(inner))
        if isinstance(statement, If):
            yield from _block(kernel, statement.then, path, 0, below)
            yield from _block(kernel, statement.orelse, path, len(statement.then), below)
        elif children(statement):
            yield from _block(kernel, children(statement), path, 0, below)


def _structure(
    kernel: Kernel, path: tuple[int, ...], kind: str, statement: Stmt, follows: Stmt | None
) -> Iterator[_Made]:
    detail = f" {statement.atom}" if isinstance(statement, Call) else ""
    yield f"{kind}{detail} drop", lambda: replace_at(kernel, path, ())
    if not isinstance(statement, (Alloc, Let)):
        yield f"{kind}{detail} duplicate", lambda: replace_at(kernel, path, (statement, statement))
    inner = children(statement)
    if inner:
        yield f"{kind}.body unwrap", lambda: replace_at(kernel, path, inner)
    if follows is not None:
        after = (*path[:-1], path[-1] + 1)

        def swapped() -> Kernel:
            once = replace_at(kernel, path, (follows,))
            return replace_at(once, after, (statement,))

        yield f"{kind}{detail} swap", swapped


def _fields(node: Any, context: Context | None) -> Iterator[tuple[str, Any]]:
    """The node with one field changed, for every field and every other value."""
    for field in fields(node):
        if field.name in NAMES or field.name in ("body", "then", "orelse"):
            if field.name == "orelse" and isinstance(node, If) and node.orelse:
                yield "orelse drop", replace(node, orelse=())
                yield "then swap", replace(node, then=node.orelse, orelse=node.then)
            continue
        value = getattr(node, field.name)
        if isinstance(node, Call) and field.name == "atom":
            found = _other_atoms(node, context)
        elif isinstance(node, Buffer) and field.name == "fragment":
            found = iter([("other", "other.fragment"), ("none", "")]) if value else iter(())
        else:
            found = _values(value, context)
        for label, new in found:
            detail = f" {node.atom}" if isinstance(node, Call) else ""
            try:
                changed = replace(node, **{field.name: new})
            except ValueError:
                continue
            yield f"{field.name}{detail} {label}", changed


def _other_atoms(call: Call, context: Context | None) -> Iterator[tuple[str, str]]:
    if context is None or call.atom not in context.atoms:
        return
    operands = context.atoms[call.atom].operands
    spaces = [spec.spaces for spec in operands]
    for name, atom in context.atoms.items():
        if name != call.atom and [spec.spaces for spec in atom.operands] == spaces:
            yield "other", name


def _values(value: Any, context: Context | None) -> Iterator[tuple[str, Any]]:
    match value:
        case bool():
            yield "not", not value
        case int():
            yield "+1", value + 1
            yield "-1", value - 1
            if value > 1:
                yield "twice", value * 2
                yield "half", value // 2
        case Enum():
            for other in type(value):
                if other is not value:
                    yield "other", other
        case Expr():
            yield from _exprs(value, context)
        case Scalar(number):
            yield "+1", Scalar(number + 1)
        case Window():
            yield from _windows(value, context)
        case Layout() | SwizzledLayout() | Swizzle():
            yield from _layouts(value)
        case tuple():
            yield from _tuples(value, context)
        case _:
            pass


def _tuples(value: tuple[Any, ...], context: Context | None) -> Iterator[tuple[str, Any]]:
    for index, item in enumerate(value):
        for label, new in _values(item, context):
            yield f"[{index}] {label}", (*value[:index], new, *value[index + 1 :])
        if index + 1 < len(value) and value[index + 1] != item:
            yield (
                f"[{index}] swap",
                (*value[:index], value[index + 1], item, *value[index + 2 :]),
            )


def _windows(box: Window, context: Context | None) -> Iterator[tuple[str, Window]]:
    for name in ("starts", "extents"):
        for label, new in _tuples(getattr(box, name), context):
            yield f"{name}{label}", replace(box, **{name: new})
    if context is not None:
        for other in context.buffers:
            if other.name != box.buffer.name and len(other.shape) == len(box.buffer.shape):
                yield "buffer other", replace(box, buffer=other)


def _layouts(value: Layout | SwizzledLayout | Swizzle) -> Iterator[tuple[str, Any]]:
    match value:
        case Swizzle(bits, base, shift):
            yield "none", None
            yield "bits", Swizzle(bits + 1, base, max(shift, bits + 1))
            yield "base", Swizzle(bits, base + 1, shift)
        case SwizzledLayout(swizzle, layout):
            yield "no swizzle", layout
            for label, other in _layouts(swizzle):
                if other is not None:
                    yield f"swizzle {label}", SwizzledLayout(other, layout)
            for label, other in _layouts(layout):
                yield label, SwizzledLayout(swizzle, other)
        case Layout(shape, stride):
            if isinstance(shape, tuple) and isinstance(stride, tuple):
                for label, new in _tuples(stride, None):
                    if all(not isinstance(s, int) or s >= 0 for s in new):
                        yield f"stride {label}", Layout(shape, new)


def _exprs(expr: Expr, context: Context | None) -> Iterator[tuple[str, Expr]]:
    yield (
        "+1",
        Binary(Operator.ADD, expr, Const(1))
        if not isinstance(expr, Const)
        else Const(expr.value + 1),
    )
    yield (
        "-1",
        Binary(Operator.ADD, expr, Const(-1))
        if not isinstance(expr, Const)
        else Const(expr.value - 1),
    )
    yield from _inside(expr, context)


def _inside(expr: Expr, context: Context | None) -> Iterator[tuple[str, Expr]]:
    match expr:
        case Var(name):
            for other in () if context is None else context.variables[-4:]:
                if other != name:
                    yield "variable", Var(other)
        case Binary(op, left, right):
            for group in _CLASSES:
                if op in group:
                    for other in group:
                        if other is not op:
                            yield "operator", Binary(other, left, right)
            if op in (Operator.SUB, Operator.FLOORDIV, Operator.MOD, Operator.LT, Operator.LE):
                yield "sides", Binary(op, right, left)
            for label, new in _inside(left, context):
                yield label, Binary(op, new, right)
            for label, new in _inside(right, context):
                yield label, Binary(op, left, new)
            for side in (left, right):
                yield "part", side
            if isinstance(right, Const):
                yield "literal", Binary(op, left, Const(right.value + 1))
                yield "literal", Binary(op, left, Const(right.value - 1))
        case _:
            pass
