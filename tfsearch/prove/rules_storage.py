"""Buffers: names, shapes, layouts, capacities of the spaces they live in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from tfsearch.atoms.contract import Atom
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import Alloc, Buffer, Io, Kernel, MemorySpace, Module
from tfsearch.ir.tir.walk import Path
from tfsearch.prove.limits import Limits, footprint
from tfsearch.prove.rules_layout import layout_faults
from tfsearch.prove.site import Rule, Site
from tfsearch.prove.storage import Peak, peaks, shared_of_atoms


def buffer_of(site: Site) -> Buffer:
    """The buffer that the statement allocates."""
    if not isinstance(site.statement, Alloc):
        raise TypeError("not an allocation")
    return site.statement.buffer


def check_alloc_space(site: Site) -> Iterable[str]:
    """Only spaces that the target has, and never arguments' memory."""
    buffer = buffer_of(site)
    if buffer.space is MemorySpace.GLOBAL:
        yield f"{buffer.name} is allocated in global memory, which holds arguments only"
    elif buffer.space not in site.limits.capacity:
        have = ", ".join(sorted(space.value for space in site.limits.capacity)) or "none"
        yield f"{buffer.name} is in {buffer.space.value}, which the target lacks; it has {have}"


def check_alloc_scratch(site: Site) -> Iterable[str]:
    """Memory that all units share comes to life for all of them."""
    buffer = buffer_of(site)
    if buffer.space is MemorySpace.SCRATCH and site.divergent:
        yield f"scratch {buffer.name} is shared by all units, but {site.divergent}"


def check_alloc_over(site: Site) -> Iterable[str]:
    """Storage that is shared belongs to another buffer, is large enough, and well aligned."""
    buffer = buffer_of(site)
    if not buffer.over:
        if buffer.at:
            yield f"{buffer.name} begins at byte {buffer.at} of no other buffer"
        return
    base = site.visible.get(buffer.over)
    if base is None:
        yield f"{buffer.name} lies over {buffer.over}, which is not alive here"
        return
    if base.over or MemorySpace.SHARED not in (base.space, buffer.space):
        where = f"over {base.over}" if base.over else f"in {base.space.value}"
        yield (
            f"{buffer.name} lies over {base.name}, which is {where}; what is shared is shared "
            f"memory with storage of its own"
        )
    elif base.space is not buffer.space:
        yield f"{buffer.name} in {buffer.space.value} lies over {base.name} in {base.space.value}"
    elif DType.BARRIER in (base.dtype, buffer.dtype):
        yield f"{buffer.name} lies over {base.name}; barriers have storage of their own"
    elif buffer.at < 0 or buffer.at + buffer.bytes > base.bytes:
        yield (
            f"{buffer.name} takes bytes {buffer.at} to {buffer.at + buffer.bytes} of {base.name}, "
            f"which has {base.bytes}"
        )
    elif buffer.at % buffer.alignment or base.alignment % buffer.alignment:
        yield (
            f"{buffer.name} is aligned to {buffer.alignment} and begins at byte {buffer.at} of "
            f"{base.name}, which is aligned to {base.alignment}"
        )


def check_alloc_empty(site: Site) -> Iterable[str]:
    """Buffers have elements."""
    yield from empty_shape(buffer_of(site))


def check_alloc_barrier(site: Site) -> Iterable[str]:
    """Barrier objects live in shared memory."""
    buffer = buffer_of(site)
    if buffer.dtype is DType.BARRIER and (
        buffer.space is not MemorySpace.SHARED or buffer.alignment % buffer.dtype.bytes
    ):
        yield (
            f"barrier {buffer.name} is in {buffer.space.value} with alignment {buffer.alignment}; "
            f"barriers are in shared memory, aligned to {buffer.dtype.bytes}"
        )


def check_alloc_layout(site: Site) -> Iterable[str]:
    """Strides and alignment make sense."""
    yield from bad_layout(buffer_of(site), writable=True)


def empty_shape(buffer: Buffer) -> Iterator[str]:
    """A message where a buffer has no element."""
    if not buffer.shape or min(buffer.shape) < 1:
        shown = ", ".join(map(str, buffer.shape))
        yield f"{buffer.name}[{shown}] has no element; every dimension is at least 1"


def bad_layout(buffer: Buffer, *, writable: bool) -> Iterator[str]:
    """Messages for impossible strides and alignments."""
    alignment = buffer.alignment
    if alignment < 1 or alignment & (alignment - 1):
        yield f"{buffer.name} has alignment {alignment}; it must be a power of two"
        return
    if buffer.layout is not None or buffer.fragment:
        yield from layout_faults(buffer)
    strides = buffer.strides
    if strides is None:
        return
    if len(strides) != len(buffer.shape):
        yield f"{buffer.name} has {len(strides)} strides for {len(buffer.shape)} dimensions"
        return
    if min(strides, default=0) < 0:
        yield f"{buffer.name} has strides {list(strides)}; none may be negative"
        return
    if writable:
        span = 1
        for stride, extent in sorted(zip(strides, buffer.shape, strict=True)):
            if extent > 1 and stride < span:
                yield (
                    f"{buffer.name} is written, but with shape {list(buffer.shape)} and strides "
                    f"{list(strides)} elements overlap; a stride must be at least {span}"
                )
                return
            span += (extent - 1) * stride


def kernel_findings(kernel: Kernel, limits: Limits) -> Iterator[tuple[str, Path, str]]:
    """(code, place, message) for the kernel's head: units and arguments."""
    if not 1 <= kernel.units <= limits.max_units:
        yield (
            "tir.units",
            (),
            f"kernel has {kernel.units} units; the target runs 1 to {limits.max_units}",
        )
    seen: set[str] = set()
    for param in kernel.params:
        buffer = param.buffer
        if buffer.name in seen:
            yield "tir.name-duplicate", (), f"two arguments are named {buffer.name}"
        seen.add(buffer.name)
        if buffer.space is not MemorySpace.GLOBAL:
            yield (
                "tir.alloc-space",
                (),
                f"argument {buffer.name} is in {buffer.space.value}; arguments are in global",
            )
        if buffer.over or buffer.at:
            yield "tir.storage-over", (), f"argument {buffer.name} lies over another buffer"
        for text in empty_shape(buffer):
            yield "tir.buffer-empty", (), text
        for text in bad_layout(buffer, writable=param.io in (Io.OUT, Io.INOUT)):
            yield "tir.buffer-layout", (), text


def capacity_findings(
    kernel: Kernel, limits: Limits, atoms: Mapping[str, Atom]
) -> Iterator[tuple[str, Path, str]]:
    """(code, place, message) for spaces whose capacity is exceeded."""
    found = peaks(kernel, lambda buffer: footprint(buffer, limits))
    own = shared_of_atoms(kernel, atoms)
    if own:
        found.setdefault(MemorySpace.SHARED, Peak(0, (), ()))
    for space, peak in found.items():
        if space is MemorySpace.REGISTER and kernel.warps * kernel.lanes > 1:
            continue  # Registers of teams are counted a thread: see rules_registers.
        capacity, amount, padding = limits.capacity.get(space), peak.amount, ""
        if space is MemorySpace.SHARED and limits.shared_given and peak.amount:
            amount += max(peak.alignment - limits.shared_given, 0)
            if amount > peak.amount:
                padding = f", {amount - peak.amount} to align them"
        if space is MemorySpace.SHARED and own:
            amount += own
            padding += f", {own} of atoms' own"
        if capacity is not None and amount > capacity:
            unit = {MemorySpace.REGISTER: "registers", MemorySpace.TILE: "tiles"}
            what = unit.get(space, "bytes")
            held = ", ".join(f"{name} {size}" for name, size in peak.holders)
            yield (
                "tir.capacity",
                peak.path,
                f"{amount} {what} of {space.value} are alive at once ({held}{padding}); there "
                f"are {capacity}",
            )


def module_findings(module: Module) -> Iterator[tuple[str, int, str]]:
    """(code, kernel index, message) for prepared arguments and the kernels that fill them."""
    main = len(module.kernels) - 1
    names = [kernel.name for kernel in module.kernels]
    for index, name in enumerate(names):
        if name in names[:index]:
            yield "tir.name-duplicate", index, f"two kernels are named {name}"
    prepared = {p.buffer.name: p.buffer for p in module.main.params if p.io is Io.PREPARED}
    inputs = {p.buffer.name: p.buffer for p in module.main.params if p.io is Io.IN}
    filled: dict[str, str] = {}
    for index, kernel in enumerate(module.prepares):
        for param in kernel.params:
            buffer, name = param.buffer, param.buffer.name
            if param.io is Io.OUT:
                if name not in prepared:
                    yield "tir.prepare-unused", index, f"{name} is no prepared argument of main"
                elif name in filled:
                    text = f"{name} is filled by {filled[name]} already"
                    yield "tir.prepare-duplicate", index, text
                elif _differ(buffer, prepared[name]):
                    text = f"{name} differs from the prepared argument of {module.main.name}"
                    yield "tir.prepare-mismatch", index, text
                filled[name] = kernel.name
            elif param.io is not Io.IN:
                text = f"{name} is '{param.io.value}'; a prepare kernel takes in and out"
                yield "tir.prepare-io", index, text
            elif name in inputs and _differ(buffer, inputs[name]):
                text = f"{name} differs from the argument of {module.main.name}"
                yield "tir.prepare-mismatch", index, text
    for name in sorted(set(prepared) - set(filled)):
        yield "tir.prepare-missing", main, f"no prepare kernel fills {name}"


def _differ(left: Buffer, right: Buffer) -> bool:
    return (left.dtype, left.shape, left.dense_strides) != (
        right.dtype,
        right.shape,
        right.dense_strides,
    )


ALLOC_RULES: tuple[Rule[Site], ...] = (
    Rule("tir.alloc-space", check_alloc_space),
    Rule("tir.scratch-divergent", check_alloc_scratch),
    Rule("tir.barrier-space", check_alloc_barrier),
    Rule("tir.buffer-empty", check_alloc_empty),
    Rule("tir.buffer-layout", check_alloc_layout),
    Rule("tir.storage-over", check_alloc_over),
)
