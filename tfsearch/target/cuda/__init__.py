"""The cuda target: NVIDIA GPUs of sm_80, sm_89 and sm_90a, as CUDA C++ built by NVRTC or nvcc."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tfsearch.plugin.identity import generator_digest
from tfsearch.plugin.target import ArrayPlace, Compiler, Device, Problem
from tfsearch.target.cuda.device import (
    NOMINAL_SELECTOR,
    Gpu,
    discovery,
    gpu_of,
    nominal,
)
from tfsearch.target.cuda.hardware import measured_path

if TYPE_CHECKING:
    from tfsearch.atoms.table import AtomTable
    from tfsearch.ir.workload import Workload
    from tfsearch.prove.limits import Limits
    from tfsearch.toolchain import DoctorRow

GENERATOR = (
    "tfsearch.ir",
    "tfsearch.atoms",
    "tfsearch.recipes",
    "tfsearch.codegen",
    "tfsearch.target.cuda",
)
MAX_WARPS = 32
MAX_UNITS = (1 << 31) - 1


class CudaTarget:
    """See the module."""

    name = "cuda"
    runner = "tfsearch.target.cuda.runner:make"
    preference = 20

    def devices(self) -> Sequence[Device]:
        """GPUs of this machine that code is generated for, best first."""
        return tuple(_device(gpu, gpu.uuid) for gpu in discovery().gpus)

    def nominal(self) -> Device:
        """An H200."""
        return _device(nominal(), NOMINAL_SELECTOR)

    def absence(self) -> str:
        """Why there is no device."""
        return "; ".join(discovery().reasons) or "the NVIDIA driver finds no GPU; check nvidia-smi"

    def compilers(self) -> Sequence[Compiler]:
        """NVRTC and nvcc, where they are present."""
        from tfsearch.target.cuda import compilers

        return tuple(compilers.present())

    def compiler(self, name: str | None) -> Compiler:
        """``nvrtc``, ``nvcc`` or the path of an nvcc; ``UnavailableError`` when it is missing."""
        from tfsearch.target.cuda import compilers

        return compilers.named(name)

    def toolchains(self) -> Sequence[DoctorRow]:
        """NVRTC and nvcc, tried out on an empty kernel."""
        from tfsearch.target.cuda import compilers

        return compilers.rows()

    def problem(self, workload: Workload, device: Device) -> Problem:
        """Bind a workload; ``RequestError`` when no recipe takes it."""
        from tfsearch.target.cuda.problem import CudaProblem

        return CudaProblem(workload, gpu_of(device.record), self.atoms(device))

    def atoms(self, device: Device) -> AtomTable:
        """Atoms with the features of a device."""
        return _atoms(device.record.features)

    def limits(self, device: Device) -> Limits:
        """Capacities of a block and of its threads."""
        from tfsearch.ir.tir.nodes import MemorySpace
        from tfsearch.prove.limits import Limits
        from tfsearch.target.cuda.emit import GIVEN_ALIGNMENT

        hardware = gpu_of(device.record).hardware
        most = hardware.whole("limit.registers_per_thread")
        return Limits(
            capacity={
                MemorySpace.SCRATCH: device.record.memory_bytes,
                MemorySpace.SHARED: hardware.whole("limit.shared_per_block"),
                MemorySpace.REGISTER: most,
            },
            register_bytes=4,
            max_units=MAX_UNITS,
            max_warps=MAX_WARPS,
            max_cluster=int(hardware.get("limit.cluster") or 1),
            reserved_barriers=1,
            register_file=hardware.whole("limit.registers"),
            register_least=24,
            register_most=most,
            shared_given=GIVEN_ALIGNMENT,
        )

    def document_path(self, device: Device) -> Path:
        """Where measurements of a card are kept: by its UUID."""
        return measured_path(device.selector)

    def node_probes(self, device: Device) -> Sequence[str]:
        """None: what holds a card back is told by its sensors."""
        del device
        return ()

    def node_problems(self, device: Device) -> Sequence[str]:
        """Why the card is slower than it could be."""
        from tfsearch.target.cuda import node

        return tuple(node.problems(device.selector))

    def place_of(self, name: str, value: object) -> ArrayPlace:
        """Where an array lies on a GPU; ``RequestError`` (``array.*``) where it does not."""
        from tfsearch.target.cuda.tensors import place_of

        return place_of(name, value, discovery().gpus)

    def generator_digest(self) -> str:
        """Digest of what turns a schedule into CUDA C++."""
        return generator_digest(*GENERATOR)


@cache
def _atoms(features: tuple[str, ...]) -> AtomTable:
    from tfsearch.atoms.table import AtomTable
    from tfsearch.target.cuda.threads import thread_atoms
    from tfsearch.target.cuda.warpgroups import warpgroup_atoms
    from tfsearch.target.cuda.warps import warp_atoms

    return AtomTable((*thread_atoms(), *warpgroup_atoms(), *warp_atoms()), features)


def _device(gpu: Gpu, selector: str) -> Device:
    facts: dict[str, Any] = {"documents": list(gpu.hardware.names), **gpu.facts}
    if gpu.uuid:
        facts = {"uuid": gpu.uuid, **facts}
    return Device(gpu.record, selector, facts)


target = CudaTarget()
