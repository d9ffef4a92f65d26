"""What the tests of this target share: compilers that are here, sources, disassembly."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tfsearch.core.errors import UnavailableError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.ir.tir.nodes import Module
from tfsearch.plugin.target import CompileOutcome, Compiler, Problem, Source
from tfsearch.prove.verify import verify
from tfsearch.space import Point
from tfsearch.target.cuda import compilers, target, toolkit
from tfsearch.tune.proof import FULL, prove_reduced

COMPILERS = ("nvrtc", "nvcc")
MEMORY = 8 << 30
SCALE = """
extern "C" __global__ void scale(float *__restrict__ y, const float *__restrict__ x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = FACTOR * x[i];
}
"""
MANY = """
extern "C" __global__ void many(float *__restrict__ y, const float *__restrict__ x, int n) {
  __shared__ float shared[128];
  float r[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) r[i] = x[i * n + threadIdx.x];
  shared[threadIdx.x] = r[3];
  __syncthreads();
  for (int j = 0; j < n; ++j) {
#pragma unroll
    for (int i = 0; i < 64; ++i) r[i] = r[i] * r[(i + 7) % 64] + shared[j];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) y[i * n + threadIdx.x] = r[i];
}
"""
"""Needs more than 64 registers, and spills where it may not have them."""


def compiler_named(name: str) -> Compiler:
    """A toolchain, or a skip that names what is missing."""
    try:
        found = compilers.named(name)
        _ = found.record
    except UnavailableError as error:
        pytest.skip(f"needs {name}: {error.message}")
    return found


def source(text: str, main: str, architecture: str = "sm_90a", *flags: str) -> Source:
    """A source of one entry for an architecture."""
    launch = LaunchSpec(EntrySpec(main, (), 1, 0))
    return Source(text, "cuda", launch, (architecture,), flags)


def built(
    compiler: Compiler, code: Source, out: Path, *flags: str, macros: tuple[str, ...] = ()
) -> CompileOutcome:
    """Compile; the outcome must be ok."""
    done = compiler.compile(code, flags, macros, out, timeout_s=120, memory_bytes=MEMORY)
    assert done.status is Status.OK, done.log
    return done


def disassembled(cubin: Path) -> str:
    """The machine code of a cubin as text, or a skip."""
    tool = toolkit.disassembler()
    if tool is None:
        pytest.skip("needs nvdisasm: pip install nvidia-cuda-nvdisasm")
    done = subprocess.run(
        [str(tool), "-c", str(cubin)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def static_shared(image: bytes, symbol: str) -> int:
    """Shared memory that an entry of a built image declares, bytes: the size of its section."""
    at, size, count, names = (
        int.from_bytes(image[a:b], "little") for a, b in ((40, 48), (58, 60), (60, 62), (62, 64))
    )
    assert image[:5] == b"\x7fELF\x02"

    def field(index: int, first: int, length: int) -> int:
        start = at + index * size + first
        return int.from_bytes(image[start : start + length], "little")

    texts = field(names, 24, 8)
    total = 0
    for index in range(count):
        start = texts + field(index, 0, 4)
        name = image[start : image.index(b"\0", start)].decode()
        if name == f".nv.shared.{symbol}":
            total += field(index, 32, 8)
    return total


def refusals(module: Module) -> set[str]:
    """Codes of what the verifier refuses on the nominal device."""
    device = target.nominal()
    return {r.code for r in verify(module, target.atoms(device), target.limits(device))}


def proved(problem: Problem, one: Point) -> tuple[Any, ...]:
    """What the interpreter finds wrong with a point's reduced form; nothing when it is right."""
    device = target.nominal()
    workload, module = problem.reduced(one)
    return tuple(prove_reduced(workload, module, target.atoms(device), target.limits(device), FULL))
