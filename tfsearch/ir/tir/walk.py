"""Paths and walks over the statements of a kernel.

A path names a statement: the index in the kernel's body, then the index among the children of
each enclosing statement. The children of an ``If`` are its ``then`` block followed by its
``orelse`` block.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tfsearch.ir.tir.nodes import Block, Call, For, If, Kernel, Role, Stmt, Window

Path = tuple[int, ...]


def children(statement: Stmt) -> Block:
    """The statements directly inside one, in order; () for a leaf."""
    match statement:
        case For():
            return statement.body
        case If():
            return statement.then + statement.orelse
        case Role():
            return statement.body
        case _:
            return ()


def walk(block: Block, prefix: Path = ()) -> Iterator[tuple[Path, Stmt]]:
    """Every statement with its path, parents before children, in the order of the text."""
    for index, statement in enumerate(block):
        path = (*prefix, index)
        yield path, statement
        yield from walk(children(statement), path)


def statement_at(kernel: Kernel, path: Path) -> Stmt:
    """The statement a path names; ``IndexError`` if there is none."""
    block = kernel.body
    found: Stmt | None = None
    for index in path:
        if not 0 <= index < len(block):
            raise IndexError(f"kernel {kernel.name} has no statement at {path}")
        found = block[index]
        block = children(found)
    if found is None:
        raise IndexError("the empty path names no statement")
    return found


def with_children(statement: Stmt, block: Block, then_count: int | None = None) -> Stmt:
    """The statement with other children.

    ``then_count`` says how many of them are the ``then`` block of an ``If`` (as many as before
    if None). ``ValueError`` for children of a leaf.
    """
    match statement:
        case For() | Role():
            return replace(statement, body=block)
        case If():
            count = len(statement.then) if then_count is None else then_count
            return replace(statement, then=block[:count], orelse=block[count:])
        case _:
            if block:
                raise ValueError("a leaf statement has no children")
            return statement


def replace_at(kernel: Kernel, path: Path, new: Block) -> Kernel:
    """The kernel with the statement at ``path`` replaced by ``new`` (empty: dropped)."""
    statement_at(kernel, path)
    return replace(kernel, body=_replace(kernel.body, path, new))


def _replace(block: Block, path: Path, new: Block) -> Block:
    index = path[0]
    if len(path) == 1:
        return block[:index] + new + block[index + 1 :]
    parent = block[index]
    inner = _replace(children(parent), path[1:], new)
    count: int | None = None
    if isinstance(parent, If):
        count = len(parent.then)
        if path[1] < count:
            count += len(inner) - len(children(parent))
    return (*block[:index], with_children(parent, inner, count), *block[index + 1 :])


def transform(block: Block, change: Callable[[Stmt], Block]) -> Block:
    """Rebuild a block bottom-up: ``change`` maps each statement to what stands in its place."""
    out: list[Stmt] = []
    for statement in block:
        match statement:
            case For() | Role():
                rebuilt: Stmt = replace(statement, body=transform(statement.body, change))
            case If():
                rebuilt = replace(
                    statement,
                    then=transform(statement.then, change),
                    orelse=transform(statement.orelse, change),
                )
            case _:
                rebuilt = statement
        out.extend(change(rebuilt))
    return tuple(out)


def windows(call: Call) -> Iterator[tuple[int, Window]]:
    """The window operands of a call with their positions."""
    for index, operand in enumerate(call.operands):
        if isinstance(operand, Window):
            yield index, operand
