"""Builds of a session: more may be begun than the pool holds."""

from __future__ import annotations

import threading

import numpy as np

from tfsearch.core.settings import Settings
from tfsearch.db import ArtifactStore, Store
from tfsearch.ir.workload import Workload
from tfsearch.plugin.kernel import source_of
from tfsearch.tune import TuneRequest
from tfsearch.tune.building import Builder
from tfsearch.tune.observer import Silent
from tfsearch.tune.recorder import Built, Recorder
from tfsearch.tune.request import resolve


def test_more_builds_are_begun_than_one_worker_keeps(
    gemm: Workload, store: Store, home: Settings
) -> None:
    plan = resolve(TuneRequest(gemm, target="null", workers=1))
    recorder = Recorder(store, ArtifactStore(home.artifacts), Silent(), home=home.home)
    points = plan.space.sample(12, np.random.default_rng(0))
    sources = [source_of(plan.problem, point) for point in points]
    keys = [plan.compiler.key(source, (), ()) for source in sources]
    found: list[object] = []

    def build() -> None:
        with Builder(plan, recorder) as builder:
            for source, key in zip(sources, keys, strict=True):
                builder.start(source, key)
            found.extend(builder.wait(key) for key in keys)

    thread = threading.Thread(target=build, daemon=True)
    thread.start()
    thread.join(timeout=30)
    assert not thread.is_alive()
    assert len({key.key for key in keys}) > 3
    assert all(isinstance(one, Built) for one in found)
    assert len(found) == len(keys)
