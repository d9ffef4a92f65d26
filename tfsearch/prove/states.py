"""Modes of a unit that atoms need, and stores that others see only after a fence.

A forward pass over a kernel: a mode is on where every way has set it up; a weak store is open
where some way has made it and not fenced it since.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from tfsearch.atoms.contract import WEAK_STORE, Atom, Sync
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Block, Call, For, If, Kernel, Role, Stmt
from tfsearch.ir.tir.walk import Path, children
from tfsearch.prove.team.program import called

Finding = tuple[str, Path, str]
_SILENT = frozenset(
    {Sync.NONE, Sync.FENCE, Sync.COMMIT, Sync.WAIT_GROUP, Sync.SET_REGISTERS, Sync.INIT}
)
"""What tells nobody that something has been written."""


def state_findings(kernel: Kernel, atoms: AtomTable) -> Iterator[Finding]:
    """(code, place, message) of atoms outside of the mode they need, and of stores left open."""
    used = [atoms[name] for name in called(kernel.body) if name in atoms]
    if not any(_matters(atom) for atom in used):
        return
    walker = _Walker(atoms)
    end = walker.block(kernel.body, (), 0, _State(frozenset(), frozenset()))
    for path in sorted(end.open):
        walker.refuse(
            "tir.proxy-fence",
            path,
            "the kernel ends with no fence after this store, which others may then not see",
        )
    for mode in sorted(walker.configured & end.maybe):
        walker.refuse(
            "tir.mode-left", (), f"the kernel may end with the mode {mode} still on; release it"
        )
    yield from walker.found.values()


def is_weak(atom: Atom) -> bool:
    """Whether an atom writes so that others see it only after a fence."""
    default = atom.effects.proxy
    return any(
        spec.access.writes and (spec.proxy or default) == WEAK_STORE for spec in atom.operands
    )


def _matters(atom: Atom) -> bool:
    effects = atom.effects
    return bool(effects.configures or effects.releases or effects.needs) or is_weak(atom)


@dataclass(frozen=True)
class _State:
    """``on``: modes that are on for certain. ``open``: weak stores. ``maybe``: modes perhaps on."""

    on: frozenset[str]
    open: frozenset[Path]
    maybe: frozenset[str] = frozenset()

    def meet(self, other: _State) -> _State:
        """Either this or the other."""
        return _State(self.on & other.on, self.open | other.open, self.maybe | other.maybe)


class _Walker:
    def __init__(self, atoms: AtomTable) -> None:
        self.atoms = atoms
        self.found: dict[tuple[str, Path], Finding] = {}
        self.configured: set[str] = set()

    def refuse(self, code: str, path: Path, message: str) -> None:
        self.found.setdefault((code, path), (code, path, message))

    def block(self, block: Block, prefix: Path, offset: int, state: _State) -> _State:
        for index, statement in enumerate(block):
            state = self._statement(statement, (*prefix, offset + index), state)
        return state

    def _statement(self, statement: Stmt, path: Path, state: _State) -> _State:
        match statement:
            case Call():
                atom = self.atoms.get(statement.atom)
                return state if atom is None else self._call(atom, path, state)
            case If(_, then, orelse):
                left = self.block(then, path, 0, state)
                return left.meet(self.block(orelse, path, len(then), state))
            case For():
                once = self.block(children(statement), path, 0, state)
                again = self.block(children(statement), path, 0, state.meet(once))
                return state.meet(again)
            case Role():
                return state.meet(self.block(children(statement), path, 0, state))
            case _:
                return state

    def _call(self, atom: Atom, path: Path, state: _State) -> _State:
        effects = atom.effects
        if effects.needs and effects.needs not in state.on:
            self.refuse(
                "tir.mode-missing",
                path,
                f"{atom.id} works in the mode {effects.needs}, which not every way here sets up",
            )
        telling = effects.synchronises not in _SILENT
        for store in sorted(state.open) if telling else ():
            self.refuse(
                "tir.proxy-fence",
                store,
                f"{atom.id} tells others of this store with no fence in between; they may then not "
                f"see it",
            )
        on, opened, maybe = state.on, state.open, state.maybe
        if effects.configures:
            self.configured.add(effects.configures)
            on, maybe = on | {effects.configures}, maybe | {effects.configures}
        if effects.releases:
            on, maybe = on - {effects.releases}, maybe - {effects.releases}
        if effects.synchronises == Sync.FENCE and WEAK_STORE in effects.fences:
            opened = frozenset[Path]()
        if is_weak(atom):
            opened |= {path}
        return _State(on, opened, maybe)
