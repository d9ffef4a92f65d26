"""Launches with their arguments packed ahead: one call of the driver, nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.target.cuda.boxes import Descriptor, encoded
from tfsearch.target.cuda.context import STREAM, Context
from tfsearch.target.cuda.driver import Driver

STATIC_SHARED = 48 << 10
"""Dynamic shared memory that needs no attribute of the function."""
PORTABLE_CLUSTER = 8
DESCRIPTOR = 128
"""Bytes of an encoded descriptor."""


@dataclass(frozen=True)
class Configuration:
    """How an entry is launched: blocks, threads of a block, blocks of a cluster, shared bytes.

    ``boxes``: descriptors that the host encodes, the entry's last parameters.
    """

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0
    boxes: tuple[Descriptor, ...] = ()

    @staticmethod
    def of(launch: LaunchSpec, entry: EntrySpec) -> Configuration:
        """What ``launch.attributes`` say of an entry: ``{symbol: {grid, block, …}}``.

        The grid is one block a unit where nothing is said of it. ``InternalError`` without a
        block.
        """
        said = launch.attributes.get(entry.symbol)
        if not isinstance(said, Mapping) or "block" not in said:
            raise InternalError("cuda.launch", f"no launch configuration for {entry.symbol}")
        return Configuration(
            grid=_triple(said.get("grid", [entry.units])),
            block=_triple(said["block"]),
            cluster=_triple(said.get("cluster", [1])),
            shared=int(said.get("shared", 0)),
            boxes=tuple(Descriptor.of(box) for box in said.get("boxes", ())),
        )

    def to_json(self) -> dict[str, Any]:
        """As ``launch.attributes`` hold it; what is usual is left out."""
        out: dict[str, Any] = {"grid": list(self.grid), "block": list(self.block)}
        if self.cluster != (1, 1, 1):
            out["cluster"] = list(self.cluster)
        if self.shared:
            out["shared"] = self.shared
        if self.boxes:
            out["boxes"] = [box.to_json() for box in self.boxes]
        return out


def _triple(values: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*map(int, values), 1, 1)[:3]
    return (x, y, z)


class Function:
    """An entry of a loaded module with its configuration."""

    def __init__(self, context: Context, module: Any, symbol: str, how: Configuration) -> None:
        self.handle = context.function(module, symbol)
        self.configuration = how
        driver = context.driver
        kinds = driver.api.CUfunction_attribute
        if how.shared > STATIC_SHARED:
            kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            driver.cuFuncSetAttribute(self.handle, kind, how.shared)
        if how.cluster[0] * how.cluster[1] * how.cluster[2] > PORTABLE_CLUSTER:
            kind = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            driver.cuFuncSetAttribute(self.handle, kind, 1)


def config_of(driver: Driver, how: Configuration, stream: int = STREAM) -> Any:
    """The driver's launch configuration."""
    config = driver.api.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = how.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = how.block
    config.sharedMemBytes = how.shared
    config.hStream = stream
    config.numAttrs = 0
    if how.cluster != (1, 1, 1):
        attribute = driver.api.CUlaunchAttribute()
        attribute.id = driver.api.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        dims = attribute.value.clusterDim
        dims.x, dims.y, dims.z = how.cluster
        config.attrs = [attribute]
        config.numAttrs = 1
    return config


class Packed:
    """One launch of a function on given addresses, to be repeated.

    ``words`` are 64-bit parameters in order: addresses, and integers of kernels of tfsearch's own.
    ``maps`` are encoded descriptors, which come after them; ``entry`` says of which arguments they
    are, and a descriptor whose argument moves is encoded anew.
    """

    __slots__ = (
        "_boxes", "_config", "_driver", "_handle", "_launch", "_maps", "_slots", "_values",
        "error", "place",
    )  # fmt: skip

    def __init__(
        self,
        driver: Driver,
        function: Function,
        words: Sequence[int],
        stream: int = STREAM,
        entry: EntrySpec | None = None,
    ) -> None:
        """``entry`` is needed where the function's configuration has boxes."""
        self._handle = function.handle
        self._driver = driver
        self._config = config_of(driver, function.configuration, stream)
        self._values = (ctypes.c_uint64 * max(1, len(words)))(*words)
        start = ctypes.addressof(self._values)
        boxes = function.configuration.boxes
        # Descriptors start at multiples of 64 bytes.
        self._maps = (ctypes.c_char * (DESCRIPTOR * (len(boxes) + 1)))()
        first = -(-ctypes.addressof(self._maps) // 64) * 64
        places = [start + 8 * i for i in range(len(words))]
        places += [first + DESCRIPTOR * i for i in range(len(boxes))]
        self._slots = (ctypes.c_void_p * max(1, len(places)))(*places)
        self._boxes: dict[int, list[tuple[int, Descriptor, ArgumentSpec]]] = {}
        if boxes:
            self._describe(boxes, entry, first)
        self.place = ctypes.addressof(self._slots)
        self._launch = driver.api.cuLaunchKernelEx
        self.error = driver.error

    def _describe(self, boxes: Sequence[Descriptor], entry: EntrySpec | None, first: int) -> None:
        if entry is None:
            raise InternalError("cuda.launch", "descriptors are encoded for an entry's arguments")
        names = [argument.name for argument in entry.arguments]
        for index, box in enumerate(boxes):
            at = names.index(box.argument)
            found = (first + DESCRIPTOR * index, box, entry.arguments[at])
            self._boxes.setdefault(at, []).append(found)
        for at in self._boxes:
            if self._values[at]:
                self._encode(at)

    def _encode(self, position: int) -> None:
        for place, box, argument in self._boxes[position]:
            data = encoded(self._driver, box, argument, self._values[position])
            ctypes.memmove(place, data, DESCRIPTOR)

    def set(self, position: int, word: int) -> None:
        """Change one parameter of the next launch."""
        moved = self._values[position] != word
        self._values[position] = word
        if moved and position in self._boxes:
            self._encode(position)

    def launch(self) -> None:
        """Enqueue it; ``OSError`` when the driver refuses."""
        (status,) = self._launch(self._config, self._handle, self.place, 0)
        if status:
            raise self.error("cuLaunchKernelEx", status)
