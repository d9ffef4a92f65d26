"""The null target: a simulated device that is always there and runs the whole loop.

It takes any program whose dimensions are constants, needs no compiler and no hardware, computes
with NumPy and invents its times (:mod:`tfsearch.target.null.model`). It is never the default.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import DeviceRecord
from tfsearch.plugin.identity import generator_digest
from tfsearch.plugin.target import Compiler, Device, Problem

if TYPE_CHECKING:
    from tfsearch.atoms.table import AtomTable
    from tfsearch.ir.workload import Workload
    from tfsearch.prove.limits import Limits
    from tfsearch.toolchain import DoctorRow

_DEVICE = Device(
    record=DeviceRecord(
        name="null (simulated clock)",
        kind="simulated",
        model="null-1",
        features=(),
        units=1,
        memory_bytes=1 << 40,
        partitioning="",
        driver="",
    ),
    selector="null",
    facts={"clock": "simulated: times are invented, see tfsearch.target.null.model"},
)


class NullTarget:
    """See the module."""

    name = "null"
    runner = "tfsearch.target.null.runner:make"
    preference = 0

    def devices(self) -> Sequence[Device]:
        """The one simulated device."""
        return (_DEVICE,)

    def nominal(self) -> Device:
        """The same."""
        return _DEVICE

    def absence(self) -> str:
        """Never asked for: the device is always there."""
        return "the null device is simulated and always present"

    def compilers(self) -> Sequence[Compiler]:
        """The one writer of documents."""
        from tfsearch.target.null.compiler import NullCompiler

        return (NullCompiler(self.name),)

    def compiler(self, name: str | None) -> Compiler:
        """The writer; ``UnavailableError`` for any other name."""
        from tfsearch.target.null.compiler import NAME, NullCompiler

        if name not in (None, NAME):
            raise UnavailableError(
                "toolchain.unknown", f"the null target has one toolchain, {NAME!r}, not {name!r}"
            )
        return NullCompiler(self.name)

    def toolchains(self) -> Sequence[DoctorRow]:
        """The writer, which always works."""
        from tfsearch.target.null.compiler import NullCompiler
        from tfsearch.toolchain import DoctorRow

        record = NullCompiler(self.name).record
        return (DoctorRow(record.name, record.version, "", record.digest[:12], True, ""),)

    def problem(self, workload: Workload, device: Device) -> Problem:
        """Bind a workload; ``RequestError`` when a dimension is not a constant."""
        from tfsearch.target.null.problem import NullProblem

        return NullProblem(workload, device)

    def atoms(self, device: Device) -> AtomTable:
        """Atoms of every op, made on demand."""
        del device
        return _atoms()

    def limits(self, device: Device) -> Limits:
        """Memory without a practical limit."""
        from tfsearch.ir.tir.nodes import MemorySpace
        from tfsearch.prove.limits import Limits

        del device
        return Limits(capacity={MemorySpace.LOCAL: 1 << 40}, max_units=1)

    def generator_digest(self) -> str:
        """Digest of what turns a schedule into a document."""
        return generator_digest(
            "tfsearch.target.null.problem", "tfsearch.target.null.atoms", "tfsearch.ir"
        )


@cache
def _atoms() -> AtomTable:
    from tfsearch.target.null.atoms import NullAtoms

    return NullAtoms()


target = NullTarget()
