"""Families of mutants that people write by hand, beside those that the grammar generates.

Each is a mistake that somebody makes in a kernel: operands the wrong way round, an order of loops,
a barrier's arrival in another place, a parity turned, a window one further, a cast to another type,
a reduction that starts from another number. ``FAMILIES`` has them by name.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise

from _mutate import Mutant, renew, with_kernel

from tfsearch.atoms.contract import Atom, Part, Sync
from tfsearch.ir.layout import Layout, Swizzle, SwizzledLayout
from tfsearch.ir.tir.expr import Binary, Const, Expr, Operator, Var, substitute
from tfsearch.ir.tir.nodes import (
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Kernel,
    LoopKind,
    Module,
    Operand,
    Role,
    Scalar,
    Stmt,
    Window,
)
from tfsearch.ir.tir.walk import Path, children, replace_at, walk, with_children

Made = tuple[str, Callable[[], Kernel]]


@dataclass(frozen=True)
class Here:
    """A statement at its place, the block that it stands in, and what there is beside it."""

    kernel: Kernel
    atoms: Mapping[str, Atom]
    buffers: tuple[Buffer, ...]
    path: Path
    statement: Stmt
    block: Block
    offset: int

    def put(self, *new: Stmt) -> Kernel:
        """The kernel with other statements in this one's place."""
        return replace_at(self.kernel, self.path, new)

    @property
    def atom(self) -> Atom | None:
        """The atom of a call."""
        return self.atoms.get(self.statement.atom) if isinstance(self.statement, Call) else None


Family = Callable[[Here], Iterator[Made]]


def families(module: Module, atoms: Mapping[str, Atom]) -> Iterator[Mutant]:
    """Every mutant of every family, kernel by kernel in the order of the text."""
    for number, kernel in enumerate(module.kernels):
        put = partial(with_kernel, module, number)
        found = [p.buffer for p in kernel.params]
        found += [s.buffer for _, s in walk(kernel.body) if isinstance(s, Alloc)]
        for path, statement in walk(kernel.body):
            block, offset = _around(kernel, path)
            here = Here(kernel, atoms, tuple(found), path, statement, block, offset)
            for name, family in FAMILIES.items():
                for label, make in family(here):
                    yield Mutant(
                        f"family {name} {label}".rstrip(), kernel.name,
                        lambda make=make, put=put: put(make()),
                    )  # fmt: skip


def _around(kernel: Kernel, path: Path) -> tuple[Block, int]:
    """The block that a path's statement stands in, and its place there."""
    block = kernel.body
    for index in path[:-1]:
        statement = block[index]
        block = children(statement)
        if isinstance(statement, If):
            # The two branches are two blocks, numbered one after the other.
            block = statement.then + statement.orelse
    return block, path[-1]


def _call(here: Here, at: int, operand: Operand) -> Kernel:
    assert isinstance(here.statement, Call)
    operands = here.statement.operands
    return here.put(
        replace(here.statement, operands=(*operands[:at], operand, *operands[at + 1 :]))
    )


# Calls --------------------------------------------------------------------------------------------


def swapped_operands(here: Here) -> Iterator[Made]:
    """Two operands of one call the wrong way round."""
    if not isinstance(here.statement, Call):
        return
    operands = here.statement.operands
    for left in range(len(operands)):
        for right in range(left + 1, len(operands)):
            if operands[left] != operands[right]:
                new = list(operands)
                new[left], new[right] = new[right], new[left]
                call = replace(here.statement, operands=tuple(new))
                yield f"{left} {right}", lambda c=call: here.put(c)


def other_variants(here: Here) -> Iterator[Made]:
    """A cast, a function, an accuracy or an order of memory other than the one that is meant."""
    atom = here.atom
    if atom is None or not isinstance(here.statement, Call):
        return
    mine = atom.computes
    for other in here.atoms.values():
        its = other.computes
        if other is atom or its.kind is not mine.kind or len(other.operands) != len(atom.operands):
            continue
        if its.shape == mine.shape and its.fn == mine.fn and its.dtypes != mine.dtypes:
            label = "cast"
        elif its.shape == mine.shape and its.dtypes == mine.dtypes and its.fn != mine.fn:
            label = "function"
        elif its.fn == mine.fn and its.dtypes == mine.dtypes and its.shape == mine.shape:
            label = "variant"
        elif its.fn == mine.fn and its.dtypes == mine.dtypes:
            label = "width"
        else:
            continue
        call = replace(here.statement, atom=other.id)
        yield f"{label} {mine.kind.value}", lambda c=call: here.put(c)


def other_identities(here: Here) -> Iterator[Made]:
    """A reduction, a fill or a factor that starts from another number."""
    if not isinstance(here.statement, Call):
        return
    for at, operand in enumerate(here.statement.operands):
        if isinstance(operand, Scalar):
            values = {
                0.0,
                1.0,
                -1.0,
                float("inf"),
                float("-inf"),
                2 * operand.value,
                -operand.value,
            }
            for value in sorted(values - {operand.value}):
                yield str(value), lambda a=at, v=value: _call(here, a, Scalar(v))


def other_places(here: Here) -> Iterator[Made]:
    """Windows one further, a tile further, at the start, or in a buffer of the same shape."""
    if not isinstance(here.statement, Call):
        return
    for at, operand in enumerate(here.statement.operands):
        if not isinstance(operand, Window):
            continue
        for dim, (start, extent) in enumerate(zip(operand.starts, operand.extents, strict=True)):
            for label, value in (
                ("one on", _plus(start, Const(1))),
                ("one back", _plus(start, Const(-1))),
                ("a tile on", _plus(start, extent)),
                ("at 0", Const(0)),
                ("wrapped", Binary(Operator.MOD, _plus(start, Const(1)),
                                   Const(max(operand.buffer.shape[dim], 1)))),
            ):  # fmt: skip
                if value != start:
                    new = replace(
                        operand, starts=(*operand.starts[:dim], value, *operand.starts[dim + 1 :])
                    )
                    yield label, lambda a=at, n=new: _call(here, a, n)
            clip = _unclipped(extent)
            if clip is not None:
                new = replace(
                    operand, extents=(*operand.extents[:dim], clip, *operand.extents[dim + 1 :])
                )
                yield "not clipped", lambda a=at, n=new: _call(here, a, n)
        mine = operand.buffer
        for other in here.buffers:
            same = (other.shape, other.dtype, other.space) == (mine.shape, mine.dtype, mine.space)
            if same and other.name != mine.name:
                new = replace(operand, buffer=other)
                yield "in its like", lambda a=at, n=new: _call(here, a, n)


def _plus(left: Expr, right: Expr) -> Expr:
    if isinstance(left, Const) and isinstance(right, Const):
        return Const(left.value + right.value)
    return Binary(Operator.ADD, left, right)


def _unclipped(extent: Expr) -> Expr | None:
    """The full size of a clipped extent."""
    match extent:
        case Binary(Operator.MIN, Const() as full, _) | Binary(Operator.MIN, _, Const() as full):
            return full
        case Binary(Operator.MAX, _, inner) if isinstance(inner, Binary):
            return _unclipped(inner)
        case _:
            return None


def other_protocols(here: Here) -> Iterator[Made]:
    """Parities turned, counts and bytes off, groups one more or less, other ids and barriers."""
    atom = here.atom
    if atom is None or not isinstance(here.statement, Call):
        return
    for at, (operand, spec) in enumerate(zip(here.statement.operands, atom.operands, strict=False)):
        if spec.part is Part.BARRIER and isinstance(operand, Window):
            for other in here.buffers:
                mine = operand.buffer
                like = other.dtype is mine.dtype and len(other.shape) == len(mine.shape)
                if like and other.name != mine.name:
                    new = replace(operand, buffer=other)
                    yield "barrier", lambda a=at, n=new: _call(here, a, n)
        if spec.part is Part.TILE or not isinstance(operand, Expr):
            continue
        changes: dict[str, Expr] = {
            "none": Const(0),
            "one": Const(1),
            "more": _plus(operand, Const(1)),
        }
        if spec.part is Part.PARITY:
            changes = {
                "turned": Binary(Operator.SUB, Const(1), operand),
                "stuck at 0": Const(0),
                "stuck at 1": Const(1),
            }
        elif spec.part in (Part.BYTES, Part.COUNT, Part.WARPS, Part.MASK, Part.PENDING):
            changes["twice"] = Binary(Operator.MUL, operand, Const(2))
            changes["half"] = Binary(Operator.FLOORDIV, operand, Const(2))
            changes["less"] = _plus(operand, Const(-1))
        for label, value in changes.items():
            if value != operand:
                yield f"{spec.part.value} {label}", lambda a=at, v=value: _call(here, a, v)


# Order --------------------------------------------------------------------------------------------


def moved(here: Here) -> Iterator[Made]:
    """A statement to the start or the end of its block, out of its loop, past the next but one."""
    block, at = here.block, here.offset
    statement = here.statement
    if isinstance(statement, Alloc):
        return
    label = f"{type(statement).__name__}"
    atom = here.atom
    if atom is not None:
        label = atom.effects.synchronises or atom.computes.kind.value
        label = "async " + label if atom.is_async else label
    rest = (*block[:at], *block[at + 1 :])
    for where, order in (
        ("first", (statement, *rest)),
        ("last", (*rest, statement)),
        ("two on", (*rest[: at + 2], statement, *rest[at + 2 :])),
    ):
        if order != block:
            yield f"{label} {where}", lambda o=order: _reordered(here, o)
    if len(here.path) > 1:
        gone = here.put()
        parent = here.path[:-1]
        if isinstance(_at(here.kernel, parent), For):
            around = _at(gone, parent)
            yield f"{label} hoisted", lambda: replace_at(gone, parent, (statement, around))
            yield f"{label} sunk", lambda: replace_at(gone, parent, (around, statement))


def _at(kernel: Kernel, path: Path) -> Stmt:
    block: Block = kernel.body
    found: Stmt | None = None
    for index in path:
        found = block[index]
        block = children(found)
    assert found is not None
    return found


def _reordered(here: Here, order: Block) -> Kernel:
    parent = here.path[:-1]
    if not parent:
        return replace(here.kernel, body=order)
    return replace_at(here.kernel, parent, (with_children(_at(here.kernel, parent), order),))


def exchanged(here: Here) -> Iterator[Made]:
    """Two calls of one kind in the same block in each other's place."""
    if not isinstance(here.statement, Call):
        return
    for at in range(here.offset + 2, len(here.block)):
        other = here.block[at]
        if isinstance(other, Call) and other.atom == here.statement.atom:
            if other != here.statement:
                order = list(here.block)
                order[here.offset], order[at] = other, here.statement
                yield "", lambda o=tuple(order): _reordered(here, o)
            return


def doubled_later(here: Here) -> Iterator[Made]:
    """A store, or an arrival, once more at the end of its block."""
    atom = here.atom
    if atom is None or here.offset == len(here.block) - 1:
        return
    told = atom.effects.synchronises in (Sync.ARRIVE, Sync.EXPECT, Sync.COMMIT, Sync.WAIT)
    if told or any(spec.spaces and spec.access.writes for spec in atom.operands):
        kind = atom.effects.synchronises or atom.computes.kind.value
        order = (*here.block, here.statement)
        yield kind, lambda: _reordered(here, order)


# Loops, conditions, roles -------------------------------------------------------------------------


def loops(here: Here) -> Iterator[Made]:
    """Loops the other way round, wider, narrower, with another step, one iteration only."""
    loop = here.statement
    if not isinstance(loop, For):
        return
    inner = loop.body[0] if len(loop.body) == 1 else None
    if isinstance(inner, For):
        outside = replace(loop, body=inner.body)
        yield "interchanged", lambda: here.put(replace(inner, body=(outside,)))
    step = Const(loop.step)
    changes: dict[str, For] = {
        "one step wider": replace(loop, stop=_plus(loop.stop, step)),
        "one step narrower": replace(loop, stop=_plus(loop.stop, Const(-loop.step))),
        "from a step before": replace(loop, start=_plus(loop.start, Const(-loop.step))),
        "from a step after": replace(loop, start=_plus(loop.start, step)),
        "twice the step": replace(loop, step=2 * loop.step),
        "one iteration": replace(loop, stop=_plus(loop.start, Const(1))),
        "shifted": replace(
            loop, start=_plus(loop.start, Const(1)), stop=_plus(loop.stop, Const(1))
        ),
    }
    if loop.step > 1:
        changes["step of one"] = replace(loop, step=1)
    if loop.kind is LoopKind.SERIAL:
        changes["unrolled"] = replace(loop, kind=LoopKind.UNROLLED)
    for label, new in changes.items():
        yield label, lambda n=new: here.put(n)
    fixed = tuple(_bound(statement, loop.name, loop.start) for statement in loop.body)
    yield "variable stuck", lambda: here.put(replace(loop, body=fixed))


def _bound(statement: Stmt, name: str, value: Expr) -> Stmt:
    """The statement with a variable replaced in the windows and numbers of its calls."""
    if isinstance(statement, Call):
        operands = tuple(_bound_operand(o, {name: value}) for o in statement.operands)
        return replace(statement, operands=operands)
    inner = children(statement)
    if not inner:
        return statement
    return with_children(statement, tuple(_bound(s, name, value) for s in inner))


def _bound_operand(operand: Operand, env: Mapping[str, Expr]) -> Operand:
    if isinstance(operand, Window):
        starts = tuple(substitute(start, env) for start in operand.starts)
        return replace(operand, starts=starts)
    return substitute(operand, env) if isinstance(operand, Expr) else operand


def conditions(here: Here) -> Iterator[Made]:
    """Predicates negated, always true, never true, one off; branches lost."""
    choice = here.statement
    if not isinstance(choice, If):
        return
    negated = Binary(Operator.EQ, choice.condition, Const(0))
    yield "negated", lambda: here.put(replace(choice, condition=negated))
    yield "always", lambda: here.put(*choice.then)
    yield "never", lambda: here.put(*choice.orelse)
    match choice.condition:
        case Binary(Operator.LT | Operator.LE | Operator.EQ as op, left, right):
            for label, shift in (("later", 1), ("earlier", -1)):
                new = Binary(op, left, _plus(right, Const(shift)))
                yield label, lambda n=new: here.put(replace(choice, condition=n))
        case _:
            pass


def roles(here: Here) -> Iterator[Made]:
    """Roles of other warps or units, of other widths, one after another."""
    role = here.statement
    if not isinstance(role, Role):
        return
    size = role.width or 1
    changes = {
        "further": replace(role, first=role.first + size, last=role.last + size),
        "nearer": replace(role, first=role.first - size, last=role.last - size),
        "one instance less": replace(role, last=role.last - size),
        "one instance more": replace(role, last=role.last + size),
    }
    if role.width:
        changes["of all together"] = replace(role, width=role.last - role.first)
    if role.instance:
        fixed = tuple(_bound(statement, role.instance, Const(0)) for statement in role.body)
        changes["instances alike"] = replace(role, body=fixed)
    for label, new in changes.items():
        if new != role:
            yield label, lambda n=new: here.put(n)
    if here.offset + 1 < len(here.block):
        order = list(here.block)
        order[here.offset : here.offset + 2] = order[here.offset : here.offset + 2][::-1]
        yield "exchanged", lambda: _reordered(here, tuple(order))


# Storage ------------------------------------------------------------------------------------------


def storage(here: Here) -> Iterator[Made]:
    """Buffers with a slot less, another swizzle, in a loop, in the storage of another."""
    if not isinstance(here.statement, Alloc):
        return
    buffer = here.statement.buffer
    changes: dict[str, Buffer] = {}
    for dim, size in enumerate(buffer.shape):
        if size > 1 and buffer.layout is None and buffer.strides is None:
            shape = (*buffer.shape[:dim], size - 1, *buffer.shape[dim + 1 :])
            changes[f"dimension {dim} less"] = replace(buffer, shape=shape)
    layout = buffer.layout
    if isinstance(layout, SwizzledLayout):
        s = layout.swizzle
        for label, bits, base, shift in (
            ("swizzle of fewer bits", s.bits - 1, s.base, s.shift),
            ("swizzle a bit on", s.bits, s.base + 1, s.shift),
            ("swizzle from further", s.bits, s.base, s.shift + 1),
        ):
            if bits >= 0 and shift >= bits:
                new = SwizzledLayout(Swizzle(bits, base, shift), layout.layout)
                changes[label] = replace(buffer, layout=new)
        changes["no layout"] = replace(buffer, layout=None)
    elif isinstance(layout, Layout):
        changes["no layout"] = replace(buffer, layout=None)
    for other in here.buffers:
        fits = other.space is buffer.space and other.bytes >= buffer.bytes
        if fits and other.name != buffer.name and not buffer.space.is_register:
            changes[f"over {other.name}"] = replace(buffer, over=other.name)
    for label, new in changes.items():
        name = label.split(" ")[0] if label.startswith("over") else label
        yield name, lambda n=new: renew(here.kernel, buffer, n)


def variables(here: Here) -> Iterator[Made]:
    """A call with a variable taken for the one of another loop."""
    if not isinstance(here.statement, Call):
        return
    around: list[str] = []
    block: Block = here.kernel.body
    for index in here.path[:-1]:
        statement = block[index]
        if isinstance(statement, For):
            around.append(statement.name)
        block = children(statement)
    for left, right in pairwise(around):
        env: dict[str, Expr] = {left: Var(right), right: Var(left)}
        operands = tuple(_bound_operand(o, env) for o in here.statement.operands)
        if operands != here.statement.operands:
            yield "", lambda o=operands: here.put(replace(here.statement, operands=o))


FAMILIES: Mapping[str, Family] = {
    "operands": swapped_operands,
    "atom": other_variants,
    "identity": other_identities,
    "window": other_places,
    "protocol": other_protocols,
    "moved": moved,
    "exchanged": exchanged,
    "doubled": doubled_later,
    "loop": loops,
    "condition": conditions,
    "role": roles,
    "storage": storage,
    "variables": variables,
}
"""What each kind of mistake does to one statement; a change that is not there yields nothing."""
