"""Kinds of nodes: one document each, which says what such a node is there for."""

from __future__ import annotations

import fnmatch
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.plugin import registry
from tfsearch.plugin.target import Device, Target

FIELDS = ("about", "target", "devices", "compile")


@dataclass(frozen=True)
class Kind:
    """``devices`` are patterns of device names; ``compile``: compilations at a time."""

    name: str
    about: str
    target: str
    devices: tuple[str, ...]
    compile: int

    def place(self) -> tuple[Target, tuple[Device, ...]]:
        """The target and the devices of it that are of this kind.

        ``UnavailableError`` when this machine has none of them, or not the target.
        """
        if self.target not in registry.names():
            raise UnavailableError(
                "node.no-target",
                f"a node of kind {self.name} needs target {self.target}, which is not installed",
            )
        target = registry.get(self.target)
        present = target.devices()
        if not present:
            raise UnavailableError("target.absent", target.absence())
        fitting = tuple(
            device
            for device in present
            if any(fnmatch.fnmatchcase(device.record.name, one) for one in self.devices)
        )
        if not fitting:
            names = ", ".join(device.record.name for device in present)
            raise UnavailableError(
                "node.no-device",
                f"no device here is of kind {self.name} ({', '.join(self.devices)}); present: "
                f"{names}",
            )
        return target, fitting


def folder() -> Path:
    """Where the documents of this package are."""
    return Path(str(files("tfsearch") / "kinds"))


def names() -> tuple[str, ...]:
    """Kinds that this package knows, sorted."""
    return tuple(sorted(path.stem for path in folder().glob("*.toml")))


def kind(name: str) -> Kind:
    """A kind by name, or by the path of a document of one's own; ``RequestError`` for others."""
    path = Path(name) if name.endswith(".toml") else folder() / f"{name}.toml"
    if not name.endswith(".toml") and name not in names():
        raise RequestError(
            "node.kind",
            f"unknown kind {name!r}; known: {', '.join(names())}, or the path of a .toml document",
        )
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise RequestError(
            "node.kind-document", f"{path} cannot be read: {error.strerror}"
        ) from error
    except ValueError as error:
        raise RequestError("node.kind-document", f"{path} is no TOML: {error}") from error
    return _checked(path, data)


def _checked(path: Path, data: dict[str, Any]) -> Kind:
    for name in sorted(set(data) ^ set(FIELDS)):
        said = "is missing" if name in FIELDS else f"is unknown; known: {', '.join(FIELDS)}"
        raise RequestError("node.kind-document", f"{path}: {name} {said}")
    number = data["compile"]
    right = (
        isinstance(data["about"], str)
        and isinstance(data["target"], str)
        and _texts(data["devices"])
        and isinstance(number, int)
        and not isinstance(number, bool)
        and number >= 0
    )
    if not right:
        raise RequestError(
            "node.kind-document",
            f"{path}: about and target are strings, devices is a list of patterns, compile is a "
            "whole number",
        )
    return Kind(path.stem, data["about"], data["target"], tuple(data["devices"]), number)


def _texts(value: Any) -> bool:
    return isinstance(value, Sequence) and bool(value) and all(isinstance(v, str) for v in value)
