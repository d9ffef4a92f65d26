"""One host C compiler: its identity, its flags, and how it makes a shared library."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status, ToolchainRecord
from tfsearch.core.settings import Settings, scrubbed_environment
from tfsearch.toolchain import flags as flag_rules
from tfsearch.toolchain.build import CompileResult, Job, deliver, write_source
from tfsearch.toolchain.filehash import Store
from tfsearch.toolchain.headers import HeaderDigests
from tfsearch.toolchain.identity import Identity, Prober, processor_text, reason
from tfsearch.toolchain.process import Completed, run_limited
from tfsearch.toolchain.room import require_room, workdir

DEFAULT_TIMEOUT_S = 120.0
DEFAULT_MEMORY_BYTES = 4 << 30
SOURCE_NAME = "kernel.c"
# zig links a kernel without its own compiler run time first, because building that run time once
# takes many seconds; kernels that need it are linked again with it.
_ZIG_FAST_LINK = ("-nostdlib", "-Wl,-z,defs", "-lpthread", "-lc")
_CACHE_LIMITS = {"headers": 2048, "watches": 64, "flags": 512, "native": 16}


class Toolchain:
    """A C compiler on this machine; safe to use from many threads.

    ``name`` is what the user calls it (``gcc-13``, a path), ``family`` is ``gcc``, ``clang`` or
    ``zig``, ``path`` the driver that runs.
    """

    def __init__(self, name: str, family: str, path: str, settings: Settings) -> None:
        self.name = name
        self.family = family
        self.path = path
        self._zig_cache = settings.cache / "zig"
        slug = keys.digest("driver", {"path": path, "family": family})[:16]
        self._store = Store(settings.cache / "toolchain" / f"{slug}.json", _CACHE_LIMITS)
        self._lock = threading.Lock()
        self._prober = Prober(family, path, self._environment(), self._store, self._link_source)
        self._headers = HeaderDigests(self._store, self._preprocess)

    def __repr__(self) -> str:
        return f"Toolchain({self.name!r}, {self.family!r}, {self.path!r})"

    @property
    def record(self) -> ToolchainRecord:
        """Identity by content as the files are now.

        Raises ``UnavailableError``: ``toolchain.missing`` when the driver is gone,
        ``toolchain.unusable`` when it cannot build a library.
        """
        return self._identity().record

    @property
    def versions(self) -> str:
        """Versions of the compiler, assembler and linker, one line for people."""
        return self._identity().versions

    @property
    def label(self) -> str:
        """Name and version number, such as ``gcc 12.2.0``."""
        return f"{self.family} {self.record.version.split(' ')[0]}"

    @property
    def base_flags(self) -> tuple[str, ...]:
        """Flags that every kernel is compiled with, before the caller's.

        No contraction of a·b+c unless the source asks for it, no fast maths; ``-fno-math-errno``
        changes no result, only ``errno``.
        """
        common = (
            "-std=gnu17", "-O3", "-fPIC", "-ffp-contract=off", "-fno-math-errno",
            "-fno-stack-protector", "-fomit-frame-pointer",
        )  # fmt: skip
        return (*self._target_flags, *common)

    @property
    def link_flags(self) -> tuple[str, ...]:
        """Flags of the link step; the caller's flags do not reach it."""
        if sys.platform == "darwin":
            return (*self._target_flags, "-shared", "-Wl,-no_uuid")
        return (*self._target_flags, "-shared", "-Wl,--build-id=none", "-lm")

    @property
    def _target_flags(self) -> tuple[str, ...]:
        if self.family != "zig":
            return ()
        system = "macos" if sys.platform == "darwin" else "linux-gnu"
        machine = {"arm64": "aarch64", "AMD64": "x86_64"}.get(platform.machine())
        triple = f"{machine or platform.machine()}-{system}"
        return ("-target", triple, "-mcpu=baseline", "-fno-sanitize=undefined", "-g0")

    def key_flags(self, flags: Sequence[str] = ()) -> tuple[str, ...]:
        """Every flag that shapes a build, in order: base, the caller's, the link step's.

        This is what a build's key holds, so that a release that changes the base flags does not
        serve builds made with the old ones.
        """
        return (*self.base_flags, *flags, "|", *self.link_flags)

    def check_flags(
        self,
        flags: Sequence[str],
        macros: Sequence[str] = (),
        *,
        source: str = "",
        own_flags: Sequence[str] = (),
    ) -> None:
        """Refuse flags that are unsafe for identity, then try flags and macros out (cached).

        They are tried on an empty file, or on ``source`` compiled with ``own_flags`` before them:
        what every kernel includes, so that what no kernel compiles with is refused at once.

        Raises ``RequestError``: ``toolchain.flag-refused`` and ``toolchain.macro`` with a reason of
        tfsearch's, or ``toolchain.flag-rejected`` with the compiler's.
        """
        flag_rules.refuse(flags)
        parts = [*flag_rules.units(flags), *((text,) for text in flag_rules.defines(macros))]
        if not parts:
            return
        given = [text for part in parts for text in part]
        complaint = self._complaint(given, source, own_flags)
        if not complaint:
            return
        culprit, why = given, complaint
        for part in parts:
            alone = self._complaint(part, source, own_flags)
            if alone:
                culprit, why = list(part), alone
                break
        raise RequestError(
            "toolchain.flag-rejected", f"{self.label} rejects '{' '.join(culprit)}': {why}"
        )

    def headers_digest(
        self, source: str, flags: Sequence[str] = (), macros: Sequence[str] = ()
    ) -> str:
        """Digest over the content of every header that this compiler reads for ``source``.

        Covers a header that changed, one that appears or disappears in a folder of the include
        path, and, under ``-march=native``, what the compiler makes of this processor. Raises
        ``RequestError`` (``toolchain.preprocess``) when a header is missing, and what
        :attr:`record` raises.
        """
        flag_rules.refuse(flags)
        given = [*flag_rules.absolute(flags), *flag_rules.defines(macros)]
        digest = self._headers.digest(self.record.digest, source, given, SOURCE_NAME)
        if not flag_rules.is_native(flags):
            return digest
        return keys.digest("native-headers", {"headers": digest, "native": self._native(flags)})

    def compile_shared(
        self,
        source: str,
        *,
        flags: Sequence[str] = (),
        macros: Sequence[str] = (),
        out: Path,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        memory_bytes: int = DEFAULT_MEMORY_BYTES,
        extra_sources: Sequence[str] = (),
    ) -> CompileResult:
        """Compile C text (and further C texts) into the shared library ``out``.

        ``flags`` follow :attr:`base_flags` in the compile step, ``macros`` are ``NAME`` or
        ``NAME=VALUE``. ``timeout_s`` bounds the whole call, ``memory_bytes`` the address space of
        each process. The same arguments give the same bytes. ``out`` is replaced atomically, and
        only when all went well. Raises ``RequestError`` for a refused flag,
        ``UnavailableError`` when the compiler is gone or the temporary folder is full,
        ``NotSavedError`` when ``out`` cannot be written.
        """
        flag_rules.refuse(flags)
        self._require()
        given = [*flag_rules.absolute(flags), *flag_rules.defines(macros)]
        with workdir("tfsearch-build-") as folder:
            job = Job(folder, self._environment(folder), timeout_s, memory_bytes, self._threads)
            objects: list[str] = []
            for index, text in enumerate((source, *extra_sources)):
                name = SOURCE_NAME if index == 0 else f"extra{index}.c"
                write_source(folder / name, text)
                objects.append(f"{name[:-2]}.o")
                job.run(self._compile_command(name, objects[-1], given, folder))
            job.run(self._link_command(objects, "kernel.so", fast=True), more=self._needs_runtime)
            if job.needs_runtime:
                job.run(self._link_command(objects, "kernel.so", fast=False))
            result = job.result((source, *extra_sources))
            if result.status is Status.OK:
                deliver(folder / "kernel.so", out)
            return result

    def _environment(self, folder: Path | None = None) -> dict[str, str]:
        extra = {"CCACHE_DISABLE": "1", "SOURCE_DATE_EPOCH": "0"}
        if folder is not None:
            extra["TMPDIR"] = str(folder)
        if self.family == "zig":
            local = folder / "zig-cache" if folder is not None else self._zig_cache
            extra["ZIG_GLOBAL_CACHE_DIR"] = str(self._zig_cache)
            extra["ZIG_LOCAL_CACHE_DIR"] = str(local)
        return scrubbed_environment(**extra)

    def _identity(self) -> Identity:
        self._require()
        with self._lock:
            return self._prober.identity()

    def _require(self) -> None:
        if not os.access(self.path, os.X_OK):
            raise UnavailableError("toolchain.missing", f"compiler {self.path} is no longer there")

    @property
    def _driver(self) -> list[str]:
        return [self.path, "cc"] if self.family == "zig" else [self.path]

    def _link_source(self, source: str, out: str) -> list[str]:
        fast = _ZIG_FAST_LINK if self.family == "zig" else ()
        return [*self._driver, *self.base_flags, source, "-o", out, *self.link_flags, *fast]

    def _compile_command(
        self, name: str, out: str, flags: Sequence[str], folder: Path
    ) -> list[str]:
        stable = [f"-ffile-prefix-map={folder}=.", f"-frandom-seed={name}"]
        return [*self._driver, *self.base_flags, *flags, *stable, "-c", name, "-o", out]

    def _link_command(self, objects: Sequence[str], out: str, *, fast: bool) -> list[str]:
        extra = _ZIG_FAST_LINK if fast and self.family == "zig" else ()
        return [*self._driver, *objects, "-o", out, *self.link_flags, *extra]

    def _needs_runtime(self, done: Completed) -> bool:
        return self.family == "zig" and "undefined symbol: " in done.stderr

    @property
    def _threads(self) -> int:
        """How many threads of the compiler may use processor time at once."""
        return min(os.cpu_count() or 1, 16) if self.family == "zig" else 1

    def _complaint(self, flags: Sequence[str], source: str, own_flags: Sequence[str]) -> str:
        given = flag_rules.absolute(flags)
        fields: dict[str, object] = {"toolchain": self.record.digest, "flags": given}
        if source or own_flags:
            fields |= {"source": source, "own": list(own_flags)}
        if flag_rules.is_native(flags):
            fields["processor"] = processor_text()
        reads_files = bool(flag_rules.include_folders(given)) or "-include" in " ".join(given)
        key = keys.digest("flags", fields)
        cached = None if reads_files else self._store.get("flags", key)
        if cached is not None:
            return str(cached)
        with workdir("tfsearch-flags-") as folder:
            write_source(folder / SOURCE_NAME, source)
            every = [*own_flags, *given]
            done = self._run(self._compile_command(SOURCE_NAME, "kernel.o", every, folder), folder)
            if not done.ok:
                require_room(folder, done.output)
        if done.timed_out:
            return reason(done)
        complaint = "" if done.ok else reason(done)
        if not reads_files:
            self._store.put("flags", key, complaint)
            self._store.flush()
        return complaint

    def _native(self, flags: Sequence[str]) -> str:
        """Digest of what ``=native`` expands to here: predefined macros and the inner command."""
        fields = {"toolchain": self.record.digest, "cpu": processor_text(), "flags": list(flags)}
        key = keys.digest("native", fields)
        cached = self._store.get("native", key)
        if cached is not None:
            return str(cached)
        given = flag_rules.absolute(flags)
        with workdir("tfsearch-native-") as folder:
            write_source(folder / SOURCE_NAME, "")
            command = [*self._driver, *self.base_flags, *given, "-E", SOURCE_NAME]
            macros = self._run([*command, "-dM"], folder)
            inner = self._run([*command, "-###"], folder)
            if not macros.ok or not inner.ok:
                failed = inner if macros.ok else macros
                require_room(folder, failed.output)
                raise RequestError("toolchain.flag-rejected", f"{self.label}: {reason(failed)}")
        words = [word for word in inner.stderr.split() if os.sep not in word]
        value = keys.digest("native-expansion", {"macros": macros.stdout, "inner": words})
        self._store.put("native", key, value)
        self._store.flush()
        return value

    def _preprocess(self, folder: Path, name: str, options: Sequence[str]) -> Completed:
        return self._run([*self._driver, *self.base_flags, *options, name], folder)

    def _run(self, command: Sequence[str], folder: Path) -> Completed:
        return run_limited(
            command,
            cwd=folder,
            env=self._environment(folder),
            timeout_s=DEFAULT_TIMEOUT_S,
            memory_bytes=DEFAULT_MEMORY_BYTES,
        )
