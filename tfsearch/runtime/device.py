"""Kernels whose memory is a device's: what the run time asks of a loaded artifact of theirs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from tfsearch.core.launch import ArgumentSpec


class DeviceCaller(Protocol):
    """Calls one kernel on arrays of its device, on the caller's stream, without a copy."""

    def __call__(self, arrays: Sequence[Any], out: Any) -> Any:
        """Enqueue one call; the result is ``out``, or new arrays of the kind of the first input.

        ``RequestError`` (``array.*``) for arrays that do not fit, ``UnavailableError``
        (``kernel.failed``) when the device refuses.
        """
        ...

    def bind(self, arrays: Sequence[Any], out: Any) -> Callable[[], Any]:
        """The same with everything but the launch done ahead."""
        ...


@runtime_checkable
class DeviceLoaded(Protocol):
    """A loaded artifact that is called on arrays in its device's memory."""

    def caller(
        self, inputs: Sequence[ArgumentSpec], outputs: Sequence[ArgumentSpec]
    ) -> DeviceCaller:
        """What calls the main entry; ``inputs`` and ``outputs`` in the order of the program."""
        ...
