"""Host C compilers as compilers of this target."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from tfsearch.core import keys
from tfsearch.core.records import BuildKey, ToolchainRecord
from tfsearch.plugin.target import CompileOutcome, Source
from tfsearch.target.x86 import clib
from tfsearch.toolchain import Toolchain

FEATURE_FLAGS = {
    "avx2": "-mavx2",
    "fma": "-mfma",
    "f16c": "-mf16c",
    "avx512f": "-mavx512f",
    "avx512bw": "-mavx512bw",
    "avx512vl": "-mavx512vl",
    "avx512dq": "-mavx512dq",
    "avx512_bf16": "-mavx512bf16",
    "avx512_vnni": "-mavx512vnni",
    "amx_tile": "-mamx-tile",
    "amx_bf16": "-mamx-bf16",
    "amx_int8": "-mamx-int8",
}
"""Compiler flag of every feature an atom can need; the same in gcc, clang and zig."""

PROBED = ("avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq")
"""Features that flags are tried out with: their headers are those of most kernels, and every
supported compiler knows them, whatever the processor."""


class X86Compiler:
    """One C compiler. User flags follow the flags of the features, so they can override them."""

    def __init__(self, toolchain: Toolchain) -> None:
        self.toolchain = toolchain
        self._include = ("-I", str(clib.include_dir()))

    @property
    def record(self) -> ToolchainRecord:
        """The compiler's content and the flags that every build of this release has."""
        record = self.toolchain.record
        flags = keys.digest("flags", {"flags": self.toolchain.key_flags()})
        return replace(record, programs={**record.programs, "flags": flags})

    def check_flags(self, flags: Sequence[str], macros: Sequence[str] = ()) -> None:
        """``RequestError`` for what is unsafe, or what no kernel compiles with."""
        self.toolchain.check_flags(
            flags, macros, source=clib.kernel_source(), own_flags=feature_flags(PROBED)
        )

    def key(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> BuildKey:
        """Identity of the build, the content of every header included."""
        headers = self.toolchain.headers_digest(source.text, self._flags(source, flags), macros)
        return source.build_key("x86", flags, macros, self.record, headers)

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
        """Compile to a shared library."""
        result = self.toolchain.compile_shared(
            source.text,
            flags=self._flags(source, flags),
            macros=macros,
            out=out,
            timeout_s=timeout_s,
            memory_bytes=memory_bytes,
        )
        log = result.message or result.log
        return CompileOutcome(result.status, result.seconds, log)

    def _flags(self, source: Source, flags: Sequence[str]) -> tuple[str, ...]:
        # A user's own text finds its headers beside it, and none of ours.
        include = ("-iquote", source.folder) if source.folder else self._include
        return (*include, *source.flags, *flags)


def feature_flags(features: Sequence[str]) -> tuple[str, ...]:
    """Flags that let a compiler use these features."""
    return tuple(FEATURE_FLAGS[name] for name in features if name in FEATURE_FLAGS)
