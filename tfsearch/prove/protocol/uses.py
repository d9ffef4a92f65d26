"""Calls that synchronise or complete later, noted where the verifier passes them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np

from tfsearch.atoms.contract import Access, Atom, Part, Sync
from tfsearch.ir.tir.expr import Const
from tfsearch.ir.tir.nodes import Buffer, For, If, Kernel, Role
from tfsearch.ir.tir.walk import Path, statement_at
from tfsearch.prove.forms import Form, combine
from tfsearch.prove.points import Points, enumerate_points
from tfsearch.prove.rules_team import part_form, values_of
from tfsearch.prove.scope import Condition, Loop
from tfsearch.prove.site import CallSite, ResolvedWindow

PARTS = frozenset({Part.COUNT, Part.BYTES, Part.PENDING, Part.ID, Part.WARPS, Part.REGISTERS})


@dataclass(frozen=True, eq=False)
class Touch:
    """A tile that a call reads or writes: buffer, access, proxy, starts, bytes of the whole tile.

    ``names``: the variables in its starts.
    """

    buffer: Buffer
    access: Access
    proxy: str
    starts: tuple[Form, ...]
    bytes: int
    names: frozenset[str]


@dataclass(frozen=True, eq=False)
class Use:
    """A call as the protocol sees it.

    ``barrier`` and ``index``: the barrier operand. ``values``: what each part can be (None: not
    known). ``reach``: how often, all units of a cluster together, each rank is reached (None: not
    known). ``by_turns``: instances of the role do not all come here alike. ``comers``: of a named
    barrier, by id the instances that come to it (None: not known). ``rank_names``: the variables
    in a rank or mask.
    """

    path: Path
    atom: Atom
    sync: Sync
    role: Role | None
    touches: tuple[Touch, ...]
    barrier: Buffer | None
    index: tuple[Form, ...]
    values: Mapping[Part, tuple[int, ...] | None]
    indices: tuple[int, ...] | None
    reach: tuple[int, ...] | None
    by_turns: bool
    comers: Mapping[int, frozenset[int]] | None
    rank_names: frozenset[str] = frozenset()

    @property
    def role_name(self) -> str:
        """The role's name; "" for the whole team."""
        return "" if self.role is None else self.role.name

    @property
    def block(self) -> Path:
        """The path of the block that the call stands in."""
        return self.path[:-1]

    def arrivals(self, kernel: Kernel) -> tuple[int, ...] | None:
        """Arrivals of one execution by one instance, one number a possible count."""
        counts = self.values.get(Part.COUNT, (1,))
        width = kernel.warps if self.role is None else self.role.width
        issuers = {"thread": 1, "warp": width}.get(self.atom.issuer, width * kernel.lanes)
        return None if counts is None else tuple(count * issuers for count in counts)


def roles_of(uses: Iterable[Use]) -> list[Role | None]:
    """The roles of calls in the order of the text, each once; None stands for the whole team."""
    return list({id(use.role): use.role for use in uses}.values())


def use_of(site: CallSite) -> Use:
    """What a call means to the protocol."""
    barrier = next((o for o in site.windows if o.spec.part is Part.BARRIER), None)
    sync = Sync(site.atom.effects.synchronises)
    values: dict[Part, tuple[int, ...] | None] = {}
    for part in site.atom.parts:
        form = part_form(site, part) if part in PARTS else None
        if form is not None:
            values[part] = values_of(site, form)
    indices = None
    if barrier is not None and sync is Sync.INIT:
        indices = _indices(site, barrier)
    return Use(
        site.path, site.atom, sync, site.role, tuple([_touch(site, o) for o in _tiles(site)]),
        None if barrier is None else barrier.buffer,
        () if barrier is None else barrier.starts,
        values, indices, _reach(site), _by_turns(site, barrier), _comers(site, sync),
        _rank_names(site),
    )  # fmt: skip


def _tiles(site: CallSite) -> list[ResolvedWindow]:
    return [o for o in site.windows if o.spec.part is Part.TILE]


def _touch(site: CallSite, operand: ResolvedWindow) -> Touch:
    algebra = site.scope.algebra
    names = {algebra.names[v] for start in operand.starts for v in algebra.variables_of(start)}
    proxy = operand.spec.proxy or site.atom.effects.proxy
    size = operand.buffer.dtype.bytes
    for extent in operand.spec.shape:
        size *= extent
    return Touch(operand.buffer, operand.spec.access, proxy, operand.starts, size, frozenset(names))


def _indices(site: CallSite, barrier: ResolvedWindow) -> tuple[int, ...] | None:
    """The flat indices of the barrier objects that a call goes through."""
    flat: Form = (0, ())
    for start, stride in zip(barrier.starts, barrier.buffer.dense_strides, strict=True):
        flat = combine(flat, start, stride)
    return values_of(site, flat)


def _by_turns(site: CallSite, barrier: ResolvedWindow | None) -> bool:
    scope = site.scope
    if not scope.by_instance:
        return False
    if barrier is not None and any(map(scope.per_instance, barrier.starts)):
        return True
    for entry in scope.entries:
        if isinstance(entry, Condition):
            if scope.per_instance(entry.form):
                return True
        elif isinstance(entry, Loop) and (
            scope.per_instance(entry.start) or scope.per_instance(entry.stop)
        ):
            return True
    return False


def _rank_names(site: CallSite) -> frozenset[str]:
    form = part_form(site, Part.RANK) or part_form(site, Part.MASK)
    if form is None:
        return frozenset()
    algebra = site.scope.algebra
    return frozenset(algebra.names[v] for v in algebra.variables_of(form))


def _comers(site: CallSite, sync: Sync) -> dict[int, frozenset[int]] | None:
    """By id of a named barrier: the instances of the role that come to it."""
    form = part_form(site, Part.ID)
    if form is None or sync not in (Sync.NAMED, Sync.NAMED_ARRIVE):
        return None
    scope, role = site.scope, site.role
    if scope.instance is None:
        ids = values_of(site, form)
        every = frozenset(range(1 if role is None else role.instances))
        return None if ids is None else dict.fromkeys(ids, every)
    which = scope.algebra.variable(scope.instance)
    alone = frozenset((scope.instance,))
    if scope.algebra.variables_of(form) <= alone and role is not None:
        # Loops around may run for no instance at these sizes: whose barrier it is stays the same.
        points = Points({scope.instance: np.arange(role.instances)}, role.instances, True)
        for entry in scope.entries:
            if isinstance(entry, Condition) and scope.algebra.variables_of(entry.form) <= alone:
                keep = points.value(scope.algebra, entry.form) != 0
                column = points.columns[scope.instance][keep]
                points = Points({scope.instance: column}, int(keep.sum()), True)
    else:
        points = enumerate_points(scope, (form, which), site.limits.enumeration_points)
    if points is None:
        return None
    ids = points.value(scope.algebra, form).tolist()
    instances = points.value(scope.algebra, which).tolist()
    out: dict[int, set[int]] = {}
    for key, instance in set(zip(ids, instances, strict=True)):
        out.setdefault(key, set()).add(instance)
    return {key: frozenset(found) for key, found in out.items()}


def _reach(site: CallSite) -> tuple[int, ...] | None:
    """How often each rank is reached by all units of a cluster together."""
    size = site.kernel.cluster_size
    rank, mask = part_form(site, Part.RANK), part_form(site, Part.MASK)
    form = rank if rank is not None else mask
    if form is None:
        return (1,) * size
    scope = site.scope
    unit = scope.algebra.variable(scope.unit)
    points = enumerate_points(scope, (form, unit), site.limits.enumeration_points)
    if points is None or not points.count:
        return None
    units = points.columns[scope.unit].tolist()
    values = points.value(scope.algebra, form).tolist()
    first = min(units) // size
    pairs = {(u, v) for u, v in zip(units, values, strict=True) if u // size == first}
    if rank is None and len({u for u, _ in pairs}) != len(pairs):
        return None
    reached = [0] * size
    for _, value in pairs:
        for target in range(size):
            hit = value == target if rank is not None else value >> target & 1
            reached[target] += bool(hit)
    return tuple(reached)


def repeats(kernel: Kernel, block: Path, path: Path) -> int | None:
    """How often a statement runs each time that a block around it does; None if not literal."""
    out = 1
    for depth in range(len(block) + 1, len(path)):
        around = statement_at(kernel, path[:depth])
        match around:
            case For(_, Const(start), Const(stop), _, _, step, _):
                out *= max(-((start - stop) // max(step, 1)), 0)
            case If() | For():
                return None
            case _:
                pass
    return out
