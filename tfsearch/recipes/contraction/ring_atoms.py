"""What a ring pipeline is made of, found among a target's atoms by what they do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tfsearch.atoms.contract import Atom, Completion, Kind, OperandSpec, Part, Sync
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Swizzle
from tfsearch.ir.tir.nodes import MemorySpace

GENERIC, ASYNC = "generic", "async"


@dataclass(frozen=True)
class Product:
    """A matrix product of a team on tiles in shared memory.

    ``first`` overwrites the accumulator, ``more`` adds to it; both are of rows x columns x depth.
    """

    first: Atom
    more: Atom

    @property
    def columns(self) -> int:
        """Columns of its accumulator."""
        return self.more.computes.shape[1]


@dataclass(frozen=True)
class RingAtoms:
    """The atoms of a ring, by id, for factors of one type.

    ``products`` by columns; ``boxes`` by rows: copies of ``span`` elements of that many rows for
    one unit, ``casts`` for all of a mask. ``rows`` and ``depth`` of a product, ``warps`` of the
    team that issues it, ``fragment`` of its accumulator, ``swizzle`` of tiles. ``put``: a copy of a
    tile of ``rows`` x ``span`` from shared memory to an argument; None where there is none.
    """

    products: Mapping[int, Product]
    boxes: Mapping[int, Atom]
    casts: Mapping[int, Atom]
    syncs: Mapping[str, str]
    rows: int
    depth: int
    span: int
    warps: int
    fragment: str
    swizzle: Swizzle
    put: Atom | None

    def __getitem__(self, name: str) -> str:
        """The atom of one synchronisation, such as ``wait``."""
        return self.syncs[name]


def ring_atoms(atoms: AtomTable, dtype: DType, acc: DType, across: tuple[bool, bool]) -> RingAtoms:
    """The atoms of a ring; ``RequestError`` (``recipe.ring``) naming what a target lacks.

    ``across``: whether the first and the second factor are stored across the sum.
    """
    usable = [atom for atom in atoms.values() if atom.features <= atoms.features]
    products = dict(sorted(_products(usable, (acc, dtype, dtype), across)))
    if not products:
        raise RequestError(
            "recipe.ring", f"no matrix product of {dtype.value} tiles in shared memory"
        )
    sample = next(iter(products.values())).more
    rows, _, depth = sample.computes.shape
    tile = sample.operands[1].layouts[0]
    if tile.swizzle is None or not isinstance(tile.stride, tuple):
        raise RequestError("recipe.ring", f"{sample.id} takes tiles without a swizzle")
    span = tile.stride[0]
    assert isinstance(span, int)
    boxes, casts = (dict(sorted(_boxes(usable, dtype, span, cast))) for cast in (False, True))
    if not boxes:
        raise RequestError("recipe.ring", f"no copies of boxes of {dtype.value}")
    put = next(_puts(usable, dtype, (rows, span)), None)
    return RingAtoms(
        products,
        boxes,
        casts,
        {**dict(_syncs(usable, sample)), **(_put_syncs(usable, put) if put else {})},
        rows,
        depth,
        span,
        sample.issuing_warps,
        sample.operands[0].fragments[0],
        tile.swizzle,
        put,
    )


def _products(
    atoms: list[Atom], dtypes: tuple[DType, DType, DType], across: tuple[bool, bool]
) -> Iterator[tuple[int, Product]]:
    by_shape: dict[tuple[int, ...], dict[bool, Atom]] = {}
    for atom in atoms:
        computes = atom.computes
        if (
            computes.kind is Kind.MMA
            and computes.dtypes == dtypes
            and atom.effects.completion is Completion.MATRIX_GROUP
            and all(spec.spaces == {MemorySpace.SHARED} for spec in atom.operands[1:])
            and _majors(atom) == across
        ):
            first = not atom.operands[0].access.reads
            by_shape.setdefault(computes.shape, {})[first] = atom
    for shape, found in by_shape.items():
        if len(found) == 2:
            yield shape[1], Product(found[True], found[False])


def _majors(atom: Atom) -> tuple[bool, bool]:
    """Whether a product takes each factor stored across the sum: the depth comes first."""
    rows, columns, depth = atom.computes.shape
    a, b = (spec.shape for spec in atom.operands[1:])
    return a == (depth, rows) and rows != depth, b == (depth, columns) and columns != depth


def _boxes(atoms: list[Atom], dtype: DType, span: int, cast: bool) -> Iterator[tuple[int, Atom]]:
    for atom in atoms:
        shape = atom.computes.shape
        if (
            atom.computes.kind is Kind.COPY
            and atom.effects.completion is Completion.BARRIER_TRANSACTIONS
            and atom.computes.dtypes == (dtype, dtype)
            and len(shape) == 2
            and shape[1] == span
            and (Part.MASK in atom.parts) == cast
            and _box(atom.operands)
        ):
            yield shape[0], atom


def _puts(atoms: list[Atom], dtype: DType, shape: tuple[int, int]) -> Iterator[Atom]:
    for atom in atoms:
        if (
            atom.computes.kind is Kind.COPY
            and atom.effects.completion is Completion.COMMIT_GROUP
            and atom.computes.dtypes == (dtype, dtype)
            and atom.computes.shape == shape
            and _box(atom.operands)
        ):
            yield atom


def _box(operands: tuple[OperandSpec, ...]) -> bool:
    return any(spec.box is not None for spec in operands)


_WANTED: tuple[tuple[str, Sync, frozenset[Part], str], ...] = (
    ("init", Sync.INIT, frozenset(), "thread"),
    ("arrive", Sync.ARRIVE, frozenset(), "thread"),
    ("arrive far", Sync.ARRIVE, frozenset({Part.RANK}), "thread"),
    ("expect", Sync.EXPECT, frozenset(), "thread"),
    ("wait", Sync.WAIT, frozenset(), "all"),
    ("wait elected", Sync.WAIT, frozenset(), "thread"),
    ("team", Sync.TEAM, frozenset(), "all"),
    ("named", Sync.NAMED, frozenset(), "all"),
    ("named arrive", Sync.NAMED_ARRIVE, frozenset(), "all"),
    ("cluster arrive", Sync.CLUSTER_ARRIVE, frozenset(), "all"),
    ("cluster wait", Sync.CLUSTER_WAIT, frozenset(), "all"),
)


def _one(atoms: list[Atom], name: str, what: Sync, **wanted: object) -> str:
    for atom in atoms:
        effects, parts = atom.effects, set(atom.parts)
        if (
            atom.computes.kind is Kind.SYNC
            and effects.synchronises == what
            and wanted.get("issuer", atom.issuer) == atom.issuer
            and wanted.get("fences", effects.fences) == effects.fences
            and wanted.get("group", effects.group) == effects.group
            and wanted.get("reads_only", effects.reads_only) == effects.reads_only
            and wanted.get("fn", atom.computes.fn) == atom.computes.fn
            and (Part.RANK in parts) == bool(wanted.get("rank"))
        ):
            return atom.id
    raise RequestError("recipe.ring", f"no instruction for {name} ({what.value})")


def _put_syncs(atoms: list[Atom], put: Atom) -> dict[str, str]:
    """What goes with copies from shared memory to arguments."""
    group, proxy = put.effects.group, put.effects.proxy
    wait = Sync.WAIT_GROUP
    return {
        "put commit": _one(atoms, "put commit", Sync.COMMIT, group=group),
        "put read": _one(atoms, "put read", wait, group=group, reads_only=True),
        "put settle": _one(atoms, "put settle", wait, group=group, reads_only=False),
        "fence put": _one(atoms, "fence put", Sync.FENCE, fences=frozenset({proxy})),
    }


def _syncs(atoms: list[Atom], product: Atom) -> Iterator[tuple[str, str]]:
    group, proxy = product.effects.group, product.operands[0].proxy

    def one(name: str, what: Sync, **wanted: object) -> str:
        return _one(atoms, name, what, **wanted)

    for name, what, parts, issuer in _WANTED:
        yield name, one(name, what, issuer=issuer, rank=bool(parts))
    yield "fence init", one("fence init", Sync.FENCE, fences=frozenset({"init"}))
    yield "fence", one("fence", Sync.FENCE, fences=frozenset({proxy}))
    yield "commit", one("commit", Sync.COMMIT, group=group)
    yield "settle", one("settle", Sync.WAIT_GROUP, group=group)
    for fn in ("lower", "raise"):
        yield fn, one(fn, Sync.SET_REGISTERS, fn=fn)
