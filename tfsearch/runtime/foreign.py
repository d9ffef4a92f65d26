"""Arrays in the memory of devices, as far as finding a kernel for them goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.ir.dtypes import DType
from tfsearch.plugin import registry
from tfsearch.plugin.target import ArrayPlace, ArrayTarget
from tfsearch.runtime.arrays import Array


@dataclass(frozen=True)
class Placed:
    """Arrays of one device.

    ``shadows`` have their shapes, types and strides, and no contents; ``alignment`` in bytes, a
    power of two, is what all their addresses have, as far as ``most``.
    """

    target: str
    selector: str
    shadows: tuple[Array, ...]
    alignment: int


def placed(arrays: Sequence[Any], out: Sequence[Any], most: int) -> Placed:
    """Find the target and the device of arrays, and of those for the output.

    ``RequestError`` (``array.*``) where one is not of the device that the first one is on.
    """
    named = [*((str(i), a) for i, a in enumerate(arrays)), *(("out", a) for a in out)]
    refusal: RequestError | None = None
    for name in registry.names():
        try:
            target = registry.get(name)
        except UnavailableError:
            continue
        if not isinstance(target, ArrayTarget):
            continue
        try:
            places = [target.place_of(label, value) for label, value in named]
        except RequestError as error:
            refusal = refusal or error
            continue
        return _placed(name, named, places, len(arrays), most)
    if refusal is not None:
        raise refusal
    raise RequestError("array.device", "no installed target takes arrays in the memory of a device")


def _placed(
    target: str,
    named: Sequence[tuple[str, Any]],
    places: Sequence[ArrayPlace],
    count: int,
    most: int,
) -> Placed:
    first = places[0].selector
    bits = most
    for (label, _), place in zip(named, places, strict=True):
        if place.selector != first:
            raise RequestError(
                "array.device",
                f"argument {label!r} is on {place.selector}, argument '0' on {first}; all of them "
                "have to be on one device",
            )
        bits |= place.address
    return Placed(target, first, tuple(_shadow(p) for p in places[:count]), bits & -bits)


def _shadow(place: ArrayPlace) -> Array:
    kind = DType(place.dtype).numpy
    strides = tuple(step * kind.itemsize for step in place.strides)
    return np.lib.stride_tricks.as_strided(np.empty(1, kind), place.shape, strides)
