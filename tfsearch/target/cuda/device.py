"""The GPUs of this machine: what the driver says of them, and why there are none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from tfsearch.core.records import DeviceRecord
from tfsearch.target.cuda import toolkit
from tfsearch.target.cuda.driver import NAME_BYTES, CudaError, Driver, driver
from tfsearch.target.cuda.hardware import Hardware, architecture_of, hardware_of

NOMINAL_NAME = "NVIDIA H200"
NOMINAL_SELECTOR = "nominal"
COMPILED_FOR = (13, 0)
"""The CUDA that the pinned NVRTC belongs to; an older driver loads none of its output."""
DRIVER_FILE = Path("/proc/driver/nvidia/version")
_ATTRIBUTES = {
    "units": "MULTIPROCESSOR_COUNT",
    "major": "COMPUTE_CAPABILITY_MAJOR",
    "minor": "COMPUTE_CAPABILITY_MINOR",
    "l2_bytes": "L2_CACHE_SIZE",
    "shared_per_block": "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN",
    "shared_per_unit": "MAX_SHARED_MEMORY_PER_MULTIPROCESSOR",
    "clock_khz": "CLOCK_RATE",
    "persisting_l2_bytes": "MAX_PERSISTING_L2_CACHE_SIZE",
}


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver describes it; sizes in bytes, ``index`` is the driver's."""

    index: int
    name: str
    uuid: str
    capability: tuple[int, int]
    units: int
    memory_bytes: int
    driver: str
    facts: Mapping[str, int] = field(default_factory=dict[str, int])

    @property
    def architecture(self) -> str | None:
        """What code is generated for; None when there is no generator for it."""
        return architecture_of(self.capability)

    @property
    def hardware(self) -> Hardware:
        """Documents; ``LookupError`` for an architecture without a generator."""
        name = self.architecture
        if name is None:
            raise LookupError(self.name)
        return hardware_of(name, self.name, self.uuid)

    @property
    def record(self) -> DeviceRecord:
        """The fields that can change a time; cards of one model share them."""
        major, minor = self.capability
        return DeviceRecord(
            name=self.name,
            kind="gpu",
            model=f"compute capability {major}.{minor}",
            features=tuple(self.hardware.documents[-1].settings["features"]),
            units=self.units,
            memory_bytes=self.memory_bytes,
            partitioning="MIG" if self.uuid.startswith("MIG-") else "",
            driver=self.driver,
        )


@dataclass(frozen=True)
class Discovery:
    """GPUs that can be used, best first, and one line for each reason why others cannot."""

    gpus: Sequence[Gpu]
    reasons: Sequence[str] = ()


@cache
def discovery() -> Discovery:
    """What this machine has. No context is made on any device."""
    if not toolkit.bindings():
        return Discovery((), (f"CUDA's bindings are not installed; {toolkit.WHEELS}",))
    try:
        found = driver()
    except ImportError as error:
        return Discovery((), (f"CUDA's bindings do not load: {error}; {toolkit.WHEELS}",))
    except CudaError as error:
        return Discovery((), (_refusal(error),))
    except OSError as error:
        text = "no NVIDIA driver on this machine"
        if DRIVER_FILE.exists():
            text = f"the NVIDIA driver's library does not load ({error})"
        return Discovery((), (f"{text}; install a driver of release 580 or later",))
    return survey(found)


def survey(found: Driver) -> Discovery:
    """Every device of a driver."""
    version = found.cuDriverGetVersion()
    have = (version // 1000, version % 1000 // 10)
    if have < COMPILED_FOR:
        wanted = ".".join(map(str, COMPILED_FOR))
        return Discovery(
            (),
            (
                f"the NVIDIA driver is for CUDA {have[0]}.{have[1]}, older than the {wanted} that "
                "kernels are compiled with; install a driver of release 580 or later",
            ),
        )
    gpus: list[Gpu] = []
    reasons: list[str] = []
    for index in range(found.cuDeviceGetCount()):
        gpu = _describe(found, index, driver_version(have))
        if gpu.architecture is None:
            major, minor = gpu.capability
            reasons.append(
                f"{gpu.name} has compute capability {major}.{minor}; code is generated for "
                "8.0 to 8.9 and 9.0"
            )
        else:
            gpus.append(gpu)
    if not gpus and not reasons:
        reasons.append("the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES")
    gpus.sort(key=lambda gpu: (-gpu.capability[0], -gpu.capability[1], -gpu.units, gpu.index))
    return Discovery(tuple(gpus), tuple(reasons))


def _describe(found: Driver, index: int, version: str) -> Gpu:
    device = found.cuDeviceGet(index)
    kinds = found.api.CUdevice_attribute
    facts = {
        name: int(
            found.cuDeviceGetAttribute(getattr(kinds, f"CU_DEVICE_ATTRIBUTE_{attribute}"), device)
        )
        for name, attribute in _ATTRIBUTES.items()
    }
    name = found.cuDeviceGetName(NAME_BYTES, device)
    return Gpu(
        index=index,
        name=bytes(name).split(b"\0")[0].decode("utf-8", "replace"),
        uuid=uuid_text(found.cuDeviceGetUuid(device)),
        capability=(facts.pop("major"), facts.pop("minor")),
        units=facts.pop("units"),
        memory_bytes=int(found.cuDeviceTotalMem(device)),
        driver=version,
        facts=facts,
    )


def uuid_text(value: Any) -> str:
    """``GPU-…`` as ``nvidia-smi`` prints it."""
    digits = bytes(value.bytes)[:16].hex()
    parts = (digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:])
    return "GPU-" + "-".join(parts)


def driver_version(supported: tuple[int, int]) -> str:
    """The kernel driver's release, with the CUDA that it supports."""
    cuda = f"CUDA {supported[0]}.{supported[1]}"
    if DRIVER_FILE.exists():
        matched = re.search(r"\b(\d{3}\.\d+(?:\.\d+)?)\b", DRIVER_FILE.read_text())
        if matched:
            return f"{matched[1]} ({cuda})"
    return cuda


def _refusal(error: CudaError) -> str:
    if error.name == "CUDA_ERROR_NO_DEVICE":
        return "the NVIDIA driver finds no GPU; check nvidia-smi and CUDA_VISIBLE_DEVICES"
    if error.name in ("CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "CUDA_ERROR_COMPAT_NOT_SUPPORTED"):
        return f"the NVIDIA driver's library and its kernel module do not match ({error.name})"
    return f"the NVIDIA driver does not start: {error}; check nvidia-smi"


@cache
def nominal() -> Gpu:
    """An H200, to enumerate, lower and compile for when no GPU is present."""
    hardware = hardware_of("sm_90a", NOMINAL_NAME)
    major, minor = hardware.documents[-1].settings["capability"]
    return Gpu(
        index=-1,
        name=NOMINAL_NAME,
        uuid="",
        capability=(major, minor),
        units=hardware.whole("units"),
        memory_bytes=hardware.whole("memory"),
        driver="",
    )


def gpu_of(record: DeviceRecord) -> Gpu:
    """The GPU that a record was made of: one that is present, else the nominal one."""
    for gpu in discovery().gpus:
        if gpu.record == record:
            return gpu
    return nominal()
