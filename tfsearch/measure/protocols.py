"""What measuring needs of a target: a runner that loads, calls and times artifacts.

A runner lives in the one process that owns the device. It is named by an import path
(``package.module:factory``), so that the measuring process imports it itself and nothing has
to be pickled.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from tfsearch.core.launch import LaunchSpec

Array = np.ndarray[Any, np.dtype[Any]]


class Arguments(Protocol):
    """Device-side arguments of one call, allocated by :meth:`Loaded.bind`."""

    def read(self, name: str) -> Array:
        """Copy an argument back to the host."""
        ...

    def write(self, name: str, value: Array) -> None:
        """Overwrite an argument (inputs of a later repetition, poison in an output)."""
        ...


class Loaded(Protocol):
    """A loaded artifact."""

    launch: LaunchSpec

    def bind(self, inputs: Mapping[str, Array]) -> Arguments:
        """Allocate every argument, copy the inputs, run the prepare entries."""
        ...

    def call(self, arguments: Arguments) -> None:
        """One synchronous call. ``DeviceError``-like failures raise ``OSError``."""
        ...


class Runner(Protocol):
    """Loads and times artifacts on one device; owned by one process."""

    def load(self, artifact: Path, launch: LaunchSpec) -> Loaded:
        """Load an artifact; ``OSError`` with the loader's message when it cannot."""
        ...

    def time(
        self,
        kernels: Sequence[Loaded],
        arguments: Sequence[Sequence[Arguments]],
        batches: Sequence[int],
        rounds: int,
        *,
        cold: bool,
        seed: int,
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Interleaved timing: nanoseconds of a batch, shape [rounds, kernels].

        In every round each kernel runs once for ``batches[i]`` calls, in an order shuffled by
        ``seed``; calls rotate over the kernel's argument sets. Under ``cold`` the caches are
        flushed before every call and only the calls are counted.
        """
        ...

    def probe(self, names: Sequence[str]) -> Mapping[str, float]:
        """Speeds of the machine now, by probe name ("fma", "tile", "copy"), unit per second."""
        ...

    def close(self) -> None:
        """Give back what the runner holds."""
        ...


@dataclass(frozen=True)
class Room:
    """What a runner's device has room for.

    ``argument_bytes``: memory that all argument sets of a job may take together;
    ``reference_bytes``: memory of the references kept between candidates. ``bounded``:
    whether a limit on the process's address space makes sense there; a runtime that reserves
    address space for its device's memory needs it to be off.
    """

    argument_bytes: int
    reference_bytes: int
    bounded: bool


@runtime_checkable
class Roomy(Protocol):
    """A runner whose device has memory of its own."""

    def room(self) -> Room:
        """What it has room for."""
        ...


@runtime_checkable
class Conditioned(Protocol):
    """A runner that can tell what may have shaped a time."""

    def conditions(self) -> Mapping[str, Any]:
        """Which device it is and its clocks, power and temperature now, as plain JSON values."""
        ...


Place = Callable[[Array], Any]
"""Puts a host array where references are computed; what comes back speaks NumPy's protocols."""


@runtime_checkable
class Placing(Protocol):
    """A runner on whose device references can be computed."""

    def placement(self, nbytes: int) -> Place | None:
        """How arrays of a workload with so many bytes of arguments get there.

        None where the host computes the reference: it is faster for small ones.
        """
        ...


@runtime_checkable
class Filling(Protocol):
    """Arguments that can be filled without an array on the host."""

    def fill(self, name: str, bits: int) -> None:
        """Set every element of an argument to these bits."""
        ...


@runtime_checkable
class Calibrating(Protocol):
    """A runner that can measure its device."""

    def calibrate(self) -> Mapping[str, Mapping[str, Any]]:
        """Facts of a hardware document by name: ``value``, ``unit``, ``conditions``."""
        ...


@runtime_checkable
class TimedBinding(Protocol):
    """A loaded artifact that binds other memory for timing than for verification."""

    def bind_timed(self, inputs: Mapping[str, Array]) -> Arguments:
        """As :meth:`Loaded.bind`, with arguments aligned as the device's allocators align them.

        Verification uses the least alignment that the kernel may rely on.
        """
        ...


@runtime_checkable
class AlignedBinding(Protocol):
    """A loaded artifact that binds memory as aligned as any that it may meet."""

    def bind_aligned(self, inputs: Mapping[str, Array]) -> Arguments:
        """As :meth:`Loaded.bind`, at addresses that are multiples of a page."""
        ...


@runtime_checkable
class Sealing(Protocol):
    """Arguments whose inputs can be made read-only."""

    def sealed(self) -> AbstractContextManager[None]:
        """While it lasts, a write to an argument that is only read ends the process."""
        ...


@runtime_checkable
class Soiling(Protocol):
    """A loaded artifact that can be called with known contents in memory that it did not write."""

    def call_soiled(self, arguments: Arguments, fill: int) -> None:
        """One call; its stack and what it allocates hold bytes of ``fill`` when it begins."""
        ...


@dataclass(frozen=True)
class Audit:
    """What calls with changing inputs showed.

    ``ns``: nanoseconds of the ``counted`` calls, which are all but the last one of each set;
    ``exchanged``: how many of those had contents that were not seen before. ``unwritten``: a call
    left poison in an output, after which there was no further one; ``late``: that was written
    shortly after the return. ``calls``: all calls.
    """

    ns: int
    counted: int
    exchanged: int
    unwritten: bool
    late: bool
    calls: int


@runtime_checkable
class Auditing(Protocol):
    """A runner that can exchange elements of inputs between calls."""

    def audit(
        self,
        kernel: Loaded,
        arguments: Sequence[Arguments],
        calls: int,
        *,
        exchange: bool,
        keep: Sequence[str],
        seed: int,
    ) -> Audit:
        """``calls`` calls (two at least) on each argument set in turn.

        Before a call two unequal elements of an input that is not in ``keep`` are exchanged, and a
        few elements of an output are poisoned. The exchange is undone before the set's next call,
        and there is none at its last one. Without ``exchange`` the same work is done and the
        contents stay as they are.
        """
        ...


def bind_aligned(loaded: Loaded, inputs: Mapping[str, Array]) -> Arguments:
    """Arguments at other, more aligned addresses than :meth:`Loaded.bind` gives."""
    if isinstance(loaded, AlignedBinding):
        return loaded.bind_aligned(inputs)
    return bind_timed(loaded, inputs)


def bind_timed(loaded: Loaded, inputs: Mapping[str, Array]) -> Arguments:
    """Arguments to time a loaded artifact on."""
    if isinstance(loaded, TimedBinding):
        return loaded.bind_timed(inputs)
    return loaded.bind(inputs)


def device_conditions(runner: Runner) -> dict[str, Any]:
    """What the runner tells of its device now; empty where it tells nothing."""
    return dict(runner.conditions()) if isinstance(runner, Conditioned) else {}
