"""A child process that speaks JSON lines, and that is trusted with nothing.

Everything is bounded: how long is waited, how long a line may be, how much it may leave unread and
how much of its standard error is kept. Nothing is read between exchanges, so that a child that
floods its output stops at a full pipe.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

from tfsearch.core.errors import RequestError, UnavailableError

LONGEST_LINE = 1 << 20
ENDLESS = 8 << 20
"""Bytes beyond the longest line after which it is given up."""
MOST_UNREAD = 8 << 20
"""Bytes that may wait for a child that does not read."""
KEPT_ERRORS = 2000
ENDING_S = 0.5
BLOCK = 1 << 16


class Ended(Exception):
    """The child is gone, closed a stream, or does not read what it is sent."""


class LineProcess:
    """A command started without a shell, in a process group of its own.

    ``RequestError("policy.agent-command")`` for a command that cannot be taken apart;
    ``UnavailableError("policy.agent-start")`` when it cannot be started.
    """

    def __init__(self, command: str) -> None:
        try:
            words = shlex.split(command)
        except ValueError as error:
            raise RequestError(
                "policy.agent-command", f"agent command {command!r}: {error}"
            ) from None
        if not words:
            raise RequestError(
                "policy.agent-command", "an agent needs a command, as in agent:./my-agent --fast"
            )
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise UnavailableError(
                "policy.agent-start", f"agent {words[0]} cannot be started: {error.strerror}"
            ) from None
        streams = self._process.stdin, self._process.stdout, self._process.stderr
        assert all(streams)
        self._in, self._out, self._err = (stream.fileno() for stream in streams if stream)
        for descriptor in (self._in, self._out, self._err):
            os.set_blocking(descriptor, False)
        self._unsent = bytearray()
        self._partial = bytearray()
        self._skipping = False
        self._skipped = 0
        self._lines: deque[bytes | None] = deque()
        self._errors = b""
        self._open = {self._out, self._err}

    @property
    def errors(self) -> str:
        """The last line that the child wrote to its standard error."""
        lines = self._errors.decode("utf-8", "replace").strip().splitlines()
        return lines[-1][:200] if lines else ""

    def send(self, message: Mapping[str, Any]) -> None:
        """Queue a message and send what can be sent without waiting."""
        self._unsent += json.dumps(message, allow_nan=False, default=str).encode() + b"\n"
        if len(self._unsent) > MOST_UNREAD:
            raise Ended("it does not read what it is sent")
        self._write()

    def receive(self, deadline: float) -> bytes | None:
        """The next line without its end, None at the deadline (of ``time.monotonic``).

        ``b""`` stands for a line that was too long. Raises :class:`Ended`.
        """
        with selectors.DefaultSelector() as selector:
            while not self._lines:
                left = deadline - time.monotonic()
                if left <= 0:
                    return None
                if self._skipped > ENDLESS:
                    raise Ended("it writes a line without an end")
                if self._out not in self._open:
                    raise Ended(self._ending())
                self._wait(selector, left)
        line = self._lines.popleft()
        return b"" if line is None else line

    def _wait(self, selector: selectors.BaseSelector, seconds: float) -> None:
        for descriptor in self._open:
            selector.register(descriptor, selectors.EVENT_READ)
        if self._unsent:
            selector.register(self._in, selectors.EVENT_WRITE)
        ready = [key.fd for key, _ in selector.select(seconds)]
        for descriptor in list(selector.get_map()):
            selector.unregister(descriptor)
        for descriptor in ready:
            if descriptor == self._in:
                self._write()
            else:
                self._read(descriptor)

    def _write(self) -> None:
        try:
            while self._unsent:
                sent = os.write(self._in, self._unsent[:BLOCK])
                del self._unsent[:sent]
        except BlockingIOError:
            return
        except OSError:
            # What it still has to say is read; then its end is noticed.
            self._unsent.clear()

    def _read(self, descriptor: int) -> None:
        try:
            data = os.read(descriptor, BLOCK)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._open.discard(descriptor)
        elif descriptor == self._err:
            self._errors = (self._errors + data)[-KEPT_ERRORS:]
        else:
            self._split(data)

    def _split(self, data: bytes) -> None:
        self._partial += data
        *whole, rest = bytes(self._partial).split(b"\n")
        for line in whole:
            if self._skipping:
                self._skipping = False
            elif line.strip():
                self._lines.append(line if len(line) <= LONGEST_LINE else None)
        self._skipped = self._skipped + len(data) if self._skipping else 0
        self._partial = bytearray(rest)
        if len(self._partial) > LONGEST_LINE:
            self._partial.clear()
            if not self._skipping:
                self._skipping = True
                self._lines.append(None)

    def _ending(self) -> str:
        try:
            code = self._process.wait(ENDING_S)
        except subprocess.TimeoutExpired:
            return "it closed its output"
        how = f"it was killed by signal {-code}" if code < 0 else f"it ended with code {code}"
        return f"{how} ({self.errors})" if self.errors else how

    def close(self) -> None:
        """End the child and what it started; harmless when it is gone already."""
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(ENDING_S)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
