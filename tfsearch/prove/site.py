"""What a rule sees: a statement at its place, with everything known there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tfsearch.atoms.contract import Atom, OperandSpec
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Buffer, Io, Kernel, Operand, Role, Stmt, Window, tile_dims
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.forms import Form
from tfsearch.prove.limits import Limits
from tfsearch.prove.scope import Scope


@dataclass(slots=True)
class Site:
    """A statement with what is known where it stands.

    ``visible``: buffers by name. ``io``: directions of the kernel's arguments. ``divergent``:
    why not every unit comes here equally often ("" if every unit does). ``role``: the role over
    warps around the statement. ``partial``: why not every warp comes here equally often, and
    ``astray`` why not every unit of a cluster.
    """

    kernel: Kernel
    atoms: AtomTable
    limits: Limits
    scope: Scope
    visible: Mapping[str, Buffer]
    io: Mapping[str, Io]
    statement: Stmt
    path: Path
    divergent: str = ""
    role: Role | None = None
    partial: str = ""
    astray: str = ""


@dataclass(slots=True)
class Resolved:
    """An operand beside its contract."""

    operand: Operand
    spec: OperandSpec


@dataclass(slots=True)
class ResolvedWindow(Resolved):
    """A window operand: itself, its buffer, and starts and extents as forms.

    ``fixed``: all starts are literals; ``literal``: the extents too.
    """

    window: Window
    buffer: Buffer
    starts: tuple[Form, ...]
    extents: tuple[Form, ...]
    fixed: bool
    literal: bool
    _dims: tuple[int, ...] | None = None

    @property
    def dims(self) -> tuple[int, ...]:
        """The dimensions that make up the tile."""
        if self._dims is None:
            self._dims = tile_dims(self.window, len(self.spec.shape))
        return self._dims


@dataclass(slots=True)
class CallSite(Site):
    """A call whose atom is known and whose operands are as many as the contract has.

    ``windows``: the operands that are windows. ``open``: those of them whose place in the buffer
    has not been found legal before, for the same operand of the same atom.
    """

    atom: Atom = field(kw_only=True)
    operands: tuple[Resolved, ...] = ()
    windows: tuple[ResolvedWindow, ...] = ()
    open: tuple[ResolvedWindow, ...] = ()
    verdicts: list[str] | None = None


S = TypeVar("S")


@dataclass(frozen=True)
class Rule(Generic[S]):
    """A rule of legality: a stable code, and a check that yields one message a violation."""

    code: str
    check: Callable[[S], Iterable[str]]
