"""nvcc as a compiler: the programs that it runs by content, every header that it reads."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import BuildKey, Status, ToolchainRecord
from tfsearch.core.settings import load as load_settings
from tfsearch.core.settings import scrubbed_environment
from tfsearch.plugin.target import CompileOutcome, Source
from tfsearch.target.cuda import flags as flag_rules
from tfsearch.target.cuda import toolkit
from tfsearch.target.cuda.hardware import ARCHITECTURES
from tfsearch.target.cuda.nvrtc import EMPTY, architecture, message, outcome, try_out
from tfsearch.toolchain.build import Job, deliver, write_source
from tfsearch.toolchain.filehash import FileDigests, Store, fingerprint, settled, unchanged
from tfsearch.toolchain.flags import defines
from tfsearch.toolchain.headers import HeaderDigests
from tfsearch.toolchain.identity import reason, script_programs
from tfsearch.toolchain.process import Completed, run_limited
from tfsearch.toolchain.room import workdir

NAME = "nvcc"
SOURCE_NAME = "kernel.cu"
TIMEOUT_S = 120.0
MEMORY_BYTES = 8 << 30
_LIMITS = {"headers": 512, "watches": 64, "flags": 512, "identity": 8}
_PROGRAMS = ("cicc", "ptxas", "fatbinary", "nvlink")
_VARIABLE = re.compile(r"#\$ (\w+)=(.*)")


class NvccCompiler:
    """nvcc of a local CUDA, making cubins; needs no GPU. Safe to use from many threads."""

    def __init__(self, path: str) -> None:
        self.path = path
        where = load_settings()
        slug = keys.digest("driver", {"path": path, "family": NAME})[:16]
        self._store = Store(where.cache / "toolchain" / f"nvcc-{slug}.json", _LIMITS)
        self._digests = FileDigests(self._store)
        self._headers = HeaderDigests(self._store, self._preprocess)
        self._lock = threading.Lock()

    @property
    def record(self) -> ToolchainRecord:
        """The programs that nvcc runs, by content: itself, cicc, ptxas, the host's preprocessor.

        ``UnavailableError``: ``toolchain.missing`` when it is gone, ``toolchain.unusable`` when it
        does not say what it runs.
        """
        if not os.access(self.path, os.X_OK):
            raise UnavailableError("toolchain.missing", f"compiler {self.path} is no longer there")
        with self._lock:
            cached = self._store.get("identity", self.path)
            if cached is None or not unchanged(cached["watch"]):
                started = time.time_ns()
                version, paths = self._probe()
                watch = {p: fingerprint(p) for p in {*paths.values(), self.path}}
                cached = {"version": version, "paths": paths, "watch": watch}
                if settled(watch, started):
                    self._store.put("identity", self.path, cached)
            try:
                programs = {r: self._digests.digest(p) for r, p in sorted(cached["paths"].items())}
            except OSError as error:
                raise self._unusable(f"cannot read {error.filename}: {error.strerror}") from error
            self._store.flush()
        programs["flags"] = keys.digest("flags", {"flags": list(flag_rules.BASE)})
        return ToolchainRecord(NAME, str(cached["version"]), programs)

    def check_flags(self, flags: Sequence[str], macros: Sequence[str] = ()) -> None:
        """``RequestError`` for flags that are not let through, or that nvcc rejects.

        They are tried out on an empty kernel.
        """
        try_out(NAME, flags, macros, self._complaint)

    def key(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> BuildKey:
        """Identity of the build, the content of every header included."""
        record = self.record
        given = self._flags(source, flags, macros)
        return source.build_key(
            "cuda",
            flags,
            macros,
            record,
            self._headers.digest(record.digest, source.text, given, SOURCE_NAME),
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
        given = self._flags(source, flags, macros)
        with workdir("tfsearch-build-") as folder:
            job = Job(folder, _environment(folder), timeout_s, memory_bytes, threads=1)
            write_source(folder / SOURCE_NAME, source.text)
            job.run([self.path, "-cubin", *given, flag_rules.VERBOSE, *_STEP])
            result = job.result((source.text,))
            if result.status is Status.OK:
                deliver(folder / "kernel.cubin", out)
        return outcome(result, source.launch.main.symbol)

    def _flags(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> list[str]:
        own = flag_rules.joined([*source.flags, *flags])
        folders = [toolkit.kernel_folder(), *flag_rules.folders(own)]
        paths = [f"-I{folder}" for folder in folders]
        rest = flag_rules.without_folders(own)
        return [*_target(architecture(source)), *flag_rules.BASE, *paths, *rest, *defines(macros)]

    def _complaint(self, flags: Sequence[str]) -> str:
        key = keys.digest("flags", {"nvcc": self.record.digest, "flags": list(flags)})
        cached = self._store.get("flags", key)
        if cached is not None:
            return str(cached)
        given = [*_target(ARCHITECTURES[-1]), *flag_rules.BASE, *flags]
        with workdir("tfsearch-flags-") as folder:
            job = Job(folder, _environment(folder), TIMEOUT_S, MEMORY_BYTES, threads=1)
            write_source(folder / SOURCE_NAME, EMPTY)
            job.run([self.path, "-cubin", *given, *_STEP])
            result = job.result((EMPTY,))
        complaint = "" if result.status is Status.OK else message(result)
        if result.status in (Status.OK, Status.COMPILE_ERROR):
            self._store.put("flags", key, complaint)
            self._store.flush()
        return complaint

    def _preprocess(self, folder: Path, name: str, options: Sequence[str]) -> Completed:
        command = [self.path]
        for option in options:
            # Words of the host's compiler that mean something else to nvcc, or nothing.
            command += ["-Xcompiler", option] if option in ("-v", "-P") else [option]
        return self._run([*command, name], folder)

    def _probe(self) -> tuple[str, dict[str, str]]:
        """nvcc's version, and the paths of what it runs by role."""
        target = _target(ARCHITECTURES[-1])
        with workdir("tfsearch-probe-") as folder:
            write_source(folder / SOURCE_NAME, EMPTY)
            said = self._run([self.path, "--version"], folder)
            dry = self._run([self.path, "--dryrun", "-cubin", *target, *_STEP], folder)
            if not said.ok or not dry.ok:
                raise self._unusable(reason(dry if said.ok else said))
            paths = _programs(dry.stderr)
            host = paths.get("host")
            if host is not None:
                asked = self._run([host, "-print-prog-name=cc1plus"], folder)
                found = asked.stdout.strip()
                if not asked.ok or not os.path.isfile(found):
                    raise self._unusable(
                        f"{host} compiles no C++, which nvcc needs; apt-get install g++"
                    )
                paths["host-cc1plus"] = found
        paths["driver"] = self.path
        for number, path in enumerate(script_programs(self.path)):
            paths[f"script.{number}"] = path
        missing = [name for name in ("cicc", "ptxas") if name not in paths]
        if missing:
            raise self._unusable(f"it does not say where {' and '.join(missing)} are")
        version = re.search(r"V(\d+\.\d+\.\d+)", said.stdout)
        return (version[1] if version else "unknown"), paths

    def _run(self, command: Sequence[str], folder: Path) -> Completed:
        return run_limited(
            command,
            cwd=folder,
            env=_environment(folder),
            timeout_s=TIMEOUT_S,
            memory_bytes=MEMORY_BYTES,
        )

    def _unusable(self, why: str) -> UnavailableError:
        return UnavailableError("toolchain.unusable", f"{self.path} is not usable: {why}")


_STEP = (SOURCE_NAME, "-o", "kernel.cubin")


def _target(name: str) -> list[str]:
    """The architecture as nvcc takes it; a shorthand would add a pass for the plain one."""
    return [f"-gencode=arch={name.replace('sm_', 'compute_')},code={name}"]


def _programs(trace: str) -> dict[str, str]:
    """What a dry run names: its own programs and files, and the host compiler, by role."""
    variables: dict[str, str] = {}
    commands: list[str] = []
    for line in trace.splitlines():
        if matched := _VARIABLE.fullmatch(line.strip()):
            variables[matched[1]] = matched[2].strip()
        elif line.startswith("#$ "):
            commands.append(line[3:])
    found: dict[str, str] = {}
    search = variables.get("PATH", "")
    for command in commands:
        text = re.sub(r"\$(\w+)", lambda m: variables.get(m[1], ""), command)
        try:
            program = shlex.split(text)[0]
        except (ValueError, IndexError):
            continue
        path = shutil.which(program, path=search)
        name = os.path.basename(program)
        if path is not None and name not in ("rm", "echo"):
            role = name if name in _PROGRAMS else "host" if " -E " in command else name
            found.setdefault(role, os.path.abspath(path))
    here = variables.get("_HERE_", "")
    libdevice = variables.get("NVVMIR_LIBRARY_DIR", "")
    for role, path in (
        ("nvcc", os.path.join(here, "nvcc")),
        ("profile", os.path.join(here, "nvcc.profile")),
        ("fatbinary", os.path.join(here, "fatbinary")),
        ("libdevice", os.path.join(libdevice, "libdevice.10.bc")),
    ):
        if os.path.isfile(path):
            found.setdefault(role, os.path.realpath(path))
    return found


def _environment(folder: Path) -> dict[str, str]:
    return scrubbed_environment(TMPDIR=str(folder), SOURCE_DATE_EPOCH="0")
