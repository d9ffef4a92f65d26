"""Frozen bundles: records and executables in one file, for machines without a database.

A bundle is a zip of ``bundle.json`` and ``artifacts/<SHA-256>``. Reading one needs neither
SQLAlchemy nor a compiler. Every executable is checked against the hash in the document, and the
document against the digest that :func:`export_bundle` returned, where the reader gives it; without
that digest the file itself has to belong to this user and be writable by nobody else.
"""

from __future__ import annotations

import json
import os
import stat
import tempfile
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from tfsearch.core import keys
from tfsearch.core import settings as core_settings
from tfsearch.core.errors import (
    NotRecordedError,
    NotSavedError,
    RequestError,
    TfsearchError,
    UnavailableError,
)
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import ScheduleRecord, ServedBy
from tfsearch.ir.hir.named import Op
from tfsearch.measure.job import workload_from, workload_json
from tfsearch.plugin import registry
from tfsearch.plugin.target import Device, Target
from tfsearch.runtime.kernel import Kernel
from tfsearch.runtime.kernelrecord import KernelRecord
from tfsearch.runtime.serve import question_of
from tfsearch.runtime.serving import (
    Found,
    Place,
    Question,
    exact,
    executable,
    opened,
    record_of,
    resolve,
    runner,
)

SCHEMA = 1
DOCUMENT = "bundle.json"
FITS = ("kind", "model")
"""Fields of a device that have to be equal where a bundle is used."""


@dataclass(frozen=True)
class BundleEntry:
    """One kernel of a bundle. ``features`` are what its code needs of a processor.

    ``artifact`` and ``companions`` (by name) are content hashes.
    """

    record: KernelRecord
    launch: LaunchSpec
    artifact: str
    device: Mapping[str, Any]
    features: tuple[str, ...]
    companions: Mapping[str, str]


class Bundle:
    """The kernels of a bundle that fits this machine; made by :func:`load_bundle`."""

    def __init__(self, entries: Iterable[BundleEntry], files: Mapping[str, Path]) -> None:
        self._entries = {entry.record.workload.key: entry for entry in entries}
        self._files = dict(files)
        self._kernels: dict[str, Kernel] = {}

    @property
    def records(self) -> tuple[KernelRecord, ...]:
        """What the bundle holds."""
        return tuple(entry.record for entry in self._entries.values())

    def lookup(self, op: Op, **options: Any) -> Kernel:
        """The kernel of a workload; ``NotRecordedError`` (``bundle.not-recorded``) if none.

        Options are those of :func:`tfsearch.lookup`; the target, the compiler and its flags are
        the bundle's, whatever they say.
        """
        return self.kernel(question_of(op, options).workload.record.key)

    def kernel(self, workload_key: str) -> Kernel:
        """The kernel of a workload by key, loaded on first use."""
        entry = self._entries.get(workload_key)
        if entry is None:
            held = ", ".join(_label(e.record) for e in self._entries.values())
            raise NotRecordedError(
                "bundle.not-recorded", f"the bundle has no kernel for this workload; it has {held}"
            )
        if workload_key not in self._kernels:
            target = registry.get(entry.record.target)
            if isinstance(target, WithCompanions):
                target.provide({n: self._files[d] for n, d in entry.companions.items()})
            try:
                loaded = runner(target.runner, _device(target).selector).load(
                    self._files[entry.artifact], entry.launch
                )
            except OSError as error:
                raise UnavailableError(
                    "lookup.load", f"the kernel cannot be loaded: {error}"
                ) from error
            self._kernels[workload_key] = Kernel(entry.record, loaded, ServedBy.EXACT)
        return self._kernels[workload_key]


def export_bundle(path: Path | str, questions: Iterable[Question], *, db: str | None = None) -> str:
    """Write the kernels that serve these questions here to one file; its digest.

    The digest covers every record and executable; hand it to :func:`load_bundle`. Raises what
    looking the kernels up raises, and ``NotSavedError`` when the file cannot be written.
    """
    settings = core_settings.load(db)
    entries: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    with opened(settings) as store:
        for question in questions:
            place = resolve(question, settings)
            found = exact(place, store)
            data = executable(place, found).read_bytes()
            digest = keys.digest_bytes(data)
            files[digest] = data
            companions: dict[str, str] = {}
            for name, extra in _companions(place.target).items():
                companions[name] = keys.digest_bytes(extra)
                files[companions[name]] = extra
            entries.append(_entry_json(place, found, digest, companions))
    if not entries:
        raise RequestError("bundle.empty", "a bundle holds at least one kernel")
    document = json.dumps({"schema": SCHEMA, "entries": entries}, sort_keys=True).encode()
    try:
        _write(Path(path), document, files)
    except OSError as error:
        raise NotSavedError(
            "bundle.not-saved", f"bundle {path} was not written: {error.strerror}"
        ) from error
    return keys.digest_bytes(document)


def load_bundle(path: Path | str, *, sha256: str | None = None) -> Bundle:
    """Read a bundle, check every hash, and see that it fits this machine.

    ``RequestError``: ``bundle.malformed``, ``bundle.tampered`` (a hash differs),
    ``bundle.unsafe`` (no digest given and others may write the file), ``bundle.device`` (made for
    another kind or model of device, or for features that this one lacks). ``UnavailableError``:
    the file or the device is not there.
    """
    place = Path(path)
    if sha256 is None:
        _require_private(place)
    try:
        with zipfile.ZipFile(place) as archive:
            document = archive.read(DOCUMENT)
            if sha256 is not None and keys.digest_bytes(document) != sha256:
                raise RequestError(
                    "bundle.tampered",
                    f"bundle {place} has digest {keys.digest_bytes(document)}, not {sha256}",
                )
            entries = _entries(json.loads(document))
            digests = {d for e in entries for d in (e.artifact, *e.companions.values())}
            contents = {digest: _checked(archive, digest, place) for digest in sorted(digests)}
    except (zipfile.BadZipFile, KeyError, ValueError, TypeError) as error:
        raise RequestError(
            "bundle.malformed", f"{place} is no bundle of this release: {error}"
        ) from error
    except OSError as error:
        raise UnavailableError(
            "bundle.missing", f"bundle {place} cannot be read: {error.strerror or error}"
        ) from error
    for entry in entries:
        _require_fit(entry, place)
    return Bundle(entries, _extracted(contents))


def _write(path: Path, document: bytes, files: Mapping[str, bytes]) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    try:
        with (
            os.fdopen(handle, "wb") as stream,
            zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive,
        ):
            archive.writestr(_member(DOCUMENT), document)
            for digest, data in sorted(files.items()):
                archive.writestr(_member(f"artifacts/{digest}"), data)
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _member(name: str) -> zipfile.ZipInfo:
    """A member without a time of its own: equal contents give equal files."""
    info = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
    info.compress_type = zipfile.ZIP_DEFLATED
    return info


@runtime_checkable
class WithCompanions(Protocol):
    """A target whose kernels need further files at run time, such as a thread pool's library."""

    def companions(self) -> Mapping[str, Path]:
        """The files by name, built if need be."""
        ...

    def provide(self, files: Mapping[str, Path]) -> None:
        """Use these files, which were checked, instead of building them."""
        ...


def _companions(target: Target) -> dict[str, bytes]:
    if not isinstance(target, WithCompanions):
        return {}
    return {name: path.read_bytes() for name, path in sorted(target.companions().items())}


def _entry_json(
    place: Place, found: Found, digest: str, companions: Mapping[str, str]
) -> dict[str, Any]:
    record = record_of(place.question.workload, found)
    return {
        "workload": workload_json(record.workload),
        "target": record.target,
        "schedule": record.schedule.to_json(),
        "median_us": record.median_us,
        "ci_us": None if record.ci_us is None else list(record.ci_us),
        "max_error": record.max_error,
        "build": dict(record.build),
        "launch": found.launch.to_json(),
        "artifact": digest,
        "companions": dict(companions),
        "device": place.device.record.key_fields(),
        "features": list(found.build.key.features),
    }


def _entries(data: Any) -> list[BundleEntry]:
    if data["schema"] != SCHEMA:
        raise ValueError(f"schema {data['schema']}, this release reads {SCHEMA}")
    return [_entry(item) for item in data["entries"]]


def _entry(item: Mapping[str, Any]) -> BundleEntry:
    pair = item["ci_us"]
    try:
        record = KernelRecord(
            workload=workload_from(item["workload"]),
            target=str(item["target"]),
            schedule=ScheduleRecord.from_json(item["schedule"]),
            median_us=item["median_us"],
            ci_us=None if pair is None else (float(pair[0]), float(pair[1])),
            max_error=item["max_error"],
            build=item["build"],
        )
        launch = LaunchSpec.from_json(item["launch"])
    except TfsearchError as error:
        raise ValueError(error.message) from error
    return BundleEntry(
        record,
        launch,
        str(item["artifact"]),
        dict(item["device"]),
        tuple(item["features"]),
        dict(item["companions"]),
    )


def _checked(archive: zipfile.ZipFile, digest: str, place: Path) -> bytes:
    data = archive.read(f"artifacts/{digest}")
    found = keys.digest_bytes(data)
    if found != digest:
        raise RequestError(
            "bundle.tampered",
            f"executable {digest[:16]}… of bundle {place} has the content hash {found[:16]}…",
        )
    return data


def _require_private(path: Path) -> None:
    try:
        info = path.stat()
    except OSError as error:
        raise UnavailableError(
            "bundle.missing", f"bundle {path} cannot be read: {error.strerror}"
        ) from error
    if info.st_uid not in (0, os.geteuid()) or stat.S_IMODE(info.st_mode) & 0o022:
        raise RequestError(
            "bundle.unsafe",
            f"bundle {path} belongs to another user or others may write to it; give its sha256, "
            "or run chmod go-w on it",
        )


def _device(target: Target) -> Device:
    return registry.device(target)


def _require_fit(entry: BundleEntry, place: Path) -> None:
    device = _device(registry.get(entry.record.target)).record
    own = device.key_fields()
    wrong = [f"{name} {entry.device.get(name)}, not {own[name]}" for name in FITS
             if entry.device.get(name) != own[name]]  # fmt: skip
    missing = sorted(set(entry.features) - set(device.features))
    if missing:
        wrong.append(f"features that are not here: {', '.join(missing)}")
    if wrong:
        raise RequestError(
            "bundle.device", f"bundle {place} was made for another device: {'; '.join(wrong)}"
        )


def _extracted(contents: Mapping[str, bytes]) -> dict[str, Path]:
    """The executables in a private folder of this process, for loaders that take paths."""
    import atexit
    import shutil

    folder = Path(tempfile.mkdtemp(prefix="tfsearch-bundle-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    out: dict[str, Path] = {}
    for digest, data in contents.items():
        out[digest] = folder / digest
        out[digest].write_bytes(data)
    return out


def _label(record: KernelRecord) -> str:
    dims = " ".join(f"{name}={value}" for name, value in record.workload.dims.items())
    return f"{record.workload.op} {dims} {record.workload.dtype}"
