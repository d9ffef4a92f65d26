"""NVRTC as a compiler: every build in a process of its own, its headers given as text."""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfsearch.core import keys
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import BuildKey, Status, ToolchainRecord
from tfsearch.core.settings import load as load_settings
from tfsearch.core.settings import scrubbed_environment
from tfsearch.plugin.target import CompileOutcome, Source
from tfsearch.target.cuda import flags as flag_rules
from tfsearch.target.cuda import resources, toolkit
from tfsearch.target.cuda.closure import Closure, closure
from tfsearch.target.cuda.hardware import ARCHITECTURES
from tfsearch.toolchain.build import CompileResult, Job, deliver
from tfsearch.toolchain.filehash import FileDigests, Store, fingerprint, settled, unchanged
from tfsearch.toolchain.flags import defines
from tfsearch.toolchain.room import workdir

NAME = "nvrtc"
CHILD = Path(__file__).with_name("nvrtc_child.py")
TIMEOUT_S = 120.0
MEMORY_BYTES = 8 << 30
EMPTY = 'extern "C" __global__ void tfsearch_empty() {}\n'
REPORT = "libraries.json"
_LIMITS = {"flags": 512, "identity": 8}


@dataclass(frozen=True)
class Identity:
    """NVRTC's record and the libraries that it was taken from."""

    record: ToolchainRecord
    libraries: tuple[str, ...]


class NvrtcCompiler:
    """NVRTC through CUDA's bindings for Python; needs neither a driver nor a GPU.

    Safe to use from many threads: each compilation is a process of its own.
    """

    def __init__(self) -> None:
        where = load_settings()
        slug = keys.digest("driver", {"python": sys.executable, "path": toolkit.import_path()})
        self._store = Store(where.cache / "toolchain" / f"nvrtc-{slug[:16]}.json", _LIMITS)
        self._digests = FileDigests(self._store)
        self._lock = threading.Lock()
        self._probed: dict[str, Any] | None = None

    @property
    def record(self) -> ToolchainRecord:
        """NVRTC and its builtins by content, and the flags that every build has.

        ``UnavailableError``: ``toolchain.missing`` without the wheels, ``toolchain.unusable`` when
        NVRTC cannot be loaded.
        """
        return self.identity().record

    def identity(self) -> Identity:
        """The record with the paths of what it covers; probed again when one of them changed."""
        if not toolkit.bindings():
            raise UnavailableError(
                "toolchain.missing", f"NVRTC is not installed; get it with: {toolkit.WHEELS}"
            )
        with self._lock:
            cached = self._probed or self._store.get("identity", NAME)
            if cached is None or not unchanged(cached["watch"]):
                started = time.time_ns()
                report = self._probe()
                watched = {p: fingerprint(p) for p in _watched(report["libraries"])}
                cached = {"report": report, "watch": watched}
                if settled(watched, started):
                    self._store.put("identity", NAME, cached)
            self._probed = cached
            report = cached["report"]
            programs = {
                _role(path): self._digests.digest(path) for path in sorted(report["libraries"])
            }
            self._store.flush()
        programs["flags"] = keys.digest("flags", {"flags": list(flag_rules.BASE)})
        record = ToolchainRecord(NAME, str(report["version"]), programs)
        return Identity(record, tuple(report["libraries"]))

    def check_flags(self, flags: Sequence[str], macros: Sequence[str] = ()) -> None:
        """``RequestError`` for flags that are not let through, or that NVRTC rejects.

        They are tried out on an empty kernel.
        """
        try_out(NAME, flags, macros, self._complaint)

    def headers(self, source: str, flags: Sequence[str]) -> Closure:
        """The headers that a source can reach with these flags."""
        return closure(
            source,
            [toolkit.kernel_folder(), *flag_rules.folders(flags), *toolkit.include_folders()],
        )

    def key(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> BuildKey:
        """Identity of the build, the content of every header included."""
        return source.build_key(
            "cuda",
            flags,
            macros,
            self.record,
            self.headers(source.text, [*source.flags, *flags]).digest,
        )

    def compile(
        self,
        source: Source,
        flags: Sequence[str],
        macros: Sequence[str],
        out: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> CompileOutcome:
        """Compile to a cubin; ``resources`` are those of the main entry."""
        flag_rules.refuse(flags)
        options = [
            f"--gpu-architecture={architecture(source)}",
            *flag_rules.BASE,
            *flag_rules.without_folders([*source.flags, *flags]),
            *defines(macros),
            flag_rules.VERBOSE,
        ]
        found = self.headers(source.text, [*source.flags, *flags])
        with workdir("tfsearch-build-") as folder:
            job = Job(folder, _environment(folder), timeout_s, memory_bytes, threads=1)
            result = self._run(job, folder, source.text, options, found.contents)
            if result.status is Status.OK:
                self._require_same(folder)
                deliver(folder / "kernel.cubin", out)
        return outcome(result, source.launch.main.symbol)

    def _complaint(self, flags: Sequence[str]) -> str:
        """What NVRTC says against flags, "" for nothing; cached by its identity."""
        key = keys.digest("flags", {"nvrtc": self.record.digest, "flags": list(flags)})
        cached = self._store.get("flags", key)
        if cached is not None:
            return str(cached)
        options = [f"--gpu-architecture={ARCHITECTURES[-1]}", *flag_rules.BASE]
        options += flag_rules.without_folders(flags)
        with workdir("tfsearch-flags-") as folder:
            job = Job(folder, _environment(folder), TIMEOUT_S, MEMORY_BYTES, threads=1)
            result = self._run(job, folder, EMPTY, options, {})
        complaint = "" if result.status is Status.OK else message(result)
        if result.status in (Status.OK, Status.COMPILE_ERROR):
            self._store.put("flags", key, complaint)
            self._store.flush()
        return complaint

    def _probe(self) -> dict[str, Any]:
        options = [f"--gpu-architecture={ARCHITECTURES[0]}"]
        with workdir("tfsearch-probe-") as folder:
            job = Job(folder, _environment(folder), TIMEOUT_S, MEMORY_BYTES, threads=1)
            result = self._run(job, folder, EMPTY, options, {})
            if result.status is not Status.OK:
                raise UnavailableError(
                    "toolchain.unusable",
                    f"NVRTC does not work: {message(result)}; get it with: {toolkit.WHEELS}",
                )
            report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        if not report["libraries"]:
            raise UnavailableError("toolchain.unusable", "NVRTC does not say where it was loaded")
        return report

    def _run(
        self,
        job: Job,
        folder: Path,
        text: str,
        options: Sequence[str],
        headers: Mapping[str, bytes],
    ) -> CompileResult:
        work = {
            "path": toolkit.import_path(),
            "source": text,
            "options": list(options),
            "headers": {name: data.decode("latin-1") for name, data in headers.items()},
        }
        (folder / "job.json").write_text(json.dumps(work), encoding="utf-8")
        job.run([sys.executable, "-I", str(CHILD), "job.json", "-o", "kernel.cubin"])
        return job.result((text,))

    def _require_same(self, folder: Path) -> None:
        """The libraries that compiled are those whose content is the identity."""
        report = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        if tuple(report["libraries"]) != self.identity().libraries:
            raise UnavailableError(
                "toolchain.changed", "another NVRTC was loaded than before; start again"
            )


def try_out(
    name: str,
    flags: Sequence[str],
    macros: Sequence[str],
    complaint_of: Callable[[Sequence[str]], str],
) -> None:
    """Refuse what is not let through, then ask the compiler about all, and about each alone.

    ``RequestError``: ``toolchain.flag-refused``, ``toolchain.macro``, ``toolchain.flag-rejected``.
    """
    flag_rules.refuse(flags)
    parts = [flag_rules.joined(unit) for unit in flag_rules.units(flags)]
    parts += [[text] for text in defines(macros)]
    given = [text for part in parts for text in part]
    complaint = complaint_of(given) if given else ""
    if not complaint:
        return
    for part in parts:
        if alone := complaint_of(part):
            given, complaint = part, alone
            break
    raise RequestError(
        "toolchain.flag-rejected", f"{name} rejects '{' '.join(given)}': {complaint}"
    )


def architecture(source: Source) -> str:
    """The architecture among a source's features; ``RequestError`` when there is none."""
    found = [name for name in source.features if name in ARCHITECTURES]
    if len(found) != 1:
        raise RequestError(
            "cuda.architecture",
            f"a source is for one of {', '.join(ARCHITECTURES)}, not {list(source.features)}",
        )
    return found[0]


def message(result: CompileResult) -> str:
    """The first line that is an error, else how the compilation ended."""
    for line in result.log.splitlines():
        if "error" in line or line.startswith(("cannot ", "ptxas fatal")):
            return line.strip()
    return result.message


def outcome(result: CompileResult, main: str) -> CompileOutcome:
    """A compilation's result with the resources that its log tells."""
    log = resources.without_timing(result.log)
    if result.status is not Status.OK:
        first = message(result)
        text = log if first in log else f"{first}\n{log}"
        return CompileOutcome(result.status, result.seconds, _led(first, text))
    return CompileOutcome(
        result.status, result.seconds, log, resources.of_entries(result.log, main)
    )


def _led(first: str, log: str) -> str:
    """The log with the line first that says most."""
    rest = [line for line in log.splitlines() if line.strip() != first]
    return "\n".join([first, *rest])


def _role(path: str) -> str:
    """``libnvrtc-builtins`` of a library's path."""
    return os.path.basename(path).partition(".so")[0]


def _watched(libraries: Sequence[str]) -> set[str]:
    """The libraries, and the folders where others would be found before them."""
    folders = {os.path.dirname(path) for path in libraries}
    for entry in toolkit.import_path():
        folders |= {entry, os.path.join(entry, "cuda"), os.path.join(entry, "nvidia")}
    return {*libraries, *folders, str(CHILD)}


def _environment(folder: Path) -> dict[str, str]:
    return scrubbed_environment(TMPDIR=str(folder))
