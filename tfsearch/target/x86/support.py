"""The support library: thread pool, timing loops and probes, built once per compiler and CPU."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import shutil
import stat
import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from tfsearch.core import keys, settings
from tfsearch.core.errors import NotSavedError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.target.x86 import clib
from tfsearch.target.x86.compiler import feature_flags
from tfsearch.target.x86.device import processor
from tfsearch.toolchain import discover

_USED = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512bw",
    "avx512vl",
    "avx512dq",
    "amx_tile",
    "amx_bf16",
)
_CALLS: dict[str, tuple[object, Sequence[object]]] = {
    "tfs_pool_create": (ctypes.c_void_p, (ctypes.c_int,)),
    "tfs_probe_fma": (ctypes.c_double, (ctypes.c_int,)),
    "tfs_probe_tile": (ctypes.c_double, (ctypes.c_int,)),
    "tfs_probe_copy": (
        ctypes.c_double,
        (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int),
    ),
    "tfs_probe_read": (ctypes.c_double, (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)),
    "tfs_amx_enable": (ctypes.c_int, ()),
    "tfs_call_soiled": (ctypes.c_int, (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)),
    "tfs_audit": (
        ctypes.c_int,
        (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_void_p,
        ),
    ),
    "tfs_time_many": (
        ctypes.c_int,
        (
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_int,
            ctypes.c_uint64,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ),
    ),
}


_provided: list[Path] = []


def provide(path: Path) -> None:
    """Use a support library that was built elsewhere and checked; before the first use only."""
    _provided.insert(0, path)


def library_path() -> Path:
    """The built support library; builds it if this content was not built before.

    It is kept in the user's cache, or for this process alone where that cannot be written or
    others may write to it. Raises ``UnavailableError`` when it is not there and no compiler is
    either.
    """
    if _provided:
        return _provided[0]
    folder = settings.load().cache / "x86"
    path = folder / _file_name()
    with contextlib.suppress(OSError):  # where it cannot be made, building says what to do
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if folder.exists() and not _is_own(folder):
        return _built(Path(_own_folder()) / path.name)
    return path if _is_whole(path) else _built(path)


def _is_own(path: Path) -> bool:
    """Whether nobody else can have put it there: it is this user's and others may not write."""
    found = path.lstat()
    return (
        found.st_uid == os.geteuid()
        and not stat.S_ISLNK(found.st_mode)
        and not (found.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
    )


def _is_whole(path: Path) -> bool:
    """Whether the library is there as it was built; loading a cut file ends the process."""
    try:
        recorded = path.with_suffix(".sha256").read_text(encoding="ascii", errors="replace")
        return _is_own(path) and keys.digest_bytes(path.read_bytes()) == recorded
    except (FileNotFoundError, NotADirectoryError):
        return False


def _flags() -> tuple[str, ...]:
    return feature_flags([f for f in _USED if f in processor().features])


def _file_name() -> str:
    fields = {"text": clib.support_source(), "flags": list(_flags())}
    return f"support-{keys.digest('support', fields)[:24]}.so"


def _built(path: Path) -> Path:
    """Build the library with the first compiler that can; elsewhere if ``path`` is not writable."""
    text, flags = clib.support_source(), (*_flags(), "-pthread")
    for toolchain in discover():
        try:
            result = toolchain.compile_shared(text, flags=flags, out=path)
        except NotSavedError:
            path = Path(_own_folder()) / path.name
            result = toolchain.compile_shared(text, flags=flags, out=path)
        if result.status is Status.OK:
            digest = keys.digest_bytes(path.read_bytes())
            with contextlib.suppress(OSError):  # without it the library is built again next time
                path.with_suffix(".sha256").write_text(digest, encoding="ascii")
            return path
    raise UnavailableError(
        "x86.support",
        "no C compiler could build the support library; install one (apt-get install gcc) or "
        "pip install 'tfsearch[zig]'",
    )


@cache
def _own_folder() -> str:
    """A folder that lives as long as this process."""
    folder = tempfile.mkdtemp(prefix="tfsearch-support-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@cache
def loaded() -> ctypes.CDLL:
    """The loaded support library, argument types declared. Threads start on first use."""
    found = ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_LOCAL)
    for name, (result, arguments) in _CALLS.items():
        function = getattr(found, name)
        function.restype = result
        function.argtypes = list(arguments)
    return found


@cache
def pool() -> tuple[int, int, int]:
    """Addresses of this process's thread pool, of what runs a body on it, of what waits."""
    found = loaded()
    handle = found.tfs_pool_create(processor().units)
    if not handle:
        raise OSError("the thread pool could not be created")
    run = ctypes.cast(found.tfs_pool_run, ctypes.c_void_p).value
    wait = ctypes.cast(found.tfs_barrier_wait, ctypes.c_void_p).value
    assert run is not None
    assert wait is not None
    return int(handle), run, wait
