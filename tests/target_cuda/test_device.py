"""GPUs as the driver describes them, and one line for each reason why there is none."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.target_cuda.fake_driver import Card, CUresult, FakeDriver
from tfsearch.target.cuda import device, driver, toolkit
from tfsearch.target.cuda.device import Discovery, discovery, gpu_of, nominal
from tfsearch.target.cuda.driver import CudaError, CudaMemoryError, Driver


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(toolkit, "bindings", lambda: True)
    monkeypatch.setattr(device, "DRIVER_FILE", Path("/nonexistent"))
    discovery.cache_clear()
    yield
    driver.use(None)
    discovery.cache_clear()


def found(api: Any) -> Discovery:
    driver.use(api)
    discovery.cache_clear()
    return discovery()


def test_a_gpu_is_described_with_its_architecture_and_documents() -> None:
    (gpu,) = found(FakeDriver()).gpus
    assert (gpu.name, gpu.capability, gpu.units) == ("NVIDIA H200", (9, 0), 132)
    assert gpu.uuid == "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f"
    assert gpu.architecture == "sm_90a"
    assert gpu.hardware.names == ("h200", "sm_90a")
    assert gpu.record.model == "compute capability 9.0"
    assert "wgmma" in gpu.record.features
    assert gpu.record.driver == "CUDA 13.0"
    assert gpu.facts["l2_bytes"] == 62914560
    assert gpu_of(gpu.record) == gpu


def test_cards_of_one_model_share_a_record_but_have_their_own_selector() -> None:
    one, two = found(FakeDriver([Card(), Card(uuid=bytes(16))])).gpus
    assert one.record == two.record
    assert one.uuid != two.uuid


def test_the_newest_and_largest_come_first_and_others_say_why_not() -> None:
    cards = [
        Card("NVIDIA A100", (8, 0), 108),
        Card("NVIDIA T4", (7, 5), 40),
        Card("NVIDIA H200", (9, 0), 132),
        Card("NVIDIA B200", (10, 0), 148),
    ]
    result = found(FakeDriver(cards))
    assert [gpu.name for gpu in result.gpus] == ["NVIDIA H200", "NVIDIA A100"]
    assert [gpu.architecture for gpu in result.gpus] == ["sm_90a", "sm_80"]
    assert [reason.split(" has ")[0] for reason in result.reasons] == ["NVIDIA T4", "NVIDIA B200"]


def failing(status: CUresult) -> FakeDriver:
    api = FakeDriver()
    api.fail["cuInit"] = status
    return api


@pytest.mark.parametrize(
    ("api", "line"),
    [
        (FakeDriver([]), "finds no GPU"),
        (FakeDriver(version=12080), "is for CUDA 12.8, older than the 13.0"),
        (failing(CUresult.CUDA_ERROR_SYSTEM_DRIVER_MISMATCH), "kernel module do not match"),
        (failing(CUresult.CUDA_ERROR_INVALID_VALUE), "does not start: cuInit: CUDA_ERROR_INVALID"),
    ],
)
def test_without_a_usable_driver_one_line_says_why(api: FakeDriver, line: str) -> None:
    result = found(api)
    assert not result.gpus
    assert len(result.reasons) == 1
    assert line in result.reasons[0]
    assert "\n" not in result.reasons[0]


def test_a_machine_without_a_driver_or_bindings_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    class Missing:
        def cuInit(self, flags: int) -> Any:
            raise RuntimeError("cannot find libcuda.so.1\nmore")

    assert "no NVIDIA driver on this machine; install" in found(Missing()).reasons[0]
    version = tmp_path / "version"
    version.write_text("NVRM version: NVIDIA UNIX  580.159.04  Release Build\n")
    monkeypatch.setattr(device, "DRIVER_FILE", version)
    assert "does not load (libcuda: cannot find libcuda.so.1)" in found(Missing()).reasons[0]
    assert found(FakeDriver()).gpus[0].driver == "580.159.04 (CUDA 13.0)"
    monkeypatch.setattr(toolkit, "bindings", lambda: False)
    assert "pip install 'tfsearch[cuda]'" in found(FakeDriver()).reasons[0]


def test_errors_of_calls_have_their_names() -> None:
    api = FakeDriver()
    one = Driver(api)
    assert one.cuDeviceGetCount() == 1
    assert one.cuCtxSynchronize() is None
    with pytest.raises(CudaMemoryError, match="cuMemAlloc"):
        one.cuMemAlloc(1 << 40)
    api.sticky = CUresult.CUDA_ERROR_ILLEGAL_ADDRESS
    with pytest.raises(CudaError, match="text of CUDA_ERROR_ILLEGAL_ADDRESS") as caught:
        one.cuCtxSynchronize()
    assert caught.value.sticky
    api.sticky = CUresult.CUDA_ERROR_NOT_FOUND
    with pytest.raises(CudaError) as caught:
        one.cuCtxSynchronize()
    assert not caught.value.sticky


def test_the_nominal_device_is_an_h200_without_a_card() -> None:
    gpu = nominal()
    assert gpu.hardware.names == ("h200", "sm_90a")
    assert (gpu.units, gpu.uuid) == (132, "")
    assert gpu_of(gpu.record) == gpu
