"""Temporary folders, and telling a full one apart from a compiler that fails."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tfsearch.core.errors import TfsearchError, UnavailableError

LEAST_BYTES = 1 << 20
"""With less room than this a compiler that failed is not to blame: it may not even say why."""
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID = ("No space left on device", "Disk quota exceeded")


class NoRoomError(UnavailableError):
    """The temporary folder is full, so that nothing can be compiled."""

    def __init__(self) -> None:
        folder = tempfile.gettempdir()
        try:
            left = f", {shutil.disk_usage(folder).free // 1024} KiB left"
        except OSError:
            left = ""
        super().__init__(
            "toolchain.no-room",
            f"the temporary folder {folder} is full{left}; free some space there, or set TMPDIR "
            "to a folder that has more",
        )


def require_room(folder: Path, said: str = "") -> None:
    """After a failure: ``NoRoomError`` when ``folder`` is full, or the program ``said`` so."""
    if any(text in said for text in _SAID) or shutil.disk_usage(folder).free < LEAST_BYTES:
        raise NoRoomError


def is_full(error: BaseException | None) -> bool:
    """Whether an error of the system says that a disk is full."""
    return isinstance(error, OSError) and error.errno in _FULL


@contextlib.contextmanager
def delivering() -> Iterator[None]:
    """A stretch that writes its result to the temporary folder: ``NoRoomError`` where that is full.

    Errors of tfsearch's that were made from one of the system's count too.
    """
    try:
        yield
    except (OSError, TfsearchError) as error:
        if is_full(error) or is_full(error.__cause__):
            raise NoRoomError from error
        raise


@contextlib.contextmanager
def workdir(prefix: str) -> Iterator[Path]:
    """A fresh folder without symbolic links in its path, removed afterwards.

    ``NoRoomError`` when it cannot be made, or what is written in it does not fit.
    """
    try:
        with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as text:
            yield Path(os.path.realpath(text))
    except OSError as error:
        if is_full(error):
            raise NoRoomError from error
        raise
