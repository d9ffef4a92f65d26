"""What the assembler says about a kernel: registers, spills, stack, shared memory."""

from __future__ import annotations

import re
from collections.abc import Mapping

_FUNCTION = re.compile(r"Compiling entry function '([^']+)'")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers(?:.*?, (\d+) bytes smem)?")
_TIMING = re.compile(r"^.*Compile time = .*\n?", re.MULTILINE)

Resources = dict[str, int]


def parse(log: str) -> Mapping[str, Resources]:
    """Resources of every entry of a verbose log, by symbol.

    ``registers`` of a thread; ``stack_bytes``, ``spill_store_bytes`` and ``spill_load_bytes`` of a
    thread; ``shared_bytes`` that the kernel declares, without what a launch adds.
    """
    found: dict[str, Resources] = {}
    current: Resources = {}
    for line in log.splitlines():
        if matched := _FUNCTION.search(line):
            current = found.setdefault(matched[1], {})
        elif matched := _STACK.search(line):
            current["stack_bytes"] = int(matched[1])
            current["spill_store_bytes"] = int(matched[2])
            current["spill_load_bytes"] = int(matched[3])
        elif matched := _USED.search(line):
            current["registers"] = int(matched[1])
            current["shared_bytes"] = int(matched[2] or 0)
    return found


def of_entries(log: str, main: str) -> Resources:
    """Resources of the main entry, and ``spilled``: 1 when any entry of the log spills."""
    entries = parse(log)
    out = dict(entries.get(main, {}))
    out["spilled"] = int(any(e.get("spill_store_bytes", 0) for e in entries.values()))
    return out


def without_timing(log: str) -> str:
    """The log without lines that differ from run to run."""
    return _TIMING.sub("", log)
