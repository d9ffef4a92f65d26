"""Child processes under limits: own process group, killed whole, never a hang.

Limits are set by a ``sh`` launcher (``ulimit``) rather than between fork and exec in Python,
because Python code between the two is not safe in a process with threads.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO

DEFAULT_FILE_BYTES = 1 << 30
OUTPUT_LIMIT = 256 * 1024

# $1 address space in KiB, $2 CPU seconds, $3 file size in 512-byte blocks; "-" means no limit.
# A limit that the system refuses (a lower hard limit rules already) leaves that lower one.
_LAUNCHER = """
limit() { [ "$2" = - ] || ulimit "$1" "$2" 2>/dev/null; }
limit -c 0; limit -v "$1"; limit -t "$2"; limit -f "$3"
shift 3
exec "$@"
"""


@dataclass(frozen=True)
class Completed:
    """How a child ended. ``returncode`` is minus the signal's number when a signal ended it."""

    returncode: int
    stdout: str
    stderr: str
    seconds: float
    timed_out: bool

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit status 0."""
        return self.returncode == 0 and not self.timed_out

    @property
    def output(self) -> str:
        """Both streams, errors first."""
        return self.stderr + self.stdout


def run_limited(
    argv: Sequence[str],
    *,
    cwd: Path,
    env: Mapping[str, str],
    timeout_s: float,
    memory_bytes: int | None = None,
    cpu_s: float | None = None,
    file_bytes: int = DEFAULT_FILE_BYTES,
) -> Completed:
    """Run ``argv`` with no standard input and wait at most ``timeout_s`` seconds.

    ``memory_bytes`` limits the address space of each process, ``cpu_s`` its processor time,
    ``file_bytes`` the size of any file written. When the child ends, runs out of time, or the
    wait is interrupted, everything left in its process group is killed. Output beyond
    256 KiB a stream is cut. Raises ``OSError`` when no process can be started.
    """
    limits = [
        "-" if memory_bytes is None else str(max(1, memory_bytes // 1024)),
        "-" if cpu_s is None else str(max(1, math.ceil(cpu_s))),
        str(max(1, file_bytes // 512)),
    ]
    command = ["/bin/sh", "-c", _LAUNCHER, "sh", *limits, *argv]
    started = time.monotonic()
    # Files, not pipes: a grandchild that holds a pipe open cannot stall the reader.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        with subprocess.Popen(
            command,
            cwd=cwd,
            env=dict(env),
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            start_new_session=True,
        ) as child:
            try:
                ended = _wait(child, timeout_s)
            finally:
                _kill_group(child)
        seconds = time.monotonic() - started
        return Completed(child.returncode, _read(out), _read(err), seconds, not ended)


def signal_name(returncode: int) -> str:
    """Name of the signal that a negative return code stands for, such as ``SIGSEGV``."""
    try:
        return signal.Signals(-returncode).name
    except ValueError:
        return f"signal {-returncode}"


def _wait(child: subprocess.Popen[bytes], timeout_s: float) -> bool:
    if not hasattr(os, "pidfd_open"):
        try:
            child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True
    # Popen.wait with a timeout polls with sleeps of up to 50 ms; a descriptor wakes at once, and
    # leaves the child unreaped, so that its group's number cannot be reused before the kill.
    descriptor = os.pidfd_open(child.pid)
    try:
        poller = select.poll()
        poller.register(descriptor, select.POLLIN)
        return bool(poller.poll(max(0, math.ceil(timeout_s * 1000))))
    finally:
        os.close(descriptor)


def _kill_group(child: subprocess.Popen[bytes]) -> None:
    # No such group, or (macOS) only a zombie left in it: nothing remains to be killed.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


def _read(stream: IO[bytes]) -> str:
    stream.seek(0)
    data = stream.read(OUTPUT_LIMIT + 1)
    text = data[:OUTPUT_LIMIT].decode("utf-8", "replace")
    return f"{text}\n[output cut]\n" if len(data) > OUTPUT_LIMIT else text
