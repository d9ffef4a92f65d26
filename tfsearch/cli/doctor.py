"""``tfsearch doctor``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output
from tfsearch.core.errors import TfsearchError, UnavailableError

if TYPE_CHECKING:
    from tfsearch.core.settings import Settings
    from tfsearch.toolchain import DoctorRow

LIBRARIES = ("numpy", "ml_dtypes", "torch", "sqlalchemy", "alembic", "ziglang", "optuna", "ray")
BASELINES = ("numpy", "torch")


@click.command()
@click.option("--node", is_flag=True, help="Test whether this machine's times can be trusted.")
@click.option(
    "--kind", metavar="NAME", help="With --node: the kind of node, or a .toml document of one."
)
@shared.db_option
@shared.json_option
@click.pass_obj
def doctor(output: Output, db: str | None, node: bool, kind: str | None, **_: Any) -> int:
    """Show targets, devices, compilers, libraries, and where things are kept.

    Says why something is not usable and how to get it; exit code 0 also when something is missing.
    With --node it tests this machine instead: toolchain, driver, clocks, permissions, locks. Exit
    code 5, and a line for each reason, for a machine whose measurements others could not trust.
    """
    places = shared.settings_of(db)
    if node:
        return _node(output, places, kind)
    if kind is not None:
        raise click.UsageError("--kind goes with --node")
    document = {
        "version": _installed("tfsearch"),
        "targets": _targets(),
        "toolchains": _toolchains(),
        "database": _database(places.database_url),
        "artifacts": _artifacts(places.artifacts),
        "settings": {"home": str(places.home), "cache": str(places.cache)},
        "libraries": {name: _installed(name) for name in LIBRARIES},
        "baselines": {name: _installed(name) is not None for name in BASELINES},
    }
    output.emit(document, _lines(document))
    return 0


def _node(output: Output, places: Settings, kind: str | None) -> int:
    from tfsearch.plugin import kinds, registry
    from tfsearch.plugin.node import self_test

    if kind is None:
        target = registry.best_present()
        devices = tuple(target.devices())
    else:
        target, devices = kinds.kind(kind).place()
    found = self_test(target, devices, places)
    document = {
        "ok": not found,
        "kind": kind,
        "target": target.name,
        "devices": [device.record.name for device in devices],
        "problems": [one.to_json() for one in found],
    }
    if found:
        first = f"{found[0].check}: {found[0].message}"
        error = UnavailableError("node.unfit", f"{len(found)} problems, the first: {first}")
        output.fail(document, [f"{one.check}: {one.message}" for one in found], error)
    output.emit(document, [f"ok: {len(devices)} devices of {target.name}"])
    return 0


def _targets() -> list[dict[str, Any]]:
    from tfsearch.plugin import registry

    return [_target(name) for name in registry.names()]


def _target(name: str) -> dict[str, Any]:
    from tfsearch.plugin import registry

    try:
        target = registry.get(name)
        devices = [
            {
                "selector": device.selector,
                "name": device.record.name,
                "kind": device.record.kind,
                "model": device.record.model,
                "features": list(device.record.features),
                "units": device.record.units,
                "memory_bytes": device.record.memory_bytes,
                "partitioning": device.record.partitioning,
                "driver": device.record.driver,
                "facts": dict(device.facts),
            }
            for device in target.devices()
        ]
    except TfsearchError as error:
        return {"name": name, "present": False, "problem": error.message, "devices": []}
    problem = "" if devices else target.absence()
    return {"name": name, "present": bool(devices), "problem": problem, "devices": devices}


def _toolchains() -> list[dict[str, Any]]:
    """What every target that can be loaded says of its compilers; one row where they agree."""
    from tfsearch.plugin import registry

    users: dict[DoctorRow, list[str]] = {}
    for name in registry.names():
        try:
            rows = registry.get(name).toolchains()
        except TfsearchError:
            continue  # the line of the target says why it cannot be asked
        for row in rows:
            users.setdefault(row, []).append(name)
    return [{**vars(row), "targets": names} for row, names in users.items()]


def _database(url: str) -> dict[str, Any]:
    from tfsearch.db import open_store

    try:
        store = open_store(url, create=False, read_only=True)
    except TfsearchError as error:
        return {"state": error.code, "problem": error.message}
    try:
        return {"state": "ok", "problem": "", **store.stats().to_json()}
    except TfsearchError as error:
        return {"state": error.code, "problem": error.message}
    finally:
        store.close()


def _artifacts(folder: Any) -> dict[str, Any]:
    from tfsearch.db.artifacts import ArtifactStore

    try:
        sizes = [entry.bytes for entry in ArtifactStore(folder).entries()]
    except TfsearchError as error:
        return {"folder": str(folder), "files": 0, "bytes": 0, "problem": error.message}
    except OSError as error:
        problem = f"{folder} cannot be read: {error.strerror}"
        return {"folder": str(folder), "files": 0, "bytes": 0, "problem": problem}
    return {"folder": str(folder), "files": len(sizes), "bytes": sum(sizes), "problem": ""}


def _installed(name: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _lines(document: Mapping[str, Any]) -> list[str]:
    lines = [f"tfsearch   {document['version']}"]
    for target in document["targets"]:
        lines.append(f"target     {target['name']}: {target['problem'] or 'present'}")
        for device in target["devices"]:
            memory = device["memory_bytes"] / 2**30
            lines.append(
                f"  device   {device['selector']}: {device['name']}, {device['model']}, "
                f"{device['units']} units, {memory:.1f} GiB"
            )
            if device["partitioning"]:
                lines.append(f"           {device['partitioning']}")
            if device["features"]:
                lines.append(f"           {' '.join(device['features'])}")
            lines += [f"           {name}: {value}" for name, value in device["facts"].items()]
    for row in document["toolchains"]:
        state = f"{row['version']} {row['path']}".rstrip() if row["usable"] else row["problem"]
        lines.append(f"compiler   {row['name']} ({', '.join(row['targets'])}): {state}")
    database = document["database"]
    if database["state"] == "ok":
        lines.append(
            f"database   {database['url']}: {database['trials']} trials of "
            f"{database['workloads']} workloads, schema {database['revision']}"
        )
    else:
        lines.append(f"database   {database['problem']}")
    store = document["artifacts"]
    state = store["problem"] or f"{store['files']} files, {store['bytes']} B"
    lines.append(f"artifacts  {store['folder']}: {state}")
    lines.append(f"home       {document['settings']['home']}")
    for name, version in document["libraries"].items():
        lines.append(f"library    {name}: {version or 'not installed'}")
    return lines
