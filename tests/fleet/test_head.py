"""The head of a fleet is killed in the middle of a session."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import ROOT
from tests.tune.helpers import run
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.plugin import registry, remote

pytest.importorskip("ray", reason="ray is not installed")

pytestmark = [pytest.mark.fleet, pytest.mark.xdist_group("fleet")]


@pytest.fixture
def fleets(cluster: Any) -> Iterator[Callable[[], Any]]:
    """Makes fleets of a head and a node, beside the one of other tests."""
    from ray.cluster_utils import Cluster

    from tfsearch.measure.cluster import disconnect, join_resources

    made: list[Any] = []

    def make() -> Any:
        target = registry.get("null")
        offered = join_resources(remote.offers(target, target.devices(), 1))
        one = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        made.append(one)
        one.add_node(num_cpus=1, resources=offered)
        return one

    yield make
    disconnect()
    for one in made:
        one.shutdown()


def test_a_session_ends_when_its_head_is_lost_and_goes_on_with_another_one(
    fleets: Callable[[], Any], tmp_path: Path
):
    home = Settings(tmp_path, f"sqlite:///{tmp_path / 'tfsearch.db'}")
    first = fleets()
    asked = {"policy": "exhaustive", "trials": 900, "fleet": first.address}
    options = {"home": str(tmp_path), "target": "null", "request": asked}
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.tune.driver", json.dumps(options)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("trial 3"):
                break
        first.head_node.kill_gcs_server(check_alive=False)
        _, err = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 5, err
    store = open_store(home.database_url)
    before = [one.trial for one in store.trials() if one.trial.status is not Status.CANCELLED]
    assert len(before) >= 4
    workload = build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})
    more = {**asked, "trials": len(before) + 3, "fleet": fleets().address}
    report = run(workload, store, home, **more)
    assert report.exit_code == 0
    after = [one.trial for one in store.trials() if one.trial.status is not Status.CANCELLED]
    assert after[: len(before)] == before
    assert len({one.schedule.key for one in after}) == len(after) == len(before) + 3
    assert len(store.sessions()) == 1
    store.close()
