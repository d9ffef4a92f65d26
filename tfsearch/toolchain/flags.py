"""Which compiler flags a user may pass, and why the others are refused.

Flags reach the compile step of one C file, in their order. A flag is refused when it would read
programs or files that the build's identity does not cover, write or name files, replace a
step of the build, or make an object that cannot be loaded into this process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence

from tfsearch.core.errors import RequestError

PATH_OPTIONS = ("-include", "-imacros", "-isystem", "-iquote", "-idirafter", "-I")
SEPARATE = frozenset({*PATH_OPTIONS, "-D", "-U", "--param", "-mllvm"})

_PROGRAMS = "it changes which programs or files the compiler uses, which the build key cannot see"
_STEPS = "it replaces the compile step or its output, which tfsearch chooses"
_LINK = "flags reach the compile step only; the kernel is linked with the C library alone"
_FILES = "it reads or writes files, or needs a run-time library, that the build key does not cover"
_THREADS = "threads are a choice of the schedule; OpenMP is not used"
_LOAD = "the result could not be loaded into this process"

# Alternatives after the dashes; ``$`` ends one that must match whole, others match as prefixes.
_TABLE: tuple[tuple[str, str, str], ...] = (
    ("-", "o x E$ S$ c$ M ### v$ V P$ C$ CC$ d H$ Q h$ n$ N", _STEPS),
    ("-", "fsyntax-only emit- print- help version target-help ccc-", _STEPS),
    ("--", "version help language verbose dump print compile assemble preprocess output", _STEPS),
    ("-", "B wrapper specs iprefix iwithprefix imultilib isysroot resource-dir ivfs", _PROGRAMS),
    ("-", "X Wp, Wa, load gcc-toolchain include-pch I- nostdsysteminc", _PROGRAMS),
    ("-", "fintegrated- fno-integrated- no-integrated-", _PROGRAMS),
    ("-f", "plugin pass-plugin use-ld modules module- pch prebuilt build-session", _PROGRAMS),
    ("-", "l L T u z e s$ r$ Wl, static shared pie no-pie rdynamic symbolic", _LINK),
    ("-", "nostdlib nodefaultlibs nostartfiles", _LINK),
    ("-f", "lto whole-program thinlto fat-lto split-lto use-linker", _LINK),
    ("-f", "profile auto-profile cs-profile branch-prob test-coverage coverage", _FILES),
    ("-f", "xray instrument sanitize split-stack gnu-tm stack-usage callgraph-info", _FILES),
    ("-f", "opt-info save-optimization crash-diag proc-stat time-trace dump ada", _FILES),
    ("-f", "randomize-layout-seed-file basic-block-sections=list", _FILES),
    ("-", "p$ pg$ coverage -coverage save-temps gsplit-dwarf aux-info", _FILES),
    ("-f", "openmp$ openmp= openmp-targets openacc tree-parallelize-loops", _THREADS),
    ("-", "m32$ mx32$ m16$ target -target arch$", _LOAD),
    ("-f", "no-pic$ no-PIC$ pie$ PIE$", _LOAD),
)


def _alternatives(start: str, words: str) -> re.Pattern[str]:
    parts = (re.escape(word.rstrip("$")) + "$" * word.endswith("$") for word in words.split())
    return re.compile(f"{start}(?:{'|'.join(parts)})")


_REFUSED: tuple[tuple[re.Pattern[str], str], ...] = (
    (re.compile(r"@"), "write the flags out: a file of arguments is not part of the build key"),
    (re.compile(r"(?!-)|-$"), "it is not an option; a flag starts with '-'"),
    *((_alternatives(start, words), reason) for start, words, reason in _TABLE),
    (re.compile(r"--(?!param\b)"), "use the short spelling of this option"),
)
_LLVM_VALUE = re.compile(r"-(?!.*(load|plugin|file|path|dir|output))[A-Za-z0-9_-]+(=[\w.,-]+)?")


def units(flags: Sequence[str]) -> list[tuple[str, ...]]:
    """Group an option with its separate argument (``-D X``, ``-I dir``); order kept.

    Raises ``RequestError`` (``toolchain.flag-refused``) when the argument is missing.
    """
    out: list[tuple[str, ...]] = []
    rest = list(flags)
    while rest:
        flag = rest.pop(0)
        if flag not in SEPARATE:
            out.append((flag,))
            continue
        if not rest:
            raise RequestError("toolchain.flag-refused", f"flag {flag!r} lacks its argument")
        out.append((flag, rest.pop(0)))
    return out


def refuse(flags: Sequence[str]) -> None:
    """Raise ``RequestError`` (``toolchain.flag-refused``) for the first flag not allowed."""
    for unit in units(flags):
        reason = _objection(unit)
        if reason:
            raise RequestError(
                "toolchain.flag-refused", f"flag {' '.join(unit)!r} is refused: {reason}"
            )


def _objection(unit: tuple[str, ...]) -> str:
    if any("\0" in part or "\n" in part for part in unit):
        return "it holds a line break or NUL"
    if unit[0] == "-mllvm":
        return "" if _LLVM_VALUE.fullmatch(unit[1]) else _PROGRAMS
    if unit[0] in SEPARATE:
        return "" if unit[1] else "its argument is empty"
    for pattern, reason in _REFUSED:
        if pattern.match(unit[0]):
            return reason
    return ""


def defines(macros: Sequence[str]) -> list[str]:
    """Macros, ``NAME`` or ``NAME=VALUE``, as flags.

    Raises ``RequestError`` (``toolchain.macro``) for other texts.
    """
    for macro in macros:
        if not re.match(r"[A-Za-z_]\w*(\([^)]*\))?(=|$)", macro) or "\n" in macro:
            raise RequestError(
                "toolchain.macro", f"macro {macro!r} is not NAME or NAME=VALUE with a C identifier"
            )
    return [f"-D{macro}" for macro in macros]


def absolute(flags: Sequence[str], folder: str | None = None) -> list[str]:
    """The flags with relative include paths resolved against ``folder`` (the current one).

    Compilers run in a fresh folder of their own, so a path relative to the caller's would not
    be found there. A bare ``-include name`` that is no file here stays as it is: the compiler
    looks for it along its include path.
    """
    out: list[str] = []
    for unit in units(flags):
        option, value = _path_of(unit)
        if option is None:
            out.extend(unit)
            continue
        path = value if os.path.isabs(value) else os.path.join(folder or os.getcwd(), value)
        named = option in ("-include", "-imacros")
        resolved = value if value.startswith("=") or (named and not os.path.isfile(path)) else path
        out.extend((option, resolved) if len(unit) == 2 else (option + resolved,))
    return out


def include_folders(flags: Sequence[str]) -> list[str]:
    """Folders named by ``-I`` and its relatives, in order."""
    found: list[str] = []
    for unit in units(flags):
        option, value = _path_of(unit)
        if option is not None and option not in ("-include", "-imacros"):
            found.append(value)
    return found


def is_native(flags: Sequence[str]) -> bool:
    """Whether a flag asks for whatever processor the compiler happens to run on."""
    return any(re.fullmatch(r"-m(arch|tune|cpu)=native", flag) for flag in flags)


def _path_of(unit: tuple[str, ...]) -> tuple[str | None, str]:
    if len(unit) == 2:
        return (unit[0], unit[1]) if unit[0] in PATH_OPTIONS else (None, "")
    for option in PATH_OPTIONS:
        if unit[0].startswith(option) and len(unit[0]) > len(option):
            return option, unit[0][len(option) :]
    return None, ""
