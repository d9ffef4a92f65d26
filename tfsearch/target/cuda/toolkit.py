"""Where headers, nvcc and the disassembler are: in wheels, or in a CUDA on this machine."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path

from tfsearch.core import settings

WHEELS = "pip install 'tfsearch[cuda]'"
"""How to get NVRTC and headers."""
LOCAL = ("/usr/local/cuda", "/opt/cuda")
HEADER = "cuda_bf16.h"
"""A header that every folder of CUDA's headers has."""


def wheel_folders(kind: str) -> Iterator[Path]:
    """Folders named ``kind`` (``include``, ``bin``, ``lib``) of NVIDIA's wheels, newest first."""
    spec = find_spec("nvidia")
    for root in (spec.submodule_search_locations or ()) if spec else ():
        parts = sorted(Path(root).glob(f"*/{kind}"), key=_age, reverse=True)
        yield from (path for path in parts if path.is_dir())


def _age(path: Path) -> tuple[int, str]:
    """Wheels of CUDA 13 share one folder, ``cu13``; before, each had a folder of its own."""
    name = path.parent.name
    number = name.removeprefix("cu")
    return (int(number) if number.isdigit() else 0, name)


def nvcc() -> Path | None:
    """The nvcc of ``PATH`` or of a CUDA in a usual place."""
    found = shutil.which("nvcc", path=settings.search_path())
    if found is not None:
        return Path(found)
    for root in LOCAL:
        path = Path(root) / "bin" / "nvcc"
        if os.access(path, os.X_OK):
            return path
    return None


def local_root() -> Path | None:
    """The folder of the CUDA that :func:`nvcc` belongs to, behind links and wrapper scripts."""
    path = nvcc()
    if path is None:
        return None
    real = path.resolve()
    candidates = [real.parent.parent, *(Path(root).resolve() for root in LOCAL)]
    return next((root for root in candidates if (root / "include" / HEADER).exists()), None)


def include_folders() -> Sequence[str]:
    """Folders of CUDA's headers: those of wheels, else of a local CUDA; empty without either."""
    wheels = [path for path in wheel_folders("include") if (path / HEADER).exists()]
    if wheels:
        return tuple(str(path) for path in wheels)
    root = local_root()
    return () if root is None else (str(root / "include"),)


def disassembler() -> Path | None:
    """``nvdisasm`` of a wheel, of ``PATH``, or of a local CUDA."""
    for folder in wheel_folders("bin"):
        path = folder / "nvdisasm"
        if os.access(path, os.X_OK):
            return path
    found = shutil.which("nvdisasm", path=settings.search_path())
    if found is not None:
        return Path(found)
    root = local_root()
    path = None if root is None else root / "bin" / "nvdisasm"
    return path if path is not None and os.access(path, os.X_OK) else None


def bindings() -> bool:
    """Whether CUDA's bindings for Python are installed; nothing is imported."""
    spec = find_spec("cuda")
    roots = (spec.submodule_search_locations or ()) if spec else ()
    return any((Path(root) / "bindings").is_dir() for root in roots)


def kernel_folder() -> str:
    """The folder of the headers that emitted kernels include."""
    return str(Path(__file__).with_name("clib"))


def import_path() -> list[str]:
    """What a child process needs on its ``sys.path`` to import what this one can."""
    return [os.path.abspath(entry) for entry in sys.path if entry]
