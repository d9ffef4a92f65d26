"""How a loaded artifact is called from a user's process.

Two kinds are known. A *native* one has entries of the form ``int entry(void **args)`` that take
host addresses; it is called here without any copy. Every other one is called through
:class:`tfsearch.measure.protocols.Loaded`, which copies arguments in and results out.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from tfsearch.core.errors import UnavailableError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.memory import WORKSPACE_ALIGNMENT, aligned_bytes
from tfsearch.measure.protocols import Loaded
from tfsearch.runtime.arrays import Array, address


@runtime_checkable
class NativeLoaded(Protocol):
    """What a loaded artifact offers when its entries take host addresses.

    An entry is ``int entry(void **args)``: the addresses of its arguments in the order of its
    :class:`EntrySpec`, the address of its workspace (0 when it needs none), then :meth:`tail`. It
    returns 0, may be called by several threads at once with different workspaces, and stays
    callable as long as this object lives.
    """

    launch: LaunchSpec

    def tail(self, entry: EntrySpec) -> Sequence[int]:
        """Addresses that follow the workspace, such as a thread pool and its run function."""
        ...

    def entry_address(self, symbol: str) -> int:
        """Address of an entry's code."""
        ...


Entry = Callable[[Any], int]


class Frame:
    """The argument block of one call of an entry: pointers, and a workspace of its own."""

    __slots__ = ("pointers", "workspace")

    def __init__(self, entry: EntrySpec, tail: Sequence[int]) -> None:
        count = len(entry.arguments)
        self.workspace = None
        place = 0
        if entry.workspace_bytes:
            self.workspace = aligned_bytes(entry.workspace_bytes, WORKSPACE_ALIGNMENT)
            place = address(self.workspace)
        self.pointers = (ctypes.c_void_p * (count + 1 + len(tail)))(*[0] * count, place, *tail)


class NativeEntry:
    """One entry of a native artifact, with a pool of frames so that threads do not share one."""

    def __init__(self, loaded: NativeLoaded, spec: EntrySpec) -> None:
        self.spec = spec
        self._tail = tuple(loaded.tail(spec))
        self._keep = loaded
        # Without argument types ctypes converts nothing: the cheapest call that it has.
        self.function: Entry = ctypes.CFUNCTYPE(ctypes.c_int)(loaded.entry_address(spec.symbol))
        self._free: list[Frame] = []

    def frame(self) -> Frame:
        """A frame that nobody else uses."""
        try:
            return self._free.pop()
        except IndexError:
            return Frame(self.spec, self._tail)

    def call(self, addresses: Sequence[int]) -> None:
        """One call; ``UnavailableError`` (``kernel.failed``) when the entry reports a failure."""
        frame = self.frame()
        frame.pointers[: len(addresses)] = addresses
        code = self.function(frame.pointers)
        self._free.append(frame)
        if code:
            raise failed(self.spec.symbol, code)


def failed(symbol: str, code: int) -> UnavailableError:
    """The error for an entry that returned something else than 0."""
    return UnavailableError("kernel.failed", f"kernel {symbol} reported failure {code}")


def call_copying(loaded: Loaded, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    """One call through the general interface; results are copied into ``outputs``.

    ``UnavailableError`` (``kernel.failed``) when the device fails.
    """
    try:
        arguments = loaded.bind(inputs)
        loaded.call(arguments)
        for name, array in outputs.items():
            array[...] = arguments.read(name)
    except OSError as error:
        raise UnavailableError("kernel.failed", f"the kernel failed: {error}") from error
