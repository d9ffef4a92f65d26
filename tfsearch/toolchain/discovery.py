"""Which compilers this machine has."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass

from tfsearch.core import settings as settings_module
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings, search_path
from tfsearch.toolchain.compiler import Toolchain
from tfsearch.toolchain.process import run_limited
from tfsearch.toolchain.room import NoRoomError, workdir

FAMILIES = ("gcc", "clang", "zig")
HOW_TO_GET = {
    "gcc": "apt-get install gcc libc6-dev",
    "clang": "apt-get install clang libc6-dev",
    "zig": "pip install 'tfsearch[zig]'",
}
_NAME = re.compile(r"(?:[\w.]+-)*(gcc|clang|zig|cc)(-\d+(?:\.\d+)*)?")
_VERSIONED = re.compile(r"(gcc|clang)-(\d+)")


@dataclass(frozen=True)
class DoctorRow:
    """What ``doctor`` prints about a compiler. ``identity`` is a prefix of its digest.

    ``problem`` is empty for a usable compiler, otherwise why it is not and how to get one.
    """

    name: str
    version: str
    path: str
    identity: str
    usable: bool
    problem: str


def discover(
    names: Sequence[str] | None = None, *, settings: Settings | None = None
) -> list[Toolchain]:
    """Compilers that are present, preferred first: gcc, clang, zig, then versioned ones.

    With ``names`` only those, in that order, absent ones left out. Presence is all that is
    checked; :attr:`Toolchain.record` says whether one works. Raises ``RequestError``
    (``toolchain.unknown``) for a name that no compiler has.
    """
    found: list[Toolchain] = []
    seen: set[str] = set()
    for name in names if names is not None else [*FAMILIES, *_versioned()]:
        try:
            toolchain = find(name, settings=settings)
        except NoRoomError:
            raise
        except UnavailableError:
            continue
        real = os.path.realpath(toolchain.path)
        if names is None and real in seen:
            continue
        seen.add(real)
        found.append(toolchain)
    return found


def find(name: str | None = None, *, settings: Settings | None = None) -> Toolchain:
    """The compiler of that name or path; without one, the first that works.

    Names are ``gcc``, ``clang``, ``zig``, one with a version (``gcc-13``) or a prefix
    (``x86_64-linux-gnu-gcc``) on ``PATH``, or a path. Raises ``RequestError``
    (``toolchain.unknown``) for a name that no compiler has, ``UnavailableError``
    (``toolchain.missing``) with how to get one.
    """
    where = settings or settings_module.load()
    if name is None:
        return _first_usable(where)
    if os.sep in name:
        return _from_path(name, where)
    matched = _NAME.fullmatch(name)
    if not matched:
        present = [*FAMILIES, *_versioned()]
        raise RequestError(
            "toolchain.unknown",
            f"unknown toolchain {name!r}; known: {', '.join(present)}, or the path of a compiler",
        )
    path = shutil.which(name, path=search_path())
    if path is None and name == "zig":
        path = _zig_of_wheel()
    if path is None:
        family = matched[1] if matched[1] != "cc" else "gcc"
        package = name if _VERSIONED.fullmatch(name) else ""
        how = f"apt-get install {package} libc6-dev" if package else HOW_TO_GET[family]
        raise UnavailableError(
            "toolchain.missing", f"compiler {name} is not on PATH; get it with: {how}"
        )
    return _make(name, os.path.abspath(path), matched[1], where)


def doctor(*, settings: Settings | None = None) -> list[DoctorRow]:
    """One row per known compiler; a usable one really compiled and loaded a shared library."""
    where = settings or settings_module.load()
    rows = [_row(toolchain) for toolchain in discover(settings=where)]
    present = {row.name for row in rows}
    for family in FAMILIES:
        if family not in present:
            problem = f"not found; get it with: {HOW_TO_GET[family]}"
            rows.append(DoctorRow(family, "", "", "", False, problem))
    return rows


def _row(toolchain: Toolchain) -> DoctorRow:
    name, path = toolchain.name, toolchain.path
    try:
        record = toolchain.record
        problem = _problem(toolchain)
    except UnavailableError as error:
        return DoctorRow(name, "", path, "", False, error.message)
    return DoctorRow(name, record.version, path, record.digest[:12], not problem, problem)


def _problem(toolchain: Toolchain) -> str:
    with workdir("tfsearch-doctor-") as folder:
        out = folder / "empty.so"
        result = toolchain.compile_shared("int tfsearch_probe;\n", out=out)
        if result.status is not Status.OK:
            return result.message
        try:
            ctypes.CDLL(str(out))
        except OSError as error:
            return f"its shared library does not load: {error}"
    return ""


def _first_usable(settings: Settings) -> Toolchain:
    problems: list[str] = []
    for toolchain in discover(settings=settings):
        try:
            _ = toolchain.record
        except NoRoomError:
            raise
        except UnavailableError as error:
            problems.append(error.message)
            continue
        return toolchain
    detail = f" ({'; '.join(problems)})" if problems else ""
    raise UnavailableError(
        "toolchain.missing",
        f"no working C compiler{detail}; get one with: {HOW_TO_GET['gcc']}, or {HOW_TO_GET['zig']}",
    )


def _from_path(name: str, settings: Settings) -> Toolchain:
    path = os.path.abspath(os.path.expanduser(name))
    if not os.path.isfile(path):
        raise UnavailableError("toolchain.missing", f"there is no compiler at {path}")
    if not os.access(path, os.X_OK):
        raise UnavailableError("toolchain.unusable", f"{path} is not an executable file")
    return _make(name, path, None, settings)


def _make(name: str, path: str, hint: str | None, settings: Settings) -> Toolchain:
    """A family is what the program says it is; names such as ``cc`` and paths have to be asked."""
    if hint in FAMILIES and _speaks_for_itself(path):
        return Toolchain(name, str(hint), path, settings)
    return Toolchain(name, _ask_family(path, hint), path, settings)


def _speaks_for_itself(path: str) -> bool:
    """Whether this is a program called what it is: no script, and no link to another name."""
    with open(path, "rb") as stream:
        if stream.read(2) == b"#!":
            return False
    matched = _NAME.fullmatch(os.path.basename(os.path.realpath(path)))
    named = _NAME.fullmatch(os.path.basename(path))
    return bool(matched and named and matched[1] == named[1] and matched[1] != "cc")


def _ask_family(path: str, hint: str | None) -> str:
    environment = settings_module.scrubbed_environment(CCACHE_DISABLE="1")
    with workdir("tfsearch-ask-") as folder:
        done = run_limited([path, "--version"], cwd=folder, env=environment, timeout_s=20)
        if "clang version" in done.stdout:
            return "clang"
        if "Free Software Foundation" in done.stdout:
            return "gcc"
        done = run_limited([path, "version"], cwd=folder, env=environment, timeout_s=20)
        if done.ok and re.fullmatch(r"\d+\.\d+\.\d+\S*\s*", done.stdout):
            return "zig"
    if hint in FAMILIES:
        return str(hint)
    raise UnavailableError(
        "toolchain.unusable", f"{path} does not answer as gcc, clang or zig does to '--version'"
    )


def _zig_of_wheel() -> str | None:
    spec = importlib.util.find_spec("ziglang")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        path = os.path.join(folder, "zig")
        if os.access(path, os.X_OK):
            return path
    return None


def _versioned() -> list[str]:
    """``gcc-N`` and ``clang-N`` on ``PATH``, gcc first, newest first."""
    found: set[str] = set()
    for folder in search_path().split(os.pathsep):
        if os.path.isdir(folder):
            found.update(name for name in os.listdir(folder) if _VERSIONED.fullmatch(name))
    return sorted(found, key=_rank)


def _rank(name: str) -> tuple[int, int]:
    matched = _VERSIONED.fullmatch(name)
    if not matched:
        raise ValueError(name)
    return FAMILIES.index(matched[1]), -int(matched[2])
