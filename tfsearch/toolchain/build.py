"""The steps of one compilation under one deadline, and how they ended."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tfsearch.core.errors import NotSavedError
from tfsearch.core.records import Status
from tfsearch.toolchain.identity import reason
from tfsearch.toolchain.process import Completed, run_limited, signal_name
from tfsearch.toolchain.room import NoRoomError, is_full, require_room

_INTERNAL = re.compile(
    r"internal compiler error|frontend command failed|unable to execute command"
    r"|PLEASE submit a bug report|signal terminated program|LLVM ERROR|^panic: |thread \d+ panic"
    r"|Segmentation fault"
)
_MEMORY = re.compile(
    r"out of memory|virtual memory exhausted|memory exhausted|annot allocate memory|bad_alloc"
    r"|OutOfMemory|failed to map segment|annot allocate"
)
_DIAGNOSTIC = re.compile(r"\S+:\d+(:\d+)?: (fatal error|error|warning|note):")
_LAST_SIGNAL = 64
_CPU_TIME = re.compile(r"CPU time limit exceeded signal terminated")


@dataclass(frozen=True)
class CompileResult:
    """How a compilation ended.

    ``status`` is ``OK``, ``COMPILE_ERROR``, ``COMPILE_CRASH`` or ``COMPILE_TIMEOUT``; ``message``
    the first error in one line (empty when ok); ``log`` what the compiler printed; ``command``
    the commands that ran, for people; ``seconds`` wall-clock time.
    """

    status: Status
    seconds: float
    log: str
    command: str
    message: str = ""


class Job:
    """The steps of one compilation under one deadline; stops at the first that fails."""

    def __init__(
        self,
        folder: Path,
        environment: Mapping[str, str],
        timeout_s: float,
        memory_bytes: int,
        threads: int,
    ) -> None:
        self._folder = folder
        self._environment = environment
        self._memory = memory_bytes
        self._threads = threads
        self._started = time.monotonic()
        self._deadline = self._started + timeout_s
        self._commands: list[str] = []
        self._log: list[str] = []
        self._failed: Completed | None = None
        self._overdue = False
        self.needs_runtime = False

    def run(self, command: list[str], more: Callable[[Completed], bool] | None = None) -> None:
        """Run one step, which names its output after ``-o``.

        When ``more(done)`` is true for a failed step, :attr:`needs_runtime` is set instead.
        """
        if self._failed is not None or self._overdue:
            return
        left = self._deadline - time.monotonic()
        self._commands.append(shlex.join(command).replace(str(self._folder), "$PWD"))
        if left <= 0:
            self._overdue = True
            return
        done = run_limited(
            command,
            cwd=self._folder,
            env=self._environment,
            timeout_s=left,
            memory_bytes=self._memory,
            # A second bound, for when this process is gone before its deadline.
            cpu_s=left * self._threads + 1,
        )
        if not done.ok and more is not None and more(done):
            self.needs_runtime = True
            return
        self._log.append(done.output.replace(str(self._folder), "."))
        if done.timed_out:
            self._overdue = True
        elif not (done.ok and (self._folder / command[command.index("-o") + 1]).exists()):
            self._failed = done

    def result(self, sources: Sequence[str]) -> CompileResult:
        """Classify how the steps ended; ``NoRoomError`` when the folder is full."""
        status, message = Status.OK, ""
        if self._overdue:
            limit = self._deadline - self._started
            status, message = Status.COMPILE_TIMEOUT, f"the compiler did not end in {limit:g} s"
        elif self._failed is not None:
            require_room(self._folder, self._failed.output)
            status, message = classify(self._failed, sources)
        seconds = time.monotonic() - self._started
        command = " && ".join(self._commands)
        return CompileResult(status, seconds, "".join(self._log), command, message)


def classify(done: Completed, sources: Sequence[str]) -> tuple[Status, str]:
    """Status and one-line message of a failed compiler run.

    ``sources`` are the texts compiled. A diagnostic about the source's own text is a
    ``COMPILE_ERROR`` even where it quotes words that compilers use when they crash.
    """
    if done.returncode < 0:
        name = signal_name(done.returncode)
        if name == "SIGXCPU":
            return Status.COMPILE_TIMEOUT, "the compiler used up its processor time"
        return Status.COMPILE_CRASH, f"the compiler was killed by {name}"
    quoted = {line.strip() for text in sources for line in text.splitlines()}
    for line in done.output.splitlines():
        # Compilers quote the source under a diagnostic, gcc and newer clang behind a "|".
        if line.strip() in quoted or re.match(r"\s*\d* *\|", line) or _DIAGNOSTIC.match(line):
            continue
        if _CPU_TIME.search(line):
            return Status.COMPILE_TIMEOUT, line.strip()
        if _MEMORY.search(line):
            return Status.COMPILE_CRASH, f"the compiler ran out of memory: {line.strip()}"
        if _INTERNAL.search(line):
            return Status.COMPILE_CRASH, line.strip()
    if done.returncode == 0:
        return Status.COMPILE_ERROR, "the compiler reported success but wrote no output"
    if 128 < done.returncode <= 128 + _LAST_SIGNAL:
        name = signal_name(128 - done.returncode)
        return Status.COMPILE_CRASH, f"the compiler was killed by {name}"
    return Status.COMPILE_ERROR, reason(done)


def write_source(path: Path, text: str) -> None:
    """Write a source for the compiler into a temporary folder.

    ``NoRoomError`` when that is full, ``NotSavedError`` when it takes no file for another reason.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        if is_full(error):
            raise NoRoomError from error
        raise NotSavedError(
            "toolchain.workdir", f"cannot write in {path.parent}: {error.strerror or error}"
        ) from error


def deliver(built: Path, out: Path) -> None:
    """Move the library into place: whole or not at all."""
    partial: str | None = None
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=out.parent, prefix=f".{out.name}.")
        with os.fdopen(handle, "wb") as target, built.open("rb") as source:
            shutil.copyfileobj(source, target)
        os.chmod(partial, 0o755)
        os.replace(partial, out)
    except OSError as error:
        if partial is not None:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(partial)
        raise NotSavedError(
            "toolchain.output", f"cannot write {out}: {error.strerror or error}"
        ) from error
