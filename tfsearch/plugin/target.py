"""What a target fills in, and how targets are found.

A target is one folder and one entry point in the group ``tfsearch.targets``; shared layers
never name one. ``Target`` finds devices and compiles; ``Problem`` is one workload on one
device: its space, predictions, lowering and emission.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from tfsearch.core import keys
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import BuildKey, DeviceRecord, Refusal, Status, ToolchainRecord

if TYPE_CHECKING:  # a lookup needs none of these
    import numpy as np

    from tfsearch.atoms.table import AtomTable
    from tfsearch.cost.model import Prediction
    from tfsearch.ir.tir.nodes import Module
    from tfsearch.ir.workload import Workload
    from tfsearch.measure.compare import Baseline
    from tfsearch.prove.limits import Limits
    from tfsearch.space import Point, Points, Space
    from tfsearch.toolchain import DoctorRow

ENTRY_POINT_GROUP = "tfsearch.targets"


@dataclass(frozen=True)
class Source:
    """Emitted source of one candidate: text, language, launch, the flags it cannot do without.

    ``features`` are the architecture features that the generator was allowed to use; they and
    ``flags`` are strings without order of importance except as given. ``folder`` is where quoted
    includes of a user's text are looked for: where it lies says nothing, what is read there is
    covered by the build key's headers.
    """

    text: str
    language: str
    launch: LaunchSpec
    features: tuple[str, ...]
    flags: tuple[str, ...]
    folder: str = ""

    def to_bytes(self) -> bytes:
        """Everything but the launch and the features as canonical text, to be kept by content."""
        fields: dict[str, object] = {
            "text": self.text,
            "language": self.language,
            "flags": list(self.flags),
        }
        if self.folder:
            fields["own-folder"] = True
        return keys.canonical(fields).encode()

    @staticmethod
    def from_bytes(data: bytes, launch: LaunchSpec, features: tuple[str, ...]) -> Source:
        """Inverse of :meth:`to_bytes`; ``ValueError`` for anything else.

        A source with a folder of its own is not complete without it, and is no inverse either.
        """
        fields = json.loads(data)
        if not isinstance(fields, dict) or set(fields) != {"text", "language", "flags"}:
            raise ValueError("not a source")
        return Source(fields["text"], fields["language"], launch, features, tuple(fields["flags"]))

    @property
    def digest(self) -> str:
        """Content hash of :meth:`to_bytes`: the ``source`` of a build's key."""
        return keys.digest_bytes(self.to_bytes())

    def build_key(
        self,
        target: str,
        flags: Sequence[str],
        macros: Sequence[str],
        toolchain: ToolchainRecord,
        headers: str,
    ) -> BuildKey:
        """The key of a build of this source; ``headers`` is the digest of all that it includes."""
        return BuildKey(
            source=self.digest,
            launch=self.launch.digest,
            target=target,
            features=self.features,
            flags=tuple(flags),
            macros=tuple(macros),
            toolchain=toolchain,
            headers=headers,
        )


@dataclass(frozen=True)
class Device:
    """A device that is present: its record, a selector text, facts for people.

    ``shares_cpu``: kernels run on the cores that compile, so nothing is compiled while a
    candidate is timed.
    """

    record: DeviceRecord
    selector: str
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    shares_cpu: bool = False


@dataclass(frozen=True)
class CompileOutcome:
    """What a compilation gave: ``artifact`` exists exactly when the status is ok."""

    status: Status
    seconds: float
    log: str
    resources: Mapping[str, int] = field(default_factory=dict[str, int])


class Compiler(Protocol):
    """One toolchain of a target."""

    @property
    def record(self) -> ToolchainRecord:
        """Identity of the toolchain's content."""
        ...

    def check_flags(self, flags: Sequence[str], macros: Sequence[str] = ()) -> None:
        """Try out user flags and macros on what every kernel has; ``RequestError`` when one is
        refused, or the compiler rejects it.
        """
        ...

    def key(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> BuildKey:
        """Identity of the build that :meth:`compile` would make now.

        Its ``source`` is ``source.digest`` (which covers the source's own flags), its ``flags``
        and ``macros`` are exactly the arguments, in order, so that a lookup without a compiler
        can name them. Flags that the compiler adds by itself are part of its ``record``: hash
        them under the role ``flags`` of ``programs``.
        """
        ...

    def compile(
        self,
        source: Source,
        flags: Sequence[str],
        macros: Sequence[str],
        out: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> CompileOutcome:
        """Compile to ``out``. Thread-safe; runs the compiler in its own process group."""
        ...


class Problem(Protocol):
    """One workload on one device."""

    workload: Workload
    space: Space
    refusals: Sequence[Refusal]
    """Why recipes or atoms that were considered do not apply."""

    def predict(self, points: Points, *, cold: bool = False) -> Prediction:
        """Predicted times of a batch of points; ``cold``: of calls that find empty caches."""
        ...

    def facts(self, points: Points) -> Mapping[str, np.ndarray[Any, np.dtype[Any]]]:
        """The integer facts that predictions rest on, one column each."""
        ...

    def lower(self, point: Point, trace: MutableMapping[str, str] | None = None) -> Module:
        """The point as TIR; ``trace`` gets the program's text after every lowering stage."""
        ...

    def reduced(self, point: Point) -> tuple[Workload, Module]:
        """The same recipe shape at sizes small enough to interpret, with tails everywhere."""
        ...

    def emit(self, module: Module, point: Point) -> Source:
        """TIR as source, one to one."""
        ...

    def probes(self, point: Point) -> tuple[str, ...]:
        """Names of the machine-speed probes that matter to this candidate."""
        ...

    def baseline(self) -> Baseline | None:
        """What the user would run without tfsearch, timed beside the winner.

        In the same accuracy class; None when there is none.
        """
        ...


@dataclass(frozen=True)
class ArrayPlace:
    """An array in a device's memory: where, what, and the selector of its device.

    ``strides`` are in elements, ``dtype`` is the text of an element type.
    """

    address: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    selector: str


@runtime_checkable
class ArrayTarget(Protocol):
    """A target whose devices have memory of their own, in which libraries keep arrays."""

    def place_of(self, name: str, value: object) -> ArrayPlace:
        """Where the array of argument ``name`` lies.

        ``RequestError`` (``array.*``) for one that is not in the memory of a device of this target.
        """
        ...


@runtime_checkable
class Measurable(Protocol):
    """A target whose devices can be measured; its runner is then a
    :class:`tfsearch.measure.protocols.Calibrating`.
    """

    name: str
    runner: str

    def devices(self) -> Sequence[Device]:
        """See :class:`Target`."""
        ...

    def document_path(self, device: Device) -> Path:
        """Where the document of a measured device is kept and looked for."""
        ...


@runtime_checkable
class NodeTarget(Protocol):
    """A target that knows what of a machine would spoil times on its devices."""

    def node_probes(self, device: Device) -> Sequence[str]:
        """Probes of the runner whose speeds have to be steady."""
        ...

    def node_problems(self, device: Device) -> Sequence[str]:
        """What is wrong with driver, clocks or limits now, one line each; empty for a good node."""
        ...


class Target(Protocol):
    """An instruction set that can be compiled for."""

    name: str
    runner: str
    """Import path ``package.module:factory`` of the runner; called with a device selector."""
    preference: int
    """The present target with the highest one is the default; 0: never chosen by default."""

    def devices(self) -> Sequence[Device]:
        """Devices present on this machine, best first; empty when there is none."""
        ...

    def nominal(self) -> Device:
        """A device to enumerate and lower for when none is present."""
        ...

    def absence(self) -> str:
        """Why there is no device and how to get one, one line."""
        ...

    def compilers(self) -> Sequence[Compiler]:
        """Toolchains present, preferred first."""
        ...

    def compiler(self, name: str | None) -> Compiler:
        """A toolchain by name, the preferred one for None; ``UnavailableError`` when missing."""
        ...

    def toolchains(self) -> Sequence[DoctorRow]:
        """For people: every toolchain that the target can use, whether it works here or not.

        Slower than :meth:`compilers`: a row is usable when something was really built with it.
        """
        ...

    def problem(self, workload: Workload, device: Device) -> Problem:
        """Bind a workload; ``RequestError`` when no recipe of the target can take it."""
        ...

    def atoms(self, device: Device) -> AtomTable:
        """Atoms with the features of a device."""
        ...

    def limits(self, device: Device) -> Limits:
        """Capacities that the verifier checks against."""
        ...

    def generator_digest(self) -> str:
        """Digest of the code that turns a schedule into source."""
        ...
