"""A cluster of Ray's: joining and leaving it, what its nodes offer, calls on them.

With :mod:`tfsearch.measure.fleet` the only module with Ray.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfsearch.core import settings

# Ray reads them while it is imported. Whoever reaches a node of Ray's can run anything there.
settings.set_defaults(RAY_AUTH_MODE="token", RAY_USAGE_STATS_ENABLED="0")

# ruff: noqa: E402
import ray
from ray._private import ray_constants
from ray._raylet import Config  # pyright: ignore[reportAttributeAccessIssue]
from ray.exceptions import GetTimeoutError, RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.measure.bench import import_factory
from tfsearch.measure.remote import version

Config.initialize("")  # for programs that had imported Ray before

VERSION = "tfsearch-version"
CONNECT_S = 5.0
HEALTH_S = 15.0
ANSWER_S = 25.0
NODE_WAIT_S = 20.0
"""How long a session waits for a node when it has lost all that it had."""
ATTEMPTS = 3
REFRESH_S = 2.0
LEAVE_S = 20.0


def join_resources(offered: Mapping[str, float]) -> dict[str, float]:
    """Ray resources of a node: what it offers and the version of tfsearch."""
    return {**offered, f"{VERSION}:{version()}": 1.0}


def connect(address: str) -> None:
    """Join the cluster at ``host:port`` as a driver; this machine has to be one of its nodes.

    ``RequestError`` for a malformed address; ``UnavailableError``, within half a minute, when
    nothing answers, it is no Ray, its Ray differs, or a node's tfsearch differs.
    """
    host, port = split_address(address)
    _check_reachable(address, host, port)
    try:
        ray.init(
            address=address,
            namespace="tfsearch",
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
        )
    except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
        raise UnavailableError(
            "fleet.connect",
            f"cannot join the fleet at {address}: {brief(error)}; this machine has to be one of "
            "its nodes: start `tfsearch worker` here first",
        ) from error
    _check_versions(address)


def start_local(resources: Mapping[str, float]) -> None:
    """Start a cluster of this machine alone, on the loopback interface."""
    # Ray turns the loopback's address into the machine's own unless it is told that there is no
    # cluster of several machines; then all its servers listen on the loopback interface alone.
    several = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        ray.init(
            address="local",
            namespace="tfsearch",
            resources=join_resources(resources),
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.ERROR,
            configure_logging=False,
            _node_ip_address="127.0.0.1",
        )
    except (RayError, RuntimeError, ConnectionError, ValueError, OSError) as error:
        raise UnavailableError("fleet.start", f"cannot start Ray here: {brief(error)}") from error
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = several


def disconnect() -> None:
    """Leave the cluster; the actors of this driver end, a local cluster ends.

    Ray may wait for a head that is gone; it is left to itself after a moment.
    """
    leaving = threading.Thread(target=ray.shutdown, name="ray-shutdown", daemon=True)
    leaving.start()
    leaving.join(LEAVE_S)


def become_node(
    offered: Mapping[str, float], *, join: str, host: str, port: int, compilers: int
) -> None:
    """Turn this process into a node of Ray's that ends when it is stopped; does not return.

    ``join`` is the head's ``HOST:PORT``; empty: be the head, at ``host`` and ``port``. Raises like
    :func:`connect` before.
    """
    command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
    command += ["--num-cpus", str(max(1, compilers)), "--disable-usage-stats"]
    command += ["--resources", json.dumps(join_resources(offered))]
    if host:
        command += ["--node-ip-address", host]
    if join:
        _check_reachable(join, *split_address(join))
        command += ["--address", join]
    else:
        _require_token()
        command += ["--head", "--port", str(port), "--include-dashboard", "false"]
    sys.stdout.flush()
    os.execv(sys.executable, command)


def split_address(address: str) -> tuple[str, int]:
    """(host, port); ``RequestError`` for anything but ``HOST:PORT``."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise RequestError("fleet.address", f"{address!r} is no address of a fleet: HOST:PORT")
    return host.strip("[]"), int(port)


def resource_nodes(prefix: str) -> dict[str, list[str]]:
    """Living nodes by resource, of the resources whose names begin with ``prefix``."""
    found: dict[str, list[str]] = {}
    for node in ray.nodes():
        if node["Alive"]:
            for name in node["Resources"]:
                if name.startswith(prefix):
                    found.setdefault(name, []).append(node["NodeID"])
    return found


def resource_total(name: str) -> int:
    """How much of a resource the living nodes have together."""
    return int(sum(n["Resources"].get(name, 0) for n in ray.nodes() if n["Alive"]))


def call_on(node: str, path: str, text: str) -> tuple[str, bytes]:
    """Call the function at an import path on a node; ``UnavailableError`` without an answer."""
    strategy = NodeAffinitySchedulingStrategy(node, soft=False)
    options = _call.options(scheduling_strategy=strategy, num_cpus=0, max_retries=2)
    return _answered(options.remote(path, text), ANSWER_S, f"node {node[:12]}")


def call_with(resource: str, path: str, text: str, timeout_s: float) -> tuple[str, bytes]:
    """Call a function on any node with a unit of a resource; from any thread.

    A node that is lost is replaced by another one. ``UnavailableError`` when nobody has answered
    within ``timeout_s`` or no node has the resource any more.
    """
    reference = _call.options(
        resources={resource: 1}, num_cpus=0, max_retries=ATTEMPTS, scheduling_strategy="SPREAD"
    ).remote(path, text)
    deadline = time.monotonic() + timeout_s
    absent_since: float | None = None
    while True:
        ready, _ = ray.wait([reference], timeout=REFRESH_S)
        now = time.monotonic()
        if ready:
            return _answered(reference, ANSWER_S, f"a node with {resource}")
        absent_since = None if resource_total(resource) else absent_since or now
        if now >= deadline or (absent_since is not None and now - absent_since >= NODE_WAIT_S):
            ray.cancel(reference, force=True)
            raise UnavailableError(
                "fleet.no-answer", f"no node with {resource} has answered for {timeout_s:.0f} s"
            )


@ray.remote
def _call(path: str, text: str) -> tuple[str, bytes]:
    function: Callable[[str], tuple[str, bytes]] = import_factory(path)
    return function(text)


def _answered(reference: Any, timeout_s: float, who: str) -> Any:
    try:
        return ray.get(reference, timeout=timeout_s)
    except GetTimeoutError:
        ray.cancel(reference, force=True)
        text = f"{who} has not answered within {timeout_s:.0f} s"
        raise UnavailableError("fleet.no-answer", text) from None
    except RayError as error:
        raise UnavailableError("fleet.lost", f"{who} was lost: {brief(error)}") from error


def _check_reachable(address: str, host: str, port: int) -> None:
    """The server at the address is a Ray of this release; waits a few seconds at most."""
    try:
        socket.create_connection((host, port), CONNECT_S).close()
    except OSError as error:
        raise UnavailableError(
            "fleet.unreachable", f"no fleet answers at {address}: {error.strerror or error}"
        ) from error
    # Ray's own client waits long and may end its process, so it asks in another one.
    command = [sys.executable, "-m", "ray.scripts.scripts", "health-check", "--address", address]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=HEALTH_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise UnavailableError(
            "fleet.not-ray", f"what listens at {address} does not answer as Ray within {HEALTH_S} s"
        ) from None
    if done.returncode == 0:
        return
    said = next((x for x in reversed(done.stderr.splitlines()) if x.strip()), "it is not well")
    if "ersion mismatch" in done.stderr:
        text = f"the fleet at {address} runs another Ray than {ray.__version__}, or another Python"
        raise UnavailableError("fleet.ray-version", text)
    if "uthentication" in done.stderr:
        text = f"the fleet at {address} wants its token: see RAY_AUTH_TOKEN_PATH in Ray's manual"
        raise UnavailableError("fleet.token", text)
    raise UnavailableError("fleet.not-ray", f"what listens at {address} is no Ray: {said[:200]}")


def _require_token() -> None:
    """A head without a token would take anybody's work, unless the user wants it so."""
    from ray import _raylet

    raylet: Any = _raylet  # a compiled module without types
    loader = raylet.AuthenticationTokenLoader.instance()
    wanted = raylet.get_authentication_mode() == raylet.AuthenticationMode.TOKEN
    if wanted and not loader.has_token(ignore_auth_mode=True):
        raise UnavailableError(
            "fleet.no-token",
            "a fleet needs a token: make one with `ray get-auth-token --generate` and give it to "
            "every node",
        )


def _check_versions(address: str) -> None:
    others = sorted(
        name.partition(":")[2]
        for name in resource_nodes(f"{VERSION}:")
        if name != f"{VERSION}:{version()}"
    )
    if others:
        disconnect()
        raise UnavailableError(
            "fleet.version",
            f"a node of the fleet at {address} runs tfsearch {others[0]}, this is {version()}; "
            "install the same everywhere",
        )


def brief(error: BaseException) -> str:
    text = str(error).strip().splitlines()
    return text[0][:200] if text else type(error).__name__
