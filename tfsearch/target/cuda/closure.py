"""Headers that a source can reach, found by reading its ``#include`` lines.

NVRTC does not say which headers it read. It is therefore given the text of these headers and no
folder to look in: what is not among them cannot be read, so they are all that the build depends
on. Lines under a condition count as if it held, which at worst adds a header that is not read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tfsearch.core import keys
from tfsearch.core.errors import RequestError

_INCLUDE = re.compile(rb'^[ \t]*#[ \t]*include[ \t]*(?:<([^>\n]+)>|"([^"\n]+)")', re.MULTILINE)
_CONTINUED = re.compile(rb"\\[ \t]*\r?\n")


@dataclass(frozen=True)
class Closure:
    """Headers by the name under which they are included: their paths, and their contents."""

    paths: Mapping[str, str]
    contents: Mapping[str, bytes]

    @property
    def digest(self) -> str:
        """Digest over names and contents; paths are no part of it."""
        contents = {name: keys.digest_bytes(text) for name, text in self.contents.items()}
        return keys.digest("header-contents", {"files": contents})


def closure(source: str, folders: Sequence[str]) -> Closure:
    """The headers that a source can reach along ``folders``; one that is not there is left out.

    ``RequestError`` (``cuda.header-ambiguous``) where one name means different files in
    different places, and (``toolchain.preprocess``) where a header cannot be read.
    """
    paths: dict[str, str] = {}
    contents: dict[str, bytes] = {}
    pending: list[tuple[bytes, str | None]] = [(source.encode(), None)]
    while pending:
        text, own = pending.pop()
        for angled, quoted in _INCLUDE.findall(_CONTINUED.sub(b"", text)):
            name = os.fsdecode(angled or quoted)
            near = [own] if quoted and own is not None else []
            path = _found(name, [*near, *folders])
            if path is None or paths.get(name) == path:
                continue
            if name in paths:
                raise RequestError(
                    "cuda.header-ambiguous",
                    f"header {name!r} is {paths[name]} in one place and {path} in another; NVRTC "
                    "builds need names that mean one file each",
                )
            try:
                with open(path, "rb") as stream:
                    contents[name] = stream.read()
            except OSError as error:
                raise RequestError(
                    "toolchain.preprocess", f"cannot read {path}: {error.strerror}"
                ) from error
            paths[name] = path
            pending.append((contents[name], os.path.dirname(path)))
    names = sorted(paths)
    return Closure({n: paths[n] for n in names}, {n: contents[n] for n in names})


def _found(name: str, folders: Sequence[str]) -> str | None:
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, name))
        if os.path.isfile(path):
            return path
    return None
