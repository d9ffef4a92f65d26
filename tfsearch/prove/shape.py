"""The shape of a recipe: a hash that equal structures share, whatever their names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from tfsearch.core import keys
from tfsearch.ir.tir.expr import Expr, Var, substitute
from tfsearch.ir.tir.nodes import (
    UNIT,
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    Let,
    Module,
    Operand,
    Role,
    Stmt,
    Window,
)
from tfsearch.ir.tir.printer import print_module


def shape_hash(module: Module) -> str:
    """SHA-256 (64 hex digits) of a module's structure; names of any kind do not matter.

    Hand it a module that was lowered at reduced sizes: at least 2·stages + 1 steps, three tiles
    a unit and a tail in every dimension, so that sizes which only change counts give equal text.
    """
    return keys.digest("recipe-shape", {"tir": print_module(renamed(module))})


def renamed(module: Module) -> Module:
    """The module with kernels, arguments, buffers, variables and roles numbered in order.

    An argument that several kernels share keeps one name.
    """
    arguments: dict[str, str] = {}
    for kernel in module.kernels:
        for param in kernel.params:
            arguments.setdefault(param.buffer.name, f"p{len(arguments)}")
    return Module(
        tuple(_Renamer(arguments).kernel(k, f"k{i}") for i, k in enumerate(module.kernels))
    )


class _Renamer:
    def __init__(self, arguments: dict[str, str]) -> None:
        self._buffers = dict(arguments)
        self._names: dict[str, Expr | int] = {UNIT: Var(UNIT)}
        self._counts = {"b": 0, "v": 0, "r": 0}

    def kernel(self, kernel: Kernel, name: str) -> Kernel:
        params = tuple(replace(p, buffer=self._buffer(p.buffer)) for p in kernel.params)
        return replace(kernel, name=name, params=params, body=self._block(kernel.body))

    def _fresh(self, stem: str) -> str:
        self._counts[stem] += 1
        return f"{stem}{self._counts[stem] - 1}"

    def _buffer(self, buffer: Buffer) -> Buffer:
        over = self._buffers.get(buffer.over, buffer.over)
        return replace(buffer, name=self._buffers.get(buffer.name, buffer.name), over=over)

    def _block(self, block: Iterable[Stmt]) -> Block:
        names, buffers = dict(self._names), dict(self._buffers)
        out = tuple(self._statement(statement) for statement in block)
        self._names, self._buffers = names, buffers
        return out

    def _statement(self, statement: Stmt) -> Stmt:
        match statement:
            case Call(atom, operands):
                return Call(atom, tuple(self._operand(operand) for operand in operands))
            case For(name, start, stop, body, kind, step, unroll):
                first, last = self._expr(start), self._expr(stop)
                names = dict(self._names)
                fresh = self._variable(name)
                inner = self._block(body)
                self._names = names
                return For(fresh, first, last, inner, kind, step, unroll)
            case Let(name, value):
                new = self._expr(value)
                return Let(self._variable(name), new)
            case Alloc(buffer):
                self._buffers[buffer.name] = self._fresh("b")
                return Alloc(self._buffer(buffer))
            case If(condition, then, orelse):
                return If(self._expr(condition), self._block(then), self._block(orelse))
            case Role(_, first, last, body, width, instance):
                name, names = self._fresh("r"), dict(self._names)
                fresh = self._variable(instance) if instance else ""
                inner = self._block(body)
                self._names = names
                return Role(name, first, last, inner, width, fresh)
            case _:
                raise TypeError(f"not a statement: {statement!r}")

    def _variable(self, name: str) -> str:
        fresh = self._fresh("v")
        self._names[name] = Var(fresh)
        return fresh

    def _operand(self, operand: Operand) -> Operand:
        if isinstance(operand, Window):
            return Window(
                self._buffer(operand.buffer),
                tuple(map(self._expr, operand.starts)),
                tuple(map(self._expr, operand.extents)),
            )
        return self._expr(operand) if isinstance(operand, Expr) else operand

    def _expr(self, expr: Expr) -> Expr:
        return substitute(expr, self._names)
