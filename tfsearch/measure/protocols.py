"""What measuring needs of a target: a runner that loads, calls and times artifacts.

A runner lives in the one process that owns the device. It is named by an import path
(``package.module:factory``), so that the measuring process imports it itself and nothing has
to be pickled.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

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
