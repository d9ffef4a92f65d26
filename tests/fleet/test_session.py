"""Sessions on a fleet: what they record, what they refuse, what a lost driver leaves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import ROOT, Nodes
from tests.tune.helpers import run
from tfsearch.cli import main
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import SessionStatus, Store, open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.plugin import registry, remote
from tfsearch.tune.fleet import Fleet
from tfsearch.tune.request import TuneRequest

pytest.importorskip("ray", reason="ray is not installed")

pytestmark = [pytest.mark.fleet, pytest.mark.xdist_group("fleet")]
GEMM = ("gemm", "m=5", "n=6", "k=7", "dtype=f32", "--target", "null", "--quiet")


@pytest.fixture
def gemm() -> Workload:
    return build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(tmp_path, f"sqlite:///{tmp_path / 'tfsearch.db'}")


@pytest.fixture
def store(home: Settings) -> Any:
    opened = open_store(home.database_url)
    yield opened
    opened.close()


def offered() -> dict[str, float]:
    target = registry.get("null")
    return remote.offers(target, target.devices(), 2)


def test_a_session_on_two_nodes_records_what_a_local_one_does(
    nodes: Nodes, gemm: Workload, store: Store, home: Settings
):
    nodes.add(offered())
    nodes.add(offered())
    report = run(gemm, store, home, trials=8, fleet=nodes.address, baseline=True)
    assert report.exit_code == 0
    trials = store.trials()
    assert [one.trial.index for one in trials] == list(range(8))
    assert all(one.trial.status is Status.OK for one in trials)
    assert len({one.trial.schedule.key for one in trials}) == 8
    assert report.final is not None
    assert report.baseline is not None
    assert store.verify(home.artifacts) == []
    local = run(gemm, store, home, trials=8)  # the same keys: all answered from the record
    assert local.trials.reused == 8


def test_a_killed_driver_loses_nothing_and_repeats_nothing(
    nodes: Nodes, gemm: Workload, store: Store, home: Settings
):
    nodes.add(offered())
    options = {
        "home": str(home.home),
        "target": "null",
        "request": {"trials": 8, "fleet": nodes.address},
        "die": ["recorded", 3],
    }
    command = [sys.executable, "-m", "tests.tune.driver", json.dumps(options)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, timeout=90, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = [one.trial for one in store.trials()]
    assert len(before) == 3
    report = run(gemm, store, home, trials=8, fleet=nodes.address)
    after = [one.trial for one in store.trials()]
    assert after[:3] == before
    assert [one.index for one in after] == list(range(8))
    assert len({one.schedule.key for one in after}) == 8
    assert {session.status for session in store.sessions()} == {SessionStatus.FINISHED}
    assert report.trials.total == 8


def test_a_fleet_without_the_target_or_the_compiler_says_so(
    nodes: Nodes, gemm: Workload, home: Settings
):
    resources = offered()
    device = {k: v for k, v in resources.items() if k.startswith(remote.DEVICE)}
    nodes.add({"unrelated": 1.0})
    with pytest.raises(UnavailableError, match="no node of the fleet has a device of null"):
        run(gemm, None, home, fleet=nodes.address)
    nodes.add(device)
    with pytest.raises(UnavailableError, match="no node compiles with") as caught:
        run(gemm, None, home, fleet=nodes.address)
    assert caught.value.code == "fleet.no-toolchain"
    with pytest.raises(RequestError, match="the fleet has no device 'other' of null"):
        run(gemm, None, home, fleet=nodes.address, device="other")


@pytest.mark.parametrize(
    ("address", "code", "text"),
    [
        ("nowhere", 2, "'nowhere' is no address of a fleet: HOST:PORT"),
        ("127.0.0.1:99999", 2, "no address of a fleet"),
        ("127.0.0.1:1", 5, "no fleet answers at 127.0.0.1:1"),
    ],
)
def test_a_wrong_address_is_one_line(
    address: str, code: int, text: str, capsys: pytest.CaptureFixture[str]
):
    started = time.monotonic()
    assert main(["tune", *GEMM, "--workers", f"ray:{address}"]) == code
    err = capsys.readouterr().err
    assert len(err.splitlines()) == 1
    assert text in err
    assert time.monotonic() - started < 30


def test_a_server_that_is_no_ray_is_told_within_the_time(capsys: pytest.CaptureFixture[str]):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        started = time.monotonic()
        assert main(["tune", *GEMM, "--workers", f"ray:127.0.0.1:{port}"]) == 5
    assert "fleet.not-ray" in capsys.readouterr().err
    assert time.monotonic() - started < 30


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (("tune", *GEMM, "--workers", "ray:"), 2, "'ray:' names no HOST:PORT"),
        (("tune", *GEMM, "--workers", "rays"), 2, "'rays' is not a valid integer"),
        (("worker",), 2, "give either --join HOST:PORT or --head"),
        (("worker", "--head", "--compile", "-1"), 2, "it must be 0 or more"),
        (("worker", "--head", "--port", "0"), 2, "it must be from 1 to 65535"),
        (("worker", "--join", "127.0.0.1:1"), 5, "no fleet answers at 127.0.0.1:1"),
    ],
)
def test_wrong_words_are_one_line(
    arguments: tuple[str, ...], code: int, text: str, capsys: pytest.CaptureFixture[str]
):
    assert main(list(arguments)) == code
    err = capsys.readouterr().err
    assert text in err
    assert "Traceback" not in err


def test_a_kernel_of_the_users_own_is_refused():
    from tfsearch.space.file import KernelWorkload

    kernel = object.__new__(KernelWorkload)
    request = object.__new__(TuneRequest)
    object.__setattr__(request, "workload", kernel)
    with pytest.raises(RequestError, match="without --workers ray"):
        Fleet(request)
