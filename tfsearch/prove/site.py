"""What a rule sees: a statement at its place, with everything known there."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tfsearch.atoms.contract import Atom, OperandSpec
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Buffer, Io, Kernel, Operand, Stmt, Window
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.forms import Form
from tfsearch.prove.limits import Limits
from tfsearch.prove.scope import Scope


@dataclass(slots=True)
class Site:
    """A statement with what is known where it stands.

    ``visible``: buffers by name. ``io``: directions of the kernel's arguments. ``divergent``:
    why not every unit comes here equally often ("" if every unit does).
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


@dataclass(slots=True)
class Resolved:
    """An operand beside its contract; ``starts`` and ``extents`` are () for scalars."""

    index: int
    operand: Operand
    spec: OperandSpec
    starts: tuple[Form, ...] = ()
    extents: tuple[Form, ...] = ()

    @property
    def window(self) -> Window:
        """The operand as a window; ``TypeError`` if it is a scalar."""
        if not isinstance(self.operand, Window):
            raise TypeError(f"operand {self.spec.name} is a scalar")
        return self.operand


@dataclass(slots=True)
class CallSite(Site):
    """A call whose atom is known and whose operands are as many as the contract has."""

    atom: Atom = field(kw_only=True)
    operands: tuple[Resolved, ...] = ()
    windows: tuple[Resolved, ...] = ()
    verdicts: list[str] | None = None


S = TypeVar("S")


@dataclass(frozen=True)
class Rule(Generic[S]):
    """A rule of legality: a stable code, and a check that yields one message a violation."""

    code: str
    check: Callable[[S], Iterable[str]]
