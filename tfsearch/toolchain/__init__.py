"""Host C compilers that several targets share: gcc, clang and zig, by content.

:func:`find` gives a :class:`Toolchain`, which knows its identity, digests the headers that a
source reads, and compiles C text into shared libraries in isolation.
"""

from __future__ import annotations

from tfsearch.toolchain.compiler import CompileResult, Toolchain
from tfsearch.toolchain.discovery import DoctorRow, discover, doctor, find

__all__ = ["CompileResult", "DoctorRow", "Toolchain", "discover", "doctor", "find"]
