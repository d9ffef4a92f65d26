"""Host functions beside native kernels: adapters, and rounds that interleave both."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.measure.buffers import HostArguments
from tfsearch.measure.protocols import Arguments, Loaded, Runner

SETTLE_S = 0.15
"""Seconds until a library's idle threads sleep: OpenBLAS's spin for 2**28 cycles, taking a core."""

Array = NDArray[Any]
HostFunction = Callable[[Mapping[str, Array], Mapping[str, Array]], None]


@runtime_checkable
class Flushing(Protocol):
    """A runner that can flush the caches by itself, for cold timing of host functions."""

    def flush(self) -> None:
        """Evict everything from the caches of the device."""
        ...


def host_launch(launch: LaunchSpec) -> LaunchSpec:
    """The signature that a host function sees: the program's inputs and outputs only.

    An input that only a prepare entry takes is among them; prepared arguments are not.
    """
    specs: dict[str, ArgumentSpec] = {}
    for entry in (launch.main, *launch.prepares):
        for spec in entry.arguments:
            if spec.io in ("in", "out", "inout"):
                specs.setdefault(spec.name, spec)
    prepared = {
        spec.name
        for entry in launch.prepares
        for spec in entry.arguments
        if spec.io == "out" and spec.name not in {a.name for a in launch.main.arguments}
    } | {a.name for a in launch.main.arguments if a.io == "prepared"}
    arguments = tuple(spec for name, spec in specs.items() if name not in prepared)
    return LaunchSpec(EntrySpec("host", arguments, launch.main.units, 0))


class HostCallable:
    """A Python function as a loaded kernel: ``function(inputs, outputs)`` fills the outputs.

    Both are mappings of NumPy arrays by name, laid out as ``launch`` says.
    """

    def __init__(self, function: HostFunction, launch: LaunchSpec) -> None:
        self.launch = launch
        self._function = function

    def bind(self, inputs: Mapping[str, Array]) -> HostArguments:
        """Guarded host arguments holding the inputs."""
        return HostArguments(self.launch, inputs)

    def views(self, arguments: Arguments) -> tuple[dict[str, Array], dict[str, Array]]:
        """Input and output arrays of arguments that :meth:`bind` made."""
        if not isinstance(arguments, HostArguments):
            raise TypeError(f"host callables take HostArguments, not {type(arguments).__name__}")
        specs = self.launch.main.arguments
        inputs = {s.name: arguments.arrays[s.name] for s in specs if s.io in ("in", "inout")}
        outputs = {s.name: arguments.arrays[s.name] for s in specs if s.io in ("out", "inout")}
        return inputs, outputs

    def call(self, arguments: Arguments) -> None:
        """One call."""
        self._function(*self.views(arguments))

    def time_batch(self, arguments: Sequence[Arguments], batch: int) -> int:
        """Nanoseconds of ``batch`` calls that rotate over the argument sets."""
        views = [self.views(item) for item in arguments]
        order = [views[i % len(views)] for i in range(batch)]
        function = self._function
        start = time.perf_counter_ns()
        for inputs, outputs in order:
            function(inputs, outputs)
        return time.perf_counter_ns() - start


def timed_rounds(
    runner: Runner,
    kernels: Sequence[Loaded],
    arguments: Sequence[Sequence[Arguments]],
    batches: Sequence[int],
    rounds: int,
    *,
    cold: bool,
    seed: int,
) -> NDArray[np.int64]:
    """:meth:`Runner.time` for any mix of native kernels and host callables.

    Nanoseconds of a batch, shape [rounds, kernels]; in every round each kernel runs once, in an
    order shuffled by ``seed``. Cold rounds of host callables need a runner that can flush
    (``RequestError`` otherwise). A kernel of several units waits for the threads of a host function
    before it to sleep, then runs once untimed.
    """
    hosts = [isinstance(kernel, HostCallable) for kernel in kernels]
    if not any(hosts):
        return np.asarray(
            runner.time(kernels, arguments, batches, rounds, cold=cold, seed=seed), dtype=np.int64
        )
    shuffler = random.Random(seed)
    out = np.zeros((rounds, len(kernels)), dtype=np.int64)
    busy = True
    for number in range(rounds):
        order = list(range(len(kernels)))
        shuffler.shuffle(order)
        for k in order:
            kernel = kernels[k]
            if not isinstance(kernel, HostCallable):
                if busy and kernel.launch.main.units > 1:
                    time.sleep(SETTLE_S)
                    runner.time([kernel], [arguments[k]], [1], 1, cold=False, seed=0)
                    busy = False
                alone = runner.time(
                    [kernel], [arguments[k]], [batches[k]], 1, cold=cold, seed=seed + number
                )
                out[number, k] = int(alone[0, 0])
                continue
            busy = True
            if cold:
                out[number, k] = _cold_batch(runner, kernel, arguments[k], batches[k])
            else:
                out[number, k] = kernel.time_batch(arguments[k], batches[k])
    return out


def _cold_batch(
    runner: Runner, kernel: HostCallable, arguments: Sequence[Arguments], batch: int
) -> int:
    if not isinstance(runner, Flushing):
        raise RequestError(
            "measure.cold-host",
            f"{type(runner).__name__} cannot flush caches around a host function; "
            "compare under the warm protocol",
        )
    total = 0
    for index in range(batch):
        runner.flush()
        total += kernel.time_batch([arguments[index % len(arguments)]], 1)
    return total
