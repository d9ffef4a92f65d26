"""Calibration: kernels for every architecture, and a document that predictions rest on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.target_cuda.fake_driver import Card, FakeDriver, Launch, body
from tests.target_cuda.fake_gpu import FakeNvml
from tests.target_cuda.support import compiler_named, disassembled
from tfsearch.atoms.documents import UNITS, Fact, Origin, render, write
from tfsearch.cli.run import run
from tfsearch.target.cuda import calibrate, support, toolkit
from tfsearch.target.cuda.context import Context
from tfsearch.target.cuda.device import uuid_text
from tfsearch.target.cuda.driver import Driver
from tfsearch.target.cuda.hardware import ARCHITECTURES, hardware_of, measured_path
from tfsearch.target.cuda.machine import machine_of
from tfsearch.target.cuda.nvml import Sensors

COUNTS = {
    "tfs_copy": 3, "tfs_read": 4, "tfs_shared": 2, "tfs_fma": 2, "tfs_clock": 2, "tfs_mma": 2,
    "tfs_wgmma": 2, "tfs_nothing": 0, "tfs_spin": 1,
}  # fmt: skip


def kernels() -> dict[str, Any]:
    def work(launch: Launch) -> None:
        del launch

    made: dict[str, Any] = {}
    for name, count in COUNTS.items():
        own: Any = lambda launch: work(launch)  # noqa: E731
        made[name] = body(count)(own)

    @body(2)
    def clock(launch: Launch) -> None:
        launch.array(1, (2,), "u8")[:] = (1_800_000, 1_000_000)

    return {**made, "tfs_clock": clock}


@pytest.mark.parametrize(("capability", "symbol"), [((9, 0), "tfs_wgmma"), ((8, 0), "tfs_mma")])
def test_every_fact_has_a_unit_and_says_how_it_was_measured(
    capability: tuple[int, int], symbol: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(support, "image", lambda *_: json.dumps(list(COUNTS)).encode())
    monkeypatch.setattr(calibrate, "LOAD_S", 0.001)
    monkeypatch.setattr(calibrate, "COPY_BYTES", 1 << 20)
    monkeypatch.setattr(calibrate, "READ_BYTES", 1 << 20)
    api = FakeDriver([Card(capability=capability)], kernels=kernels())
    uuid = uuid_text(api.cuDeviceGetUuid(0)[1])
    name = "sm_90a" if capability == (9, 0) else "sm_80"
    context = Context(Driver(api), uuid)
    facts = calibrate.calibrated(context, name, Sensors(uuid, FakeNvml()))
    assert set(facts) == {
        "bandwidth.copy", "bandwidth.read", "bandwidth.l2", "bandwidth.shared", "rate.f32",
        "clock", "rate.matrix_sustained", "launch",
    }  # fmt: skip
    assert all(fact["value"] > 0 and fact["unit"] in UNITS for fact in facts.values())
    assert facts["clock"]["value"] == 1.98
    assert "1.800 GHz" in facts["bandwidth.l2"]["conditions"]
    known = {n: f.unit for n, f in hardware_of("sm_90a", "NVIDIA H200").documents[0].facts.items()}
    known |= {n: f.unit for n, f in hardware_of("sm_90a", "").documents[0].facts.items()}
    assert all(known[n] == fact["unit"] for n, fact in facts.items())
    assert [item for item in api.launched if item == symbol]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_kernels_use_the_units_that_they_measure(architecture: str, tmp_path: Path) -> None:
    compiler_named("nvrtc")
    path = tmp_path / "a.cubin"
    path.write_bytes(support.image("calibrate", architecture))
    code = disassembled(path)
    assert "HMMA.16816.F32.BF16" in code
    assert ("HGMMA.64x128x16.F32.BF16" in code) == (architecture == "sm_90a")
    shared = code.split(".text.tfs_shared ", 1)[1].split("//----", 1)[0]
    assert shared.count("LDS.128") >= 8
    assert "LDG.E.128" in code


def test_predictions_are_calibrated_once_a_card_was_measured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path))
    before = machine_of(hardware_of("sm_90a", "NVIDIA H200", "GPU-1"))
    assert not before.calibrated
    facts = {
        name: Fact(value, unit, Origin.MEASURED, "tfsearch calibrate")
        for name, value, unit in (
            ("clock", 1.5, "GHz"), ("bandwidth.copy", 4300.0, "GB/s"), ("launch", 2.0, "us")
        )
    }  # fmt: skip
    write(measured_path("GPU-1"), render(facts, {}))
    after = machine_of(hardware_of("sm_90a", "NVIDIA H200", "GPU-1"))
    assert after.calibrated
    assert (after.clock_ghz, after.launch_us) == (1.5, (2.0, 2.0))
    assert after.shared_bandwidth["memory"] == pytest.approx(4300 / 1.5)
    assert after.document != before.document


def test_the_command_needs_a_device_that_is_measured(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(["calibrate", "--target", "null"]) == 2
    assert "devices of target null are not measured" in capsys.readouterr().err
    monkeypatch.setattr(toolkit, "bindings", lambda: False)
