"""C support code for generated x86 kernels: where it lies and what it says.

Nothing here compiles. ``maths.h`` and ``amx_model.h`` are included by generated kernels,
``support.c`` is built once into the library that runs and times them.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from pathlib import Path

_LOCAL_INCLUDE = re.compile(r'^#include "([a-z0-9_]+\.[ch])"$', re.MULTILINE)

COMPILE_FLAGS = ("-std=gnu11", "-O3", "-ffp-contract=off")
"""What this code is written for, next to the flags of an instruction set."""


def include_dir() -> Path:
    """The folder to pass as ``-I``: it holds every header and ``support.c``."""
    return Path(str(files(__name__)))


@cache
def _expanded(name: str) -> str:
    """Text of ``name`` with this folder's own includes written out in place.

    A header that the includer parameterises by macros appears once per inclusion, which is what
    the preprocessor would see too.
    """
    text = (include_dir() / name).read_text(encoding="utf-8")
    return _LOCAL_INCLUDE.sub(lambda found: _expanded(found.group(1)), text)


def support_source() -> str:
    """``support.c`` with its headers as one self-contained translation unit."""
    return _expanded("support.c")


def kernel_source() -> str:
    """What every kernel includes, as one self-contained translation unit."""
    return _expanded("kernel.h")
