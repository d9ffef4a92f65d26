"""Which process drives a session, whether it still lives, and the folder it works in."""

from __future__ import annotations

import os
import shutil
import socket
import tempfile
from pathlib import Path

_PREFIX = "tfsearch-tune-"


def own_name() -> str:
    """Host, process id and the process's start time, so that a reused id is not mistaken."""
    pid = os.getpid()
    return f"{socket.gethostname()}:{pid}:{_started(pid)}"


def is_gone(owner: str) -> bool:
    """Whether the process of an owner name has certainly ended.

    Of another host nothing is known: its sessions count as alive.
    """
    host, _, rest = owner.rpartition(":")
    host, _, pid = host.rpartition(":")
    if host != socket.gethostname() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False  # it lives, as another user's process
    return _started(int(pid)) != rest  # also when it ended and nobody has waited for it


def work_folder() -> Path:
    """A private temporary folder of this process.

    It is not in the user's data folder, whose disk may be the one that is full. Folders that
    killed processes of this user left behind are removed.
    """
    for left in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        owner = left.name.removeprefix(_PREFIX).rpartition(",")[0].replace(",", ":")
        if is_gone(owner) and _is_own(left):
            shutil.rmtree(left, ignore_errors=True)
    own = own_name().replace(":", ",")
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{own},"))


def _is_own(folder: Path) -> bool:
    try:
        info = folder.lstat()
    except OSError:
        return False  # another process was faster
    return info.st_uid == os.geteuid()


def _started(pid: int) -> str:
    """Start time in clock ticks since boot; "" where the system does not tell, "ended" of a zombie.

    Containers often run without an init process that waits for orphans, so zombies may stay.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # proc(5): fields 3 and 22, counted after the command name, which may hold blanks and brackets.
    fields = text.rpartition(")")[2].split()
    return "ended" if fields[0] in ("Z", "X") else fields[19]
