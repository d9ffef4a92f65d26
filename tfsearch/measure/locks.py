"""One job at a time on a device, across the processes of this host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import socket
import tempfile
import time
from pathlib import Path
from types import TracebackType

from tfsearch.core.errors import UnavailableError

_POLL_S = 0.005
_UNWRITABLE = (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT)


class DeviceLock:
    """A file lock for a device; a context manager around each job.

    Two files make it fair: whoever waits for the lock holds the turnstile, so a process that
    has just released the device cannot take it again before the one that waits. The locks
    belong to open files and go away with the process that holds them, however it ends. Where
    ``folder`` cannot be written they lie in a folder of this user's among the temporary files.
    """

    def __init__(self, folder: Path, device: str, *, wait_s: float) -> None:
        self.device = device
        self.wait_s = wait_s
        stem = hashlib.sha256(device.encode()).hexdigest()[:24]
        self._paths: tuple[Path, ...] = (folder / f"{stem}.queue", folder / f"{stem}.lock")
        self._held: int | None = None

    def __enter__(self) -> DeviceLock:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.release()

    @property
    def paths(self) -> tuple[Path, ...]:
        """The files of the lock; they stay when it is released."""
        return self._paths

    def acquire(self) -> None:
        """Wait for the device; ``UnavailableError`` naming the holder after ``wait_s`` seconds."""
        deadline = time.monotonic() + self.wait_s
        turnstile = self._open(0)
        try:
            self._wait(turnstile, deadline)
            lock = self._open(1)
            try:
                self._wait(lock, deadline)
            except BaseException:
                os.close(lock)
                raise
        finally:
            os.close(turnstile)
        self._held = lock
        # The holder's name is for the messages of those who wait; a full disk takes no name.
        with contextlib.suppress(OSError):
            os.ftruncate(lock, 0)
            os.pwrite(lock, str(os.getpid()).encode(), 0)

    def release(self) -> None:
        """Let the next one have the device; nothing happens when it is not held."""
        if self._held is not None:
            os.close(self._held)
            self._held = None

    def _wait(self, descriptor: int, deadline: float) -> None:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise UnavailableError(
                        "device.busy",
                        f"device {self.device} is held by {self._holder()} and did not come free "
                        f"within {self.wait_s:g} s",
                    ) from None
                time.sleep(_POLL_S)
            else:
                return

    def _holder(self) -> str:
        try:
            text = self._paths[1].read_text().strip()
        except OSError as error:
            return f"another process ({error.strerror})"
        return f"process {text}" if text else "another process"

    def _open(self, which: int) -> int:
        try:
            return _open(self._paths[which])
        except OSError as error:
            if error.errno not in _UNWRITABLE:
                raise self._cannot_open(which, error) from error
        # What is measured can still be printed, so the lock moves to where it can be written.
        spare = Path(tempfile.gettempdir()) / f"tfsearch-locks-{os.geteuid()}"
        self._paths = tuple(spare / path.name for path in self._paths)
        try:
            spare.mkdir(mode=0o700, exist_ok=True)
            if spare.lstat().st_uid != os.geteuid():
                raise PermissionError(errno.EPERM, "the folder belongs to another user")
            return _open(self._paths[which])
        except OSError as error:
            raise self._cannot_open(which, error) from error

    def _cannot_open(self, which: int, error: OSError) -> UnavailableError:
        return UnavailableError(
            "device.lock",
            f"cannot open the lock file {self._paths[which]} of device {self.device}: "
            f"{error.strerror}",
        )


def _open(path: Path) -> int:
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o644)


def machine_id() -> str:
    """This machine as long as its system runs: the same in all its containers."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return socket.gethostname()
