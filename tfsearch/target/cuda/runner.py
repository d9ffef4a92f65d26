"""Loading, calling and timing cubins on one GPU."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core.errors import UnavailableError
from tfsearch.core.launch import ArgumentSpec, LaunchSpec
from tfsearch.measure.protocols import Place, Room
from tfsearch.target.cuda import support
from tfsearch.target.cuda.arrays import Engine, uploaded
from tfsearch.target.cuda.buffers import PLACED_FROM, CudaArguments
from tfsearch.target.cuda.calls import CudaCaller
from tfsearch.target.cuda.context import Context
from tfsearch.target.cuda.device import architecture_of
from tfsearch.target.cuda.driver import Driver, driver
from tfsearch.target.cuda.engine import CudaEngine
from tfsearch.target.cuda.launching import Configuration, Function, Packed
from tfsearch.target.cuda.nvml import Sensors

Array = np.ndarray[Any, np.dtype[Any]]

FLUSH_FACTOR = 2
"""The flush reads this many times the L2."""
FLUSH_THREADS = 512
FLUSH_BLOCKS_PER_UNIT = 4
HEAD_START_NS = 20_000
HEAD_START_CALL_NS = 6_000
"""How long the device is kept busy while the host enqueues: for a start, and for each call."""
HEAD_START_CALLS = 512
"""At most as many launches as this are enqueued ahead; the driver's queue holds 1024."""
STRAY_NS = 50_000
"""Work that goes on this long after the last call's event was put elsewhere by a kernel."""
PIECE = 16
ARGUMENT_SHARE = 0.25
"""Share of the device's memory that argument sets may take, and as much for references."""


class CudaLoaded:
    """A loaded cubin with its entries ready to launch."""

    def __init__(
        self,
        context: Context,
        artifact: Path,
        launch: LaunchSpec,
        engine: Engine | None = None,
    ) -> None:
        self.launch = launch
        self.context = context
        self.engine = engine
        self._module = context.load(artifact.read_bytes())
        self.main = self._function(launch.main.symbol)
        self._prepares = [(e, self._function(e.symbol)) for e in launch.prepares]

    def _function(self, symbol: str) -> Function:
        entries = (self.launch.main, *self.launch.prepares)
        entry = next(e for e in entries if e.symbol == symbol)
        return Function(self.context, self._module, symbol, Configuration.of(self.launch, entry))

    def bind(self, inputs: Mapping[str, Array]) -> CudaBound:
        """Guarded memory no more aligned than the kernel may rely on, prepared."""
        return self._bound(inputs, exact=True)

    def bind_timed(self, inputs: Mapping[str, Array]) -> CudaBound:
        """Guarded memory aligned as allocators align it, prepared."""
        return self._bound(inputs, exact=False)

    def _bound(self, inputs: Mapping[str, Array], *, exact: bool) -> CudaBound:
        bound = CudaBound(self, inputs, exact=exact)
        bound.refresh()
        return bound

    def caller(self, inputs: Sequence[ArgumentSpec], outputs: Sequence[ArgumentSpec]) -> CudaCaller:
        """Calls on arrays of the user; see :class:`tfsearch.runtime.device.DeviceLoaded`."""
        return CudaCaller(self.context, self.launch, self.main, self._prepares, inputs, outputs)

    def call(self, arguments: CudaBound) -> None:
        """One call, waited for; ``OSError`` with the error's name when the device fails."""
        arguments.refresh()
        arguments.packed.launch()
        self.context.synchronise()

    def __del__(self) -> None:
        module = getattr(self, "_module", None)
        if module is not None:
            try:
                self.context.unload(module)
            except OSError:  # after a sticky error nothing can be given back
                return


class CudaBound(CudaArguments):
    """Arguments with the launches of the entries packed."""

    def __init__(self, loaded: CudaLoaded, inputs: Mapping[str, Array], *, exact: bool) -> None:
        super().__init__(loaded.context, loaded.launch, inputs, exact=exact, engine=loaded.engine)
        found = loaded.context.driver
        self.loaded = loaded
        self.packed = Packed(
            found, loaded.main, self.words(loaded.launch.main), entry=loaded.launch.main
        )
        self._prepares = [
            Packed(found, function, self.words(entry), entry=entry)
            for entry, function in loaded._prepares
        ]

    def refresh(self) -> None:
        """Run the prepare entries if their inputs changed."""
        if not self.stale:
            return
        for prepare in self._prepares:
            prepare.launch()
        self.stale = False


class CudaRunner:
    """Loads and times kernels on one card."""

    def __init__(self, found: Driver, uuid: str, *, sensors: Sensors | None = None) -> None:
        self.context = Context(found, uuid)
        capability = (
            self.context.attribute("COMPUTE_CAPABILITY_MAJOR"),
            self.context.attribute("COMPUTE_CAPABILITY_MINOR"),
        )
        name = architecture_of(capability)
        if name is None:
            raise OSError(f"no code is generated for compute capability {capability}")
        self.architecture = name
        self._sensors = sensors or Sensors(uuid)
        self._helpers: dict[str, Function] = {}
        self._flush: Packed | None = None
        self._flush_memory: list[int] = []
        self._spins: dict[int, Packed] = {}
        self._kept_events: list[Any] = []
        self._module: Any = None
        self._engine: CudaEngine | None = None
        self._no_engine = ""

    def load(self, artifact: Path, launch: LaunchSpec) -> CudaLoaded:
        """Load a cubin; ``OSError`` with the driver's error when it refuses it."""
        return CudaLoaded(self.context, artifact, launch, self._engine)

    def placement(self, nbytes: int) -> Place | None:
        """References of large workloads are computed on the card, if its kernels can be built."""
        if nbytes < PLACED_FROM:
            return None
        if self._engine is None and not self._no_engine:
            try:
                self._engine = CudaEngine(self.context, self.architecture)
            except UnavailableError as error:
                self._no_engine = error.message
        engine = self._engine
        return None if engine is None else lambda array: uploaded(engine, array)

    def room(self) -> Room:
        """Device memory is what arguments take; the driver reserves address space freely."""
        total = int(self.context.driver.cuDeviceTotalMem(self.context.device))
        share = int(total * ARGUMENT_SHARE)
        return Room(argument_bytes=share, reference_bytes=share, bounded=False)

    def conditions(self) -> Mapping[str, Any]:
        """UUID of the card, its clocks, power, temperature and throttle reasons now."""
        told = {"uuid": self.context.uuid, **self._sensors.read()}
        return {**told, "no_reference": self._no_engine} if self._no_engine else told

    def time(
        self,
        kernels: Sequence[CudaLoaded],
        arguments: Sequence[Sequence[CudaBound]],
        batches: Sequence[int],
        rounds: int,
        *,
        cold: bool,
        seed: int,
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Nanoseconds of each batch between events, shape [rounds, kernels]."""
        for own in arguments:
            for one in own:
                one.refresh()
        self.context.synchronise()
        shuffler = random.Random(seed)
        out = np.zeros((rounds, len(kernels)), dtype=np.int64)
        for number in range(rounds):
            order = list(range(len(kernels)))
            shuffler.shuffle(order)
            for k in order:
                calls = [one.packed for one in arguments[k]]
                batch = self._cold if cold else self._warm
                out[number, k] = max(1, round(batch(calls, batches[k])))
        return out

    def _warm(self, calls: Sequence[Packed], batch: int) -> float:
        """Calls one behind the other; the host is ahead of the device when they begin."""
        first, last = self._events(2)
        ahead = min(batch, HEAD_START_CALLS)
        self._spin(HEAD_START_NS + ahead * HEAD_START_CALL_NS).launch()
        self.context.record(first)
        for index in range(batch):
            calls[index % len(calls)].launch()
        self.context.record(last)
        return self._finished([(first, last)])

    def _cold(self, calls: Sequence[Packed], batch: int) -> float:
        """Each call between events of its own, after the L2 was filled with other lines."""
        flush = self._flusher()
        total = 0.0
        for start in range(0, batch, HEAD_START_CALLS // 4):
            size = min(HEAD_START_CALLS // 4, batch - start)
            events = self._events(2 * size)
            pairs = list(zip(events[::2], events[1::2], strict=True))
            self.context.forget_persisting()
            for index, (first, last) in enumerate(pairs):
                flush.launch()
                self.context.record(first)
                calls[(start + index) % len(calls)].launch()
                self.context.record(last)
            total += self._finished(pairs)
        return total

    def _finished(self, pairs: Sequence[tuple[Any, Any]]) -> float:
        """Nanoseconds between the events of all pairs, and of work that outlasts the last one."""
        self.context.driver.cuEventSynchronize(pairs[-1][1])
        before = time.perf_counter_ns()
        self.context.synchronise()
        stray = time.perf_counter_ns() - before
        spent = sum(self.context.elapsed_ns(first, last) for first, last in pairs)
        return spent + (stray if stray > STRAY_NS else 0)

    def _events(self, count: int) -> Sequence[Any]:
        if len(self._kept_events) < count:
            self._kept_events.extend(self.context.events(count - len(self._kept_events)))
        return self._kept_events[:count]

    def _helper(self, symbol: str, grid: int, block: int) -> Function:
        if symbol not in self._helpers:
            if self._module is None:
                self._module = self.context.load(support.image("timing", self.architecture))
            how = Configuration((grid, 1, 1), (block, 1, 1))
            self._helpers[symbol] = Function(self.context, self._module, symbol, how)
        return self._helpers[symbol]

    def _spin(self, nanoseconds: int) -> Packed:
        if nanoseconds not in self._spins:
            if len(self._spins) > 64:
                self._spins.clear()
            function = self._helper("tfs_spin", 1, 1)
            self._spins[nanoseconds] = Packed(self.context.driver, function, [nanoseconds])
        return self._spins[nanoseconds]

    def _flusher(self) -> Packed:
        if self._flush is None:
            size = FLUSH_FACTOR * max(1 << 20, self.context.attribute("L2_CACHE_SIZE"))
            units = self.context.attribute("MULTIPROCESSOR_COUNT")
            data, sink = self.context.allocate(size), self.context.allocate(8)
            self._flush_memory = [data, sink]
            self.context.fill(data, 1, size)
            function = self._helper("tfs_flush", units * FLUSH_BLOCKS_PER_UNIT, FLUSH_THREADS)
            self._flush = Packed(self.context.driver, function, [data, size // PIECE, sink])
        return self._flush

    def probe(self, names: Sequence[str]) -> Mapping[str, float]:
        """``sm_clock`` in Hz as NVML reads it; other names are an ``OSError``."""
        found: dict[str, float] = {}
        for name in names:
            if name != "sm_clock":
                raise OSError(f"the cuda target has no probe {name!r}")
            clock = self._sensors.read().get("sm_mhz")
            if clock is None:
                raise OSError("NVML does not read the clock of this card")
            found[name] = float(clock) * 1e6
        return found

    def calibrate(self) -> Mapping[str, Any]:
        """Facts of the card's document, measured now."""
        from tfsearch.target.cuda.calibrate import calibrated

        return calibrated(self.context, self.architecture, self._sensors)

    def close(self) -> None:
        """Give back memory and the context; the driver does the rest when the process ends."""
        self._sensors.close()
        for place in self._flush_memory:
            self.context.release(place)
        self._flush_memory = []
        self._flush = None
        self.context.close()


def make(selector: str) -> CudaRunner:
    """The runner of the card with this UUID.

    ``OSError`` when there is none, the driver is not there, or CUDA's bindings are missing.
    """
    try:
        found = driver()
    except ImportError as error:
        raise OSError(f"CUDA's bindings do not load: {error}") from error
    return CudaRunner(found, selector)
