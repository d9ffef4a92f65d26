"""Reads that are certain to meet unwritten contents, and outputs that nothing writes.

A forward pass in the order of the text over which windows have been written. Only certain
cases are refused; the interpreter finds the others.
"""

from __future__ import annotations

from collections.abc import Iterator

from tfsearch.atoms.contract import Access, Kind, Part
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Block, Buffer, Call, For, If, Io, Kernel, MemorySpace, Role
from tfsearch.ir.tir.walk import Path, statement_at, walk, windows
from tfsearch.prove.forms import Form
from tfsearch.prove.site import CallSite, ResolvedWindow

_Key = tuple[Form, ...] | None
"""The literal starts of a written window; None where they are not literals."""


class Written:
    """What may have been written so far, buffer by buffer."""

    def __init__(self, kernel: Kernel) -> None:
        self._kernel = kernel
        self._written: dict[str, frozenset[_Key]] = {}
        self._paths: dict[str, Path] = {}
        self._outputs = {p.buffer.name for p in kernel.params if p.io in (Io.OUT, Io.INOUT)}

    def alloc(self, buffer: Buffer, path: Path) -> None:
        """A buffer comes to life with undefined contents."""
        self._written[buffer.name] = frozenset()
        self._paths[buffer.name] = path

    def save(self) -> dict[str, frozenset[_Key]]:
        """The present state."""
        return dict(self._written)

    def load(self, state: dict[str, frozenset[_Key]]) -> None:
        """Go back to a saved state."""
        self._written = dict(state)

    def merge(self, state: dict[str, frozenset[_Key]]) -> None:
        """Either the present state or another one holds."""
        for name, keys in state.items():
            self._written[name] = self._written.get(name, frozenset()) | keys

    def reads(self, site: CallSite) -> Iterator[tuple[str, str]]:
        """(code, message) for reads of what is certainly unwritten."""
        if site.atom.computes.kind is Kind.HINT:
            return
        for operand in site.windows:
            if operand.spec.part is Part.BARRIER:
                continue
            if operand.spec.access is not Access.WRITE and self._certain(site, operand):
                name = operand.buffer.name
                yield (
                    "tir.read-unwritten",
                    f"operand {operand.spec.name} of {site.atom.id} reads {name}, which "
                    f"nothing has written there",
                )

    def writes(self, site: CallSite) -> None:
        """Note what a call writes."""
        for operand in site.windows:
            name = operand.buffer.name
            if operand.spec.access is not Access.READ:
                self._outputs.discard(name)
                known = self._written.get(name)
                if known is not None and None not in known:
                    key = self._key(operand)
                    if key not in known:
                        self._written[name] = known | {key}

    def unwritten_outputs(self) -> Iterator[tuple[str, Path, str]]:
        """(code, place, message) for arguments that the kernel should write and never does."""
        for name in sorted(self._outputs):
            yield "tir.output-unwritten", (), f"no statement writes the output {name}"

    def _key(self, operand: ResolvedWindow) -> _Key:
        if not operand.fixed:
            return None
        inner = 1 if operand.buffer.space is MemorySpace.REGISTER else 2
        for extent in operand.extents[:-inner]:
            if extent != (1, ()):
                return None
        return operand.starts

    def _certain(self, site: CallSite, operand: ResolvedWindow) -> bool:
        buffer = operand.buffer
        keys = self._written.get(buffer.name)
        if keys is None:
            return False
        if keys:
            if None in keys or not buffer.space.is_register:
                return False
            key = self._key(operand)
            if key is None or key in keys or not _whole_rows(operand):
                return False
        if not buffer.space.is_private or site.role is not None:
            # Another role may write it, wherever it stands in the text.
            return not _writes(self._kernel.body, buffer.name, site.atoms)
        return not self._from_before(buffer.name, site)

    def _from_before(self, name: str, site: CallSite) -> bool:
        """Whether an earlier iteration of a loop around the read may have written."""
        path = site.path
        alive = len(self._paths[name])
        conditional = False
        for depth in range(len(path) - 1, alive - 1, -1):
            around = statement_at(self._kernel, path[:depth])
            if isinstance(around, (If, Role)):
                conditional = True
            elif isinstance(around, For) and conditional and _writes(around.body, name, site.atoms):
                return True
        return False


def _writes(block: Block, name: str, atoms: AtomTable) -> bool:
    for _, statement in walk(block):
        atom = atoms.get(statement.atom) if isinstance(statement, Call) else None
        if atom is not None and isinstance(statement, Call):
            for index, window in windows(statement):
                access = atom.operands[index].access if index < len(atom.operands) else None
                if window.buffer.name == name and access is not None and access.writes:
                    return True
    return False


def _whole_rows(operand: ResolvedWindow) -> bool:
    """Whether different literal starts mean different registers: the last start is 0."""
    return operand.starts[-1] == (0, ())
