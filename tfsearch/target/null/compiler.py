"""The null target's compiler: it writes the emitted document and its flags as the artifact."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Sequence
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import BuildKey, Status, ToolchainRecord
from tfsearch.plugin.target import CompileOutcome, Source
from tfsearch.toolchain.flags import defines

NAME = "writer"
VERSION = "1"
FLAG = re.compile(r"-O[0-3]|-g|-f[a-z][a-z-]*")


class NullCompiler:
    """Accepts ``-O0`` to ``-O3``, ``-g`` and ``-f…`` flags; they change the key, not the time."""

    def __init__(self, target: str) -> None:
        self._target = target
        program = keys.digest_bytes(Path(__file__).read_bytes())
        self.record = ToolchainRecord(NAME, VERSION, {"writer": program})

    def check_flags(self, flags: Sequence[str], macros: Sequence[str] = ()) -> None:
        """``RequestError`` for the first flag that is none of those, or text that is no macro."""
        for flag in flags:
            if not FLAG.fullmatch(flag):
                raise RequestError(
                    "toolchain.flag-rejected",
                    f"{NAME} rejects flag {flag!r}; it takes -O0 to -O3, -g and -f names",
                )
        defines(macros)

    def key(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> BuildKey:
        """Identity of the build; no headers are read."""
        return source.build_key(self._target, flags, macros, self.record, keys.digest_bytes(b""))

    def compile(
        self,
        source: Source,
        flags: Sequence[str],
        macros: Sequence[str],
        out: Path,
        *,
        timeout_s: float,
        memory_bytes: int,
    ) -> CompileOutcome:
        """Write the artifact; nothing in it can run long or use much memory."""
        del timeout_s, memory_bytes
        started = time.perf_counter()
        artifact = {
            "document": json.loads(source.text),
            "flags": [*source.flags, *flags],
            "macros": list(macros),
        }
        out.write_text(json.dumps(artifact, sort_keys=True))
        return CompileOutcome(Status.OK, time.perf_counter() - started, "")
