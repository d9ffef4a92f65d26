"""Shared memory: what TIR says is what a built kernel declares and its launch asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.target_cuda.support import built, compiler_named, source, static_shared
from tfsearch.codegen.storage import ENTRY_PREFIX
from tfsearch.core.errors import RequestError
from tfsearch.ir.hir.named import named_workload
from tfsearch.ir.tir.nodes import MemorySpace, Module
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.prove.analyze import analyze
from tfsearch.prove.storage import shared_layout, shared_of_atoms
from tfsearch.prove.verify import verify
from tfsearch.target.cuda import target
from tfsearch.target.cuda.emit import source_of

GEMM = {"trans_b": "true", "m": "1000", "n": "1040", "k": "528"}
WORKLOADS: dict[str, tuple[str, dict[str, Any]]] = {
    "gemm bf16": ("gemm", {**GEMM, "dtype": "bf16", "out_dtype": "bf16"}),
    "gemm f16, wide results": ("gemm", {**GEMM, "dtype": "f16", "out_dtype": "f32"}),
    "softmax": ("softmax", {"rows": "100", "cols": "3000", "dtype": "bf16"}),
    "layer_norm": ("layer_norm", {"rows": "100", "cols": "1000", "dtype": "f32"}),
}
PER_PIPELINE = 3
OWN = """
extern "C" __global__ void own(float *y, int n) {
  extern __shared__ float asked[];
  DECLARED
  asked[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = asked[n - threadIdx.x];
}
"""


def declared(folder: Path, text: str) -> int:
    """What the section of a kernel with some declaration of its own has, bytes."""
    path = folder / "own.cubin"
    built(compiler_named("nvrtc"), source(OWN.replace("DECLARED", text), "own"), path)
    return static_shared(path.read_bytes(), "own")


@pytest.fixture(scope="module")
def system(tmp_path_factory: pytest.TempPathFactory) -> int:
    """Bytes that the system takes of every block, which sections of some architectures hold.

    The limits of devices count without them.
    """
    folder = tmp_path_factory.mktemp("own")
    taken = declared(folder, "")
    more = (
        "__shared__ float mine[128]; mine[n - threadIdx.x] = y[n]; __syncthreads(); y[n] = mine[n];"
    )
    assert declared(folder, more) == taken + 512
    return taken


@pytest.mark.parametrize("name", WORKLOADS)
def test_shared_memory_is_that_of_the_built_kernel(name: str, system: int, tmp_path: Path) -> None:
    op, options = WORKLOADS[name]
    device = target.nominal()
    limits = target.limits(device)
    try:
        problem = target.problem(named_workload(op, options), device)
    except RequestError as error:
        pytest.fail(f"no pipeline takes {name}: {error}")
    compiler, rng = compiler_named("nvrtc"), np.random.default_rng(3)
    for space in problem.space.recipes:
        for point in problem.space.only(space.name).sample(PER_PIPELINE, rng):
            module = problem.lower(point)
            emitted = problem.emit(module, point)
            built(compiler, emitted, tmp_path / "a.cubin")
            data = (tmp_path / "a.cubin").read_bytes()
            facts = analyze(module, target.atoms(device))
            for kernel, known in zip(module.kernels, facts.kernels, strict=True):
                symbol = ENTRY_PREFIX + kernel.name
                asked = emitted.launch.attributes[symbol].get("shared", 0)
                layout = shared_layout(kernel)
                wanted = layout.requested(limits.shared_given)
                own = max(static_shared(data, symbol) - system, 0)
                assert own == shared_of_atoms(kernel, problem.atoms), (space.name, point)
                assert asked == wanted, (space.name, point)
                assert known.peak_bytes.get(MemorySpace.SHARED, 0) == layout.bytes


RING = """
kernel k units 1 warps 1 lanes 32 (
  in x: f32[32] global align 128,
  out y: f32[32] global align 128,
) {
  alloc odd: f32[33] shared align 16
  alloc held: f32[32] shared align 128
  alloc again: f32[32] shared align 128 over held
}
"""


def test_padding_is_what_skipping_may_take() -> None:
    module = parse_module(RING)
    text, launch = source_of(module, target.atoms(target.nominal()))
    (how,) = launch.attributes.values()
    assert isinstance(how, dict)
    # 33 floats, up to the next multiple of 128, 32 floats; 112 bytes to reach a multiple of 128.
    assert how["shared"] == 256 + 128 + 112
    assert "& 127" in text
    assert text.count("tfs_shared + 256") == 2


def test_what_alignment_costs_counts_against_the_capacity() -> None:
    device = target.nominal()
    limits = target.limits(device)
    most = limits.capacity[MemorySpace.SHARED]

    def codes(size: int) -> set[str]:
        text = print_module(parse_module(RING)).replace("f32[33]", f"f32[{size}]")
        module: Module = parse_module(text)
        return {r.code for r in verify(module, target.atoms(device), limits)}

    room = (most - 128 - 112) // 128 * 32
    assert "tir.capacity" not in codes(room)
    assert "tir.capacity" in codes(room + 1)
