"""Launches with their arguments packed ahead: one call of the driver, nothing else."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tfsearch.core.errors import InternalError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.target.cuda.context import STREAM, Context
from tfsearch.target.cuda.driver import Driver

STATIC_SHARED = 48 << 10
"""Dynamic shared memory that needs no attribute of the function."""
PORTABLE_CLUSTER = 8


@dataclass(frozen=True)
class Configuration:
    """How an entry is launched: blocks, threads of a block, blocks of a cluster, shared bytes."""

    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int] = (1, 1, 1)
    shared: int = 0

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
        )

    def to_json(self) -> dict[str, Any]:
        """As ``launch.attributes`` hold it; what is usual is left out."""
        out: dict[str, Any] = {"grid": list(self.grid), "block": list(self.block)}
        if self.cluster != (1, 1, 1):
            out["cluster"] = list(self.cluster)
        if self.shared:
            out["shared"] = self.shared
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
    """

    __slots__ = ("_config", "_handle", "_launch", "_slots", "_values", "error", "place")

    def __init__(
        self, driver: Driver, function: Function, words: Sequence[int], stream: int = STREAM
    ) -> None:
        self._handle = function.handle
        self._config = config_of(driver, function.configuration, stream)
        self._values = (ctypes.c_uint64 * max(1, len(words)))(*words)
        start = ctypes.addressof(self._values)
        self._slots = (ctypes.c_void_p * max(1, len(words)))(
            *(start + 8 * i for i in range(len(words)))
        )
        self.place = ctypes.addressof(self._slots)
        self._launch = driver.api.cuLaunchKernelEx
        self.error = driver.error

    def set(self, position: int, word: int) -> None:
        """Change one parameter of the next launch."""
        self._values[position] = word

    def launch(self) -> None:
        """Enqueue it; ``OSError`` when the driver refuses."""
        (status,) = self._launch(self._config, self._handle, self.place, 0)
        if status:
            raise self.error("cuLaunchKernelEx", status)
