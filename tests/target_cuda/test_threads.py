"""Atoms of threads: contracts that hold together, and every template compiles."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.target_cuda.support import built, compiler_named, disassembled, source
from tfsearch.atoms.contract import Access, Atom, Computation, Kind
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.nodes import MemorySpace
from tfsearch.target.cuda import target
from tfsearch.target.cuda.emit import CudaDialect
from tfsearch.target.cuda.hardware import ARCHITECTURES, document
from tfsearch.target.cuda.semantics import reduce
from tfsearch.target.cuda.threads import TEAMS, WARP, thread_atoms

ATOMS = tuple(thread_atoms())


def test_ids_are_unique_and_features_those_of_every_architecture() -> None:
    assert len({atom.id for atom in ATOMS}) == len(ATOMS)
    for name in ARCHITECTURES:
        features = set(document(name).settings["features"])
        assert all(atom.features <= features for atom in ATOMS)


def test_fragments_are_shared_out_evenly_and_widths_differ() -> None:
    for lanes, (warps, each) in TEAMS.items():
        assert lanes == WARP * warps * each
        assert each in (1, 2, 4, 8)
    assert len({(warps, each) for warps, each in TEAMS.values()}) == len(TEAMS)


def test_accesses_in_words_ask_for_their_alignment() -> None:
    table = target.atoms(target.nominal())

    def wanted(kind: Kind, lanes: int, mem: DType) -> int:
        types = (DType.F32, mem) if kind is Kind.LOAD else (mem, DType.F32)
        atom = table.usable(Computation(kind, "aligned", (lanes,), types))
        assert atom is not None
        return next(s.alignment for s in atom.operands if MemorySpace.GLOBAL in s.spaces)

    assert wanted(Kind.LOAD, 256, DType.BF16) == 16
    assert wanted(Kind.STORE, 256, DType.F32) == 16
    assert wanted(Kind.LOAD, 128, DType.BF16) == 8
    assert wanted(Kind.LOAD, 32, DType.I8) == 1


def test_narrowing_in_two_roundings_is_not_offered() -> None:
    table = target.atoms(target.nominal())
    types = (DType.BF16, DType.F64)
    assert table.usable(Computation(Kind.STORE, "", (32,), types)) is None
    assert table.usable(Computation(Kind.STORE, "", (32,), (DType.F16, DType.F64))) is not None


def test_a_reduction_adds_in_the_order_that_the_instructions_do() -> None:
    src = np.arange(512, dtype=np.float32) ** 3
    dst = np.zeros(512, np.float32)
    reduce(np.add, 4, 4)((dst, src))
    total = np.float32(0.0)
    for warp in src.reshape(4, 32, 4):
        pieces = [(p[0] + p[2]) + (p[1] + p[3]) for p in warp]
        while len(pieces) > 1:
            half = len(pieces) // 2
            pieces = [a + b for a, b in zip(pieces[:half], pieces[half:], strict=True)]
        total = pieces[0] if warp is src.reshape(4, 32, 4)[0] else total + pieces[0]
    np.testing.assert_array_equal(dst, np.full(512, dst[0]))
    assert abs(dst[0] - src.astype(np.float64).sum()) / dst[0] < 1e-6
    assert total != 0


def call(atom: Atom) -> list[str]:
    """A block that declares an atom's operands and calls it."""
    lanes = next(s.shape[0] for s in atom.operands if s.spaces == frozenset({MemorySpace.REGISTER}))
    warps, _ = TEAMS[lanes]
    dialect = CudaDialect(warps * WARP, {})
    lines, names = [], {}
    for spec in atom.operands:
        if not spec.spaces:
            names[spec.name] = "0x1.8p+1"
        elif MemorySpace.REGISTER in spec.spaces:
            assert spec.dtype is not None
            lines.append(f"{dialect.register(spec.dtype, spec.shape)} {spec.name};")
            if spec.access is not Access.WRITE:
                lines.append(f"tfs_fill({spec.name}, (double)threadIdx.x);")
            names[spec.name] = spec.name
        else:
            assert spec.dtype is not None
            names[spec.name] = f"(({dialect.element(spec.dtype)} *)memory)"
    text = atom.template
    for name, value in names.items():
        for field, shown in (("", value), (".n", "n"), (".step", "step")):
            text = text.replace(f"{{{name}{field}}}", shown)
    written = next(s for s in atom.operands if s.access is not Access.READ)
    if MemorySpace.REGISTER in written.spaces:
        text += f" tfs_store(((tfs_{written.dtype.value} *)memory), {written.name}, tfs_lane);"
    return ["{", *lines, text, "}"]


@pytest.mark.parametrize("lanes", sorted(TEAMS))
def test_every_template_compiles(lanes: int, tmp_path: Path) -> None:
    own = [a for a in ATOMS if any(s.shape == (lanes,) for s in a.operands)]
    assert len(own) > 150
    body = "\n".join(line for atom in own for line in call(atom))
    text = f"""#include "kernel.cuh"
extern "C" __global__ void f(void *memory, long n, long step) {{
  const int tfs_lane = threadIdx.x;
  {body}
}}"""
    built(compiler_named("nvrtc"), source(text, "f"), tmp_path / "a")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_words_and_approximations_are_single_instructions(
    architecture: str, tmp_path: Path
) -> None:
    text = """#include "kernel.cuh"
extern "C" __global__ void f(tfs_bf16 *__restrict__ y, const tfs_bf16 *__restrict__ x) {
  tfs_vec<tfs_f32, 8> a;
  tfs_load_aligned(a, x, threadIdx.x);
  tfs_store_aligned(y, tfs_fast_tanh(a), threadIdx.x);
}"""
    built(compiler_named("nvrtc"), source(text, "f", architecture), tmp_path / "a")
    code = disassembled(tmp_path / "a")
    assert code.count("LDG.E.128") == 1
    assert code.count("STG.E.128") == 1
    assert code.count("MUFU.TANH") == 8
    assert code.count("F2FP.BF16") == 4 or code.count("F2F.BF16") == 8 or "BF16" in code
