"""A session whose candidates come from an agent."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.search import agents
from tests.tune.helpers import Watcher, run
from tfsearch.core.errors import UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.db import Store
from tfsearch.ir.workload import Workload

SCRIPT = f"agent:{sys.executable} {Path(agents.__file__)}"


def test_an_agents_candidates_are_measured_and_it_knows_what_is_tuned(
    gemm: Workload, store: Store, home: Settings, tmp_path: Path
) -> None:
    watcher, log = Watcher(), tmp_path / "log"
    report = run(gemm, store, home, observer=watcher, policy=f"{SCRIPT} lazy {log}", trials=6)
    assert (report.trials.total, report.trials.ok) == (6, 6)
    assert report.best is not None
    assert watcher.warnings == []
    first, *_, last = [json.loads(line) for line in log.read_text("utf-8").splitlines()]
    facts, history = first
    assert facts["workload"]["dims"]["m"] == 5
    assert facts["target"] == "null"
    assert history["trials"] == 0
    assert last[1]["best"][0]["median_us"] > 0


def test_a_session_whose_agent_is_of_no_use_is_completed_and_says_so(
    gemm: Workload, store: Store, home: Settings
) -> None:
    watcher = Watcher()
    report = run(gemm, store, home, observer=watcher, policy=f"{SCRIPT} not-json", trials=5)
    assert (report.trials.total, report.stopped) == (5, "trials")
    assert watcher.warnings == ["agent.replaced"]


def test_an_agent_that_cannot_be_started_ends_the_session_with_its_reason(
    gemm: Workload, store: Store, home: Settings
) -> None:
    with pytest.raises(UnavailableError, match="cannot be started") as caught:
        run(gemm, store, home, policy="agent:/no/such/agent")
    assert caught.value.exit_code == 5
