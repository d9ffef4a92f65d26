"""Operands are what the atom's contract asks for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from math import gcd

from tfsearch.atoms.contract import Access, Completion, Part
from tfsearch.ir.tir.nodes import Buffer, Io, Scalar, Window
from tfsearch.ir.tir.printer import print_expr
from tfsearch.prove.forms import ZERO, Form, combine
from tfsearch.prove.points import enumerate_points
from tfsearch.prove.rules_layout import laid_out_alignment
from tfsearch.prove.site import CallSite, ResolvedWindow, Rule


def check_kind(site: CallSite) -> Iterable[str]:
    """A window where memory is asked for, a number where a scalar is."""
    out: list[str] = []
    for operand in site.operands:
        is_window = isinstance(operand.operand, Window)
        if is_window != bool(operand.spec.spaces):
            wanted = "a window of a buffer" if operand.spec.spaces else "a number"
            found = "a window" if is_window else "a number"
            out.append(
                f"operand {operand.spec.name} of {site.atom.id} is {found}; it takes {wanted}"
            )
    return out


def check_literal(site: CallSite) -> Iterable[str]:
    """Integer operands take integers."""
    if len(site.windows) == len(site.operands):
        return ()
    out: list[str] = []
    for operand in site.operands:
        dtype = operand.spec.dtype
        if isinstance(operand.operand, Scalar) and dtype is not None and not dtype.is_float:
            value = operand.operand.value
            if not float(value).is_integer():
                out.append(f"operand {operand.spec.name} is {value}; {dtype.value} takes integers")
    return out


def check_io(site: CallSite) -> Iterable[str]:
    """Inputs are never written."""
    out: list[str] = []
    for operand in site.windows:
        io = site.io.get(operand.buffer.name)
        if io in (Io.IN, Io.PREPARED) and operand.spec.access is not Access.READ:
            out.append(
                f"operand {operand.spec.name} of {site.atom.id} is written, but "
                f"{operand.buffer.name} is an argument '{io.value}', which is read only"
            )
    return out


def check_space(site: CallSite) -> Iterable[str]:
    """Buffers live where the atom can reach them."""
    out: list[str] = []
    for operand in site.windows:
        buffer = operand.buffer
        if operand.spec.spaces and buffer.space not in operand.spec.spaces:
            wanted = ", ".join(sorted(space.value for space in operand.spec.spaces))
            out.append(
                f"operand {operand.spec.name} of {site.atom.id} is in {buffer.space.value} "
                f"({buffer.name}); it must be in {wanted}"
            )
    return out


def check_dtype(site: CallSite) -> Iterable[str]:
    """Element types agree."""
    out: list[str] = []
    for operand in site.windows:
        dtype, have = operand.spec.dtype, operand.buffer.dtype
        if dtype is not None and have is not dtype:
            out.append(
                f"operand {operand.spec.name} of {site.atom.id} is {have.value} "
                f"({operand.buffer.name}); it must be {dtype.value}"
            )
    return out


def check_shape(site: CallSite) -> Iterable[str]:
    """Tiles have the contract's shape, or less where partial tiles are allowed."""
    out: list[str] = []
    for operand in site.open:
        spec = operand.spec
        shape = spec.shape
        dims = operand.dims
        if len(dims) > len(shape):
            out.append(
                f"operand {spec.name} of {site.atom.id} spans {len(dims)} dimensions of "
                f"{operand.buffer.name}; its tile is {_tile(shape)}"
            )
            continue
        missing = len(shape) - len(dims)
        for position, size in enumerate(shape):
            dim = dims[position - missing] if position >= missing else -1
            extent = operand.extents[dim] if dim >= 0 else (1, ())
            partial = bool(spec.partial) and spec.partial[position]
            if extent == (size, ()) or _fits(site, extent, size, partial=partial):
                continue
            text = site.scope.algebra.text(extent)
            wanted = f"at most {size}" if partial else str(size)
            out.append(
                f"operand {spec.name} of {site.atom.id} has extent {text} in dimension {dim} of "
                f"{operand.buffer.name}; the tile {_tile(shape)} takes {wanted}"
            )
    return out


def _fits(site: CallSite, extent: Form, size: int, *, partial: bool) -> bool:
    scope = site.scope
    if scope.at_most(extent, size) and (partial or scope.at_least(extent, size)):
        return True
    if not extent[1]:
        return False
    points = enumerate_points(scope, (extent,), site.limits.enumeration_points)
    if points is None:
        return False
    values = points.value(scope.algebra, extent)
    return bool((values <= size).all() and (partial or (values >= size).all()))


def check_dense(site: CallSite) -> Iterable[str]:
    """The innermost dimensions of a tile lie next to one another."""
    out: list[str] = []
    for operand in site.open:
        spec = operand.spec
        if not spec.dense or operand.buffer.layout is not None or spec.layouts:
            continue
        strides = operand.buffer.dense_strides
        dims = operand.dims
        wanted = 1
        for back in range(1, min(spec.dense, len(dims), len(spec.shape)) + 1):
            extent, dim = spec.shape[-back], dims[-back]
            if extent > 1 and strides[dim] != wanted and operand.extents[dim] != (1, ()):
                out.append(
                    f"operand {spec.name} of {site.atom.id} needs stride {wanted} in dimension "
                    f"{dim}; {operand.buffer.name} has {strides[dim]}"
                )
            wanted *= extent
    return out


def check_alignment(site: CallSite) -> Iterable[str]:
    """Addresses are multiples of the contract's alignment."""
    out: list[str] = []
    for operand in site.open:
        spec, buffer = operand.spec, operand.buffer
        if spec.alignment <= 1 or buffer.space.is_register:
            continue
        if buffer.layout is None:
            known = alignment_of(site, buffer, operand)
        else:
            known = laid_out_alignment(site, buffer, operand)
        if known % spec.alignment:
            out.append(
                f"operand {spec.name} of {site.atom.id} needs an address that is a multiple of "
                f"{spec.alignment} bytes; {buffer.name} (align {buffer.alignment}) is known to "
                f"be a multiple of {known} there"
            )
    return out


def alignment_of(site: CallSite, buffer: Buffer, operand: ResolvedWindow) -> int:
    """What the window's address is known to be a multiple of, bytes."""
    offset = ZERO
    for start, stride in zip(operand.starts, buffer.dense_strides, strict=True):
        offset = combine(offset, start, stride)
    size = buffer.dtype.bytes
    known = gcd(buffer.alignment, site.scope.multiple(offset) * size)
    wanted = operand.spec.alignment
    if known % wanted == 0 or buffer.alignment % wanted or not offset[1]:
        return known
    points = enumerate_points(site.scope, (offset,), site.limits.enumeration_points)
    if points is None:
        return known
    values = points.value(site.scope.algebra, offset) * size
    return wanted if bool((values % wanted == 0).all()) else known


def check_register_index(site: CallSite) -> Iterable[str]:
    """Registers have names, not addresses: their indices are literals after unrolling."""
    out: list[str] = []
    for operand in site.windows:
        buffer = operand.buffer
        if not buffer.space.is_register:
            continue
        for dim, start in enumerate(operand.window.starts):
            if not site.scope.expands(start):
                out.append(
                    f"{buffer.space.value} {buffer.name} is indexed by {print_expr(start)} in "
                    f"dimension {dim}; only literals and variables of unrolled loops can index "
                    f"registers"
                )
    return out


def check_distinct(site: CallSite) -> Iterable[str]:
    """A call does not write one place through two operands."""
    if len(site.windows) < 2:
        return ()
    return list(_doubled(site))


def _doubled(site: CallSite) -> Iterator[str]:
    written = [o for o in site.windows if o.spec.access is not Access.READ]
    for index, left in enumerate(written):
        for right in written[index + 1 :]:
            same = left.buffer.name == right.buffer.name
            if same and left.starts == right.starts:
                yield (
                    f"operands {left.spec.name} and {right.spec.name} of {site.atom.id} both "
                    f"write the same window of {left.buffer.name}"
                )


def _tile(shape: tuple[int, ...]) -> str:
    return "×".join(map(str, shape)) or "1"


def check_completion(site: CallSite) -> Iterable[str]:
    """An atom that completes later says what by: a barrier operand, or a stream of groups."""
    effects = site.atom.effects
    match effects.completion:
        case Completion.IN_ORDER:
            return
        case Completion.BARRIER_TRANSACTIONS:
            lacks = "no barrier operand" if site.atom.find(Part.BARRIER) < 0 else ""
        case _:
            lacks = "" if effects.group else "no group"
    if lacks:
        yield (
            f"{site.atom.id} completes by {effects.completion.value} and has {lacks}; nothing "
            f"could wait for it"
        )


SIGNATURE_RULES: tuple[Rule[CallSite], ...] = (
    Rule("tir.completion", check_completion),
    Rule("tir.operand-kind", check_kind),
    Rule("tir.write-to-input", check_io),
    Rule("tir.operand-space", check_space),
    Rule("tir.operand-dtype", check_dtype),
)
"""Rules about an atom and the buffers it is handed, wherever the call stands."""

OPERAND_RULES: tuple[Rule[CallSite], ...] = (
    Rule("tir.operand-kind", check_literal),
    Rule("tir.operand-shape", check_shape),
    Rule("tir.operand-layout", check_dense),
    Rule("tir.operand-alignment", check_alignment),
    Rule("tir.register-index", check_register_index),
    Rule("tir.operand-aliased", check_distinct),
)
"""Rules about the windows and numbers of one call."""
