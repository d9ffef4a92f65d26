"""What is certainly wrong on the way through one collective's statements.

A walk in the order of the text, loops twice: operations in flight and what they touch, waits that
have been passed, generic writes that no fence has shown to other proxies. Branches meet in what is
certain on both. Whether order holds on every path is the interpreter's to find.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod

from tfsearch.atoms.contract import GENERIC, Completion, Part, Sync
from tfsearch.ir.tir.expr import Const
from tfsearch.ir.tir.nodes import Block, Call, For, If, Kernel, MemorySpace, Role
from tfsearch.ir.tir.walk import Path, children, statement_at
from tfsearch.prove.protocol.arrivals import MEETINGS
from tfsearch.prove.protocol.uses import Touch, Use

Finding = tuple[str, Path, str]


def flow_findings(kernel: Kernel, uses: Sequence[Use]) -> Iterator[Finding]:
    """(code, place, message) of what is wrong whichever way things go."""
    walker = _Walker(kernel, uses)
    walker.block(kernel.body, (), 0, _State())
    yield from walker.found.values()


@dataclass(frozen=True)
class _Entry:
    """A tile that an operation in flight touches."""

    touch: Touch
    use: Use


_Groups = dict[str, list[frozenset[_Entry]]]


@dataclass
class _State:
    """``open``, ``closed``: operations in flight by stream. ``waited``: barriers waited for.

    ``met``: a meeting of warps was passed in this role. ``shown``: of buffers with a generic
    write, the proxies that a fence has shown it to since.
    """

    open: dict[str, frozenset[_Entry]] = field(default_factory=dict[str, frozenset[_Entry]])
    closed: _Groups = field(default_factory=dict[str, list[frozenset[_Entry]]])
    waited: frozenset[str] = frozenset()
    met: bool = False
    shown: dict[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])

    def copy(self) -> _State:
        closed = {name: list(groups) for name, groups in self.closed.items()}
        return _State(dict(self.open), closed, self.waited, self.met, dict(self.shown))

    def flying(self) -> Iterator[_Entry]:
        for entries in self.open.values():
            yield from entries
        for groups in self.closed.values():
            for entries in groups:
                yield from entries

    def meet(self, other: _State) -> None:
        """Keep what is certain here and in another state."""
        for name in set(self.open) | set(other.open):
            none: frozenset[_Entry] = frozenset()
            self.open[name] = self.open.get(name, none) & other.open.get(name, none)
        for name in set(self.closed) | set(other.closed):
            left, right = self.closed.get(name, []), other.closed.get(name, [])
            count = min(len(left), len(right))
            pairs = zip(left[len(left) - count :], right[len(right) - count :], strict=True)
            self.closed[name] = [a & b for a, b in pairs]
        self.waited |= other.waited
        self.met = self.met or other.met
        shown: dict[str, frozenset[str]] = {}
        for name in set(self.shown) & set(other.shown):
            shown[name] = self.shown[name] | other.shown[name]
        self.shown = shown

    def again(self, variable: str) -> None:
        """An iteration of a loop ends: places that its variable names are others from here."""

        def kept(entries: frozenset[_Entry]) -> frozenset[_Entry]:
            return frozenset(e for e in entries if variable not in e.touch.names)

        self.open = {name: kept(entries) for name, entries in self.open.items()}
        self.closed = {
            name: [kept(entries) for entries in groups] for name, groups in self.closed.items()
        }


class _Walker:
    def __init__(self, kernel: Kernel, uses: Sequence[Use]) -> None:
        self.kernel = kernel
        self.uses: Mapping[Path, Use] = {use.path: use for use in uses}
        self.found: dict[tuple[str, Path], Finding] = {}
        self.role: Role | None = None
        self._filled = _filled_by_copies(uses)
        self._readers = _releases(uses)

    def block(self, block: Block, prefix: Path, offset: int, state: _State) -> None:
        index = 0
        while index < len(block):
            statement = block[index]
            path = (*prefix, offset + index)
            index += 1
            if isinstance(statement, Role) and statement.over_warps:
                roles = [(path, statement)]
                while index < len(block):
                    following = block[index]
                    if not (isinstance(following, Role) and following.over_warps):
                        break
                    roles.append(((*prefix, offset + index), following))
                    index += 1
                self._roles(roles, state)
                continue
            match statement:
                case Call():
                    use = self.uses.get(path)
                    if use is not None:
                        self._use(use, state)
                case For(name=name, body=body):
                    for _ in range(2):
                        self.block(body, path, 0, state)
                        state.again(name)
                case If(_, then, orelse):
                    other = state.copy()
                    self.block(then, path, 0, state)
                    self.block(orelse, path, len(then), other)
                    state.meet(other)
                case _:
                    self.block(children(statement), path, 0, state)

    def _roles(self, roles: Sequence[tuple[Path, Role]], state: _State) -> None:
        after: list[_State] = []
        for path, role in roles:
            inner = _State(shown=dict(state.shown))
            self.role = role
            self.block(role.body, path, 0, inner)
            self.role = None
            after.append(inner)
        for (_, role), mine in zip(roles, after, strict=True):
            for (_, other), theirs in zip(roles, after, strict=True):
                if other is not role:
                    self._unshown(role, other, theirs)
            for name, proxies in mine.shown.items():
                state.shown[name] = state.shown.get(name, proxies) & proxies

    def _unshown(self, reader: Role, writer: Role, state: _State) -> None:
        """A role writes through the generic proxy what another reads through a different one."""
        mine = [use for use in self.uses.values() if use.role is reader]
        fenced: set[str] = set()
        for use in mine:
            if use.sync is Sync.FENCE:
                fenced |= use.atom.effects.fences
        for use in mine:
            for touch in use.touches:
                shown = state.shown.get(touch.buffer.name)
                if touch.buffer.space is not MemorySpace.SHARED or shown is None:
                    continue
                if touch.proxy not in shown and touch.proxy not in fenced | {GENERIC}:
                    self._fence_missing(use, touch, f"role {writer.name}")

    def _use(self, use: Use, state: _State) -> None:
        effects = use.atom.effects
        match use.sync:
            case Sync.FENCE:
                for name in state.shown:
                    state.shown[name] |= effects.fences
            case Sync.WAIT if use.barrier is not None:
                state.waited |= {use.barrier.name}
            case Sync.COMMIT:
                state.closed.setdefault(effects.group, []).append(
                    state.open.pop(effects.group, frozenset())
                )
            case Sync.WAIT_GROUP:
                self._wait(use, state)
            case Sync.ARRIVE_AFTER:
                # Whoever waits for the barrier has them now; a run shows whether that is in time.
                state.open.pop(effects.group, None)
                state.closed.pop(effects.group, None)
            case sync if sync in MEETINGS:
                state.met = True
            case _:
                pass
        for touch in use.touches:
            self._touch(use, touch, state)
        if use.atom.is_async and effects.completion is not Completion.BARRIER_TRANSACTIONS:
            entries = frozenset(_Entry(touch, use) for touch in use.touches)
            state.open[effects.group] = state.open.get(effects.group, frozenset()) | entries

    def _wait(self, use: Use, state: _State) -> None:
        group = use.atom.effects.group
        values = use.values.get(Part.PENDING)
        closed = state.closed.get(group, [])
        keep = 0 if values is None else max(values)
        over = max(len(closed) - keep, 0)
        if use.atom.effects.reads_only:
            state.closed[group] = [
                frozenset(e for e in entries if e.touch.access.writes) if index < over else entries
                for index, entries in enumerate(closed)
            ]
        else:
            state.closed[group] = closed[over:]

    def _touch(self, use: Use, touch: Touch, state: _State) -> None:
        name, writes = touch.buffer.name, touch.access.writes
        effects = use.atom.effects
        for entry in state.flying():
            if entry.touch.buffer.name != name or entry.touch.starts != touch.starts:
                continue
            if not (writes or entry.touch.access.writes):
                continue
            matrix = effects.completion is Completion.MATRIX_GROUP
            if matrix and entry.use.atom.effects == effects:
                continue
            does = "write" if entry.touch.access.writes else "read"
            self._refuse(
                "tir.in-flight",
                use.path,
                f"{use.atom.id} touches {name}, which {entry.use.atom.id} may still {does}: no "
                f"wait for groups of {entry.use.atom.effects.group} comes between",
            )
        if touch.access.reads:
            self._unawaited(use, touch, state)
        if writes and use.atom.is_async:
            self._refilled(use, touch, state)
        shown = state.shown.get(name)
        if touch.proxy != GENERIC and shown is not None and touch.proxy not in shown:
            self._fence_missing(use, touch, "the same collective")
        near = touch.buffer.space in (MemorySpace.SHARED, MemorySpace.REGISTER)
        if near and writes and touch.proxy == GENERIC:
            state.shown[name] = frozenset()

    def _unawaited(self, use: Use, touch: Touch, state: _State) -> None:
        barriers = self._filled.get(touch.buffer.name)
        if barriers and not state.met and not barriers & state.waited:
            self._refuse(
                "tir.in-flight",
                use.path,
                f"{use.atom.id} reads {touch.buffer.name}, which copies fill asynchronously; no "
                f"wait for {' or '.join(sorted(barriers))} comes before",
            )

    def _refilled(self, use: Use, touch: Touch, state: _State) -> None:
        buffer = touch.buffer
        readers = self._readers.get(buffer.name, {})
        others = {role: done for role, done in readers.items() if role != use.role_name}
        if buffer.space is not MemorySpace.SHARED or not others or state.met:
            return
        slots = prod(buffer.shape[: len(buffer.shape) - 2])
        trips = self._trips(use.path)
        if trips is not None and trips <= slots:
            return
        for role, released in others.items():
            if not released & state.waited:
                have = f"role {role} arrives at {', '.join(sorted(released)) or 'no barrier'}"
                self._refuse(
                    "tir.slot-in-use",
                    use.path,
                    f"{use.atom.id} fills a slot of {buffer.name} again with no wait for its "
                    f"readers; {have}",
                )

    def _trips(self, path: Path) -> int | None:
        """How often a statement runs in its role; None where loops have no literal bounds."""
        out = 1
        for depth in range(1, len(path)):
            around = statement_at(self.kernel, path[:depth])
            if isinstance(around, For):
                if not (isinstance(around.start, Const) and isinstance(around.stop, Const)):
                    return None
                span = around.stop.value - around.start.value
                out *= max(-(-span // max(around.step, 1)), 0)
        return out

    def _fence_missing(self, use: Use, touch: Touch, writer: str) -> None:
        self._refuse(
            "tir.proxy-fence",
            use.path,
            f"{use.atom.id} reaches {touch.buffer.name} through the proxy {touch.proxy} after "
            f"{writer} wrote it through the generic one; no fence comes between",
        )

    def _refuse(self, code: str, path: Path, message: str) -> None:
        self.found.setdefault((code, path), (code, path, message))


def _filled_by_copies(uses: Sequence[Use]) -> dict[str, frozenset[str]]:
    """Buffers that only copies with barriers fill, and those barriers."""
    out: dict[str, frozenset[str]] = {}
    otherwise: set[str] = set()
    for use in uses:
        for touch in use.touches:
            if not touch.access.writes or touch.buffer.space is not MemorySpace.SHARED:
                continue
            if use.barrier is not None and use.atom.is_async:
                known = out.get(touch.buffer.name, frozenset())
                out[touch.buffer.name] = known | {use.barrier.name}
            else:
                otherwise.add(touch.buffer.name)
    return {name: barriers for name, barriers in out.items() if name not in otherwise}


def _releases(uses: Sequence[Use]) -> dict[str, dict[str, frozenset[str]]]:
    """By shared buffer: the roles that read it, and the barriers that each of them arrives at."""
    arrives: dict[str, set[str]] = {}
    for use in uses:
        if use.sync in (Sync.ARRIVE, Sync.ARRIVE_AFTER) and use.barrier is not None:
            arrives.setdefault(use.role_name, set()).add(use.barrier.name)
    out: dict[str, dict[str, frozenset[str]]] = {}
    for use in uses:
        for touch in use.touches:
            if touch.access.reads and touch.buffer.space is MemorySpace.SHARED and use.role:
                released = frozenset(arrives.get(use.role_name, ()))
                out.setdefault(touch.buffer.name, {})[use.role_name] = released
    return out
