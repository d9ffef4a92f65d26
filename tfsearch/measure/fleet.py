"""The Ray executor: many machines, one device to a measuring actor.

The driver alone decides and records. Actors and tasks get text and bytes and give text and bytes
back. A worker that is lost costs its jobs nothing but time: they go to another one, and a ticket
ends once however often it was tried.
"""

from __future__ import annotations

import socket
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import unquote

from tfsearch.measure.cluster import (  # before Ray, which it sets up
    ATTEMPTS,
    CONNECT_S,
    NODE_WAIT_S,
    REFRESH_S,
    brief,
    resource_nodes,
    split_address,
)

# isort: split
import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tfsearch.core.errors import InternalError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.measure.bench import import_factory
from tfsearch.measure.clock import REFERENCE_S
from tfsearch.measure.compare import Baseline
from tfsearch.measure.executor import Ended, Leases
from tfsearch.measure.job import Comparison, MeasureJob, MeasureOutcome
from tfsearch.measure.locks import machine_id
from tfsearch.measure.remote import request_text, result_of
from tfsearch.measure.worker import LOCK_WAIT_S, START_S

SERVER = "tfsearch.measure.remote:DeviceServer"
PIPELINE = 2
"""Jobs under way for each device, so that it does not idle while the driver thinks."""
HIRE_S = 25.0
"""How long a new worker may take to start."""
SHUN_S = 5.0
"""How long a device is left alone whose worker did not start: its node may be gone unnoticed."""
SLICE_S = 0.2
HEAD_WAIT_S = 10.0
"""How long the head may not answer; Ray ends the processes of its drivers after a minute."""
SHARE = 0.001
"""Share of a device's resource that a session takes: sessions take turns by leases and locks."""
LEASE_WAIT_S = 300.0
"""How long a session waits while others have all its devices, or the database does not answer."""


@dataclass(eq=False)
class _Worker:
    """An actor that owns a device: resource name and node say which.

    ``device`` is the thing itself, the same for all nodes that reach it; known once it has started.
    """

    key: tuple[str, str]
    actor: Any
    waiting: int = 0
    device: str = ""
    hired: float = field(default_factory=time.monotonic)


@dataclass(eq=False)
class _Flight:
    """A request under way: ``attempts`` maps references of Ray's to the workers that have it."""

    ticket: int
    text: str
    artifacts: Any
    bound_s: float
    tries: int = 0
    attempts: dict[Any, _Worker] = field(default_factory=dict[Any, _Worker])
    deadline: float = 0.0


class RayExecutor:
    """Measures on every device of the fleet whose resource name begins with ``prefix``.

    ``runner`` is the target's; ``server`` the import path of what serves requests in an actor.
    With ``leases`` only devices are used whose lease this session has; without, sessions take turns
    by the devices' locks on their hosts alone.
    """

    def __init__(
        self, prefix: str, runner: str, *, server: str = SERVER, leases: Leases | None = None
    ) -> None:
        self._prefix = prefix
        self._runner = runner
        self._server = server
        self._leases = leases
        self._workers: dict[tuple[str, str], _Worker] = {}
        self._flights: dict[int, _Flight] = {}
        self._hiring: dict[Any, _Worker] = {}
        self._shunned: dict[tuple[str, str], float] = {}
        self._refused: Counter[tuple[str, str]] = Counter()
        self._ended: deque[Ended] = deque()
        self._queue: list[_Flight] = []
        self._strays: dict[Any, _Worker] = {}
        self._idle_since: float | None = None
        self._last_error = ""
        self._said = ""
        self._refreshed = 0.0
        self._alone_since: float | None = None
        self._headless_since: float | None = None
        self._internal = -1

    def __enter__(self) -> Self:
        self._refresh()
        try:
            while self._hiring and not self._workers:
                self._poll()
            if not self._workers:
                raise UnavailableError("fleet.no-node", self._nobody())
        except BaseException:
            self._dismiss()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._dismiss()

    @property
    def slots(self) -> int:
        """Two for each device that this session has now."""
        return max(1, PIPELINE * len(self._usable()))

    def start(self, ticket: int, job: MeasureJob) -> None:
        """Send a job to the device with the fewest."""
        self._begin(ticket, request_text("measure", [job]), [job])

    def next_ended(self) -> Ended:
        """Wait for whichever ends first."""
        if not self._ended and not self._flights:
            raise InternalError("measure.executor", "no job is under way")
        while not self._ended:
            self._poll()
        return self._ended.popleft()

    def final(self, jobs: Sequence[MeasureJob]) -> Comparison:
        """All of them on one device."""
        return self._compare(request_text("final", jobs), jobs)

    def benchmark(self, job: MeasureJob, baselines: Sequence[Baseline]) -> Comparison:
        """On one device, whose node makes the baselines."""
        return self._compare(request_text("benchmark", [job], baselines), [job])

    def _dismiss(self) -> None:
        for worker in [*self._workers.values(), *self._hiring.values()]:
            ray.kill(worker.actor)
        self._workers.clear()
        self._hiring.clear()
        self._flights.clear()

    def _compare(self, text: str, jobs: Sequence[MeasureJob]) -> Comparison:
        ticket = self._internal
        self._internal -= 1
        self._begin(ticket, text, jobs)
        while True:
            ended = self._poll(ticket)
            if ended is not None:
                return Comparison.from_json(ended)

    def _begin(self, ticket: int, text: str, jobs: Sequence[MeasureJob]) -> None:
        artifacts = ray.put([Path(job.artifact).read_bytes() for job in jobs])
        bound = jobs[0].limits.deadline_s + LOCK_WAIT_S + START_S + REFERENCE_S
        flight = _Flight(ticket, text, artifacts, PIPELINE * bound)
        self._flights[ticket] = flight
        self._send(flight)

    def _send(self, flight: _Flight) -> None:
        usable = self._usable()
        if not usable:
            self._queue.append(flight)
            return
        busy = set(flight.attempts.values())
        worker = min(usable, key=lambda one: (one in busy, one.waiting))
        if self._leases is not None and not self._leases.begin(worker.device):
            self._queue.append(flight)
            return
        flight.tries += 1
        flight.deadline = time.monotonic() + flight.bound_s
        worker.waiting += 1
        flight.attempts[worker.actor.serve.remote(flight.text, flight.artifacts)] = worker

    def _usable(self) -> list[_Worker]:
        """Workers that may get another job now."""
        leases = self._leases
        if leases is None:
            return list(self._workers.values())
        # Several nodes may reach one device, as containers of a machine do: one of them is used.
        by_device = {one.device: one for _, one in sorted(self._workers.items(), reverse=True)}
        return [worker for device, worker in by_device.items() if leases.usable(device)]

    def _send_queued(self) -> None:
        waiting, self._queue = self._queue, []
        for flight in waiting:
            if flight.ticket in self._flights:
                self._send(flight)

    def _take_turns(self, now: float) -> None:
        """Send what waits for a device; leave devices whose lease is lost."""
        leases = self._leases
        if leases is None:
            return
        engaged: dict[_Worker, list[Any]] = {one: [ref] for ref, one in self._strays.items()}
        for flight in self._flights.values():
            for reference, worker in flight.attempts.items():
                engaged.setdefault(worker, []).append(reference)
        for worker, references in engaged.items():
            if not leases.held(worker.device) and not ray.wait(references, timeout=0)[0]:
                self._withdraw(worker)  # an answer that is there already is taken first
        if not self._queue or self._usable():
            self._idle_since = None
            self._send_queued()
            return
        self._idle_since = self._idle_since or now
        if self._workers and now - self._idle_since >= LEASE_WAIT_S:
            device = next(iter(self._workers.values())).device
            holder = leases.holder_of(device)
            raise UnavailableError(
                "device.leased",
                f"device {device} did not come free within {LEASE_WAIT_S:.0f} s: "
                + (f"session process {holder} has it" if holder else "no database says who has it"),
            )

    def _withdraw(self, worker: _Worker) -> None:
        """The lease is lost: another session may begin, so what runs there ends at once."""
        if self._workers.get(worker.key) is worker:
            del self._workers[worker.key]
        ray.kill(worker.actor)
        self._refreshed = 0.0  # hire another one at once
        for reference in [ref for ref, one in self._strays.items() if one is worker]:
            self._ends(self._strays.pop(reference))
        for flight in list(self._flights.values()):
            lost = [ref for ref, one in flight.attempts.items() if one is worker]
            for reference in lost:
                self._ends(flight.attempts.pop(reference))
            if lost and not flight.attempts:
                flight.tries -= 1  # no fault of the job's
                self._queue.append(flight)

    def _poll(self, wanted: int | None = None) -> Any:
        """Wait a moment; what ended goes to the queue, but the answer to ``wanted`` is returned."""
        now = time.monotonic()
        if now - self._refreshed >= REFRESH_S:
            self._refresh()
        self._take_turns(now)
        owners = {ref: flight for flight in self._flights.values() for ref in flight.attempts}
        if not owners and not self._hiring and not self._strays:
            time.sleep(SLICE_S)
            return None
        waited = [*owners, *self._hiring, *self._strays]
        ready, _ = ray.wait(waited, num_returns=1, timeout=SLICE_S)
        for reference in ready:
            if reference in self._strays:
                self._ends(self._strays.pop(reference))
                continue
            if reference in self._hiring:
                self._welcome(self._hiring.pop(reference), reference)
                continue
            found = self._collect(owners[reference], reference)
            if found is not None and owners[reference].ticket == wanted:
                return found
        if not ready:
            self._check_overdue(now)
        return None

    def _collect(self, flight: _Flight, reference: Any) -> Any:
        worker = flight.attempts.pop(reference)
        self._ends(worker)
        try:
            result = result_of(ray.get(reference))
        except RayError as error:
            self._lost(worker, brief(error))
            self._again(flight)
            return None
        except UnavailableError as error:
            self._refused[worker.key] += 1
            self._said = error.message
            self._lost(worker, error.message)
            self._again(flight)
            return None
        del self._flights[flight.ticket]  # what other attempts still bring is the same job's
        for late, other in flight.attempts.items():
            if self._workers.get(other.key) is other:
                self._strays[late] = other
            else:
                ray.kill(other.actor)  # it was overdue, and its device has to come free
                self._ends(other)
        if flight.ticket >= 0:
            self._ended.append(Ended(flight.ticket, MeasureOutcome.from_json(result)))
        return result

    def _ends(self, worker: _Worker) -> None:
        """One thing less is under way on a worker."""
        worker.waiting -= 1
        if self._leases is not None:
            self._leases.end(worker.device)

    def _again(self, flight: _Flight) -> None:
        """Try elsewhere; after three workers lost over one job it ends unmeasured."""
        if flight.attempts:
            return
        if flight.tries < ATTEMPTS:
            self._send(flight)
            return
        text = f"{flight.tries} workers were lost while they had it: {self._why()}"
        del self._flights[flight.ticket]
        if flight.ticket < 0:
            raise UnavailableError("fleet.workers-lost", text)
        outcome = MeasureOutcome(Status.CANCELLED, "fleet.workers-lost", "fleet", text)
        self._ended.append(Ended(flight.ticket, outcome))

    def _lost(self, worker: _Worker, why: str) -> None:
        self._last_error = why
        if self._workers.get(worker.key) is worker:
            del self._workers[worker.key]
            ray.kill(worker.actor)
            self._refreshed = 0.0  # hire another one at once

    def _check_overdue(self, now: float) -> None:
        """A worker that does not answer is replaced; its answer still counts if it comes first."""
        for flight in list(self._flights.values()):
            if flight.attempts and now >= flight.deadline:
                for worker in flight.attempts.values():
                    if self._workers.get(worker.key) is worker:
                        del self._workers[worker.key]
                self._last_error = f"no answer within {flight.bound_s:.0f} s"
                if flight.tries < ATTEMPTS:
                    self._send(flight)
                else:
                    for worker in flight.attempts.values():
                        ray.kill(worker.actor)
                        self._ends(worker)
                    flight.attempts.clear()
                    self._again(flight)

    def _refresh(self) -> None:
        """Take new devices in, and drop those of nodes that are gone."""
        self._refreshed = now = time.monotonic()
        if not self._head_answers(now):
            return
        present = {
            (name, node) for name, nodes in resource_nodes(self._prefix).items() for node in nodes
        }
        for reference, worker in list(self._hiring.items()):
            if worker.key not in present or now - worker.hired >= HIRE_S:
                del self._hiring[reference]
                self._shun(worker, f"it did not start within {HIRE_S:.0f} s")
        known = {*self._workers, *(worker.key for worker in self._hiring.values())}
        for key in present - known:
            if self._refused[key] < ATTEMPTS and self._shunned.get(key, 0.0) <= now:
                self._hire(key)
        for key in set(self._workers) - present:
            del self._workers[key]  # its jobs' references fail by themselves
        if self._workers:
            self._alone_since = None
            return
        self._alone_since = self._alone_since or now
        if not self._hiring and now - self._alone_since >= NODE_WAIT_S:
            raise UnavailableError("fleet.no-node", self._nobody())

    def _head_answers(self, now: float) -> bool:
        """Whether it does; ``UnavailableError`` when it has not for too long."""
        address = ray.get_runtime_context().gcs_address
        try:
            socket.create_connection(split_address(address), CONNECT_S).close()
        except OSError:
            self._headless_since = self._headless_since or now
            if time.monotonic() - self._headless_since < HEAD_WAIT_S:
                return False
            raise UnavailableError(
                "fleet.head-lost",
                f"the head of the fleet at {address} is lost; start the fleet again, then the same "
                "command goes on",
            ) from None
        self._headless_since = None
        return True

    def _welcome(self, worker: _Worker, reference: Any) -> None:
        """A worker that has started gets what waits for one."""
        try:
            machine = ray.get(reference)
            worker.device = f"{self._runner}({_selector(self._prefix, worker.key[0])})@{machine}"
        except RayError as error:
            self._shun(worker, brief(error))
            return
        self._workers[worker.key] = worker
        if self._leases is not None:
            self._leases.want(worker.device)
        self._send_queued()

    def _shun(self, worker: _Worker, why: str) -> None:
        self._last_error = why
        self._shunned[worker.key] = time.monotonic() + SHUN_S
        ray.kill(worker.actor)

    def _hire(self, key: tuple[str, str]) -> None:
        name, node = key
        selector = _selector(self._prefix, name)
        strategy = NodeAffinitySchedulingStrategy(node, soft=False)
        options = _Actor.options(
            num_cpus=0, resources={name: SHARE}, scheduling_strategy=strategy, max_restarts=0
        )
        config = {"runner": self._runner, "selector": selector}
        worker = _Worker(key, options.remote(self._server, config))
        self._hiring[worker.actor.ready.remote()] = worker

    def _why(self) -> str:
        """Why the last worker was lost; what a device said of itself outlasts a process's end."""
        said = f"; a device said: {self._said}" if self._said not in self._last_error else ""
        return f"{self._last_error}{said}"

    def _nobody(self) -> str:
        known = sorted({name for name in ray.cluster_resources() if name.startswith("tfsearch-")})
        why = f"; the last one was lost: {self._why()}" if self._last_error else ""
        return f"no node has {self._prefix}; the fleet has {', '.join(known) or 'none'}{why}"


@ray.remote
class _Actor:
    """Owns the server of one device; its process may be killed at any time."""

    def __init__(self, server: str, config: Mapping[str, str]) -> None:
        self._server = import_factory(server)(dict(config))

    def ready(self) -> str:
        """Answers once the worker has started: which machine this is."""
        return machine_id()

    def serve(self, text: str, artifacts: Sequence[bytes]) -> str:
        return self._server.serve(text, artifacts)


def _selector(prefix: str, resource: str) -> str:
    return unquote(resource.removeprefix(prefix))
