"""Which flags a user may pass to NVRTC and nvcc, and what every build has.

Flags are taken from a list, for most others read or write files that the build's identity does
not cover, or choose the architecture, which the schedule does.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tfsearch.core.errors import RequestError

BASE = ("--std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--prec-sqrt=true")
"""Flags before the caller's: no contraction of a·b+c unless the source asks for it, precise
division and roots, denormals kept."""
VERBOSE = "--ptxas-options=-v"
"""What makes the assembler say how many registers it used and what it spilled."""

_SEPARATE = ("-I", "-D", "-U", "-Xptxas", "--ptxas-options", "--include-path", "--define-macro")
_PTXAS = (
    r"(-O[0-4]|--?[a-z][a-z-]*(=(true|false|\d+))?"
    r"|--?(def-load-cache|def-store-cache|dlcm|dscm)=\w\w)"
)
_ALLOWED = tuple(
    re.compile(pattern)
    for pattern in (
        r"-[IDU].+",
        r"--?(use_fast_math|extra-device-vectorization|restrict|lineinfo|generate-line-info)",
        r"--?(fmad|ftz|prec-div|prec-sqrt)=(true|false)",
        r"--?maxrregcount=\d+",
        r"--?std=c\+\+\d\d",
        rf"(-Xptxas|--ptxas-options)={_PTXAS}",
        r"--?(device-debug|disable-warnings)|-[Gw]",
        r"--?(diag-suppress|diag-warn|diag-error)=\d+(,\d+)*",
        r"--?(include-path|define-macro|undefine-macro)=.+",
    )
)
_FILES = re.compile(r"(file|path|dir|output|gen|dump|keep|input)")
_KNOWN = (
    "-D -U -I --use_fast_math --fmad= --ftz= --prec-div= --prec-sqrt= --maxrregcount= --std= "
    "--ptxas-options= -lineinfo -G -w"
)


def units(flags: Sequence[str]) -> list[tuple[str, ...]]:
    """Group an option with its separate argument (``-D X``, ``-Xptxas -v``); order kept.

    ``RequestError`` (``toolchain.flag-refused``) when the argument is missing.
    """
    out: list[tuple[str, ...]] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if flag not in _SEPARATE:
            out.append((flag,))
        elif rest:
            out.append((flag, rest.pop(0)))
        else:
            raise RequestError("toolchain.flag-refused", f"flag {flag!r} lacks its argument")
    return out


def joined(flags: Sequence[str]) -> list[str]:
    """The flags with each separate argument joined to its option."""
    out: list[str] = []
    for unit in units(flags):
        if len(unit) == 1:
            out.append(unit[0])
        else:
            out.append(unit[0] + ("" if len(unit[0]) == 2 else "=") + unit[1])
    return out


def refuse(flags: Sequence[str]) -> None:
    """``RequestError`` (``toolchain.flag-refused``) for the first flag that is not let through."""
    for flag in joined(flags):
        allowed = any(pattern.fullmatch(flag) for pattern in _ALLOWED)
        if allowed and flag.startswith(("-X", "--ptxas")):
            allowed = not _FILES.search(flag.partition("=")[2])
        if not allowed or "\0" in flag or "\n" in flag:
            raise RequestError(
                "toolchain.flag-refused",
                f"flag {flag!r} is refused: it is none of those that change code alone ({_KNOWN})",
            )


def folders(flags: Sequence[str]) -> list[str]:
    """Absolute paths of the folders that ``-I`` names, in order."""
    found: list[str] = []
    for flag in joined(flags):
        matched = re.fullmatch(r"(-I|--?include-path=)(.+)", flag)
        if matched:
            found.append(os.path.abspath(matched[2]))
    return found


def without_folders(flags: Sequence[str]) -> list[str]:
    """The flags, joined, without those that name folders of headers."""
    return [f for f in joined(flags) if not re.match(r"-I|--?include-path=", f)]
