"""A cluster of this machine alone is reached from this machine alone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import ROOT

pytest.importorskip("ray", reason="ray is not installed")
pytestmark = [pytest.mark.fleet, pytest.mark.xdist_group("fleet")]


def listening(pids: set[int]) -> list[tuple[str, int, str]]:
    """(address in hex as the kernel writes it, port, command) of what processes listen on."""
    owners: dict[str, int] = {}
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").glob("*"):
            try:
                target = os.readlink(link)
            except OSError:
                continue
            if target.startswith("socket:["):
                owners[target[8:-1]] = pid
    found: list[tuple[str, int, str]] = []
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in owners:  # proc(5): LISTEN, inode
                address, _, port = fields[1].partition(":")
                command = Path(f"/proc/{owners[fields[9]]}/cmdline").read_bytes()
                found.append((address, int(port, 16), command.replace(b"\0", b" ").decode()))
    return found


def descendants(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        parents[int(stat.parent.name)] = int(fields[1])
    found = {root}
    while True:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        if not more:
            return found
        found |= more


PROGRAM = """
import json, os, time
from tests.fleet.test_loopback import descendants, listening
from tfsearch.measure import cluster
cluster.start_local({"tfsearch-device:null:x:y": 1.0})
import ray
from ray import _raylet
cluster.call_with("tfsearch-device:null:x:y", "tests.fleet.test_loopback:hello", "", 60.0)
mode = _raylet.get_authentication_mode() == _raylet.AuthenticationMode.TOKEN
print(json.dumps([mode, listening(descendants(os.getpid()))]))
cluster.disconnect()
"""


def hello(text: str) -> tuple[str, bytes]:
    """A task, so that a worker process has started too."""
    return text, b""


def is_loopback(address: str) -> bool:
    """127.0.0.0/8, ::1, or the former as the latter's kind."""
    if len(address) == 8:
        return address.endswith("7F")
    mapped = address.startswith("0000000000000000FFFF0000") and address.endswith("7F")
    return mapped or address == "00000000000000000000000001000000"


def test_a_local_cluster_listens_on_the_loopback_interface_only(tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TFSEARCH_HOME": str(tmp_path),
        "RAY_AUTH_TOKEN": "e" * 32,
    }
    environment.pop("RAY_AUTH_MODE", None)  # tfsearch turns it on by itself
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said: Any = json.loads(done.stdout.splitlines()[-1])
    assert said[0], "token authentication is on"
    assert len(said[1]) >= 3, "the head's server, the raylet and others listen"
    assert [row for row in said[1] if not is_loopback(row[0])] == []
