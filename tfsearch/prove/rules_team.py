"""Teams of warps: the kernel's head, who issues an atom, numbers that synchronisation takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tfsearch.atoms.contract import Part
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.expr import Expr
from tfsearch.ir.tir.nodes import Block, Kernel, Role
from tfsearch.ir.tir.walk import Path, children
from tfsearch.prove.forms import Form
from tfsearch.prove.limits import Limits
from tfsearch.prove.points import enumerate_points
from tfsearch.prove.site import CallSite, Rule

_LEAST = {Part.COUNT: 1, Part.WARPS: 1, Part.BYTES: 1}
_TEXT = {
    Part.COUNT: "arrivals",
    Part.BYTES: "bytes",
    Part.PENDING: "pending groups",
    Part.ID: "the id of a named barrier",
    Part.WARPS: "warps",
    Part.PARITY: "a parity",
    Part.RANK: "a rank of the cluster",
    Part.MASK: "a mask of ranks",
    Part.REGISTERS: "registers of a thread",
}
_PARITY = frozenset({Part.PARITY})
_RANKS = frozenset({Part.RANK, Part.MASK})
_NUMBERS = frozenset(_TEXT) - _PARITY - _RANKS


def team_findings(kernel: Kernel, limits: Limits) -> Iterator[tuple[str, Path, str]]:
    """(code, place, message) for the head of a kernel with teams, and for roles side by side."""
    odd = kernel.lanes < 1 or (limits.lanes and kernel.lanes != limits.lanes)
    if not 1 <= kernel.warps <= limits.max_warps or odd:
        lanes = f" of {limits.lanes}" if limits.lanes else ""
        yield (
            "tir.team",
            (),
            f"a unit has {kernel.warps} warps of {kernel.lanes} threads; the target runs 1 to "
            f"{limits.max_warps} warps{lanes}",
        )
    size = kernel.cluster_size
    if kernel.cluster and (min(kernel.cluster) < 1 or size > limits.max_cluster):
        yield (
            "tir.team",
            (),
            f"clusters of shape {list(kernel.cluster)} have {size} units; the target has clusters "
            f"of 1 to {limits.max_cluster}",
        )
    elif kernel.units % size:
        yield (
            "tir.team",
            (),
            f"{kernel.units} units do not fill clusters of {size}; the last would lack some",
        )
    threads, file = kernel.warps * kernel.lanes, limits.register_file
    if kernel.registers and not _registers_fit(kernel.registers, limits):
        yield "tir.registers", (), f"a thread starts with {kernel.registers}; {_steps(limits)}"
    elif file and kernel.registers * threads > file:
        yield (
            "tir.registers",
            (),
            f"{threads} threads with {kernel.registers} registers need "
            f"{kernel.registers * threads}; a unit has {file}",
        )
    for param in kernel.params:
        if param.buffer.dtype is DType.BARRIER:
            yield "tir.barrier-space", (), f"argument {param.buffer.name} is a barrier"
    if kernel.warps > 1:
        yield from _overlaps(kernel.body, ())


def _registers_fit(count: int, limits: Limits) -> bool:
    inside = limits.register_least <= count <= limits.register_most
    return inside and count % limits.register_step == 0


def _steps(limits: Limits) -> str:
    return (
        f"the target takes multiples of {limits.register_step} from {limits.register_least} to "
        f"{limits.register_most}"
    )


def _overlaps(block: Block, prefix: Path) -> Iterator[tuple[str, Path, str]]:
    """Roles that run at once take different warps."""
    beside: list[Role] = []
    for index, statement in enumerate(block):
        if not (isinstance(statement, Role) and statement.over_warps):
            beside = []
        else:
            for other in beside:
                if statement.first < other.last and other.first < statement.last:
                    yield (
                        "tir.role-overlap",
                        (*prefix, index),
                        f"roles {other.name} ({other.first}..{other.last}) and {statement.name} "
                        f"({statement.first}..{statement.last}) run at once and share warps",
                    )
            beside.append(statement)
        inner = children(statement)
        if inner:
            yield from _overlaps(inner, (*prefix, index))


def check_issuer(site: CallSite) -> Iterable[str]:
    """The collective that runs an atom has the width that the atom takes."""
    atom, role, kernel = site.atom, site.role, site.kernel
    first, width = (role.first, role.width) if role else (0, kernel.warps)
    who = f"role {role.name}" if role else "the whole team"
    if atom.issuing_warps and width != atom.issuing_warps:
        yield (
            f"{atom.id} is issued by {atom.issuing_warps} warps; {who} has collectives of {width}"
        )
    elif first % atom.warp_alignment or (
        role and role.instances > 1 and width % atom.warp_alignment
    ):
        yield (
            f"{atom.id} is issued by warps from a multiple of {atom.warp_alignment} on; {who} "
            f"starts at {first} with a width of {width}"
        )


def values_of(site: CallSite, form: Form, most: int = 4096) -> tuple[int, ...] | None:
    """All values of a form here, in order; None where there are too many to tell."""
    if not form[1]:
        return (form[0],)
    points = enumerate_points(site.scope, (form,), site.limits.enumeration_points)
    if points is None:
        return None
    values = sorted(set(points.value(site.scope.algebra, form).tolist()))
    return tuple(values) if len(values) <= most else None


def part_form(site: CallSite, part: Part) -> Form | None:
    """The operand of a part as a form; None where the atom has none or it is no expression."""
    at = site.atom.find(part)
    operand = site.operands[at].operand if at >= 0 else None
    return site.scope.form(operand) if isinstance(operand, Expr) else None


def _range_faults(
    site: CallSite, parts: frozenset[Part], low: dict[Part, int], high: dict[Part, int]
) -> Iterator[str]:
    if len(site.windows) == len(site.operands):
        return
    for resolved in site.operands:
        part = resolved.spec.part
        if part not in parts or not isinstance(resolved.operand, Expr):
            continue
        form = site.scope.form(resolved.operand)
        least, most = low.get(part, 0), high.get(part, 1 << 40)
        if site.scope.at_least(form, least) and site.scope.at_most(form, most):
            continue
        values = values_of(site, form)
        if values is None or (values and not least <= values[0] <= values[-1] <= most):
            have = "unbounded" if values is None else f"{values[0]} to {values[-1]}"
            wanted = f"at least {least}" if most == 1 << 40 else f"{least} to {most}"
            yield f"{site.atom.id} takes {_TEXT[part]} of {have}; it must be {wanted}"


def check_numbers(site: CallSite) -> Iterable[str]:
    """Counts, bytes, ids and pending groups make sense."""
    limits = site.limits
    most = {Part.ID: limits.named_barriers - 1, Part.WARPS: site.kernel.warps}
    return _range_faults(site, _NUMBERS, {**_LEAST, Part.ID: limits.reserved_barriers}, most)


def check_parity(site: CallSite) -> Iterable[str]:
    """Phases have a parity of 0 or 1."""
    return _range_faults(site, _PARITY, {}, {Part.PARITY: 1})


def check_ranks(site: CallSite) -> Iterable[str]:
    """Ranks are those of the cluster's units, and something is reached."""
    size = site.kernel.cluster_size
    most = {Part.RANK: size - 1, Part.MASK: (1 << size) - 1}
    return _range_faults(site, _RANKS, {Part.MASK: 1}, most)


def check_barrier_space(site: CallSite) -> Iterable[str]:
    """Barrier objects are used as barriers, and nothing else is."""
    for operand in site.windows:
        is_barrier = operand.buffer.dtype is DType.BARRIER
        if is_barrier != (operand.spec.part is Part.BARRIER):
            what = "is a barrier" if is_barrier else "is no barrier"
            yield f"operand {operand.spec.name} of {site.atom.id}: {operand.buffer.name} {what}"


ISSUER_RULES: tuple[Rule[CallSite], ...] = (Rule("tir.issuer", check_issuer),)
"""Rules about an atom and the role that issues it, wherever the call stands."""

PART_RULES: tuple[Rule[CallSite], ...] = (
    Rule("tir.operand-value", check_numbers),
    Rule("tir.barrier-parity", check_parity),
    Rule("tir.cluster-rank", check_ranks),
    Rule("tir.barrier-space", check_barrier_space),
)
"""Rules about operands that are parts of synchronisation."""
