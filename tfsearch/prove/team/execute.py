"""How a collective runs statements: control flow, accesses, synchronisation."""

from __future__ import annotations

from tfsearch.atoms.contract import Access, Completion, Part, Sync
from tfsearch.ir.tir.nodes import (
    UNIT,
    Alloc,
    Block,
    Buffer,
    Call,
    For,
    If,
    Let,
    MemorySpace,
    Role,
    Stmt,
)
from tfsearch.prove.team.accesses import Memory, Record
from tfsearch.prove.team.barriers import Barrier, BarrierError, Meeting
from tfsearch.prove.team.knowledge import Collective, Knowledge
from tfsearch.prove.team.machine import (
    Arrival,
    Blocked,
    Coroutine,
    Machine,
    Operand,
    Operation,
    Stop,
    Task,
)
from tfsearch.prove.team.program import Env, Place, Prepared, Program

_KINDS = {
    Access.READ: "read",
    Access.WRITE: "write",
    Access.UPDATE: "write",
    Access.REDUCE: "reduce",
}
_TEAM = -1


class Executor:
    """Runs the statements of one kernel on a machine."""

    def __init__(self, machine: Machine, program: Program, once: frozenset[str]) -> None:
        self.machine = machine
        self.program = program
        self.kernel = program.kernel
        self.report = machine.reporter
        self.once = once
        """Arguments whose elements are written once."""
        self.current = -1
        """The statement at which an atom's semantics runs; -1 elsewhere."""

    def start(self, unit: int) -> None:
        """Let the whole team of a unit run the kernel."""
        who = self.machine.collectives[unit, 0, self.kernel.warps]
        who.label = f"unit {unit}"
        self.machine.spawn(who, self._block(self.kernel.body, who, {UNIT: unit}))

    def _block(self, block: Block, who: Collective, env: Env) -> Coroutine:
        index = 0
        while index < len(block):
            statement = block[index]
            if isinstance(statement, Role) and statement.over_warps:
                roles = [statement]
                while index + len(roles) < len(block):
                    following = block[index + len(roles)]
                    if not (isinstance(following, Role) and following.over_warps):
                        break
                    roles.append(following)
                index += len(roles)
                yield from self._roles(roles, who, env)
            else:
                index += 1
                yield from self._statement(statement, who, env)

    def _statement(self, statement: Stmt, who: Collective, env: Env) -> Coroutine:
        value = self.program.value
        match statement:
            case Call():
                yield from self._call(self.program.calls[id(statement)], who, env)
            case For(name, start, stop, body, _, step, _):
                for at in range(value(start)(env), value(stop)(env), step):
                    env[name] = at
                    yield from self._block(body, who, env)
            case If(condition, then, orelse):
                yield from self._block(then if value(condition)(env) else orelse, who, env)
            case Let(name, expr):
                env[name] = value(expr)(env)
            case Alloc(buffer):
                self._alloc(buffer, who)
            case Role(_, first, last, body):
                if first <= env[UNIT] < last:
                    yield from self._block(body, who, env)
            case _:
                raise TypeError(f"not a statement: {statement!r}")

    def _roles(self, roles: list[Role], who: Collective, env: Env) -> Coroutine:
        spawned: list[Task] = []
        for role in roles:
            for instance in range(role.instances):
                first = role.first + instance * role.width
                child = self.machine.collectives[who.unit, first, role.width]
                inner = dict(env)
                if role.instance:
                    inner[role.instance] = instance
                if child is who:
                    yield from self._block(role.body, who, inner)
                    continue
                number = f"[{instance}]" if role.instances > 1 else ""
                child.label = f"unit {who.unit} {role.name}{number}"
                child.start(who)
                spawned.append(self.machine.spawn(child, self._block(role.body, child, inner)))
        if spawned:
            names = ", ".join(role.name for role in roles)
            yield Blocked(
                lambda: not self.machine.running(spawned),
                lambda: f"for the roles {names} to end",
                self.program.numbers[id(roles[0])],
            )
            who.joined.extend(task.who.publish(single=False) for task in spawned)

    def _alloc(self, buffer: Buffer, who: Collective) -> None:
        machine = self.machine
        match buffer.space:
            case MemorySpace.SHARED:
                memories = machine.units[who.unit].shared
                found = memories.get(buffer.name)
                if found is None:
                    memory = memories[buffer.name] = Memory(buffer)
                    if buffer.over:
                        memory.lie_over(memories[buffer.over])
                elif who.width == self.kernel.warps:
                    found.poison()
            case MemorySpace.SCRATCH:
                machine.memories.setdefault(buffer.name, Memory(buffer))
            case _:
                machine.private[who.component, buffer.name] = Memory(buffer)

    def _call(self, call: Prepared, who: Collective, env: Env) -> Coroutine:
        self.machine.steps += 1
        if not call.quiet or call.sync is not Sync.NONE:
            yield None
        if call.sync is not Sync.NONE:
            yield from self._synchronise(call, who, env)
        if call.places:
            self._data(call, who, env)

    def _data(self, call: Prepared, who: Collective, env: Env) -> None:
        ranks = self._ranks(call, who, env)
        operands = tuple([self._operand(call, place, who, env, ranks) for place in call.places])
        arguments = tuple(
            [
                operands[value]
                if isinstance(value, int)
                else value
                if isinstance(value, float)
                else value(env)
                for value in call.operands
            ]
        )
        effects = call.atom.effects
        asynchronous = call.atom.is_async
        number = len(self.machine.operations) if asynchronous else -1
        matrix = effects.completion is Completion.MATRIX_GROUP
        stream = effects.group if matrix else ""
        for operand in operands:
            spec = operand.place.spec
            record = Record(
                who, who.epoch, call.number, operand.place.position, operand.place.proxy,
                call.single, number, stream, spec.share, operand.box,
            )  # fmt: skip
            if spec.access is Access.WRITE and operand.place.buffer.name in self.once:
                self._written_once(operand, record)
            self.machine.note(operand, _KINDS[spec.access], record)
        if not asynchronous:
            self.current = call.number
            self.machine.perform(call, operands, arguments, who)
            self.current = -1
            return
        self._issue(call, who, env, number, operands, arguments, ranks)

    def _issue(
        self,
        call: Prepared,
        who: Collective,
        env: Env,
        number: int,
        operands: tuple[Operand, ...],
        arguments: tuple[int | float | Operand, ...],
        ranks: tuple[int, ...] | None,
    ) -> None:
        machine, effects = self.machine, call.atom.effects
        targets: tuple[tuple[Barrier, int], ...] = ()
        after: Operation | None = None
        if effects.completion is Completion.BARRIER_TRANSACTIONS:
            size = sum(o.place.tile_bytes for o in operands if o.place.spec.access.writes)
            units = (who.unit,) if ranks is None else ranks
            targets = tuple([(self._barrier(call, who, env, u, fenced=True), size) for u in units])
        else:
            stream = machine.stream(who, effects.group)
            if effects.completion is Completion.MATRIX_GROUP:
                earlier = [n for group in (*stream.closed, stream.open) for n in group]
                after = machine.operations[earlier[-1]] if earlier else None
            stream.open.append(number)
        machine.issue(Operation(number, who, call, operands, arguments, targets, after))

    def _written_once(self, operand: Operand, record: Record) -> None:
        memory = operand.memories[0]
        if memory.tracked:
            found = memory.rewritten(operand.index, self.machine.history)
            if found is not None:
                self.report.report(
                    "tir.output-twice",
                    record.statement,
                    record.operand,
                    f"{record.who.label} writes elements of {operand.place.buffer.name} that "
                    f"{self.report.where(found)} wrote before; each is written once",
                )

    def _ranks(self, call: Prepared, who: Collective, env: Env) -> tuple[int, ...] | None:
        """The units of the cluster that a call reaches; None for its own."""
        size = self.kernel.cluster_size
        base = who.unit // size * size
        if Part.RANK in call.parts:
            ranks = [call.parts[Part.RANK](env)]
        elif Part.MASK in call.parts:
            mask = call.parts[Part.MASK](env)
            ranks = [bit for bit in range(max(mask.bit_length(), 0)) if mask >> bit & 1]
        else:
            return None
        if not ranks or min(ranks) < 0 or base + max(ranks) >= min(base + size, self.kernel.units):
            self.report.stop(
                "tir.cluster-rank",
                call.number,
                -1,
                f"{who.label} reaches ranks {ranks}; its cluster has {size} units",
            )
        return tuple(base + rank for rank in ranks)

    def _operand(
        self,
        call: Prepared,
        place: Place,
        who: Collective,
        env: Env,
        ranks: tuple[int, ...] | None,
    ) -> Operand:
        box = place.box(env)
        touched = all(extent > 0 for _, extent in box)
        inside = all(0 <= e <= most for (_, e), most in zip(box, place.limits, strict=True))
        if inside and touched:
            inside = all(
                s >= 0 and s + e <= size
                for (s, e), size in zip(box, place.buffer.shape, strict=True)
            )
        if not inside:
            ranges = ", ".join(f"{start} to {start + extent}" for start, extent in box)
            self.report.stop(
                "tir.window-bounds",
                call.number,
                place.position,
                f"operand {place.spec.name} covers {ranges} of {place.buffer.name}, or more than "
                f"the atom's tile",
            )
        if not touched:
            box = tuple([(0, extent) for _, extent in box])
        flat = not place.spec.shape
        index = tuple(
            [
                slice(start, start + extent) if flat or dim in place.dims else start
                for dim, (start, extent) in enumerate(box)
            ]
        )
        return Operand(place, box, index, self._memories(call, place, who, ranks))

    def _memories(
        self, call: Prepared, place: Place, who: Collective, ranks: tuple[int, ...] | None
    ) -> tuple[Memory, ...]:
        machine, name = self.machine, place.buffer.name
        match place.buffer.space:
            case MemorySpace.GLOBAL | MemorySpace.SCRATCH:
                return (machine.memories[name],)
            case MemorySpace.SHARED:
                units = ranks if ranks is not None and self._is_far(call, place) else (who.unit,)
                found = [machine.units[unit].shared.get(name) for unit in units]
                missing = [u for u, memory in zip(units, found, strict=True) if memory is None]
                if missing:
                    self.report.stop(
                        "tir.cluster-start",
                        call.number,
                        place.position,
                        f"{who.label} reaches {name} of unit {missing[0]}, which may not have "
                        f"begun; a cluster barrier comes first",
                    )
                return tuple(memory for memory in found if memory is not None)
            case _:
                return (machine.private_memory(who, place, call.number),)

    def _is_far(self, call: Prepared, place: Place) -> bool:
        """Whether a rank or mask is meant for this operand: what is written, else what is read."""
        if place.spec.access.writes:
            return True
        written = any(
            p.spec.access.writes and p.buffer.space is MemorySpace.SHARED for p in call.places
        )
        return not written and call.barrier is None

    def _barrier(
        self, call: Prepared, who: Collective, env: Env, unit: int, *, fenced: bool
    ) -> Barrier:
        """The barrier object of a call in a unit."""
        place = call.barrier
        if place is None:
            raise TypeError(f"{call.atom.id} has no barrier operand")
        index = tuple([start for start, _ in place.box(env)])
        if not all(0 <= at < size for at, size in zip(index, place.buffer.shape, strict=True)):
            self.report.stop(
                "tir.window-bounds",
                call.number,
                place.position,
                f"operand {place.spec.name} is {place.buffer.name}{list(index)}, which is outside",
            )
        found = self.machine.units[unit].barriers.get((place.buffer.name, index))
        if found is None:
            self.report.stop(
                "tir.barrier-uninitialised",
                call.number,
                place.position,
                f"{who.label} uses {place.buffer.name}{list(index)} of unit {unit}, which nothing "
                f"has initialised",
            )
            raise Stop
        known = who.view(single=call.single)
        record = found.record
        own = record.who is who and (record.single == call.single or who.narrow)
        if known.clock[record.component] < record.epoch and not own:
            self.report.report(
                "tir.race",
                call.number,
                place.position,
                f"{who.label} uses {found.name}, which {self.report.where(record)} initialises; "
                f"nothing orders the two",
            )
        elif fenced or unit != who.unit:
            epochs = [
                known.fenced[proxy][record.component]
                for proxy in ("init", "async")
                if proxy in known.fenced
            ]
            if max(epochs, default=0) < record.epoch:
                self.report.report(
                    "tir.proxy-fence",
                    call.number,
                    place.position,
                    f"{who.label} lets another proxy or unit use {found.name}, which "
                    f"{self.report.where(record)} initialises; no fence makes that visible",
                )
        return found

    def _synchronise(self, call: Prepared, who: Collective, env: Env) -> Coroutine:
        effects = call.atom.effects
        match call.sync:
            case Sync.FENCE:
                who.fence(effects.fences, single=call.single)
            case Sync.COMMIT:
                stream = self.machine.stream(who, effects.group)
                stream.closed.append(stream.open)
                stream.open = []
            case Sync.WAIT_GROUP:
                yield from self._wait_group(call, who, call.parts[Part.PENDING](env))
            case Sync.INIT:
                self._init(call, who, env)
            case Sync.ARRIVE | Sync.ARRIVE_AFTER | Sync.EXPECT:
                self._arrive(call, who, env)
            case Sync.WAIT:
                yield from self._wait(call, who, env)
            case Sync.CLUSTER_ARRIVE | Sync.CLUSTER_WAIT | Sync.UNITS | Sync.TEAM:
                yield from self._meet_all(call, who)
            case Sync.NAMED | Sync.NAMED_ARRIVE:
                key = call.parts[Part.ID](env)
                warps = call.parts[Part.WARPS](env)
                meetings = self.machine.units[who.unit].meetings
                meeting = meetings.setdefault(key, Meeting(f"named barrier {key}", warps))
                yield from self._meet(call, who, meeting, warps, wait=call.sync is Sync.NAMED)
            case _:
                pass

    def _meet_all(self, call: Prepared, who: Collective) -> Coroutine:
        kernel, machine = self.kernel, self.machine
        match call.sync:
            case Sync.TEAM:
                meetings = machine.units[who.unit].meetings
                meeting = meetings.setdefault(_TEAM, Meeting("the team barrier", kernel.warps))
                yield from self._meet(call, who, meeting, kernel.warps, wait=True)
            case Sync.UNITS:
                yield from self._meet(
                    call, who, machine.grid, kernel.units * kernel.warps, wait=True
                )
            case _:
                size = kernel.cluster_size
                meeting = machine.clusters[who.unit // size]
                wait = call.sync is Sync.CLUSTER_WAIT
                yield from self._meet_cluster(call, who, meeting, size * kernel.warps, wait=wait)

    def _meet_cluster(
        self, call: Prepared, who: Collective, meeting: Meeting, warps: int, *, wait: bool
    ) -> Coroutine:
        if not wait:
            if who.cluster >= 0:
                self.report.stop(
                    "tir.barrier-unpaired",
                    call.number,
                    -1,
                    f"{who.label} arrives at the cluster barrier again without having waited",
                )
            who.cluster = self._arrive_at(call, who, meeting, warps)
            return
        mine = who.cluster
        if mine < 0:
            self.report.stop(
                "tir.barrier-unpaired",
                call.number,
                -1,
                f"{who.label} waits at the cluster barrier without having arrived",
            )
        who.cluster = -1
        yield from self._until(call, who, meeting, mine)

    def _meet(
        self, call: Prepared, who: Collective, meeting: Meeting, warps: int, *, wait: bool
    ) -> Coroutine:
        mine = self._arrive_at(call, who, meeting, warps)
        if wait:
            yield from self._until(call, who, meeting, mine)

    def _arrive_at(self, call: Prepared, who: Collective, meeting: Meeting, warps: int) -> int:
        try:
            return meeting.arrive(who, warps)
        except BarrierError as error:
            self.report.stop(error.code, call.number, -1, f"{who.label}: {error}")
            raise Stop from error

    def _until(self, call: Prepared, who: Collective, meeting: Meeting, mine: int) -> Coroutine:
        if mine not in meeting.over:
            yield Blocked(lambda: mine in meeting.over, lambda: f"at {meeting}", call.number)
        who.learn(meeting.over[mine], single=False)
        who.joined.clear()

    def _wait_group(self, call: Prepared, who: Collective, pending: int) -> Coroutine:
        machine, effects = self.machine, call.atom.effects
        stream = machine.stream(who, effects.group)
        count = max(len(stream.closed) - max(pending, 0), 0)
        waited = [machine.operations[n] for group in stream.closed[:count] for n in group]
        if not all(op.executed for op in waited):
            yield Blocked(
                lambda: all(op.executed for op in waited),
                lambda: f"for groups of {effects.group} to complete",
                call.number,
            )
        for operation in waited:
            bits = (1 if effects.reads_only else 3) << 2 * operation.number
            if operation.completion is Completion.MATRIX_GROUP:
                who.know.done |= bits
                who.lead.done |= bits
            elif operation.call.single or who.narrow:
                who.lead.done |= bits
            else:
                who.own_done |= bits

    def _init(self, call: Prepared, who: Collective, env: Env) -> None:
        place = call.barrier
        if place is None:
            raise TypeError(f"{call.atom.id} has no barrier operand")
        index = tuple([start for start, _ in place.box(env)])
        count = call.parts[Part.COUNT](env)
        name = f"{place.buffer.name}{list(index)}"
        barriers = self.machine.units[who.unit].barriers
        inside = all(0 <= at < n for at, n in zip(index, place.buffer.shape, strict=True))
        if not inside or (place.buffer.name, index) in barriers or count < 1:
            why = "is initialised twice" if inside and count >= 1 else "does not exist"
            why = "takes 1 arrival or more" if inside and count < 1 else why
            self.report.stop(
                "tir.barrier-init", call.number, place.position, f"{who.label}: {name} {why}"
            )
        components = len(who.know.clock)
        record = Record(who, who.epoch, call.number, place.position, "generic", call.single)
        barriers[place.buffer.name, index] = Barrier(
            name, count, record, count, Knowledge(components), Knowledge(components)
        )

    def _arrive(self, call: Prepared, who: Collective, env: Env) -> None:
        ranks = self._ranks(call, who, env)
        arrivals = call.parts[Part.COUNT](env) if Part.COUNT in call.parts else 1
        issuers = {"thread": 1, "warp": who.width}.get(
            call.atom.issuer, who.width * self.kernel.lanes
        )
        for unit in (who.unit,) if ranks is None else ranks:
            barrier = self._barrier(call, who, env, unit, fenced=False)
            if call.sync is Sync.EXPECT:
                barrier.bytes += call.parts[Part.BYTES](env)
            if unit != who.unit:
                operand = -1 if call.barrier is None else call.barrier.position
                record = Record(who, who.epoch, call.number, operand, "", call.single)
                self.machine.remote.append((unit, record))
            news = who.publish(single=call.single)
            if call.sync is Sync.ARRIVE_AFTER:
                stream = self.machine.stream(who, call.atom.effects.group)
                numbers = [n for group in (*stream.closed, stream.open) for n in group]
                issued = tuple([self.machine.operations[n] for n in numbers])
                self.machine.arrive_later(
                    Arrival(barrier, arrivals * issuers, news, issued, who, call.number)
                )
                continue
            try:
                barrier.arrive(arrivals * issuers, news)
            except BarrierError as error:
                self.report.stop(error.code, call.number, -1, f"{who.label}: {error}")

    def _wait(self, call: Prepared, who: Collective, env: Env) -> Coroutine:
        barrier = self._barrier(call, who, env, who.unit, fenced=False)
        parity = call.parts[Part.PARITY](env)
        if parity not in (0, 1):
            self.report.stop(
                "tir.barrier-parity",
                call.number,
                -1,
                f"{who.label} waits for parity {parity}; it is 0 or 1",
            )
        if not barrier.over(parity):
            yield Blocked(
                lambda: barrier.over(parity),
                lambda: f"for parity {parity} of {barrier}",
                call.number,
            )
        who.learn(barrier.earlier, single=call.single)
