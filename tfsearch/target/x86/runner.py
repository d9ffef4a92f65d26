"""Loading, calling and timing shared libraries on this machine's processor."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.memory import WORKSPACE_ALIGNMENT, aligned_bytes
from tfsearch.measure.buffers import HostArguments, poison_bits
from tfsearch.measure.protocols import Audit
from tfsearch.target.x86 import support
from tfsearch.target.x86.device import SELECTOR, processor

Array = np.ndarray[Any, np.dtype[Any]]

PROBE_MS = 2
PROBE_BYTES = 1 << 24
FLUSH_FACTOR = 2
FLUSH_LIMIT = 1 << 30


class Packed:
    """The pointer array of one entry for one set of arguments; keeps its workspace alive."""

    def __init__(self, entry: EntrySpec, address: Mapping[str, int]) -> None:
        pointers = [address[argument.name] for argument in entry.arguments]
        self.workspace = aligned_bytes(max(entry.workspace_bytes, 1), WORKSPACE_ALIGNMENT)
        self.workspace[:] = 0
        pointers += [self.workspace.ctypes.data, *(support.pool() if entry.units > 1 else ())]
        self.array = (ctypes.c_void_p * len(pointers))(*pointers)


class X86Arguments(HostArguments):
    """Guarded host memory with the pointer array of the main entry.

    ``stale`` says that an input of a prepare entry was overwritten since it ran.
    """

    packed: Packed

    def __init__(
        self, launch: LaunchSpec, inputs: Mapping[str, Array], *, aligned: bool = False
    ) -> None:
        self._prepared_from = {
            a.name for entry in launch.prepares for a in entry.arguments if a.io == "in"
        }
        self.stale = bool(launch.prepares)
        super().__init__(launch, inputs, aligned=aligned)

    def write(self, name: str, value: Array) -> None:
        """Overwrite an argument; what was prepared from it is prepared again before it is used."""
        super().write(name, value)
        if name in self._prepared_from:
            self.stale = True


_OPENED: dict[str, tuple[int, int]] = {}


def _opened(artifact: Path) -> ctypes.CDLL:
    """Open a library; ``OSError`` when another file was opened under this path before.

    The dynamic loader goes by name and would hand out the old library without a word.
    """
    path = str(artifact.resolve())
    found = artifact.stat()
    identity = (found.st_ino, found.st_mtime_ns)
    if _OPENED.setdefault(path, identity) != identity:
        raise OSError(f"{path} was replaced after it had been loaded; load it under another name")
    return ctypes.CDLL(path, mode=ctypes.RTLD_LOCAL)


class X86Loaded:
    """A loaded shared library."""

    def __init__(self, artifact: Path, launch: LaunchSpec) -> None:
        self.launch = launch
        if launch.attributes.get("amx") and support.loaded().tfs_amx_enable() != 0:
            raise OSError("the kernel refuses this process the tile registers")
        self.code = _opened(artifact)
        self.main = self._entry(launch.main)
        self.prepares = [(spec, self._entry(spec)) for spec in launch.prepares]

    def _entry(self, spec: EntrySpec) -> Any:
        try:
            function = self.code[spec.symbol]
        except AttributeError as error:
            raise OSError(f"the library has no symbol {spec.symbol}") from error
        function.restype = ctypes.c_int
        function.argtypes = [ctypes.c_void_p]
        return function

    def tail(self, entry: EntrySpec) -> tuple[int, ...]:
        """What follows the workspace in an entry's pointers: pool, run and wait functions."""
        return support.pool() if entry.units > 1 else ()

    def entry_address(self, symbol: str) -> int:
        """Address of an entry's code; ``OSError`` when the library has no such symbol."""
        try:
            address = ctypes.cast(self.code[symbol], ctypes.c_void_p).value
        except AttributeError as error:
            raise OSError(f"the library has no symbol {symbol}") from error
        assert address is not None
        return address

    def bind(self, inputs: Mapping[str, Array]) -> X86Arguments:
        """Guarded memory with the inputs copied in; the prepare entries have run on it."""
        return self._bound(X86Arguments(self.launch, inputs))

    def bind_aligned(self, inputs: Mapping[str, Array]) -> X86Arguments:
        """As :meth:`bind`, at the starts of pages."""
        return self._bound(X86Arguments(self.launch, inputs, aligned=True))

    def _bound(self, arguments: X86Arguments) -> X86Arguments:
        self.refresh(arguments)
        address = {a.name: arguments.address(a.name) for a in self.launch.main.arguments}
        arguments.packed = Packed(self.launch.main, address)
        return arguments

    def refresh(self, arguments: X86Arguments) -> None:
        """Run the prepare entries if their inputs changed."""
        if not arguments.stale:
            return
        for spec, entry in self.prepares:
            packed = Packed(spec, {a.name: arguments.address(a.name) for a in spec.arguments})
            _check(entry(packed.array))
        arguments.stale = False

    def call(self, arguments: X86Arguments) -> None:
        """One call; ``OSError`` when the kernel reports a failure."""
        self.refresh(arguments)
        _check(self.main(arguments.packed.array))

    def call_soiled(self, arguments: X86Arguments, fill: int) -> None:
        """See :class:`tfsearch.measure.protocols.Soiling`."""
        self.refresh(arguments)
        code = ctypes.cast(self.main, ctypes.c_void_p).value
        _check(support.loaded().tfs_call_soiled(code, arguments.packed.array, fill))


def _check(code: int) -> None:
    if code:
        raise OSError(f"the kernel returned {code}")


class X86Runner:
    """Loads and times kernels on this machine."""

    def __init__(self) -> None:
        self._flush: Array | None = None
        self._probe: tuple[Array, Array] | None = None

    def load(self, artifact: Path, launch: LaunchSpec) -> X86Loaded:
        """Load a shared library; ``OSError`` with the loader's message when it cannot."""
        return X86Loaded(artifact, launch)

    def time(
        self,
        kernels: Sequence[X86Loaded],
        arguments: Sequence[Sequence[X86Arguments]],
        batches: Sequence[int],
        rounds: int,
        *,
        cold: bool,
        seed: int,
    ) -> np.ndarray[Any, np.dtype[np.int64]]:
        """Nanoseconds of each batch, shape [rounds, kernels]; timed by one C loop."""
        count = len(kernels)
        sets = {len(own) for own in arguments}
        if len(sets) != 1:
            raise OSError("kernels timed together need equally many argument sets")
        for kernel, own in zip(kernels, arguments, strict=True):
            for one in own:
                kernel.refresh(one)
        functions = (ctypes.c_void_p * count)(
            *(ctypes.cast(k.main, ctypes.c_void_p).value for k in kernels)
        )
        rows = [
            (ctypes.c_void_p * len(own))(*(ctypes.addressof(a.packed.array) for a in own))
            for own in arguments
        ]
        table = (ctypes.c_void_p * count)(*(ctypes.addressof(row) for row in rows))
        batch = (ctypes.c_int * count)(*batches)
        out = np.zeros((rounds, count), dtype=np.int64)
        flush = self._flush_spec() if cold else None
        code = support.loaded().tfs_time_many(
            functions, table, count, sets.pop(), 0, batch, rounds, seed & (2**64 - 1),
            out.ctypes.data, ctypes.byref(flush) if flush is not None else None,
        )  # fmt: skip
        if code:
            raise OSError(f"timing failed with code {code}")
        return out

    def audit(
        self,
        kernel: X86Loaded,
        arguments: Sequence[X86Arguments],
        calls: int,
        *,
        exchange: bool,
        keep: Sequence[str],
        seed: int,
    ) -> Audit:
        """See :class:`tfsearch.measure.protocols.Auditing`."""
        for one in arguments:
            kernel.refresh(one)
        sets = [_Arrays.of(kernel.launch, one, keep) for one in arguments]
        row = (ctypes.c_void_p * len(sets))(*(ctypes.addressof(a.packed.array) for a in arguments))
        found = _Audited()
        code = support.loaded().tfs_audit(
            ctypes.cast(kernel.main, ctypes.c_void_p), row, (_Arrays * len(sets))(*sets),
            len(sets), calls, exchange, seed & (2**64 - 1), ctypes.byref(found),
        )  # fmt: skip
        if code:
            raise OSError(f"auditing failed with code {code}")
        return Audit(
            ns=found.ns,
            counted=found.counted,
            exchanged=found.exchanged,
            unwritten=bool(found.unwritten),
            late=bool(found.late),
            calls=found.calls,
        )

    def _flush_spec(self) -> _Flush:
        if self._flush is None:
            size = min(FLUSH_LIMIT, FLUSH_FACTOR * processor().caches[-1])
            self._flush = aligned_bytes(size, WORKSPACE_ALIGNMENT)
            self._flush[:] = 1
        return _Flush(self._flush.ctypes.data, self._flush.nbytes)

    def probe(self, names: Sequence[str]) -> Mapping[str, float]:
        """``fma`` and ``tile`` in FLOP/s, ``copy`` in bytes/s."""
        library = support.loaded()
        out: dict[str, float] = {}
        for name in names:
            if name == "fma":
                out[name] = library.tfs_probe_fma(PROBE_MS) * 1e9
            elif name == "tile":
                library.tfs_amx_enable()
                out[name] = library.tfs_probe_tile(PROBE_MS) * 1e9
            elif name == "copy":
                if self._probe is None:
                    one, two = (aligned_bytes(PROBE_BYTES, WORKSPACE_ALIGNMENT) for _ in "ab")
                    self._probe = (one, two)
                    self._probe[1][:] = 1
                dst, src = (buffer.ctypes.data for buffer in self._probe)
                out[name] = library.tfs_probe_copy(dst, src, PROBE_BYTES, 1) * 1e9
            else:
                raise OSError(f"the x86 target has no probe {name!r}")
        return out

    def close(self) -> None:
        """Drop the buffers; loaded libraries stay until the process ends."""
        self._flush = self._probe = None


class _Flush(ctypes.Structure):
    _fields_ = (("buffer", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class _Array(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p),
        ("count", ctypes.c_int64),
        ("poison", ctypes.c_uint64),
        ("width", ctypes.c_int64),
    )


class _Arrays(ctypes.Structure):
    _fields_ = (
        ("inputs", ctypes.POINTER(_Array)),
        ("outputs", ctypes.POINTER(_Array)),
        ("ninputs", ctypes.c_int64),
        ("noutputs", ctypes.c_int64),
    )

    @classmethod
    def of(cls, launch: LaunchSpec, arguments: X86Arguments, keep: Sequence[str]) -> _Arrays:
        """Dense arrays of more than one element: inputs that may change, and pure outputs."""
        found: dict[str, list[_Array]] = {"in": [], "out": []}
        for spec in launch.main.arguments:
            buffer = arguments.buffers[spec.name]
            count = int(np.prod(spec.shape))
            if spec.io in found and spec.name not in keep and buffer.dense and count > 1:
                poison, width = poison_bits(buffer.dtype), buffer.dtype.itemsize
                found[spec.io].append(_Array(buffer.address, count, poison, width))
        inputs, outputs = ((_Array * len(found[io]))(*found[io]) for io in ("in", "out"))
        return cls(inputs, outputs, len(inputs), len(outputs))


class _Audited(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_int64)
        for name in ("ns", "counted", "exchanged", "unwritten", "late", "calls")
    )


def make(selector: str) -> X86Runner:
    """The runner of the processor."""
    if selector != SELECTOR:
        raise OSError(f"the x86 target has one device, {SELECTOR!r}, not {selector!r}")
    return X86Runner()
