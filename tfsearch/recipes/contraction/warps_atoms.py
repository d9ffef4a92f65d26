"""What a warps pipeline is made of, found among a target's atoms by what they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tfsearch.atoms.contract import Atom, Kind, Sync, TileLayout
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace

ACROSS = "across"
LEFT, RIGHT = 0, 1
_SHARED, _GLOBAL = frozenset({MemorySpace.SHARED}), frozenset({MemorySpace.GLOBAL})
_REGISTER = frozenset({MemorySpace.REGISTER})


@dataclass(frozen=True)
class Panel:
    """A way in which tiles lie in shared memory, with the atoms that know it.

    ``layout``: rows of ``span`` elements. ``copies``: by the bytes of one access and whether they
    copy what exists of a piece. ``loads``: of fragments, by the factor and whether it is stored
    across the sum.
    """

    layout: TileLayout
    span: int
    copies: dict[tuple[int, bool], Atom] = field(default_factory=dict[tuple[int, bool], Atom])
    loads: dict[tuple[int, bool], Atom] = field(default_factory=dict[tuple[int, bool], Atom])

    @property
    def name(self) -> str:
        """Its name in a point."""
        return self.layout.name

    @property
    def pitch(self) -> int:
        """Elements from row to row."""
        assert isinstance(self.layout.stride, tuple)
        pitch = self.layout.stride[0]
        assert isinstance(pitch, int)
        return pitch

    @property
    def period(self) -> int:
        """Elements after which the swizzle repeats; 1 without one."""
        return self.layout.swizzle.period if self.layout.swizzle else 1

    def widest(self, most: int) -> int:
        """The bytes of the widest copy of at most so many."""
        sizes = (size for size, partial in self.copies if partial and size <= most)
        return max(sizes, default=0)

    def copy(self, size: int, *, partial: bool) -> Atom:
        """A copy by accesses of so many bytes, of whole pieces where that is enough."""
        found = None if partial else self.copies.get((size, False))
        return found or self.copies[size, True]


@dataclass(frozen=True)
class WarpsAtoms:
    """The atoms of a pipeline for factors of one type; synchronisation by id.

    ``product``: of fragments in registers, by one warp. ``panels`` by name.
    """

    product: Atom
    panels: Mapping[str, Panel]
    syncs: Mapping[str, str]

    def __getitem__(self, name: str) -> str:
        """The atom of one synchronisation, such as ``wait``."""
        return self.syncs[name]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Rows, columns and depth of a product."""
        rows, columns, depth = self.product.computes.shape
        return rows, columns, depth

    @property
    def fragment(self) -> str:
        """Of accumulators."""
        return self.product.operands[0].fragments[0]

    def fragment_of(self, side: int) -> str:
        """Of a factor."""
        return self.product.operands[1 + side].fragments[0]

    def copies_of(self, side: int) -> int:
        """Threads that hold the same element of a factor's fragment."""
        return self.product.operands[1 + side].copies

    def width(self, side: int) -> int:
        """Rows (of the right factor: columns) of the result that one loaded fragment serves."""
        load = next(iter(self.panels.values())).loads[side, False]
        return load.operands[0].shape[side]


def warps_atoms(
    atoms: AtomTable, dtype: DType, acc: DType, accuracy: str, across: tuple[bool, bool]
) -> WarpsAtoms:
    """The atoms of a pipeline; ``RequestError`` (``recipe.warps``) naming what a target lacks.

    ``across``: whether the first and the second factor are stored across the sum.
    """
    usable = [atom for atom in atoms.values() if atom.features <= atoms.features]
    product = next(_products(usable, (acc, dtype, dtype), accuracy), None)
    if product is None:
        raise RequestError("recipe.warps", f"no product of {dtype.value} fragments by one warp")
    panels = {p.name: p for p in _panels(usable, dtype, product, across)}
    if not panels:
        raise RequestError("recipe.warps", f"no copies of {dtype.value} that fragments load from")
    copies = [atom for panel in panels.values() for atom in panel.copies.values()]
    group = next((atom.effects.group for atom in copies if atom.is_async), "")
    syncs = {
        "team": _sync(usable, Sync.TEAM, ""),
        "commit": _sync(usable, Sync.COMMIT, group),
        "wait": _sync(usable, Sync.WAIT_GROUP, group),
    }
    return WarpsAtoms(product, panels, syncs)


def _products(
    atoms: list[Atom], dtypes: tuple[DType, DType, DType], accuracy: str
) -> Iterator[Atom]:
    """Products of fragments, those that are made for the accuracy first."""
    found = [
        atom
        for atom in atoms
        if atom.computes.kind is Kind.MMA
        and atom.computes.dtypes == dtypes
        and atom.issuing_warps == 1
        and not atom.is_async
        and all(spec.spaces == _REGISTER and spec.fragments for spec in atom.operands)
        and atom.computes.accuracy in ("precise", accuracy)
    ]
    yield from sorted(found, key=lambda atom: atom.computes.accuracy != accuracy)


def _panels(
    atoms: list[Atom], dtype: DType, product: Atom, across: tuple[bool, bool]
) -> Iterator[Panel]:
    """Layouts from which both factors load and to which something copies."""
    pair = (dtype, dtype)
    copies = [a for a in atoms if a.computes.kind is Kind.COPY and a.computes.dtypes == pair]
    loads = [a for a in atoms if a.computes.kind is Kind.LOAD and a.computes.dtypes == pair]
    found: dict[str, Panel] = {}
    for atom in copies:
        dst, src = atom.operands[:2]
        if dst.spaces != _SHARED or src.spaces != _GLOBAL or src.box or atom.issuing_warps != 1:
            continue
        for layout in dst.layouts:
            panel = found.setdefault(layout.name, Panel(layout, dst.shape[1]))
            panel.copies[src.alignment, atom.computes.partial] = atom
    for atom in loads:
        dst, src = atom.operands
        side = _side(product, dst.fragments)
        if side is not None and src.spaces == _SHARED:
            for layout in src.layouts:
                if layout.name in found:
                    found[layout.name].loads[side, atom.computes.fn == ACROSS] = atom
    for panel in found.values():
        if all((side, across[side]) in panel.loads for side in (LEFT, RIGHT)):
            yield panel


def _side(product: Atom, fragments: tuple[str, ...]) -> int | None:
    for side in (LEFT, RIGHT):
        if fragments and fragments == product.operands[1 + side].fragments:
            return side
    return None


def _sync(atoms: list[Atom], what: Sync, group: str) -> str:
    for atom in atoms:
        effects = atom.effects
        plain = atom.computes.kind is Kind.SYNC and atom.issuer == "all"
        if plain and effects.synchronises == what and effects.group == group:
            return atom.id
    raise RequestError("recipe.warps", f"no instruction for {what.value}")
