"""The atoms of a target, found by what they compute; every refusal says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from tfsearch.atoms.contract import Atom, Computation
from tfsearch.core.errors import InternalError


@dataclass(frozen=True)
class Match:
    """An atom considered for a computation; ``reason`` is "" when it can be used."""

    atom: Atom
    reason: str = ""

    @property
    def accepted(self) -> bool:
        """True when the atom can be used."""
        return not self.reason


class AtomTable(Mapping[str, Atom]):
    """Atoms by id. ``features`` are those of the architecture at hand."""

    def __init__(self, atoms: Iterable[Atom], features: Iterable[str]) -> None:
        self._atoms: dict[str, Atom] = {}
        for atom in atoms:
            if atom.id in self._atoms:
                raise InternalError("atoms.duplicate", f"atom {atom.id} is declared twice")
            self._atoms[atom.id] = atom
        self.features = frozenset(features)
        self._usable: dict[Computation, list[Atom]] = {}
        for atom in self._atoms.values():
            if atom.features <= self.features:
                self._usable.setdefault(atom.computes, []).append(atom)

    def __getitem__(self, key: str) -> Atom:
        return self._atoms[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._atoms)

    def __len__(self) -> int:
        return len(self._atoms)

    def usable(self, computes: Computation) -> Atom | None:
        """The first declared atom that computes this with the features at hand."""
        found = self._usable.get(computes)
        return found[0] if found else None

    def candidates(self, computes: Computation) -> list[Match]:
        """Every atom of the same kind, each accepted or with the reason why not."""
        return [
            Match(atom, self._reason(atom, computes))
            for atom in self._atoms.values()
            if atom.computes.kind is computes.kind
        ]

    def _reason(self, atom: Atom, wanted: Computation) -> str:
        have = atom.computes
        if have.fn != wanted.fn:
            return f"computes {have.fn or 'plain'}, wanted {wanted.fn or 'plain'}"
        if have.dtypes != wanted.dtypes:
            return f"works on {_types(have)}, wanted {_types(wanted)}"
        if have.shape != wanted.shape:
            return f"tile {have.shape}, wanted {wanted.shape}"
        if have.accuracy != wanted.accuracy:
            return f"is {have.accuracy}, wanted {wanted.accuracy}"
        if have.partial != wanted.partial:
            return "touches whole tiles" if wanted.partial else "is for partial tiles"
        missing = sorted(atom.features - self.features)
        return f"needs {', '.join(missing)}" if missing else ""


def _types(computes: Computation) -> str:
    return "/".join(dtype.value for dtype in computes.dtypes)
