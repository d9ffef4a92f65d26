"""Atoms of single warps: copies into panels of shared memory, fragments from there, products.

A panel is a part of a tile in shared memory: rows of 64 or 128 bytes whose 16-byte pieces change
places, or rows that are 16 bytes longer than what they hold; both let eight rows be read at once.
Its rows run along the sum, or across it. Fragments are those of the instructions: ``m16`` is a tile
of 16 rows of an accumulator, ``m16 left`` and ``m16 right`` what is multiplied into it. Costs are
cycles of one SM of sm_90a (origin: derived from the rates of its architecture document).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tfsearch.atoms.contract import (
    Access,
    Atom,
    AtomCost,
    Completion,
    Computation,
    Effects,
    Kind,
    OperandSpec,
    Part,
    Semantics,
    Sync,
    TileLayout,
)
from tfsearch.atoms.semantics import nothing
from tfsearch.ir.dtypes import DType
from tfsearch.ir.layout import Swizzle
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.target.cuda import tiles
from tfsearch.target.cuda.threads import F32_RATE

LANES = 32
ROWS = 16
"""Rows of a product's accumulator."""
COLUMNS = 8
DEPTH = 16
"""Elements of 16 bits along the sum of one product."""
SHORT = 4
"""Elements of 32 bits along the sum of one product."""
FRAGMENT, LEFT, RIGHT = "m16", "m16 left", "m16 right"
ROWS_OF, COLUMNS_OF = "m16 rows", "m16 columns"
COPIES = {ROWS_OF: 4, COLUMNS_OF: 8}
"""Threads that hold the same rows or columns."""
PAD = 16
"""Bytes by which the rows of a padded panel are longer."""
PIECE = 16
"""Bytes of what a swizzle moves."""
MMA_RATE = 2560.0
"""Operations of an SM of sm_90a in a cycle by products of warps; :file:`sm_90a.toml`."""
SHARED_RATE = 128.0
COPY_RATE = 64.0
"""Bytes that an SM copies in a cycle."""
R, W, U = Access.READ, Access.WRITE, Access.UPDATE
SHARED = frozenset({MemorySpace.SHARED})
GLOBAL = frozenset({MemorySpace.GLOBAL})
REGISTER = frozenset({MemorySpace.REGISTER})
HALVES = (DType.BF16, DType.F16)
BASE = frozenset({"sm_80"})
GROUP = "copy"


@dataclass(frozen=True)
class Panel:
    """Rows of ``span`` bytes, swizzled or padded."""

    span: int
    swizzled: bool

    @property
    def name(self) -> str:
        """``swizzled128``."""
        return f"{'swizzled' if self.swizzled else 'padded'}{self.span}"

    @property
    def pitch(self) -> int:
        """Bytes from row to row."""
        return self.span if self.swizzled else self.span + PAD

    @property
    def mask(self) -> int:
        """Of the bits that choose places of pieces."""
        return self.span // PIECE - 1 if self.swizzled else 0

    def swizzle(self, dtype: DType) -> Swizzle | None:
        """Of offsets in elements: pieces change places within 128-byte lines."""
        if not self.swizzled:
            return None
        base = (PIECE // dtype.bytes).bit_length() - 1
        return Swizzle(self.mask.bit_length(), base, 3)

    def tile(self, dtype: DType, rows: int, columns: int) -> TileLayout:
        """The layout of a part of a panel."""
        stride = (self.pitch // dtype.bytes, 1)
        return TileLayout(self.name, (rows, columns), stride, self.swizzle(dtype))


PANELS = tuple(Panel(span, swizzled) for swizzled in (True, False) for span in (128, 64))


def warp_atoms() -> Iterator[Atom]:
    """Every atom of this module, and those of register tiles of a warp."""
    for panel in PANELS:
        for dtype in HALVES:
            yield from _copies(panel, dtype)
            yield _gather(panel, dtype)
            yield from _matrices(panel, dtype)
        yield from _copies(panel, DType.F32)
        yield from _words(panel)
    for dtype in HALVES:
        yield _product(dtype)
    yield _multiply_add()
    yield from _groups()
    for atom in tiles.tile_atoms():
        if atom.computes.fn != "stage":
            yield _of_a_warp(atom)


def _load_piece(views: Sequence[Any]) -> None:
    dst, src = views
    dst[...] = 0
    dst[: src.shape[0], : src.shape[1]] = src


def _copy_operands(
    panel: Panel, dtype: DType, rows: int, alignment: int, partial: tuple[bool, ...]
) -> tuple[OperandSpec, OperandSpec]:
    columns = panel.span // dtype.bytes
    shape = (rows, columns)
    return (
        OperandSpec(
            "dst", W, dtype, shape, SHARED, alignment=PIECE,
            layouts=(panel.tile(dtype, rows, columns),),
        ),
        OperandSpec("src", R, dtype, shape, GLOBAL, partial, alignment=alignment),
    )  # fmt: skip


def _copies(panel: Panel, dtype: DType) -> Iterator[Atom]:
    """Asynchronous copies of as many rows as the threads of a warp cover, once each."""
    for size in (16, 8, 4):
        rows = LANES * size // panel.span
        head = f"{size}, {panel.span}, {panel.pitch}, {panel.mask}"
        for partial in (False, True):
            call = "tfs_copy_rows_some" if partial else "tfs_copy_rows"
            extent = "{src.rows}, {src.n}, " if partial else ""
            name = f"{panel.name}.{dtype.value}.b{size}"
            yield Atom(
                f"cuda.{'piece_some' if partial else 'piece'}.{name}", frozenset({"cp_async"}),
                Computation(Kind.COPY, f"piece {size}", (rows, panel.span // dtype.bytes),
                            (dtype, dtype), partial=partial),
                _copy_operands(panel, dtype, rows, size, (True, True) if partial else ()),
                _load_piece, AtomCost("access", LANES * size / COPY_RATE + 2.0 * partial, 600.0),
                f"{call}<{head}>({{dst.base}}, {{dst.row}}, {{src}}, {{src.ld}}, {extent}"
                "tfs_lane);",
                "all", 1, 1, Effects(Completion.COMMIT_GROUP, group=GROUP),
            )  # fmt: skip


def _gather(panel: Panel, dtype: DType) -> Atom:
    """A copy through registers, of rows at any address."""
    rows = LANES * PIECE // panel.span
    head = f"{panel.span}, {panel.pitch}, {panel.mask}"
    return Atom(
        f"cuda.piece_gather.{panel.name}.{dtype.value}", BASE,
        Computation(Kind.COPY, f"piece {dtype.bytes}", (rows, panel.span // dtype.bytes),
                    (dtype, dtype), partial=True),
        _copy_operands(panel, dtype, rows, dtype.bytes, (True, True)), _load_piece,
        AtomCost("access", 24.0, 600.0),
        f"tfs_gather_rows<{head}>({{dst.base}}, {{dst.row}}, {{src}}, {{src.ld}}, {{src.rows}}, "
        "{src.n}, tfs_lane);",
        "all", 1, 1,
    )  # fmt: skip


def _moved(*, turned: bool) -> Semantics:
    def semantics(views: Sequence[Any]) -> None:
        dst, src = views
        dst[...] = src.T if turned else src

    return semantics


def _matrices(panel: Panel, dtype: DType) -> Iterator[Atom]:
    """Fragments of both factors, stored along the sum or across it.

    The right one is held with its columns along the result, so that eight of them are a product's.
    """
    cycles = 2 * ROWS * ROWS / SHARED_RATE
    for fragment, across in ((f, x) for f in (LEFT, RIGHT) for x in (False, True)):
        left = fragment == LEFT
        # A plain left factor and an across right one lie as they are held.
        turned = across == left
        down = "true" if not turned else "false"
        turn = "true" if across else "false"
        dst = OperandSpec("dst", W, dtype, (ROWS, ROWS), REGISTER, fragments=(fragment,))
        src = OperandSpec(
            "src", R, dtype, (ROWS, ROWS), SHARED, alignment=PIECE,
            layouts=(panel.tile(dtype, ROWS, ROWS),),
        )  # fmt: skip
        side = "a" if left else "b"
        yield Atom(
            f"cuda.matrices_{side}{'_across' if across else ''}.{panel.name}.{dtype.value}",
            frozenset({"ldmatrix"}),
            Computation(Kind.LOAD, "across" if across else "along", (ROWS, ROWS), (dtype, dtype)),
            (dst, src), _moved(turned=turned), AtomCost("shared", cycles, 30.0),
            f"tfs_matrices<{panel.pitch}, {panel.mask}, {down}, {turn}>({{dst}}, {{src.base}}, "
            "{src.row}, {src.at}, tfs_lane);",
            "all", 1, 1,
        )  # fmt: skip


def _words(panel: Panel) -> Iterator[Atom]:
    """Fragments of 32 bits: what a thread multiplies into its sums, four elements deep."""
    dtype = DType.F32
    for fragment, across in ((f, x) for f in (ROWS_OF, COLUMNS_OF) for x in (False, True)):
        left = fragment == ROWS_OF
        held = (ROWS, SHORT) if left else (SHORT, COLUMNS)
        turned = across == left
        stored = held[::-1] if turned else held
        name = f"{'rows' if left else 'columns'}{'_across' if across else ''}"
        dst = OperandSpec(
            "dst", W, dtype, held, REGISTER, fragments=(fragment,), copies=COPIES[fragment]
        )
        src = OperandSpec(
            "src", R, dtype, stored, SHARED, alignment=PIECE,
            layouts=(panel.tile(dtype, *stored),),
        )  # fmt: skip
        cycles = (8.0 if left else 4.0) if across else 4.0
        yield Atom(
            f"cuda.{name}.{panel.name}.f32", BASE,
            Computation(Kind.LOAD, "across" if across else "along", held, (dtype, dtype)),
            (dst, src), _moved(turned=turned), AtomCost("shared", cycles, 30.0),
            f"tfs_{name}<{panel.pitch}, {panel.mask}>({{dst}}, {{src.base}}, {{src.row}}, "
            "{src.at}, tfs_lane);",
            "all", 1, 1,
        )  # fmt: skip


def _multiply_add() -> Atom:
    """Products of f32 by multiply-adds of threads."""
    f32, flops = DType.F32, 2 * ROWS * COLUMNS * SHORT
    return Atom(
        "cuda.multiply_add.f32", BASE,
        Computation(Kind.MMA, "fragments", (ROWS, COLUMNS, SHORT), (f32, f32, f32)),
        (
            OperandSpec("acc", U, f32, (ROWS, COLUMNS), REGISTER, fragments=(FRAGMENT,)),
            OperandSpec(
                "a", R, f32, (ROWS, SHORT), REGISTER, fragments=(ROWS_OF,), copies=COPIES[ROWS_OF]
            ),
            OperandSpec(
                "b", R, f32, (SHORT, COLUMNS), REGISTER, fragments=(COLUMNS_OF,),
                copies=COPIES[COLUMNS_OF],
            ),
        ),
        _multiply, AtomCost("f32", flops / 2 / F32_RATE, 16.0),
        "tfs_product_f32({acc}, {a}, {b});", "all", 1, 1, flops=flops,
    )  # fmt: skip


def _multiply(views: Sequence[Any]) -> None:
    acc, left, right = views
    acc[...] = acc + left.astype("float32") @ right.astype("float32")


def _product(dtype: DType) -> Atom:
    flops = 2 * ROWS * COLUMNS * DEPTH
    return Atom(
        f"cuda.mma.{dtype.value}", frozenset({"mma"}),
        Computation(Kind.MMA, "fragments", (ROWS, COLUMNS, DEPTH), (DType.F32, dtype, dtype)),
        (
            OperandSpec("acc", U, DType.F32, (ROWS, COLUMNS), REGISTER, fragments=(FRAGMENT,)),
            OperandSpec("a", R, dtype, (ROWS, DEPTH), REGISTER, fragments=(LEFT,)),
            OperandSpec("b", R, dtype, (DEPTH, COLUMNS), REGISTER, fragments=(RIGHT,)),
        ),
        _multiply, AtomCost("mma", flops / MMA_RATE, 32.0),
        f"tfs_product_{dtype.value}({{acc}}, {{a}}, {{b}});", "all", 1, 1, flops=flops,
    )  # fmt: skip


def _groups() -> Iterator[Atom]:
    """Groups of copies of every thread."""
    pending = OperandSpec("pending", R, DType.I32, (), frozenset(), part=Part.PENDING)
    for name, what, operands in (
        ("commit", Sync.COMMIT, ()),
        ("wait", Sync.WAIT_GROUP, (pending,)),
    ):
        call = f"tfs_copy_{name}{'<{pending}>' if operands else ''}();"
        yield Atom(
            f"cuda.copy_{name}", frozenset({"cp_async"}),
            Computation(Kind.SYNC, what.value, (), ()), operands, nothing,
            AtomCost("issue", 1.0, 20.0), call, "all",
            effects=Effects(synchronises=what, group=GROUP),
        )  # fmt: skip


def _of_a_warp(atom: Atom) -> Atom:
    """The atom of a register tile of four warps, by one of them: a quarter of its rows."""
    parts = tiles.ROWS // ROWS

    def shape(extents: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(ROWS if n == tiles.ROWS else n for n in extents)

    operands = tuple(
        replace(
            spec,
            shape=shape(spec.shape),
            fragments=(FRAGMENT,) if spec.fragments else (),
            share=spec.share.replace(tiles.FRAGMENT, FRAGMENT),
        )
        for spec in atom.operands
    )
    return replace(
        atom,
        id=atom.id.replace("cuda.tile_", "cuda.warp_tile_"),
        features=BASE,
        computes=replace(atom.computes, shape=shape(atom.computes.shape)),
        operands=operands,
        cost=replace(atom.cost, cycles=atom.cost.cycles / parts),
        issuing_warps=1,
        warp_alignment=1,
    )
