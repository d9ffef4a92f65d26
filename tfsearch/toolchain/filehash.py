"""Digests of files, cached on disk by path, inode, size, mtime and ctime."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

SCHEMA = 1
# A file that changed this recently may change again within one tick of the file system's clock
# without a new mtime; its fingerprint is not trusted yet. FAT and some network file systems tick
# in two seconds.
RACY_NS = 2_000_000_000

Fingerprint = list[int]
Watch = dict[str, "Fingerprint | None"]

_log = logging.getLogger(__name__)


def fingerprint(path: str) -> Fingerprint | None:
    """``[device, inode, size, mtime_ns, ctime_ns]`` of what ``path`` leads to; None if absent."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return _of(found)


def settled(watch: Mapping[str, Fingerprint | None], before_ns: int) -> bool:
    """Whether nothing in ``watch`` changed within two seconds before ``before_ns`` (or later)."""
    limit = before_ns - RACY_NS
    return all(mark is None or max(mark[3], mark[4]) < limit for mark in watch.values())


def unchanged(watch: Mapping[str, Fingerprint | None]) -> bool:
    """Whether every watched path still has its recorded fingerprint (or is still absent)."""
    return all(fingerprint(path) == mark for path, mark in watch.items())


class Store:
    """Named sections of JSON values in one file; safe between threads and processes.

    The file's first line is the SHA-256 of the rest: anything damaged, truncated or edited is
    dropped and built again. Writers replace the file atomically and merge with what is there;
    of two that write at once one may lose entries, which costs a recomputation. A folder that
    cannot be written costs the cache, not the result.
    """

    def __init__(self, path: Path, limits: Mapping[str, int] | None = None) -> None:
        self._path = path
        self._limits = dict(limits or {})
        self._lock = threading.RLock()
        self._sections: dict[str, dict[str, Any]] | None = None
        self._changed: dict[tuple[str, str], None] = {}

    def get(self, section: str, key: str) -> Any:
        """The value, or None."""
        with self._lock:
            return self._loaded().get(section, {}).get(key)

    def put(self, section: str, key: str, value: Any) -> None:
        """Set a value in memory; :meth:`flush` writes it."""
        with self._lock:
            entries = self._loaded().setdefault(section, {})
            entries.pop(key, None)
            entries[key] = value
            self._changed.pop((section, key), None)
            self._changed[section, key] = None

    def flush(self) -> None:
        """Write what changed, merged with what other processes wrote meanwhile."""
        with self._lock:
            if not self._changed:
                return
            mine = self._loaded()
            merged = _load(self._path)
            for section, key in self._changed:
                if key in mine.get(section, {}):
                    merged.setdefault(section, {})[key] = mine[section][key]
            for section, limit in self._limits.items():
                entries = merged.get(section, {})
                for key in list(entries)[: max(0, len(entries) - limit)]:
                    del entries[key]
            self._sections = merged
            self._changed.clear()
            try:
                _replace(self._path, merged)
            except OSError as error:
                _log.debug("cache %s not written: %s", self._path, error)

    def _loaded(self) -> dict[str, dict[str, Any]]:
        if self._sections is None:
            self._sections = _load(self._path)
        return self._sections


class FileDigests:
    """SHA-256 of files by content, through a :class:`Store`'s ``files`` section."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def digest(self, path: str) -> str:
        """SHA-256 (hex) of the file's content. Raises ``OSError`` when it cannot be read."""
        mark = _of(os.stat(path))
        cached = self._store.get("files", path)
        if cached is not None and cached[0] == mark:
            return str(cached[1])
        started = time.time_ns()
        with open(path, "rb") as stream:
            before = _of(os.fstat(stream.fileno()))
            value = hashlib.file_digest(stream, "sha256").hexdigest()
            after = _of(os.fstat(stream.fileno()))
        if before == after and settled({path: after}, started):
            self._store.put("files", path, [after, value])
        return value

    def tree(self, root: str, names: Sequence[str]) -> tuple[str, list[str]]:
        """Digest over names and contents of the files below ``root``/``names``, and their paths.

        Each of ``names`` is a file or a folder; one that is absent counts as absent.
        """
        total = hashlib.sha256()
        paths: list[str] = []
        for name in names:
            for path in _walk(os.path.join(root, name)):
                paths.append(path)
                line = f"{os.path.relpath(path, root)}\0{self.digest(path)}\n"
                total.update(line.encode("utf-8", "surrogateescape"))
        return total.hexdigest(), paths


def _walk(path: str) -> list[str]:
    if os.path.isfile(path):
        return [path]
    found: list[str] = []
    for folder, _, files in os.walk(path):
        found.extend(os.path.join(folder, name) for name in files)
    return sorted(found)


def _of(found: os.stat_result) -> Fingerprint:
    return [found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns]


def _load(path: Path) -> dict[str, dict[str, Any]]:
    try:
        data = path.read_bytes()
    except OSError:
        return {}
    head, _, body = data.partition(b"\n")
    if head.decode("ascii", "replace") != hashlib.sha256(body).hexdigest():
        _log.debug("cache %s is damaged and is built again", path)
        return {}
    content = cast("dict[str, Any]", json.loads(body))
    if content.pop("schema", None) != SCHEMA:
        return {}
    return content


def _replace(path: Path, sections: Mapping[str, Mapping[str, Any]]) -> None:
    body = json.dumps({"schema": SCHEMA, **sections}, separators=(",", ":")).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(hashlib.sha256(body).hexdigest().encode() + b"\n" + body)
        os.replace(name, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)
        raise
