"""Kernels of tfsearch's own (timing, references), built once for each compiler and architecture.

They are built in a process of their own, as candidates are, and kept in the user's cache.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tfsearch.core import keys, settings
from tfsearch.core.errors import UnavailableError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.plugin.target import Compiler, Source
from tfsearch.target.cuda import compilers

TIMEOUT_S = 300.0
MEMORY_BYTES = 16 << 30
FOLDER = Path(__file__).with_name("clib")


def image(name: str, architecture: str, *, flags: Sequence[str] = ()) -> bytes:
    """The cubin of ``clib/NAME.cu`` for an architecture.

    ``UnavailableError`` (``cuda.support``) when no compiler here builds it.
    """
    source = Source(
        (FOLDER / f"{name}.cu").read_text(encoding="utf-8"),
        "cuda",
        LaunchSpec(EntrySpec(name, (), 1, 0)),
        (architecture,),
        tuple(flags),
    )
    problems: list[str] = []
    for compiler in compilers.present():
        try:
            return _image(compiler, source, name)
        except (UnavailableError, _Failed) as error:
            problems.append(str(error))
    detail = f": {problems[0]}" if problems else ""
    raise UnavailableError(
        "cuda.support",
        f"no CUDA compiler builds {name}.cu for {architecture}{detail}; {compilers.GET}",
    )


class _Failed(Exception):
    """A build of a kernel of tfsearch's own failed."""


def _image(compiler: Compiler, source: Source, name: str) -> bytes:
    key = compiler.key(source, (), ()).key
    path = settings.load().cache / "cuda" / f"{name}-{key[:32]}.cubin"
    kept = _whole(path)
    if kept is not None:
        return kept
    with tempfile.TemporaryDirectory(prefix="tfsearch-support-") as folder:
        out = Path(folder) / "built.cubin"
        done = compiler.compile(source, (), (), out, timeout_s=TIMEOUT_S, memory_bytes=MEMORY_BYTES)
        if done.status is not Status.OK:
            raise _Failed(done.log.partition("\n")[0])
        data = out.read_bytes()
    _keep(path, data)
    return data


def _whole(path: Path) -> bytes | None:
    """What was kept, if it is this user's own and whole."""
    try:
        found = path.lstat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o022:
            return None
        digest, _, data = path.read_bytes().partition(b"\n")
    except OSError:
        return None
    return data if keys.digest_bytes(data).encode() == digest else None


def _keep(path: Path, data: bytes) -> None:
    """Keep a build for other processes; where that is not possible it is built again."""
    with contextlib.suppress(OSError):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "wb") as stream:
            stream.write(keys.digest_bytes(data).encode() + b"\n" + data)
        os.replace(name, path)
