"""A real Ray cluster of several nodes on this machine, started once."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PREFIX = "tfsearch-device:null:simulated:"


class Nodes:
    """The cluster; nodes that a test adds are removed after it."""

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self.address: str = cluster.address
        self._added: list[Any] = []

    def add(self, resources: dict[str, float], *, joins: bool = True) -> Any:
        from tfsearch.measure import cluster

        given = cluster.join_resources(resources) if joins else resources
        node = self._cluster.add_node(num_cpus=1, resources=given)
        self._added.append(node)
        return node

    def remove(self, node: Any, *, gracefully: bool = False) -> None:
        self._added.remove(node)
        self._cluster.remove_node(node, allow_graceful=gracefully)

    def clear(self) -> None:
        for node in list(self._added):
            self.remove(node, gracefully=True)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    pytest.importorskip("ray", reason="ray is not installed")
    folder = tmp_path_factory.mktemp("fleet")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
        patch.setenv("TFSEARCH_HOME", str(folder))
        patch.setenv("RAY_AUTH_MODE", "token")
        patch.setenv("RAY_AUTH_TOKEN", "f" * 32)
        from ray.cluster_utils import Cluster

        from tfsearch.measure import cluster

        cluster.disconnect()  # importing it has Ray read those variables
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        yield made
        made.shutdown()


@pytest.fixture
def nodes(cluster: Any) -> Iterator[Nodes]:
    from tfsearch.measure.cluster import disconnect

    made = Nodes(cluster)
    yield made
    disconnect()
    made.clear()


@pytest.fixture
def connected(nodes: Nodes) -> Callable[..., list[Any]]:
    """Add nodes with one simulated device each, and connect."""

    def connect(*names: str) -> list[Any]:
        from tfsearch.measure import cluster

        added = [nodes.add({PREFIX + name: 1.0}) for name in names]
        cluster.connect(nodes.address)
        return added

    return connect
