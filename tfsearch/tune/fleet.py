"""A session on a fleet: what is chosen on its nodes, and its executor and compilers."""

from __future__ import annotations

import os
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import BuildKey, Status
from tfsearch.db import Store
from tfsearch.plugin import registry, remote
from tfsearch.plugin.target import CompileOutcome, Device, Source, Target
from tfsearch.space.file import KernelWorkload
from tfsearch.tune.leasing import DeviceLeases
from tfsearch.tune.request import Plan, TuneRequest

if TYPE_CHECKING:
    from tfsearch.measure.fleet import RayExecutor

ANSWER_S = 60.0
"""What a compilation on another node may take beyond its own limit, waiting for a slot included."""


class Fleet:
    """The connection of one session; a context manager.

    ``request.fleet`` is ``HOST:PORT``, or empty for a cluster of this machine alone. The compiler
    is this machine's, and the nodes that compile have the same one; the device is a node's.
    """

    def __init__(self, request: TuneRequest) -> None:
        if isinstance(request.workload, KernelWorkload):
            raise RequestError(
                "fleet.kernel",
                "your own kernel and its reference are files of this machine: tune it without "
                "--workers ray",
            )
        try:
            from tfsearch.measure import cluster
        except ImportError as error:
            raise UnavailableError(
                "fleet.not-installed", f"Ray is not there: {error}; install tfsearch[ray]"
            ) from error
        self._ray = cluster
        self._request = request
        self._slots = 0
        self._build = ""
        self._leases: DeviceLeases | None = None

    def __enter__(self) -> Self:
        address = self._request.fleet
        if address:
            self._ray.connect(address)
        else:
            target = self._named() or registry.best_present()
            here = [registry.device(target, self._request.device)]
            slots = self._request.workers or os.cpu_count() or 1
            self._ray.start_local(remote.offers(target, here, slots))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._leases is not None:
            self._leases.close()
        self._ray.disconnect()

    def place(self) -> tuple[Target, Device]:
        """The target and a device of it that a node has.

        ``RequestError`` when the fleet measures on several targets and none is named, or no node
        has the device; ``UnavailableError`` when no node has the target.
        """
        nodes = self._ray.resource_nodes(f"{remote.DEVICE}:")
        targets = sorted({name.split(":")[1] for name in nodes})
        target = self._named()
        if target is None:
            if len(targets) > 1:
                raise RequestError(
                    "fleet.target", f"the fleet measures on {', '.join(targets)}: name a --target"
                )
            if not targets:
                raise UnavailableError("fleet.no-node", "no node of the fleet has a device")
            target = registry.get(targets[0])
        found = self._devices(target, nodes)
        if not found:
            raise UnavailableError(
                "fleet.no-node",
                f"no node of the fleet has a device of {target.name}; it has "
                f"{', '.join(targets) or 'none'}",
            )
        wanted = self._request.device
        for device in found:
            if wanted in (None, device.selector, device.record.name):
                return target, device
        known = ", ".join(sorted({f"{d.selector} ({d.record.name})" for d in found}))
        raise RequestError(
            "device.unknown", f"the fleet has no device {wanted!r} of {target.name}; it has {known}"
        )

    def open(self, plan: Plan, store: Store | None) -> RayExecutor:
        """The executor for a plan; ``UnavailableError`` when no node can compile for it.

        On a cluster that others can join, devices are leased in the ``store``.
        """
        self._build = remote.build_name(plan.target.name, plan.compiler)
        self._slots = self._ray.resource_total(self._build)
        if not self._slots:
            record = plan.compiler.record
            raise UnavailableError(
                "fleet.no-toolchain",
                f"no node compiles with this machine's {record.name} {record.version} "
                f"({record.digest[:12]}) for {plan.target.name}",
            )
        prefix = remote.device_prefix(plan.target.name, plan.device)
        if store is not None and not store.read_only and self._request.fleet:
            self._leases = DeviceLeases(store)
        from tfsearch.measure.fleet import RayExecutor

        return RayExecutor(prefix, plan.target.runner, leases=self._leases)

    @property
    def build_slots(self) -> int:
        """Compilations at a time; known once :meth:`open` was called."""
        return self._slots

    def compile(
        self,
        plan: Plan,
        source: Source,
        key: BuildKey,
        out: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> CompileOutcome:
        """Compile on a node, and bring the artifact here; from any thread."""
        text = remote.compile_request(
            plan.target.name,
            plan.compiler,
            source,
            plan.request.flags,
            plan.request.macros,
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
        )
        limit = timeout_s + ANSWER_S
        said, content = self._ray.call_with(self._build, remote.COMPILE, text, limit)
        outcome = remote.outcome_of(said, key.key)
        if outcome.status is Status.OK:
            out.write_bytes(content)
        return outcome

    def _named(self) -> Target | None:
        return registry.get(self._request.target) if self._request.target else None

    def _devices(self, target: Target, nodes: dict[str, list[str]]) -> list[Device]:
        """Devices of a target, one of each resource, as their nodes describe them."""
        found: list[Device] = []
        described: dict[str, list[Device]] = {}
        for name, homes in sorted(nodes.items()):
            if name.split(":")[1] != target.name:
                continue
            for home in homes:
                if home not in described:
                    try:
                        said, _ = self._ray.call_on(home, remote.DESCRIBE, target.name)
                    except UnavailableError:
                        continue  # it is leaving; another node may have the same
                    described[home] = remote.devices_of(said)
                same = [d for d in described[home] if remote.device_name(target.name, d) == name]
                if same:
                    found.append(same[0])
                    break
        return found
