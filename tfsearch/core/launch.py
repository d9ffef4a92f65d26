"""The launch specification: how a built artifact is called, as data.

It travels with the artifact to whoever loads it and is part of the build's identity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from tfsearch.core import keys
from tfsearch.core.errors import InternalError


@dataclass(frozen=True)
class ArgumentSpec:
    """One argument: element type text, shape and strides in elements, direction.

    ``io`` is ``in``, ``out``, ``inout`` or ``prepared`` (filled by a prepare entry beforehand);
    ``alignment`` in bytes is what the kernel relies on.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    io: str
    alignment: int


@dataclass(frozen=True)
class EntrySpec:
    """One callable symbol.

    ``workspace_bytes`` of scratch memory are handed to every call, zeroed when they were
    allocated; a call leaves them fit for the next one.
    """

    symbol: str
    arguments: tuple[ArgumentSpec, ...]
    units: int
    workspace_bytes: int


@dataclass(frozen=True)
class LaunchSpec:
    """The entries of an artifact: ``main``, and the prepare entries that run before it.

    ``attributes`` holds what a target needs beyond that (grid, cluster, unit state), as plain
    JSON values without floats.
    """

    main: EntrySpec
    prepares: tuple[EntrySpec, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def to_json(self) -> dict[str, Any]:
        """Plain JSON object."""
        return {
            "main": _entry_json(self.main),
            "prepares": [_entry_json(entry) for entry in self.prepares],
            "attributes": dict(self.attributes),
        }

    @staticmethod
    def from_json(data: Mapping[str, Any]) -> LaunchSpec:
        """Inverse of :meth:`to_json`; ``InternalError`` for anything else."""
        try:
            return LaunchSpec(
                _entry(data["main"]),
                tuple(_entry(entry) for entry in data["prepares"]),
                dict(data["attributes"]),
            )
        except (KeyError, TypeError) as error:
            raise InternalError("launch.malformed", f"malformed launch spec: {error}") from error

    @property
    def digest(self) -> str:
        """Digest of the whole specification."""
        return keys.digest("launch", self.to_json())


def _entry_json(entry: EntrySpec) -> dict[str, Any]:
    return {
        "symbol": entry.symbol,
        "units": entry.units,
        "workspace_bytes": entry.workspace_bytes,
        "arguments": [
            {
                "name": arg.name,
                "dtype": arg.dtype,
                "shape": list(arg.shape),
                "strides": list(arg.strides),
                "io": arg.io,
                "alignment": arg.alignment,
            }
            for arg in entry.arguments
        ],
    }


def _entry(data: Mapping[str, Any]) -> EntrySpec:
    arguments = cast("list[Mapping[str, Any]]", data["arguments"])
    return EntrySpec(
        symbol=str(data["symbol"]),
        units=int(data["units"]),
        workspace_bytes=int(data["workspace_bytes"]),
        arguments=tuple(
            ArgumentSpec(
                name=str(arg["name"]),
                dtype=str(arg["dtype"]),
                shape=tuple(int(n) for n in arg["shape"]),
                strides=tuple(int(n) for n in arg["strides"]),
                io=str(arg["io"]),
                alignment=int(arg["alignment"]),
            )
            for arg in arguments
        ),
    )
