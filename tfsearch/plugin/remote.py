"""What a node of a fleet can do, and compiling there; all of it as text and bytes."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tfsearch.core.errors import TfsearchError, UnavailableError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import DeviceRecord, Status
from tfsearch.measure.remote import answer, result_of
from tfsearch.plugin import registry
from tfsearch.plugin.target import CompileOutcome, Compiler, Device, Source, Target

COMPILE = "tfsearch.plugin.remote:compile_text"
DESCRIBE = "tfsearch.plugin.remote:describe"
DEVICE = "tfsearch-device"
BUILD = "tfsearch-build"
DIGITS = 16


def device_name(target: str, device: Device) -> str:
    """Name of the resource that a node with this device has."""
    return f"{device_prefix(target, device)}{quote(device.selector, safe='')}"


def device_prefix(target: str, device: Device) -> str:
    """What the resources of devices that measure alike begin with."""
    return f"{DEVICE}:{target}:{device.record.key[:DIGITS]}:"


def build_name(target: str, compiler: Compiler) -> str:
    """Name of the resource of nodes with this compiler, the same in content."""
    return f"{BUILD}:{target}:{compiler.record.digest[:DIGITS]}"


def offers(target: Target, devices: Sequence[Device], compilers: int) -> dict[str, float]:
    """Resources of a node that measures on ``devices`` and compiles ``compilers`` at a time."""
    found = {device_name(target.name, device): 1.0 for device in devices}
    if compilers:
        for compiler in target.compilers():
            found[build_name(target.name, compiler)] = float(compilers)
    return found


def describe(text: str) -> tuple[str, bytes]:
    """The devices of the target that ``text`` names on this machine, for :func:`devices_of`."""

    def work() -> list[dict[str, Any]]:
        return [
            {
                "selector": device.selector,
                "shares_cpu": device.shares_cpu,
                "record": dataclasses.asdict(device.record),
            }
            for device in registry.get(text).devices()
        ]

    return answer(work), b""


def devices_of(text: str) -> list[Device]:
    """The devices in an answer of :func:`describe`."""
    found: list[Device] = []
    for fields in result_of(text):
        record = dict(fields["record"])
        record["features"] = tuple(record["features"])
        found.append(
            Device(DeviceRecord(**record), fields["selector"], shares_cpu=fields["shares_cpu"])
        )
    return found


def compile_request(
    target: str,
    compiler: Compiler,
    source: Source,
    flags: Sequence[str],
    macros: Sequence[str],
    *,
    timeout_s: float,
    memory_bytes: int,
) -> str:
    """A request for :func:`compile_text`."""
    return json.dumps(
        {
            "target": target,
            "toolchain": compiler.record.digest,
            "source": {**vars(source), "launch": source.launch.to_json()},
            "flags": list(flags),
            "macros": list(macros),
            "timeout_s": timeout_s,
            "memory_bytes": memory_bytes,
        }
    )


def compile_text(text: str) -> tuple[str, bytes]:
    """Compile on this machine: the outcome as an answer, and the artifact's content."""
    content: list[bytes] = []

    def work() -> dict[str, Any]:
        outcome, data, key = _compile(json.loads(text))
        content.append(data)
        return {"key": key, "outcome": {**vars(outcome), "status": outcome.status.value}}

    said = answer(work)
    return said, content[0] if content else b""


def outcome_of(text: str, key: str) -> CompileOutcome:
    """The outcome in an answer of :func:`compile_text`; raises the error that it carries.

    ``UnavailableError`` when what the node has built has another key, as with other headers.
    """
    result = result_of(text)
    fields = result["outcome"]
    outcome = CompileOutcome(**{**fields, "status": Status(fields["status"])})
    if outcome.status is Status.OK and result["key"] != key:
        raise UnavailableError(
            "fleet.build-differs",
            "a node's build has another key than this machine's: its headers or compiler differ",
        )
    return outcome


def _compile(fields: Mapping[str, Any]) -> tuple[CompileOutcome, bytes, str]:
    compiler = _same(registry.get(fields["target"]), fields["toolchain"])
    given = fields["source"]
    source = Source(
        **{
            **given,
            "launch": LaunchSpec.from_json(given["launch"]),
            "features": tuple(given["features"]),
            "flags": tuple(given["flags"]),
        }
    )
    with tempfile.TemporaryDirectory(prefix="tfsearch-build-") as folder:
        out = Path(folder) / "artifact"
        outcome = compiler.compile(
            source,
            fields["flags"],
            fields["macros"],
            out,
            timeout_s=fields["timeout_s"],
            memory_bytes=fields["memory_bytes"],
        )
        if outcome.status is not Status.OK:
            return outcome, b"", ""
        key = compiler.key(source, fields["flags"], fields["macros"])
        return outcome, out.read_bytes(), key.key


def _same(target: Target, digest: str) -> Compiler:
    """The compiler of this machine with the content that the driver computed its key for."""
    for compiler in target.compilers():
        try:
            if compiler.record.digest == digest:
                return compiler
        except TfsearchError:
            continue  # a broken one is none
    raise UnavailableError(
        "fleet.toolchain", f"this node has no compiler of {target.name} with content {digest[:12]}"
    )
