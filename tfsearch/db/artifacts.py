"""The user's own artifact store: files named by the SHA-256 of their content.

Only this store's files are ever loaded as executables, so the folder has to be private and
every read is checked against the name. Notes say what this user made a file from: whoever can
write the database can name any file of the store in a record, but cannot write notes.
"""

from __future__ import annotations

import errno
import os
import re
import stat
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.errors import NotSavedError, RequestError, UnavailableError

_DIGEST = re.compile(r"[0-9a-f]{64}")
_NOTES = "notes"
_TEMPORARY = ".incoming-"
_STALE_TEMPORARY_S = 3600.0
_TOUCH_AFTER_S = 86400.0


@dataclass(frozen=True)
class ArtifactEntry:
    """One stored file: digest, size in bytes, time of last use (seconds since the epoch)."""

    digest: str
    bytes: int
    used_at: float


class ArtifactStore:
    """Content-addressed files under ``folder`` in two levels: 256 folders, then the files.

    Notes lie in ``notes`` beside them in the same way, named by what was made.
    The folder is created with mode 0700 on the first write. A folder that another user owns or
    that others may write to is refused with ``RequestError("artifacts.unsafe-folder")``.
    """

    def __init__(self, folder: Path | str) -> None:
        self.folder = Path(folder).absolute()
        if self.folder.exists():
            self._check_private()

    def put(self, data: bytes) -> str:
        """Store bytes and return their digest; storing the same bytes again is free.

        Atomic: a reader sees the whole file or none, also after a crash. Raises
        ``NotSavedError`` (disk full, read-only).
        """
        digest = keys.digest_bytes(data)
        path = self._path(digest)
        try:
            if self._holds(path, data):
                return digest
            self._make_folder(path.parent)
            self._write(path, data)
        except OSError as error:
            raise _not_saved(error, path) from error
        return digest

    def put_file(self, source: Path | str) -> str:
        """Store the content of a file and return its digest."""
        return self.put(Path(source).read_bytes())

    def get(self, digest: str) -> bytes:
        """The verified content. ``UnavailableError``: absent, or its hash differs."""
        path = self._path(digest)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise UnavailableError(
                "artifacts.missing",
                f"artifact {digest} is not in {self.folder}; tune again to rebuild it",
            ) from None
        except OSError as error:
            raise UnavailableError(
                "artifacts.unreadable", f"artifact {path} cannot be read: {error.strerror}"
            ) from error
        found = keys.digest_bytes(data)
        if found != digest:
            raise UnavailableError(
                "artifacts.wrong-hash",
                f"artifact {path} has the content hash {found}, not its name; it is not loaded, "
                "delete it and tune again",
            )
        self._touch(path)
        return data

    def path(self, digest: str) -> Path:
        """Path of a file whose content was just verified; errors as in :meth:`get`."""
        self.get(digest)
        return self._path(digest)

    def has(self, digest: str) -> bool:
        """Whether a file of that name is there (its content is not read)."""
        return self._path(digest).is_file()

    def remove(self, digest: str) -> None:
        """Delete a file; absent is fine. ``NotSavedError`` if the folder is read-only."""
        path = self._path(digest)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise _not_saved(error, path) from error

    def note(self, made: str, digest: str) -> None:
        """Note that this user made the file ``digest`` from ``made``, a digest too.

        A build's key is noted with its executable. The latest note counts. ``NotSavedError``
        as in :meth:`put`.
        """
        path, data = self._note_path(made), _checked(digest).encode()
        try:
            if self._holds(path, data):
                return
            self._make_folder(path.parent.parent)
            path.parent.mkdir(mode=0o700, exist_ok=True)
            self._write(path, data)
        except OSError as error:
            raise _not_saved(error, path) from error

    def noted(self, made: str) -> str | None:
        """Digest of the file that this user made from ``made``; None without a note."""
        path = self._note_path(made)
        try:
            with open(path, "rb") as file:
                data = file.read(65)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise UnavailableError(
                "artifacts.unreadable", f"note {path} cannot be read: {error.strerror}"
            ) from error
        text = data.decode("ascii", "replace")
        return text if _DIGEST.fullmatch(text) else None

    def remove_idle_notes(self) -> int:
        """Delete notes of files that are gone; returns how many."""
        count = 0
        for path in sorted((self.folder / _NOTES).glob("??/*")):
            digest = self.noted(path.parent.name + path.name)
            if digest is None or not self.has(digest):
                try:
                    path.unlink(missing_ok=True)
                except OSError as error:
                    raise _not_saved(error, path) from error
                count += 1
        return count

    def entries(self) -> Iterator[ArtifactEntry]:
        """Every stored file, in no particular order."""
        for path in self._files():
            digest = path.parent.name + path.name
            if not _DIGEST.fullmatch(digest):
                continue
            try:
                info = path.stat()
            except FileNotFoundError:
                continue  # another process collected it between the listing and here
            yield ArtifactEntry(digest, info.st_size, info.st_mtime)

    def remove_stale_temporaries(self) -> int:
        """Delete what writers that were killed left behind; returns how many files."""
        count = 0
        for path in self._files():
            if not path.name.startswith(_TEMPORARY):
                continue
            try:
                if time.time() - path.stat().st_mtime > _STALE_TEMPORARY_S:
                    path.unlink()
                    count += 1
            except FileNotFoundError:
                continue  # its writer finished, or another collector was faster
            except OSError as error:
                raise _not_saved(error, path) from error
        return count

    def _files(self) -> Iterator[Path]:
        if not self.folder.is_dir():
            return
        for parent in sorted(self.folder.iterdir()):
            if parent.is_dir() and len(parent.name) == 2:
                yield from parent.iterdir()

    def _path(self, digest: str) -> Path:
        return self.folder / _checked(digest)[:2] / digest[2:]

    def _note_path(self, made: str) -> Path:
        return self.folder / _NOTES / _checked(made)[:2] / made[2:]

    @staticmethod
    def _holds(path: Path, data: bytes) -> bool:
        try:
            return path.stat().st_size == len(data) and path.read_bytes() == data
        except FileNotFoundError:
            return False

    def _make_folder(self, parent: Path) -> None:
        if not self.folder.exists():
            self.folder.parent.mkdir(parents=True, exist_ok=True)
            self.folder.mkdir(mode=0o700, exist_ok=True)
        self._check_private()
        parent.mkdir(mode=0o700, exist_ok=True)

    def _check_private(self) -> None:
        info = self.folder.stat()
        if not stat.S_ISDIR(info.st_mode):
            raise RequestError("artifacts.unsafe-folder", f"{self.folder} is not a folder")
        if info.st_uid != os.geteuid():
            raise RequestError(
                "artifacts.unsafe-folder",
                f"artifact folder {self.folder} belongs to user id {info.st_uid}, not to "
                f"{os.geteuid()}; use a folder of your own",
            )
        if info.st_mode & 0o022:
            raise RequestError(
                "artifacts.unsafe-folder",
                f"artifact folder {self.folder} has mode {stat.S_IMODE(info.st_mode):04o}: others "
                "may write to it; run chmod 700 on it",
            )

    def _write(self, path: Path, data: bytes) -> None:
        handle, name = tempfile.mkstemp(prefix=_TEMPORARY, dir=path.parent)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    @staticmethod
    def _touch(path: Path) -> None:
        # The modification time is the time of last use that garbage collection goes by. A
        # read-only store cannot be collected either, so there the time does not matter.
        try:
            if time.time() - path.stat().st_mtime > _TOUCH_AFTER_S:
                os.utime(path)
        except (PermissionError, FileNotFoundError):
            return
        except OSError as error:
            if error.errno != errno.EROFS:
                raise


def _checked(digest: str) -> str:
    if not _DIGEST.fullmatch(digest):
        raise RequestError(
            "artifacts.bad-digest", f"{digest[:80]!r} is not 64 lower-case hex digits"
        )
    return digest


def _not_saved(error: OSError, path: Path) -> NotSavedError:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return NotSavedError(
            "artifacts.disk-full", f"no space left for artifact {path}; free some and try again"
        )
    if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
        return NotSavedError(
            "artifacts.read-only", f"artifact {path} cannot be written: {error.strerror}"
        )
    return NotSavedError("artifacts.io-error", f"artifact {path} was not saved: {error.strerror}")
