"""Which process drives a session, and whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


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
    return _started(int(pid)) != rest


def _started(pid: int) -> str:
    """Start time in clock ticks since boot; "" where the system does not tell."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    # proc(5): field 22, counted after the command name, which may hold blanks and brackets.
    return text.rpartition(")")[2].split()[19]
