"""What a compiler is, as content: which programs really run, found by asking and by tracing.

``docs/decisions/0002-toolchain-identity.md`` says what is covered and why.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import struct
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import ToolchainRecord
from tfsearch.toolchain.filehash import (
    FileDigests,
    Store,
    Watch,
    fingerprint,
    settled,
    unchanged,
)
from tfsearch.toolchain.process import Completed, run_limited, signal_name
from tfsearch.toolchain.room import require_room, workdir

PROBE_TIMEOUT_S = 60.0
SCRIPT_LIMIT = 64 * 1024
PROBE_SOURCE = "#include <stdint.h>\n#include <string.h>\nint32_t probe(void) { return 7; }\n"

# Shared libraries of a compiler that unpack, parse XML, draw on terminals, fetch debug files or
# are the C run time under it: a security update of these leaves the code it generates alone.
_BYSTANDERS = re.compile(
    r"(linux-vdso|ld-linux|ld-musl|libc\.|libc\.musl|libm\.|libdl\.|librt\.|libpthread|libstdc\+\+"
    r"|libgcc_s|libz\.|libzstd|liblzma|libbz2|libxml2|libicu|libedit|libtinfo|libncurses|libbsd"
    r"|libmd\.|libffi|libjansson|libdebuginfod|libcurl|libcrypto|libssl)"
)
# What zig compiles from source into a kernel; its headers are seen by the headers digest.
_ZIG_SOURCES = ("compiler_rt", "compiler_rt.zig", "std", os.path.join("libc", "glibc"))


@dataclass(frozen=True)
class Identity:
    """A probed compiler. ``versions`` is one line for people."""

    record: ToolchainRecord
    versions: str


@dataclass
class _Evidence:
    """What a probe gathers: role → path, folders to watch, names looked up on ``PATH``."""

    paths: dict[str, str]
    trees: dict[str, str]
    folders: set[str]
    names: dict[str, str | None]
    version: str = ""
    versions: str = ""

    def add(self, role: str, path: str) -> None:
        """Record a file under its role; a second, different file gets a numbered role."""
        real = os.path.realpath(path)
        if not os.path.isfile(real):
            return
        candidate, count = role, 1
        while candidate in self.paths and os.path.realpath(self.paths[candidate]) != real:
            count += 1
            candidate = f"{role}.{count}"
        self.paths[candidate] = os.path.abspath(path)


class Prober:
    """Finds and caches the identity of one compiler driver.

    ``driver`` is the path of the program to call; ``family`` is ``gcc``, ``clang`` or ``zig``;
    ``link`` makes the command that compiles and links a source into a shared library.
    """

    def __init__(
        self,
        family: str,
        driver: str,
        environment: Mapping[str, str],
        store: Store,
        link: Callable[[str, str], list[str]],
    ) -> None:
        self._family = family
        self._driver = driver
        self._environment = dict(environment)
        self._store = store
        self._digests = FileDigests(store)
        self._link = link

    def identity(self) -> Identity:
        """The compiler's identity now; probed again whenever a watched file or folder changed.

        Raises ``UnavailableError`` (``toolchain.unusable``) when it cannot build a library.
        """
        cached = self._store.get("identity", self._driver)
        if cached is not None and self._valid(cached):
            return _decode(cached["identity"])
        started = time.time_ns()
        evidence = self._gather()
        identity, watch = self._hash(evidence)
        if settled(watch, started):
            self._store.put(
                "identity",
                self._driver,
                {"identity": _encode(identity), "watch": watch, "names": evidence.names},
            )
        self._store.flush()
        return identity

    def _valid(self, cached: Mapping[str, Any]) -> bool:
        search = self._environment.get("PATH")
        return unchanged(cached["watch"]) and all(
            shutil.which(name, path=search) == path for name, path in cached["names"].items()
        )

    def _hash(self, evidence: _Evidence) -> tuple[Identity, Watch]:
        watched = {*evidence.paths.values(), *evidence.folders, self._driver}
        try:
            programs = {
                role: self._digests.digest(path) for role, path in sorted(evidence.paths.items())
            }
            for role, root in evidence.trees.items():
                programs[role], files = self._digests.tree(root, _ZIG_SOURCES)
                watched.update(files)
                watched.update(os.path.dirname(file) for file in files)
        except OSError as error:
            raise self._unusable(f"cannot read {error.filename}: {error.strerror}") from error
        record = ToolchainRecord(self._family, evidence.version, programs)
        watch = {path: fingerprint(path) for path in sorted(watched)}
        return Identity(record, evidence.versions), watch

    def _gather(self) -> _Evidence:
        evidence = _Evidence({}, {}, set(), {})
        evidence.add("driver", self._driver)
        for path in script_programs(self._driver):
            evidence.add("script", path)
        with workdir("tfsearch-probe-") as folder:
            if self._family == "zig":
                self._gather_zig(evidence, folder)
            else:
                self._gather_cc(evidence, folder)
            for role, path in list(evidence.paths.items()):
                if not role.startswith("link."):
                    self._gather_libraries(evidence, path, folder)
        return evidence

    def _gather_zig(self, evidence: _Evidence, folder: Path) -> None:
        text = self._ask(folder, "env").stdout
        found = dict(re.findall(r'"?(zig_exe|lib_dir|version)"?\s*[:=]\s*"([^"]*)"', text))
        if not {"zig_exe", "lib_dir", "version"} <= found.keys():
            raise self._unusable("'zig env' does not name its program and library folder")
        evidence.add("zig", found["zig_exe"])
        evidence.trees["lib"] = found["lib_dir"]
        self._build(folder)
        clang = self._ask(folder, "cc", "--version").stdout.splitlines()
        evidence.version = found["version"]
        inside = re.match(r"clang version \S+", clang[0]) if clang else None
        evidence.versions = f"zig {found['version']}" + (f" ({inside[0]})" if inside else "")

    def _gather_cc(self, evidence: _Evidence, folder: Path) -> None:
        done = self._build(folder, "-v", "-Wl,-t")
        marker = re.search(r"^.*?(?:gcc|clang) version (.+)$", done.stderr, re.MULTILINE)
        evidence.version = marker[1].strip() if marker else "unknown"
        evidence.versions = f"{self._family} {evidence.version}"
        for role in ("cc1", "collect2", "as", "ld"):
            name = self._ask(folder, f"-print-prog-name={role}").stdout.strip()
            self._named(evidence, role, name)
        self._gather_commands(evidence, done.stderr)
        for line in done.stdout.splitlines() + done.stderr.splitlines():
            _trace_line(evidence, line, folder)
        runtime = self._ask(folder, "-print-libgcc-file-name").stdout.strip()
        evidence.add(f"link.{os.path.basename(runtime)}", runtime)
        for line in self._ask(folder, "-print-search-dirs").stdout.splitlines():
            kind, _, value = line.partition(": =")
            if kind in ("programs", "libraries"):
                parts = (os.path.normpath(part) for part in value.split(":") if part)
                evidence.folders.update(part for part in parts if os.path.isabs(part))
        for role in ("as", "ld"):
            if role in evidence.paths and (role == "ld" or self._family == "gcc"):
                first = self._run(folder, [evidence.paths[role], "--version"]).stdout.splitlines()
                evidence.versions += f", {first[0]}" if first else ""

    def _gather_commands(self, evidence: _Evidence, trace: str) -> None:
        """Read ``-v``: the programs it ran, the driver behind a wrapper, specs and config files."""
        behind = re.search(r"^COLLECT_GCC=(.+)$", trace, re.MULTILINE)
        if behind:
            self._named(evidence, "gcc", behind[1])
        for path in re.findall(r"^(?:Reading specs from|Configuration file:) (.+)$", trace, re.M):
            evidence.add("config", path)
        for line in trace.splitlines():
            if not re.match(r' *"?/?\S', line) or not line.startswith(" "):
                continue
            try:
                words = shlex.split(line)
            except ValueError:
                continue
            if not words or words[0].startswith("("):
                continue
            role = os.path.basename(words[0])
            self._named(evidence, "clang" if "-cc1" in words[:2] else role, words[0])
            if "-plugin" in words[:-1]:
                evidence.add("plugin", words[words.index("-plugin") + 1])

    def _named(self, evidence: _Evidence, role: str, name: str) -> None:
        """Add a program given as a path, or as a bare name that is looked up on ``PATH``."""
        if not name:
            return
        if os.path.isabs(name):
            evidence.add(role, name)
            return
        path = shutil.which(name, path=self._environment.get("PATH"))
        if os.sep not in name:
            evidence.names[name] = path
        if path is not None:
            evidence.add(role, path)
            for further in script_programs(path):
                evidence.add("script", further)

    def _gather_libraries(self, evidence: _Evidence, path: str, folder: Path) -> None:
        """Add the shared libraries of a program, bystanders left out."""
        loader = interpreter(path)
        if loader is None or not os.path.isfile(loader):
            return
        listing = self._run(folder, [loader, "--list", path]).stdout
        for name, found in re.findall(r"^\s*(\S+) => (/\S+)", listing, re.MULTILINE):
            if not _BYSTANDERS.match(name):
                evidence.add(f"lib.{name}", found)

    def _build(self, folder: Path, *extra: str) -> Completed:
        (folder / "probe.c").write_text(PROBE_SOURCE)
        done = self._run(folder, [*self._link("probe.c", "probe.so"), *extra])
        if not done.ok or not (folder / "probe.so").exists():
            require_room(folder, done.output)
            raise self._unusable(f"it cannot build a shared library: {reason(done)}")
        return done

    def _ask(self, folder: Path, *arguments: str) -> Completed:
        return self._run(folder, [self._driver, *arguments])

    def _run(self, folder: Path, argv: Sequence[str]) -> Completed:
        environment = {**self._environment, "TMPDIR": str(folder)}
        return run_limited(argv, cwd=folder, env=environment, timeout_s=PROBE_TIMEOUT_S)

    def _unusable(self, why: str) -> UnavailableError:
        return UnavailableError("toolchain.unusable", f"{self._driver} is not usable: {why}")


def reason(done: Completed) -> str:
    """One line that says how a compiler's run failed."""
    if done.timed_out:
        return f"no answer in {done.seconds:.0f} s"
    lines = [line.strip() for line in done.output.splitlines() if line.strip()]
    for pattern in (r"\berror\b", r"cannot find|not found|No such file|undefined"):
        for line in lines:
            if re.search(pattern, line) and not line.startswith(("COLLECT_", "Configured with")):
                return line[:300]
    if done.returncode < 0:
        return f"killed by {signal_name(done.returncode)}"
    return lines[-1][:300] if lines else f"exit status {done.returncode}"


def script_programs(path: str, depth: int = 4) -> list[str]:
    """Programs that a script names by absolute path, followed through further scripts."""
    try:
        with open(path, "rb") as stream:
            data = stream.read(SCRIPT_LIMIT)
    except OSError:
        return []
    if not data.startswith(b"#!") or depth == 0:
        return []
    found: list[str] = []
    _, _, body = data.decode("utf-8", "replace").partition("\n")
    for word in re.findall(r"(?<![\w.$})-])/[\w.+/@~-]+", body):
        is_program = os.path.isfile(word) and os.access(word, os.X_OK)
        if is_program and word not in found and os.path.realpath(word) != os.path.realpath(path):
            found.append(word)
            found.extend(script_programs(word, depth - 1))
    return found


def interpreter(path: str) -> str | None:
    """The dynamic loader that a 64-bit little-endian ELF program asks for (``PT_INTERP``).

    None for static programs, scripts and other formats. Layout: System V ABI, ELF-64 header and
    program header.
    """
    with open(path, "rb") as stream:
        head = stream.read(64)
        if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
            return None
        (offset,) = struct.unpack_from("<Q", head, 32)
        size, count = struct.unpack_from("<HH", head, 54)
        stream.seek(offset)
        table = stream.read(size * count)
        for index in range(len(table) // size if size else 0):
            kind, _, start, _, _, length = struct.unpack_from("<IIQQQQ", table, index * size)
            if kind == 3:
                stream.seek(start)
                return os.fsdecode(stream.read(length).rstrip(b"\0"))
    return None


def processor_text() -> str:
    """What ``-march=native`` looks at, cheaply: model and features of the first processor."""
    if sys.platform == "linux":
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as stream:
            first = stream.read(16384).split("\n\n", 1)[0]
        return "\n".join(line for line in first.splitlines() if _IDENTIFYING.match(line))
    import platform

    return f"{platform.machine()} {platform.processor()} {platform.release()}"


_IDENTIFYING = re.compile(r"(vendor_id|cpu family|model|stepping|cache size|flags|Features|CPU )")


def _trace_line(evidence: _Evidence, line: str, folder: Path) -> None:
    """A line of the linker's ``-t``: a file, an archive member, or ``-lname (file)``."""
    text = line.strip()
    inner = re.fullmatch(r"-l\S+ \((.+)\)|\((.+)\)\S+|(\S+\.a)\(\S+\)", text)
    path = next(filter(None, inner.groups())) if inner else text
    if not os.path.isabs(path) or not os.path.isfile(path):
        return
    if Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder)):
        return
    evidence.add(f"link.{os.path.basename(path)}", path)


def _encode(identity: Identity) -> dict[str, Any]:
    record = identity.record
    return {
        "name": record.name,
        "version": record.version,
        "programs": dict(record.programs),
        "versions": identity.versions,
    }


def _decode(data: Mapping[str, Any]) -> Identity:
    record = ToolchainRecord(data["name"], data["version"], data["programs"])
    return Identity(record, data["versions"])
