"""The tile unit end to end: atoms against the C model, kernels built with the model or natively."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from clib_build import AVX512, any_compiler, cpu_flags, load, pointer, require

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Status
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.text import parse_program
from tfsearch.ir.tir.nodes import Call, MemorySpace, Module
from tfsearch.ir.tir.walk import walk
from tfsearch.ir.workload import Workload
from tfsearch.measure.oracle import HirOracle
from tfsearch.measure.verifier import Verifier
from tfsearch.prove.verify import verify
from tfsearch.space import Point
from tfsearch.target.x86 import target
from tfsearch.target.x86.device import NOMINAL, usable_units
from tfsearch.target.x86.problem import X86Problem
from tfsearch.target.x86.runner import X86Loaded
from tfsearch.tune.proof import FULL, QUICK, prove_reduced

AMX = ("amx_bf16", "amx_int8", "amx_tile")
BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.float32
DEVICE = target.nominal()
ATOMS = target.atoms(DEVICE)


# Kernels ---------------------------------------------------------------------------------------


def problem_of(options: Mapping[str, Any], constant: bool = False) -> X86Problem:
    return x86_problem(build_workload("gemm", options, constant_inputs=("b",) if constant else ()))


def x86_problem(workload: Workload) -> X86Problem:
    return X86Problem(workload, replace(NOMINAL, units=4), ATOMS)


def tile_space(problem: X86Problem) -> Any:
    (name,) = (r.name for r in problem.space.recipes if ".amx." in r.name)
    return problem.space.only(name)


def some_points(problem: X86Problem, count: int, seed: int, **fixed: Any) -> list[Point]:
    """Legal points of the tile unit with parameters held; k is split only where that is held."""
    fixed = {"grid_k": 1, **fixed}
    return list(tile_space(problem).fix(fixed).sample(count, np.random.default_rng(seed)))


def run_kernel(
    problem: X86Problem, module: Module, point: Point, folder: Path, *, native: bool
) -> None:
    """Build a kernel with the model or for the unit, and hold it to the program's bounds."""
    if int(point.params["grid_k"]) > 1 and usable_units() < int(point.params["units"]):
        pytest.skip(f"needs {point.params['units']} CPUs for units that wait for one another")
    source = problem.emit(module, point)
    launch = source.launch if native else LaunchSpec(source.launch.main, source.launch.prepares)
    macros = () if native else ("TFS_AMX_MODEL",)
    compiler = target.compiler(None)
    # A path names one library for the life of a process.
    out = folder / f"kernel-{len(list(folder.iterdir()))}.so"
    outcome = compiler.compile(source, ("-O1",), macros, out, timeout_s=120, memory_bytes=4 << 30)
    assert outcome.status is Status.OK, outcome.log
    verdict = Verifier(HirOracle(problem.workload.record)).verify(X86Loaded(out, launch), 3)
    assert verdict.status is Status.OK, verdict.verification.message
    assert verdict.guarded


CASES: dict[str, tuple[dict[str, Any], bool, dict[str, Any]]] = {
    "whole": ({"m": 64, "n": 64, "k": 64, "dtype": "bf16"}, False, {"pack_a": "none"}),
    "tails": ({"m": 37, "n": 45, "k": 77, "dtype": "bf16"}, False, {"rows": 2, "columns": 2}),
    "both-turned": (
        {"m": 37, "n": 45, "k": 77, "dtype": "bf16", "trans_a": True, "trans_b": True},
        False,
        {"rows": 2},
    ),
    "ahead-in-blocks": (
        {"m": 40, "n": 70, "k": 100, "dtype": "bf16", "batch": 2},
        True,
        {"pack_b": "ahead", "kc": 64},
    ),
    "sums-wait-in-memory": (
        {"m": 40, "n": 70, "k": 100, "dtype": "bf16", "epilogue": "bias+gelu"},
        False,
        {"kc": 32, "order": "mkn"},
    ),
    "sums-wait-in-output": (
        {"m": 64, "n": 48, "k": 100, "dtype": "bf16", "out_dtype": "f32"},
        False,
        {"kc": 64},
    ),
    "threads": ({"m": 90, "n": 70, "k": 64, "dtype": "bf16"}, False, {"units": 4, "rows": 1}),
    "threads-split-k": (
        {"m": 40, "n": 50, "k": 200, "dtype": "bf16", "epilogue": "relu"},
        True,
        {"units": 2, "grid_k": 2, "kc": 64, "pack_b": "ahead"},
    ),
    "bytes": ({"m": 37, "n": 45, "k": 150, "dtype": "i8"}, False, {"rows": 2, "columns": 2}),
    "bytes-turned": (
        {"m": 37, "n": 45, "k": 150, "dtype": "i8", "trans_a": True, "trans_b": True},
        True,
        {"kc": 64, "pack_b": "ahead"},
    ),
    "finished-beside": (
        {"m": 70, "n": 128, "k": 100, "dtype": "bf16", "epilogue": "bias+relu"},
        False,
        {"finish": "beside", "columns": 2, "kc": 128},
    ),
    "finished-beside-in-the-last-block": (
        {"m": 48, "n": 160, "k": 150, "dtype": "bf16"},
        True,
        {"finish": "beside", "columns": 1, "kc": 64, "pack_b": "ahead"},
    ),
    "k-inside": (
        {"m": 100, "n": 90, "k": 150, "dtype": "bf16"},
        False,
        {"order": "nmk", "kc": 64, "rows": 2},
    ),
    "k-inside-beside": (
        {"m": 96, "n": 128, "k": 160, "dtype": "bf16"},
        False,
        {"order": "nmk", "kc": 64, "finish": "beside", "pack_a": "none"},
    ),
    "wide": ({"m": 16, "n": 90, "k": 96, "dtype": "bf16", "epilogue": "residual"}, False, {}),
}


def require_vectors() -> None:
    require("gcc", AVX512)


@pytest.mark.parametrize("name", CASES)
def test_kernel_with_the_model_is_right_and_proved(name: str, tmp_path: Path):
    require_vectors()
    options, constant, fixed = CASES[name]
    problem = problem_of(options, constant)
    (point,) = some_points(problem, 1, 7, **fixed)
    module = problem.lower(point)
    assert verify(module, ATOMS, target.limits(DEVICE)) == ()
    workload, reduced = problem.reduced(point)
    assert prove_reduced(workload, reduced, ATOMS, target.limits(DEVICE), FULL) == ()
    run_kernel(problem, module, point, tmp_path, native=False)


@pytest.mark.parametrize("name", CASES)
def test_kernel_on_the_unit_is_right(name: str, tmp_path: Path):
    missing = sorted({*AMX} - cpu_flags())
    if missing:
        pytest.skip(f"needs CPU features {', '.join(missing)}")
    options, constant, fixed = CASES[name]
    problem = problem_of(options, constant)
    for point in some_points(problem, 2, 8, **fixed):
        run_kernel(problem, problem.lower(point), point, tmp_path, native=True)


def test_random_points_of_random_shapes_verify():
    rng = np.random.default_rng(11)
    for _ in range(12):
        sizes = {axis: int(rng.integers(8, 200)) for axis in "mnk"}
        flags = {f"trans_{side}": bool(rng.integers(2)) for side in "ab"}
        dtype = str(rng.choice(["bf16", "i8"]))
        problem = problem_of({**sizes, **flags, "dtype": dtype}, bool(rng.integers(2)))
        for point in tile_space(problem).sample(4, rng):
            refusals = verify(problem.lower(point), ATOMS, target.limits(DEVICE))
            assert refusals == (), (sizes, flags, dtype, point)


COMPUTED_A = """program f(a: bf16[33,70], b: bf16[70,20]) -> (c: f32[33,20]) {
  %2 = neg(%0) : bf16[33,70]
  %3 = contract(%2, %1) {dims = "mk,kn->mn", acc = f32} : f32[33,20]
  return %3
}"""
COMPUTED_B = COMPUTED_A.replace("neg(%0) : bf16[33,70]", "neg(%1) : bf16[70,20]").replace(
    "contract(%2, %1)", "contract(%0, %2)"
)


def test_a_computed_first_factor_is_packed_through_vectors(tmp_path: Path):
    require_vectors()
    problem = x86_problem(Workload(parse_program(COMPUTED_A), "f"))
    (point,) = some_points(problem, 1, 3, kc=32, units=1)
    run_kernel(problem, problem.lower(point), point, tmp_path, native=False)


def test_a_computed_second_factor_is_refused_by_the_unit():
    problem = x86_problem(Workload(parse_program(COMPUTED_B), "f"))
    assert not [r for r in problem.space.recipes if ".amx." in r.name]
    (refusal,) = (r for r in problem.refusals if r.where == "x86.amx.dpbf16ps")
    assert "from an input" in refusal.message


COLUMN_MAJOR = """program f(a: bf16[32,64]:col, b: bf16[64,32]:col) -> (c: f32[32,32]) {
  %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[32,32]
  return %2
}"""


def test_a_second_factor_whose_rows_are_scattered_is_refused():
    problem = x86_problem(Workload(parse_program(COLUMN_MAJOR), "f"))
    (refusal,) = (r for r in problem.refusals if r.where == "x86.amx.dpbf16ps")
    assert "innermost" in refusal.message


# What the schedule says ------------------------------------------------------------------------


def test_register_tiles_fill_but_never_exceed_eight_tiles():
    problem = problem_of({"m": 256, "n": 256, "k": 64, "dtype": "bf16"})
    fixed = {"kc": 64, "m_tiles": 1, "n_tiles": 1, "units": 1, "pack_a": "none", "unroll": 1}
    found: set[tuple[int, int]] = set()
    for batch in tile_space(problem).fix(fixed).legal_set():
        found |= set(zip(batch.column("rows"), batch.column("columns"), strict=True))
    assert {(2, 2), (3, 1), (1, 3), (4, 1), (1, 5)} <= found
    assert not {(2, 3), (3, 2), (6, 1)} & found


def test_the_unit_is_configured_first_and_released_last():
    problem = problem_of({"m": 64, "n": 64, "k": 64, "dtype": "bf16"}, constant=True)
    (point,) = some_points(problem, 1, 1, units=2, pack_b="ahead")
    module = problem.lower(point)
    calls = [s for _, s in walk(module.main.body) if isinstance(s, Call)]
    assert [calls[0].atom, calls[-1].atom] == ["x86.amx.begin", "x86.amx.end"]
    ahead = [s for _, s in walk(module.prepares[0].body) if isinstance(s, Call)]
    assert {call.atom for call in ahead} == {"x86.amx.interleave.bf16"}


def test_rows_in_place_are_offered_for_whole_tiles_only():
    def ways(**changed: Any) -> tuple[Any, ...]:
        problem = problem_of({"m": 64, "n": 64, "k": 64, "dtype": "bf16", **changed})
        return tile_space(problem).recipes[0].by_name["pack_a"].values

    assert ways() == ("none", "rows")
    assert ways(m=65) == ways(k=66) == ways(trans_a=True) == ("rows",)


def test_kernels_of_the_unit_ask_for_permission_flags_and_its_probe():
    problem = problem_of({"m": 64, "n": 64, "k": 64, "dtype": "bf16"})
    (point,) = some_points(problem, 1, 1)
    source = problem.emit(problem.lower(point), point)
    assert source.launch.attributes == {"amx": True}
    assert {"-mamx-tile", "-mamx-bf16", "-mavx512bw", "-mavx512bf16"} <= set(source.flags)
    assert problem.probes(point) == ("fma", "tile")


def test_without_the_unit_a_kernel_is_refused_at_loading(tmp_path: Path):
    if "amx_tile" in cpu_flags():
        pytest.skip("needs a processor without amx_tile")
    any_compiler()
    problem = problem_of({"m": 64, "n": 64, "k": 64, "dtype": "bf16"})
    (point,) = some_points(problem, 1, 1)
    launch = problem.emit(problem.lower(point), point).launch
    with pytest.raises(OSError, match="tile registers"):
        X86Loaded(tmp_path / "never-opened.so", launch)


def test_predictions_rank_full_register_tiles_above_single_ones():
    problem = problem_of({"m": 512, "n": 512, "k": 512, "dtype": "bf16"}, constant=True)
    held = {"kc": 512, "m_tiles": 4, "n_tiles": 4, "pack_a": "rows", "pack_b": "ahead", "units": 1}
    (batch,) = tile_space(problem).fix(held).legal_set()
    times = problem.predict(batch).estimate_us
    shapes = list(zip(batch.column("rows"), batch.column("columns"), strict=True))
    single = min(t for t, shape in zip(times, shapes, strict=True) if shape == (1, 1))
    full = min(t for t, shape in zip(times, shapes, strict=True) if shape == (2, 2))
    # One accumulator waits 52 cycles for each product, four overlap in 64.
    assert 2.5 * full < single
    assert (problem.predict(batch).bound_us < times).all()


def test_stores_past_the_caches_fill_lines_and_are_predicted_faster_beyond_the_outer_cache():
    far = problem_of({"m": 768, "n": 768, "k": 768, "dtype": "bf16"}, constant=True)
    near = problem_of({"m": 256, "n": 256, "k": 256, "dtype": "bf16"}, constant=True)
    held = {"rows": 2, "kc": 768, "m_tiles": 4, "n_tiles": 16, "pack_a": "none", "units": 1}
    (batch,) = tile_space(far).fix({**held, "pack_b": "ahead", "finish": "beside"}).legal_set()
    streamed = batch.column("stream") != 0
    # Columns of 16 bf16 are half a cache line each.
    assert set(batch.column("columns")[streamed]) == {2}
    whole = batch.column("columns") == 2
    times = far.predict(batch).estimate_us
    assert times[streamed].max() < times[whole & ~streamed].min()
    point = batch.point(int(np.flatnonzero(streamed)[0]))
    assert not verify(far.lower(point), ATOMS, target.limits(DEVICE))
    small, module = far.reduced(point)
    assert not prove_reduced(small, module, ATOMS, target.limits(DEVICE), QUICK)
    assert not any(
        one.column("stream").any()
        for one in tile_space(near).fix({"rows": 2, "unroll": 1, "units": 1}).legal_set()
    )


# Atoms against C -------------------------------------------------------------------------------

DRIVER = """
#include "tiles.h"
void product_bf16(void* c, const void* a, const void* b) {
  tfs_tiles_begin();
  TFS_TILES_LOAD(0, c, 64);
  TFS_TILES_LOAD(1, a, 64);
  TFS_TILES_LOAD(2, b, 64);
  TFS_TILE_DPBF16PS(0, 1, 2);
  TFS_TILE_STORE(0, c, 64);
  tfs_tiles_end();
}
void product_i8(void* c, const void* a, const void* b) {
  tfs_tiles_begin();
  TFS_TILES_LOAD(0, c, 64);
  TFS_TILES_LOAD(1, a, 64);
  TFS_TILES_LOAD(2, b, 64);
  TFS_TILE_DPBSSD(0, 1, 2);
  TFS_TILE_STORE(0, c, 64);
  tfs_tiles_end();
}
#define ORDER(F, E, T)                                                          \\
  void F##_##E(T* d, long ldd, const T* s, long lds, long rows, long columns) { \\
    tfs_##F##_##E(d, ldd, s, lds, rows, columns);                               \\
  }
ORDER(interleave, bf16, uint16_t)
ORDER(interleave_transposed, bf16, uint16_t)
ORDER(transpose_padded, bf16, uint16_t)
ORDER(interleave, i8, int8_t)
ORDER(interleave_transposed, i8, int8_t)
ORDER(transpose_padded, i8, int8_t)
void first_bf16(void* d, const void* s, long n) { tfs_store_bf16x32(d, tfs_loadn_bf16x32(s, n)); }
void first_i8(void* d, const void* s, long n) { tfs_store_i8x64(d, tfs_loadn_i8x64(s, n)); }
void round_bf16(const float* s, uint16_t* d, int64_t n) {
  for (int64_t i = 0; i < n; i += 16) {
    tfs_store_bf16_f32x16(d + i, tfs_load_f32_f32x16(s + i));
  }
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ctypes.CDLL:
    require_vectors()
    flags = ("-DTFS_AMX_MODEL", *AVX512.flags)
    return load(tmp_path_factory.mktemp("tiles"), DRIVER, "gcc", flags)


@pytest.mark.parametrize("scale", [1.0, 2.0**-126, 2.0**-130, 2.0**120, np.inf])
def test_meaning_of_the_bf16_product_equals_the_model_bit_for_bit(model, scale: float):
    rng = np.random.default_rng(5)
    a, b = (np.ascontiguousarray(rng.normal(0, 1, (16, 32))).astype(BF16) for _ in range(2))
    c = rng.normal(0, 1, (16, 16)).astype(F32)
    # Exponents apart by more than f64 holds, where rounding twice would show.
    a *= np.exp2(rng.integers(-60, 60, a.shape)).astype(BF16)
    with np.errstate(all="ignore"):
        if np.isfinite(scale):
            a, c = (a * BF16.type(scale)).astype(BF16), (c * F32(scale)).astype(F32)
        else:
            a[3, 4], b[5, 6], c[7, 7] = np.inf, np.nan, -np.inf
    want, got = c.copy(), c.copy()
    ATOMS["x86.amx.dpbf16ps"].semantics([want, a, b])
    model.product_bf16(pointer(got), pointer(a), pointer(b))
    same = (want.view(np.uint32) == got.view(np.uint32)) | (np.isnan(want) & np.isnan(got))
    assert same.all()


def test_meaning_of_the_i8_product_equals_the_model(model):
    rng = np.random.default_rng(6)
    a, b = (rng.integers(-128, 128, (16, 64), dtype=np.int8) for _ in range(2))
    c = rng.integers(-(2**31), 2**31, (16, 16), dtype=np.int32)
    want, got = c.copy(), c.copy()
    ATOMS["x86.amx.dpbssd"].semantics([want, a, b])
    model.product_i8(pointer(got), pointer(a), pointer(b))
    assert np.array_equal(want, got)


@pytest.mark.parametrize("order", ["interleave", "interleave_transposed", "transpose_padded"])
@pytest.mark.parametrize("element", ["bf16", "i8"])
def test_orders_equal_their_meaning_for_every_part_of_a_tile(model, order: str, element: str):
    atom = ATOMS[f"x86.amx.{order}.{element}"]
    dtype = atom.operands[0].dtype
    assert dtype is not None
    bits = np.dtype(f"u{dtype.bytes}")
    most_rows, most_columns = atom.operands[1].shape
    lds = most_columns + 5
    rng = np.random.default_rng(9)
    for rows in range(most_rows + 1):
        for columns in {0, 1, most_columns - 1, most_columns, int(rng.integers(most_columns))}:
            # The source ends where its last element does: a wider read meets other numbers only.
            source = rng.integers(1, 100, (most_rows + 1) * lds).astype(bits)
            shown = source[: most_rows * lds].reshape(most_rows, lds)[:rows, :columns]
            want = np.full(atom.operands[0].shape, 77, dtype=bits)
            got = np.full((16, want.shape[1] + 3), 77, dtype=bits)
            atom.semantics([want, shown])
            args = (pointer(got), got.shape[1], pointer(source), lds, rows, columns)
            function = getattr(model, f"{order}_{element}")
            function.argtypes = [ctypes.c_void_p, ctypes.c_long] * 2 + [ctypes.c_long] * 2
            function(*args)
            assert np.array_equal(got[:, : want.shape[1]], want), (rows, columns)
            assert (got[:, want.shape[1] :] == 77).all()


@pytest.mark.parametrize(("name", "lanes", "size"), [("first_bf16", 32, 2), ("first_i8", 64, 1)])
def test_first_elements_are_copied_and_the_rest_is_zero(model, name: str, lanes: int, size: int):
    source = np.arange(1, lanes + 1).astype(f"u{size}")
    for count in range(lanes + 1):
        out = np.full(lanes, 99, source.dtype)
        getattr(model, name)(pointer(out), pointer(source), ctypes.c_long(count))
        assert np.array_equal(out, np.where(np.arange(lanes) < count, source, 0))


def test_native_rounding_to_bf16_gives_the_same_bits(model, tmp_path: Path):
    if "avx512_bf16" not in cpu_flags():
        pytest.skip("needs CPU feature avx512_bf16")
    flags = ("-DTFS_AMX_MODEL", *AVX512.flags, "-mavx512bf16")
    native = load(tmp_path, DRIVER, "gcc", flags)
    rng = np.random.default_rng(4)
    words = rng.integers(0, 1 << 32, 1 << 16, dtype=np.uint32)
    words[:4096] &= 0x807FFFFF  # denormals and zeros
    words[4096:8192] |= 0x7F800000  # infinities and NaNs
    words[8192:12288] = words[8192:12288] & 0xFFFF0000 | 0x8000  # ties
    results = []
    for library in (model, native):
        out = np.zeros(words.size, np.uint16)
        library.round_bf16(pointer(words), pointer(out), ctypes.c_int64(words.size))
        results.append(out)
    assert np.array_equal(*results)


def test_native_rounding_is_preferred_where_the_processor_has_it():
    store = Computation(Kind.STORE, "", (16,), (DType.BF16, DType.F32))
    assert "avx512_bf16" in ATOMS.usable(store).features
    plain = replace(NOMINAL, features=tuple(f for f in NOMINAL.features if f != "avx512_bf16"))
    problem = X86Problem(
        build_workload("gemm", {"m": 64, "n": 64, "k": 64, "dtype": "bf16"}),
        plain,
        type(ATOMS)(ATOMS.values(), plain.features),
    )
    assert "avx512_bf16" not in problem.atoms.usable(store).features


def test_tiles_are_written_by_number_and_operands_live_in_tiles():
    for atom in ATOMS.values():
        if atom.computes.kind is Kind.MMA and atom.id.startswith("x86.amx."):
            assert {s for spec in atom.operands for s in spec.spaces} == {MemorySpace.TILE}
            m, n, k = atom.computes.shape
            assert atom.flops == 2 * m * n * k


def test_a_type_that_no_unit_multiplies_exactly_has_no_tile_space():
    problem = problem_of({"m": 64, "n": 64, "k": 64, "dtype": "f16"})
    assert not [r for r in problem.space.recipes if ".amx." in r.name]
    where = {r.where for r in problem.refusals if "the factor is f16" in r.message}
    assert "x86.amx.dpbf16ps" in where
