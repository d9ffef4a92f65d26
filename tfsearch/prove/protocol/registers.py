"""Registers of threads: what roles hold against what they have set, and that against the file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tfsearch.atoms.contract import Part, Sync
from tfsearch.ir.tir.nodes import Alloc, Block, Buffer, Kernel, MemorySpace, Role
from tfsearch.ir.tir.walk import Path, children, walk
from tfsearch.prove.limits import Limits
from tfsearch.prove.protocol.uses import Use
from tfsearch.prove.storage import peaks

Finding = tuple[str, Path, str]


def per_thread(buffer: Buffer, threads: int, limits: Limits) -> int:
    """Registers of one thread that hold its share of what its collective holds."""
    size = buffer.dtype.bytes
    for extent in buffer.shape:
        size *= extent
    share = -(-size // max(threads, 1))
    return -(-share // limits.register_bytes)


def register_findings(kernel: Kernel, limits: Limits, uses: Sequence[Use]) -> Iterator[Finding]:
    """(code, place, message) for settings that do not fit the file and fragments beyond them."""
    settings: dict[int, int] = {}
    roles = {id(s): (p, s) for p, s in walk(kernel.body) if isinstance(s, Role) and s.over_warps}
    for use in uses:
        if use.sync is not Sync.SET_REGISTERS:
            continue
        values = use.values.get(Part.REGISTERS)
        if values is None or len(values) != 1:
            yield "tir.registers", use.path, "the registers of a thread are a literal"
            return
        yield from _setting(kernel, limits, use, values[0])
        if use.role is not None:
            settings[id(use.role)] = values[0]
    if settings:
        yield from _file(kernel, roles, settings)
    if kernel.warps * kernel.lanes <= 1:
        return
    most = limits.capacity.get(MemorySpace.REGISTER, limits.register_most)
    outer = _held(kernel, kernel.body, kernel.warps, limits)
    for key, (path, role) in roles.items():
        amount = outer + _held(kernel, role.body, role.width, limits)
        room = min(settings.get(key, kernel.registers or most), most)
        if amount > room:
            yield (
                "tir.registers",
                path,
                f"a thread of role {role.name} holds {amount} registers of fragments, of {room}",
            )
    if not roles and outer > min(kernel.registers or most, most):
        yield (
            "tir.registers",
            (),
            f"a thread holds {outer} registers of fragments; it has "
            f"{min(kernel.registers or most, most)}",
        )


def _setting(kernel: Kernel, limits: Limits, use: Use, value: int) -> Iterator[Finding]:
    if not kernel.registers:
        yield (
            "tir.registers",
            use.path,
            f"{use.atom.id} sets {value} registers, but the kernel does not say what threads start "
            f"with",
        )
    inside = limits.register_least <= value <= limits.register_most
    if not inside or value % limits.register_step:
        yield (
            "tir.registers",
            use.path,
            f"{use.atom.id} sets {value} registers; the target takes multiples of "
            f"{limits.register_step} from {limits.register_least} to {limits.register_most}",
        )


def _file(
    kernel: Kernel, roles: dict[int, tuple[Path, Role]], settings: dict[int, int]
) -> Iterator[Finding]:
    """What all warps have set stays within what they started with."""
    have = kernel.registers * kernel.warps
    total, counted = 0, 0
    shown: list[str] = []
    last: Path = ()
    for key, (path, role) in roles.items():
        if key in settings:
            warps = role.last - role.first
            total += settings[key] * warps
            counted += warps
            shown.append(f"{role.name} {warps} x {settings[key]}")
            last = path
    total += kernel.registers * max(kernel.warps - counted, 0)
    if total > have and kernel.registers:
        yield (
            "tir.registers",
            last,
            f"{' + '.join(shown)} and {max(kernel.warps - counted, 0)} x {kernel.registers} for "
            f"other warps are {total} registers a lane; {kernel.warps} warps start with {have}",
        )


def _held(kernel: Kernel, block: Block, width: int, limits: Limits) -> int:
    """The most registers of a thread that a collective's fragments take at once."""
    threads = width * kernel.lanes
    owned: set[str] = set()
    _owned(block, owned)
    if not owned:
        return 0

    def size(buffer: Buffer) -> int:
        return per_thread(buffer, threads, limits) if buffer.name in owned else 0

    peak = peaks(Kernel(kernel.name, (), kernel.units, block), size).get(MemorySpace.REGISTER)
    return 0 if peak is None else peak.amount


def _owned(block: Block, owned: set[str]) -> None:
    """Register buffers that a block's own collective allocates, not those of roles in it."""
    for statement in block:
        if isinstance(statement, Alloc) and statement.buffer.space.is_register:
            owned.add(statement.buffer.name)
        elif not (isinstance(statement, Role) and statement.over_warps):
            _owned(children(statement), owned)
