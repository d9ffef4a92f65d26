"""The x86 target: scalar, AVX2, AVX-512 and AMX code, as C built by gcc, clang or zig."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from tfsearch.core.records import DeviceRecord
from tfsearch.plugin.identity import generator_digest
from tfsearch.plugin.target import Compiler, Device, Problem
from tfsearch.target.x86.device import (
    NOMINAL,
    SELECTOR,
    Processor,
    discovery,
    document_of,
    processor,
)

if TYPE_CHECKING:
    from tfsearch.atoms.table import AtomTable
    from tfsearch.ir.workload import Workload
    from tfsearch.plugin.kernel import KernelProblem
    from tfsearch.prove.limits import Limits
    from tfsearch.space.file import KernelWorkload
    from tfsearch.toolchain import DoctorRow

GENERATOR = (
    "tfsearch.ir",
    "tfsearch.atoms",
    "tfsearch.recipes",
    "tfsearch.codegen",
    "tfsearch.target.x86",
)
NOMINAL_SELECTOR = "nominal"
VIRTUAL_REGISTERS = 4096
"""Registers that a kernel may name: the compiler allocates real ones, recipes bound live ones."""
TILES = 8
SUPPORT = "support"


class X86Target:
    """See the module."""

    name = "x86"
    runner = "tfsearch.target.x86.runner:make"
    preference = 10

    def devices(self) -> Sequence[Device]:
        """This machine's processor, when it is an x86-64."""
        found = discovery()
        if not found.processor.family:
            return ()
        return (_device(found.processor, SELECTOR, found.withheld),)

    def nominal(self) -> Device:
        """A processor with every feature that the target uses."""
        return _device(NOMINAL, NOMINAL_SELECTOR)

    def absence(self) -> str:
        """Why there is no device."""
        return "this machine has no x86-64 processor; run on one, or name another --target"

    def compilers(self) -> Sequence[Compiler]:
        """C compilers that are present, preferred first."""
        from tfsearch.target.x86.compiler import X86Compiler
        from tfsearch.toolchain import discover

        return tuple(X86Compiler(toolchain) for toolchain in discover())

    def compiler(self, name: str | None) -> Compiler:
        """A C compiler by name or path; ``UnavailableError`` when it is missing."""
        from tfsearch.target.x86.compiler import X86Compiler
        from tfsearch.toolchain import find

        return X86Compiler(find(name))

    def toolchains(self) -> Sequence[DoctorRow]:
        """Every C compiler that is here, and families that are not; each one is tried."""
        from tfsearch.toolchain import doctor

        return doctor()

    def problem(self, workload: Workload, device: Device) -> Problem:
        """Bind a workload; ``RequestError`` when no recipe takes it."""
        from tfsearch.target.x86.problem import X86Problem

        cpu = _processor_of(device.record)
        return X86Problem(workload, cpu, self.atoms(device))

    def kernel_problem(self, workload: KernelWorkload, device: Device) -> KernelProblem:
        """Bind a user's C kernel; ``RequestError`` for another language."""
        from tfsearch.target.x86.kernel import X86Kernel

        del device
        return X86Kernel(workload)

    def atoms(self, device: Device) -> AtomTable:
        """Atoms with the features of a device."""
        return _atoms(device.record.features)

    def limits(self, device: Device) -> Limits:
        """Capacities: memory of the machine, virtual registers, eight tiles."""
        from tfsearch.ir.tir.nodes import MemorySpace
        from tfsearch.prove.limits import Limits

        memory = device.record.memory_bytes
        return Limits(
            capacity={
                MemorySpace.LOCAL: memory,
                MemorySpace.SCRATCH: memory,
                MemorySpace.REGISTER: VIRTUAL_REGISTERS,
                MemorySpace.TILE: TILES,
            },
            register_bytes=64,
            tile_bytes=1024,
            max_units=max(device.record.units, 1),
        )

    def node_probes(self, device: Device) -> Sequence[str]:
        """Arithmetic and memory."""
        del device
        return ("fma", "copy")

    def node_problems(self, device: Device) -> Sequence[str]:
        """Clock source, frequencies, limits of the control group."""
        from tfsearch.target.x86 import node

        del device
        return tuple(node.problems())

    def companions(self) -> Mapping[str, Path]:
        """What kernels of several units need at run time: the support library."""
        from tfsearch.target.x86.support import library_path

        return {SUPPORT: library_path()}

    def provide(self, files: Mapping[str, Path]) -> None:
        """Use companions that came with a bundle, already checked, instead of building them."""
        from tfsearch.target.x86 import support

        if SUPPORT in files:
            support.provide(files[SUPPORT])

    def generator_digest(self) -> str:
        """Digest of what turns a schedule into C."""
        return generator_digest(*GENERATOR)


@cache
def _atoms(features: tuple[str, ...]) -> AtomTable:
    from tfsearch.atoms.table import AtomTable
    from tfsearch.target.x86.atoms import vector_atoms
    from tfsearch.target.x86.tiles import tile_atoms

    # Of two atoms that compute the same the first is taken: native rounding comes first.
    return AtomTable((*tile_atoms(), *vector_atoms()), features)


def _processor_of(record: DeviceRecord) -> Processor:
    for cpu in (processor(), NOMINAL):
        if cpu.record == record:
            return cpu
    return NOMINAL


def _device(
    cpu: Processor, selector: str, withheld: Mapping[str, str] = MappingProxyType({})
) -> Device:
    facts: dict[str, Any] = {
        "caches": list(cpu.caches),
        "document": document_of(cpu).name,
    }
    for reason in dict.fromkeys(withheld.values()):
        names = " ".join(name for name, why in withheld.items() if why == reason)
        facts[f"without {names}"] = reason
    return Device(cpu.record, selector, facts, shares_cpu=True)


target = X86Target()
