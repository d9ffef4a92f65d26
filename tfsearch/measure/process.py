"""Starting, talking to and killing one measuring process."""

from __future__ import annotations

import collections
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from tfsearch.core import settings
from tfsearch.core.errors import UnavailableError

_BOOT = (
    "import json, sys; config = json.loads(sys.argv[1]); sys.path[:] = config['path']; "
    "from tfsearch.measure.child import serve; serve(config)"
)
_NOISE_BYTES = 8192
_SLICE_MS = 200
_STOPPED_S = 2.0
"""A slice that takes this much longer was no wait: this process, or the machine, stood still."""

THREAD_VARIABLES = (
    "OPENBLAS_NUM_THREADS",
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "BLIS_NUM_THREADS",
    "VECLIB_MAXIMUM_THREADS",
)


class Ended(Exception):
    """The process is gone. ``returncode`` as :mod:`subprocess` gives it (−signal)."""

    def __init__(self, returncode: int, noise: str) -> None:
        super().__init__(f"measuring process ended with {returncode}")
        self.returncode = returncode
        self.noise = noise


class Overdue(Exception):
    """No complete message before the deadline."""


class Garbled(Exception):
    """The protocol's own descriptor carried something that is no message."""


def environment(threads: int, extra: Mapping[str, str]) -> dict[str, str]:
    """Environment of a measuring process: scrubbed, with ``threads`` for numerical libraries.

    Settings of the caller's shell such as ``OPENBLAS_CORETYPE`` or ``OMP_PROC_BIND`` would make
    two measurements of one key differ, so none is passed on. One thread keeps the idle workers
    of a BLAS that computes references from spinning while a kernel is timed. What the process
    caches goes where the caller's does.
    """
    counts = dict.fromkeys(THREAD_VARIABLES, str(threads))
    home = str(settings.load().home.absolute())
    return settings.scrubbed_environment(**{"TFSEARCH_HOME": home, **counts, **extra})


class MeasuringProcess:
    """A child that serves one runner; see :mod:`tfsearch.measure.child`.

    Linux kills the child with the *thread* that started it, so a caller whose threads come and
    go finds the idle child gone and starts another one.
    """

    def __init__(self, runner: str, selector: str, env: Mapping[str, str]) -> None:
        command_read, self._command = os.pipe()
        self._reply, reply_write = os.pipe()
        alive_read, self._alive = os.pipe()
        theirs = (command_read, reply_write, alive_read)
        config = {
            "path": sys.path,
            "parent": os.getpid(),
            "command": command_read,
            "reply": reply_write,
            "alive": alive_read,
            "runner": runner,
            "selector": selector,
        }
        self.jobs = 0
        self._buffer = b""
        self._stopped_s = 0.0
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-c", _BOOT, json.dumps(config)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=theirs,
                env=dict(env),
                start_new_session=True,
            )
        except OSError as error:
            for descriptor in (self._command, self._reply, self._alive):
                os.close(descriptor)
            raise UnavailableError(
                "measure.start", f"cannot start a measuring process: {error}"
            ) from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._noise: collections.deque[int] = collections.deque(maxlen=_NOISE_BYTES)
        self._drain = threading.Thread(target=self._listen, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        """Process id of the child."""
        return self._child.pid

    def send(self, message: Mapping[str, Any]) -> None:
        """Send one message; :class:`Ended` when nobody reads it any more."""
        data = (json.dumps(message) + "\n").encode()
        self._stopped_s = 0.0
        try:
            while data:
                data = data[os.write(self._command, data) :]
        except BrokenPipeError:
            raise self._ended() from None

    def receive(self, deadline: float) -> dict[str, Any]:
        """The next message; :class:`Ended`, :class:`Overdue` or :class:`Garbled` otherwise.

        Time during which this process stood still since the last :meth:`send` is not the
        child's: it may have stood still too.
        """
        while b"\n" not in self._buffer:
            before = time.monotonic()
            left = deadline + self._stopped_s - before
            if left <= 0:
                raise Overdue
            slice_ms = min(_SLICE_MS, max(1, int(left * 1000)))
            self._fill(slice_ms)
            late = time.monotonic() - before - slice_ms / 1000
            if late >= _STOPPED_S:
                self._stopped_s += late
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            message = json.loads(line)
        except ValueError:
            raise Garbled(repr(line[:80])) from None
        if not isinstance(message, dict):
            raise Garbled(repr(line[:80]))
        return message

    def kill(self) -> None:
        """End the child and everything it started, now."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child.pid, signal.SIGKILL)

    def close(self, grace_s: float = 0.0) -> None:
        """Ask the child to end, kill it after ``grace_s``, and give back the descriptors."""
        if self._command >= 0:
            os.close(self._command)
            self._command = -1
            if grace_s:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    self._child.wait(grace_s)
            self.kill()
            self._child.wait()
            self._drain.join(1.0)
            for descriptor in (self._reply, self._alive):
                os.close(descriptor)

    def _fill(self, timeout_ms: int) -> None:
        poll = select.poll()
        poll.register(self._reply, select.POLLIN)
        if poll.poll(timeout_ms):
            data = os.read(self._reply, 1 << 16)
            if not data:
                raise self._ended()
            self._buffer += data
        elif self._child.poll() is not None and not poll.poll(0):
            # A process that the candidate forked may keep the pipe open for ever.
            raise self._ended()

    def _ended(self) -> Ended:
        try:
            self._child.wait(2.0)
        except subprocess.TimeoutExpired:
            self.kill()
            self._child.wait()
        self._drain.join(0.5)
        return Ended(self._child.returncode, self._last_noise())

    def _last_noise(self) -> str:
        text = bytes(self._noise).decode(errors="replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        return lines[-1][-200:] if lines else ""

    def _listen(self) -> None:
        stream = self._child.stdout
        if stream is None:
            return
        with stream:
            while data := os.read(stream.fileno(), 1 << 16):
                self._noise.extend(data[-_NOISE_BYTES:])
