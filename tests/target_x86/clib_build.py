"""Builds drivers around the C support code for its tests."""

from __future__ import annotations

import ctypes
import importlib.util
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tfsearch.target.x86 import clib

COMPILERS = {
    "gcc": ("gcc",),
    "clang": ("clang",),
    "zig": (sys.executable, "-m", "ziglang", "cc"),
}


@dataclass(frozen=True)
class Isa:
    """An instruction-set level: its flags, the CPU features it needs, its lane counts."""

    name: str
    flags: tuple[str, ...]
    needs: frozenset[str]
    f32: tuple[int, ...]
    f64: tuple[int, ...]

    @property
    def registers(self) -> tuple[str, ...]:
        """Every float register type, scalar last per dtype."""
        return tuple(f"f32x{n}" for n in self.f32) + tuple(f"f64x{n}" for n in self.f64)


_VECTOR = ("-mfma", "-mf16c")
_AVX512 = ("f", "bw", "vl", "dq")
AVX512 = Isa(
    "avx512",
    (*(f"-mavx512{x}" for x in _AVX512), *_VECTOR),
    frozenset({*(f"avx512{x}" for x in _AVX512), "fma", "f16c"}),
    (16, 8, 4, 1),
    (8, 4, 1),
)
AVX2 = Isa("avx2", ("-mavx2", *_VECTOR), frozenset({"avx2", "fma", "f16c"}), (8, 4, 1), (4, 1))
BASELINE = Isa("baseline", (), frozenset(), (1,), (1,))

BUILDS = [
    ("gcc", AVX512),
    ("gcc", AVX2),
    ("gcc", BASELINE),
    ("clang", AVX512),
    ("zig", AVX2),
]
"""Every level with gcc, each vector level with another compiler."""


@cache
def cpu_flags() -> frozenset[str]:
    """The features that Linux reports."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    line = next(line for line in text.splitlines() if line.startswith("flags"))
    return frozenset(line.split(":", 1)[1].split())


def lacking(compiler: str, isa: Isa = BASELINE) -> str | None:
    """What this machine lacks for a build, or ``None``."""
    if platform.machine() != "x86_64" or sys.platform != "linux":
        return "x86-64 Linux"
    if compiler == "zig":
        if importlib.util.find_spec("ziglang") is None:
            return "the ziglang wheel"
    elif shutil.which(compiler) is None:
        return compiler
    missing = sorted(isa.needs - cpu_flags())
    return f"CPU features {', '.join(missing)}" if missing else None


def require(compiler: str, isa: Isa = BASELINE) -> None:
    """Skips, naming what is missing."""
    if (missing := lacking(compiler, isa)) is not None:
        pytest.skip(f"needs {missing}")


@cache
def usable_builds() -> list[tuple[str, Isa]]:
    """Those of ``BUILDS`` that this machine can make and run."""
    return [(compiler, isa) for compiler, isa in BUILDS if lacking(compiler, isa) is None]


def any_compiler() -> str:
    """The first compiler present; skips when there is none."""
    for name in COMPILERS:
        if lacking(name) is None:
            return name
    pytest.skip("needs gcc, clang or the ziglang wheel, on x86-64 Linux")


def build(folder: Path, text: str, compiler: str, flags: tuple[str, ...], output: str) -> Path:
    """Compiles one C text with warnings as errors; returns the artifact."""
    source, artifact = folder / f"{output}.c", folder / output
    source.write_text(text, encoding="utf-8")
    command = [
        *COMPILERS[compiler],
        *clib.COMPILE_FLAGS,
        *("-Wall", "-Wextra", "-Werror"),
        *flags,
        *("-I", str(clib.include_dir()), str(source), "-o", str(artifact), "-lm", "-pthread"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return artifact


def load(folder: Path, text: str, compiler: str, flags: tuple[str, ...]) -> ctypes.CDLL:
    """Builds a shared library and loads it."""
    return ctypes.CDLL(str(build(folder, text, compiler, (*flags, "-shared", "-fPIC"), "lib.so")))


def pointer(array: np.ndarray) -> ctypes.c_void_p:
    """The address of an array's first element."""
    return ctypes.c_void_p(array.ctypes.data)


def mapped(lib: ctypes.CDLL, name: str, x: np.ndarray, out: type | np.dtype) -> np.ndarray:
    """Runs ``void name(const void* x, void* y, int64_t n)`` of the driver over ``x``."""
    y = np.zeros(x.shape, dtype=out)
    getattr(lib, name)(pointer(x), pointer(y), ctypes.c_int64(x.size))
    return y


def f32_patterns(per_exponent: int, seed: int = 0) -> np.ndarray:
    """f32 bit patterns: ``per_exponent`` mantissas for each of the 512 signs and exponents."""
    rng = np.random.default_rng(seed)
    mantissa = rng.integers(0, 1 << 23, (512, per_exponent), dtype=np.uint32)
    mantissa[:, 0], mantissa[:, 1], mantissa[:, 2] = 0, 1, (1 << 23) - 1
    exponent = np.arange(512, dtype=np.uint32)[:, None] << np.uint32(23)
    return (exponent | mantissa).reshape(-1).view(np.float32)


def f64_patterns(per_exponent: int, seed: int = 0) -> np.ndarray:
    """f64 bit patterns: ``per_exponent`` mantissas for each of the 4096 signs and exponents."""
    rng = np.random.default_rng(seed)
    mantissa = rng.integers(0, 1 << 52, (4096, per_exponent), dtype=np.uint64)
    mantissa[:, 0] = 0
    exponent = np.arange(4096, dtype=np.uint64)[:, None] << np.uint64(52)
    return (exponent | mantissa).reshape(-1).view(np.float64)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    """Equal bit for bit, any NaN being equal to any NaN."""
    word = {2: np.uint16, 4: np.uint32, 8: np.uint64}[a.dtype.itemsize]
    return bool(np.all((a.view(word) == b.view(word)) | (np.isnan(a) & np.isnan(b))))


def build_ids() -> Iterator[str]:
    """Names of ``BUILDS``."""
    return (f"{compiler}-{isa.name}" for compiler, isa in BUILDS)
