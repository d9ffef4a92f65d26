"""The C model of the tile instructions against NumPy, and against the unit where there is one."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from clib_build import any_compiler, build, cpu_flags, load, pointer, require

from tfsearch.target.x86 import clib

pytestmark = pytest.mark.xdist_group("clib_support")

BF16 = np.dtype(ml_dtypes.bfloat16)
F32 = np.float32
TINY = F32(2.0**-126)

DRIVER = """
#include "amx_model.h"
static void set(tfs_tile_config* c, int t, int rows, int colsb) {
  c->rows[t] = (uint8_t)rows;
  c->colsb[t] = (uint16_t)colsb;
}
/* c (m x n) += a (m x k4*4 bytes) * b (k4 x n*4 bytes), rows 64 bytes apart. */
#define PRODUCT(NAME, OP) \\
  void NAME(void* c, const void* a, const void* b, int m, int n, int k4) { \\
    tfs_tile_config g = {.palette = 1}; \\
    set(&g, 0, m, 4 * n); \\
    set(&g, 1, m, 4 * k4); \\
    set(&g, 2, k4, 4 * n); \\
    TFS_TILE_CONFIG(&g); \\
    TFS_TILE_LOAD(0, c, 64); \\
    TFS_TILE_LOAD(1, a, 64); \\
    TFS_TILE_STREAM_LOAD(2, b, 64); \\
    OP(0, 1, 2); \\
    TFS_TILE_STORE(0, c, 64); \\
    TFS_TILE_RELEASE(); \\
  }
PRODUCT(product_bf16, TFS_TILE_DPBF16PS)
PRODUCT(product_i8, TFS_TILE_DPBSSD)
void zeroed(void* c, int m, int n) {
  tfs_tile_config g = {.palette = 1};
  set(&g, 7, m, 4 * n);
  TFS_TILE_CONFIG(&g);
  TFS_TILE_LOAD(7, c, 64);
  TFS_TILE_ZERO(7);
  TFS_TILE_STORE(7, c, 64);
  TFS_TILE_RELEASE();
}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> ctypes.CDLL:
    folder = tmp_path_factory.mktemp("amx")
    return load(folder, DRIVER, any_compiler(), ("-DTFS_AMX_MODEL",))


def tile(dtype: np.dtype | type) -> np.ndarray:
    """Sixteen rows of 64 bytes, aligned as C's tiles are."""
    raw = np.zeros(16 * 64 + 64, np.uint8)
    at = -raw.ctypes.data % 64
    return raw[at : at + 1024].view(dtype).reshape(16, -1)


def product(lib: ctypes.CDLL, name: str, c, a, b, shape: tuple[int, int, int]) -> np.ndarray:
    out = tile(c.dtype)
    out[:] = c
    getattr(lib, name)(pointer(out), pointer(a), pointer(b), *shape)
    return out


def flush(x: np.ndarray) -> np.ndarray:
    """Denormals become zeros of their sign."""
    return np.where(np.abs(x) < TINY, np.copysign(F32(0), x), x).astype(F32)


def fused(a: np.ndarray, b: np.ndarray, c: np.ndarray) -> np.ndarray:
    """a*b + c rounded once to f32, denormals flushed; the long double sum is exact for operands
    within 2^16 of each other and is rounded to odd otherwise by its own 64 bits."""
    exact = a.astype(np.longdouble) * b.astype(np.longdouble) + c.astype(np.longdouble)
    return flush(exact.astype(F32))


def expected_bf16(c, a, b, shape: tuple[int, int, int]) -> np.ndarray:
    m, n, k4 = shape
    pa, pb = flush(a.astype(F32)), flush(b.astype(F32))
    even, odd = np.zeros((m, n), F32), np.zeros((m, n), F32)
    for k in range(k4):
        even = fused(pa[:m, 2 * k, None], pb[None, k, 0 : 2 * n : 2], even)
        odd = fused(pa[:m, 2 * k + 1, None], pb[None, k, 1 : 2 * n : 2], odd)
    pair = flush(even + odd)
    out = c.copy()
    out[:m, :n] = flush(flush(c[:m, :n]) + pair)
    return out


SHAPES = [(16, 16, 16), (1, 1, 1), (5, 3, 7), (16, 1, 16), (1, 16, 2), (9, 16, 13)]


def bf16_operands(seed: int, scale: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    a, b, c = tile(BF16), tile(BF16), tile(F32)
    a[:] = (rng.normal(0, 1, a.shape) * scale).astype(BF16)
    b[:] = rng.normal(0, 1, b.shape).astype(BF16)
    c[:] = (rng.normal(0, 1, c.shape) * scale).astype(F32)
    return a, b, c


@pytest.mark.parametrize("scale", [1.0, 2.0**-126, 2.0**-130, 2.0**120])
@pytest.mark.parametrize("shape", SHAPES)
def test_bf16_product_rounds_flushes_and_orders_as_documented(model, shape, scale: float):
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("needs an 80-bit long double")
    a, b, c = bf16_operands(1, scale)
    with np.errstate(all="ignore"):
        want = expected_bf16(c, a, b, shape)
    got = product(model, "product_bf16", c, a, b, shape)
    assert np.array_equal(got.view(np.uint32), want.view(np.uint32))


def test_even_and_odd_members_of_the_pairs_accumulate_apart(model):
    a, b, c = tile(BF16), tile(BF16), tile(F32)
    a[0, :4] = [2.0**12, 2.0**-12, 2.0**12, 2.0**-12]
    b[0, :2], b[1, :2] = [2.0**12, 1.0], [-(2.0**12), 1.0]
    # In one running sum the small terms would vanish beside 2^24.
    assert product(model, "product_bf16", c, a, b, (1, 1, 2))[0, 0] == 2.0**-11


def test_denormals_count_as_zero_on_the_way_in_and_out(model):
    a, b, c = tile(BF16), tile(BF16), tile(F32)
    a[0, 0], b[0, 0] = BF16.type(2.0**-130), BF16.type(2.0**100)
    assert product(model, "product_bf16", c, a, b, (1, 1, 1))[0, 0] == 0
    a[0, 0], b[0, 0] = BF16.type(2.0**-100), BF16.type(2.0**-30)
    assert product(model, "product_bf16", c, a, b, (1, 1, 1))[0, 0] == 0
    c[0, 0] = F32(2.0**-130)
    assert product(model, "product_bf16", c, a, b, (1, 1, 1))[0, 0] == 0


@pytest.mark.parametrize("shape", SHAPES)
def test_i8_product_is_exact_and_wraps(model, shape):
    m, n, k4 = shape
    rng = np.random.default_rng(2)
    a, b, c = tile(np.int8), tile(np.int8), tile(np.int32)
    a[:], b[:] = rng.integers(-128, 128, a.shape), rng.integers(-128, 128, b.shape)
    c[:] = rng.integers(-(2**31), 2**31, c.shape)
    left = a[:m, : 4 * k4].astype(np.int64)
    right = b[:k4, : 4 * n].reshape(k4, n, 4).transpose(0, 2, 1).reshape(4 * k4, n)
    want = c.copy()
    sums = c[:m, :n].astype(np.int64) + left @ right.astype(np.int64)
    want[:m, :n] = sums.astype(np.uint64).astype(np.uint32).view(np.int32)
    assert np.array_equal(product(model, "product_i8", c, a, b, shape), want)


def test_zero_clears_the_configured_part_and_store_leaves_the_rest(model):
    c = tile(np.int32)
    c[:] = 9
    model.zeroed(pointer(c), 5, 7)
    want = np.full((16, 16), 9)
    want[:5, :7] = 0
    assert np.array_equal(c, want)


FAULTS = {
    "before ldtilecfg": "TFS_TILE_ZERO(0);",
    "palette is neither": "g.palette = 2; TFS_TILE_CONFIG(&g);",
    "larger than 16 rows": "g.palette = 1; g.rows[0] = 17; g.colsb[0] = 4; TFS_TILE_CONFIG(&g);",
    "palette 1 has 8 tiles": "g.palette = 1; g.rows[8] = 1; g.colsb[8] = 4; TFS_TILE_CONFIG(&g);",
    "reserved byte": "g.palette = 1; g.reserved[3] = 1; TFS_TILE_CONFIG(&g);",
    "not configured": "g.palette = 1; g.rows[0] = 1; g.colsb[0] = 4; TFS_TILE_CONFIG(&g);"
    " TFS_TILE_ZERO(1);",
    "columns of A and rows of B": "g.palette = 1; for (int t = 0; t < 3; ++t)"
    " { g.rows[t] = 4; g.colsb[t] = 64; } TFS_TILE_CONFIG(&g); TFS_TILE_DPBF16PS(0, 1, 2);",
    "three different tiles": "g.palette = 1; for (int t = 0; t < 3; ++t)"
    " { g.rows[t] = 16; g.colsb[t] = 64; } TFS_TILE_CONFIG(&g); TFS_TILE_DPBF16PS(0, 0, 2);",
}


@pytest.fixture(scope="module")
def faulty(tmp_path_factory) -> Path:
    cases = "\n".join(f"    case {i}: {code} break;" for i, code in enumerate(FAULTS.values()))
    text = f"""
#include "amx_model.h"
int main(int argc, char** argv) {{
  tfs_tile_config g = {{0}};
  switch (argc > 1 ? atoi(argv[1]) : -1) {{
{cases}
  }}
  return 0;
}}
"""
    folder = tmp_path_factory.mktemp("faults")
    return build(folder, text, any_compiler(), ("-DTFS_AMX_MODEL", "-Wno-unused-function"), "run")


@pytest.mark.parametrize("message", FAULTS)
def test_what_faults_on_hardware_aborts_with_a_message(faulty: Path, message: str):
    number = str(list(FAULTS).index(message))
    done = subprocess.run([str(faulty), number], capture_output=True, text=True, check=False)
    assert done.returncode < 0
    assert message in done.stderr


def test_the_same_text_compiles_to_tile_instructions(tmp_path):
    require("gcc")
    flags = ("-mamx-tile", "-mamx-bf16", "-mamx-int8", "-shared", "-fPIC")
    build(tmp_path, DRIVER, "gcc", flags, "real.so")


def test_the_model_agrees_with_the_tile_unit(model, tmp_path):
    if not {"amx_tile", "amx_bf16", "amx_int8"} <= cpu_flags():
        pytest.skip("needs CPU features amx_tile, amx_bf16, amx_int8")
    require("gcc")
    flags = ("-mamx-tile", "-mamx-bf16", "-mamx-int8")
    real = load(tmp_path, clib.support_source() + DRIVER, "gcc", flags)
    if real.tfs_amx_enable() != 0:
        pytest.skip("needs the kernel's permission for AMX")
    for seed, scale in enumerate((1.0, 2.0**-126, 2.0**-130, 2.0**120)):
        a, b, c = bf16_operands(seed, scale)
        for shape in SHAPES:
            want = product(model, "product_bf16", c, a, b, shape)
            got = product(real, "product_bf16", c, a, b, shape)
            assert np.array_equal(got.view(np.uint32), want.view(np.uint32))
