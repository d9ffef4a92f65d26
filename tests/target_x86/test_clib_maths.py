"""Accuracy, special values and lane equality of the vector maths."""

from __future__ import annotations

import ctypes
import math
from functools import cache

import numpy as np
import pytest
from clib_build import (
    BASELINE,
    BUILDS,
    Isa,
    build_ids,
    f32_patterns,
    f64_patterns,
    load,
    mapped,
    require,
    same_bits,
    usable_builds,
)

pytestmark = pytest.mark.xdist_group("clib_maths")

FUNCTIONS = ("exp", "log", "tanh", "sigmoid", "erf", "sin", "cos", "rsqrt", "recip")
ULP32 = {"tanh": 3, "sigmoid": 3, "erf": 3, "recip": 0.5}
ULP64 = {"recip": 0.5}

DRIVER = """
#include "maths.h"
#define MAP(FN, T, N, L) \\
  void map_##FN##_##N##x##L(const T* x, T* y, int64_t n) { \\
    int64_t i = 0; \\
    for (; i + L <= n; i += L) \\
      tfs_store_##N##_##N##x##L(y + i, tfs_##FN##_##N##x##L(tfs_load_##N##_##N##x##L(x + i))); \\
    int r = (int)(n - i); \\
    tfs_storen_##N##_##N##x##L( \\
        y + i, tfs_##FN##_##N##x##L(tfs_loadn_##N##_##N##x##L(x + i, r)), r); \\
  }
"""


def driver(isa: Isa) -> str:
    """One array function per function, dtype and lane count."""
    lines = [DRIVER]
    for fn in FUNCTIONS:
        for name in (fn, f"fast_{fn}"):
            lines += [f"MAP({name}, float, f32, {n})" for n in isa.f32]
        lines += [f"MAP({fn}, double, f64, {n})" for n in isa.f64]
    return "\n".join(lines)


class Built:
    """A driver with the compiler and level that made it."""

    def __init__(self, lib: ctypes.CDLL, isa: Isa, first: bool) -> None:
        self.lib = lib
        self.isa = isa
        self.first = first

    def run(self, fn: str, x: np.ndarray, lanes: int | None = None) -> np.ndarray:
        """``fn`` over ``x`` at ``lanes`` lanes, the widest by default."""
        kind = "f32" if x.dtype == np.float32 else "f64"
        width = lanes or (self.isa.f32 if kind == "f32" else self.isa.f64)[0]
        return mapped(self.lib, f"map_{fn}_{kind}x{width}", x, x.dtype)


@pytest.fixture(scope="module")
def make(tmp_path_factory):
    """Builds each driver once."""

    @cache
    def made(compiler: str, isa: Isa) -> Built:
        require(compiler, isa)
        lib = load(tmp_path_factory.mktemp("maths"), driver(isa), compiler, isa.flags)
        return Built(lib, isa, (compiler, isa) == usable_builds()[0])

    return made


@pytest.fixture(scope="module", params=BUILDS, ids=build_ids())
def built(request, make) -> Built:
    return make(*request.param)


@pytest.fixture(scope="module")
def reference_build(make) -> Built:
    """The scalar build without any vector unit."""
    return make("gcc", BASELINE)


def exact(fn: str, x: np.ndarray) -> np.ndarray:
    """``fn`` in the wider type of ``x`` (float64 or longdouble)."""
    one = x.dtype.type(1)
    if fn == "sigmoid":
        e = np.exp(-np.abs(x))
        return np.where(x < 0, e, one) / (one + e)
    if fn == "erf":
        return np.fromiter(map(math.erf, x.tolist()), np.float64, x.size)
    if fn == "rsqrt":
        return one / np.sqrt(x)
    if fn == "recip":
        return one / x
    return getattr(np, fn)(x)


def ulps(got: np.ndarray, want: np.ndarray) -> np.ndarray:
    """|got - want| in units of the last place of ``want`` in got's type; inf counts as the first
    number beyond the range. NaN must be where NaN is wanted."""
    info = np.finfo(got.dtype)
    assert np.array_equal(np.isnan(got), np.isnan(want))
    top = want.dtype.type(2) ** int(info.maxexp)
    keep = ~np.isnan(want)
    g, w = got[keep].astype(want.dtype), want[keep]
    assert np.array_equal(np.signbit(g), np.signbit(w))
    g, w = np.clip(g, -top, top), np.clip(w, -top, top)
    _, exponent = np.frexp(w)
    place = np.ldexp(want.dtype.type(1), np.maximum(exponent, info.minexp + 1) - (info.nmant + 1))
    return np.abs(g - w) / place


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_f32_is_within_its_bound_over_all_exponents(built: Built, fn: str):
    # Two million patterns at the first build; the others must give its bits (tested below).
    x = f32_patterns(4096 if built.first else 256)
    with np.errstate(all="ignore"):
        error = ulps(built.run(fn, x), exact(fn, x.astype(np.float64)))
    assert error.max() <= ULP32.get(fn, 2)


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_f32_is_within_its_bound_where_it_varies(built: Built, fn: str):
    rng = np.random.default_rng(1)
    count = 100_000 if built.first else 10_000
    x = np.concatenate([rng.uniform(-s, s, count) for s in (1, 4, 20, 110, 1000, 70_000)]).astype(
        np.float32
    )
    with np.errstate(all="ignore"):
        error = ulps(built.run(fn, x), exact(fn, x.astype(np.float64)))
    assert error.max() <= ULP32.get(fn, 2)


def f64_inputs() -> np.ndarray:
    rng = np.random.default_rng(2)
    near = [rng.uniform(-s, s, 10_000) for s in (1, 4, 40, 800, 1e5, 2.0**31)]
    return np.concatenate([f64_patterns(8), *near])


@pytest.mark.parametrize("fn", [f for f in FUNCTIONS if f != "erf"])
def test_f64_is_within_four_ulps(built: Built, fn: str):
    if np.finfo(np.longdouble).nmant < 63:
        pytest.skip("needs an 80-bit long double")
    x = f64_inputs()
    with np.errstate(all="ignore"):
        error = ulps(built.run(fn, x), exact(fn, x.astype(np.longdouble)))
    assert error.max() <= ULP64.get(fn, 4)


def test_f64_erf_is_within_four_ulps_of_mpmath(built: Built):
    mpmath = pytest.importorskip("mpmath", reason="needs mpmath")
    rng = np.random.default_rng(3)
    x = np.concatenate([rng.uniform(-6.5, 6.5, 1200), 10.0 ** rng.uniform(-310, 1, 300)])
    with mpmath.workdps(30):
        high = [mpmath.erf(mpmath.mpf(float(v))) for v in x]
        error = [
            abs(mpmath.mpf(float(y)) - h) / mpmath.mpf(float(np.spacing(abs(float(h)))))
            for y, h in zip(built.run("erf", x), high, strict=True)
        ]
    assert max(error) <= 4


@pytest.mark.parametrize("fn", ["sin", "cos"])
def test_trigonometry_survives_arguments_next_to_multiples_of_half_pi(built: Built, fn: str):
    mpmath = pytest.importorskip("mpmath", reason="needs mpmath")
    rng = np.random.default_rng(4)
    with mpmath.workdps(400):
        k = [int(v) for v in rng.integers(1, 1 << 40, 60)] + [
            int(2.0**p) for p in range(40, 900, 40)
        ]
        for dtype, bound in ((np.float32, 2), (np.float64, 4)):
            near = [float(mpmath.pi / 2 * v) for v in k if v < 1e38 or dtype is np.float64]
            x = np.array(near, dtype=dtype)
            for got, v in zip(built.run(fn, x).tolist(), x.tolist(), strict=True):
                want = getattr(mpmath, fn)(mpmath.mpf(v))
                place = float(np.spacing(dtype(abs(float(want)))))
                assert abs(mpmath.mpf(got) - want) <= bound * mpmath.mpf(place)


INF, NAN = math.inf, math.nan
SPECIAL = {
    "exp": [(0.0, 1.0), (-0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (1e4, INF), (-1e4, 0.0)],
    "log": [
        (0.0, -INF),
        (-0.0, -INF),
        (1.0, 0.0),
        (INF, INF),
        (-INF, NAN),
        (-1.0, NAN),
        (NAN, NAN),
    ],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN), (100.0, 1.0)],
    "sigmoid": [(0.0, 0.5), (-0.0, 0.5), (INF, 1.0), (-INF, 0.0), (NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (INF, 1.0), (-INF, -1.0), (NAN, NAN)],
    "sin": [(0.0, 0.0), (-0.0, -0.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "cos": [(0.0, 1.0), (-0.0, 1.0), (INF, NAN), (-INF, NAN), (NAN, NAN)],
    "rsqrt": [
        (0.0, INF),
        (-0.0, -INF),
        (INF, 0.0),
        (-INF, NAN),
        (-1.0, NAN),
        (4.0, 0.5),
        (NAN, NAN),
    ],
    "recip": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-INF, -0.0), (NAN, NAN)],
}


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("fn", FUNCTIONS)
def test_special_values(built: Built, fn: str, dtype: type):
    x, want = (np.array(column, dtype=dtype) for column in zip(*SPECIAL[fn], strict=True))
    assert same_bits(built.run(fn, x), want)


FAST_SPECIAL = {
    "exp": [(0.0, 1.0), (INF, INF), (-INF, 0.0), (NAN, NAN), (89.0, INF), (-87.0, 0.0)],
    "log": SPECIAL["log"],
    "tanh": [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN)],
    "sigmoid": [(NAN, NAN)],
    "erf": [(0.0, 0.0), (-0.0, -0.0), (NAN, NAN)],
    "sin": SPECIAL["sin"],
    "cos": SPECIAL["cos"],
    "rsqrt": [(0.0, INF), (-0.0, -INF), (INF, 0.0), (-1.0, NAN), (NAN, NAN)],
    "recip": SPECIAL["recip"],
}


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_special_values_of_the_fast_functions(built: Built, fn: str):
    x, want = (np.array(column, dtype=np.float32) for column in zip(*FAST_SPECIAL[fn], strict=True))
    assert same_bits(built.run(f"fast_{fn}", x), want)


# Bits of relative accuracy, and the arguments for which they are stated.
FAST = {
    "exp": (18, -86.6, 88.7),
    "log": (18, 0, INF),
    "tanh": (18, -INF, INF),
    "sigmoid": (17.5, -85.9, INF),
    "erf": (16.5, -INF, INF),
    "sin": (18, -INF, INF),
    "cos": (18, -INF, INF),
    "rsqrt": (21, 2.0**-126, INF),
    "recip": (22, -(2.0**125), 2.0**125),
}


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_fast_functions_keep_their_stated_bound(built: Built, fn: str):
    bits, low, high = FAST[fn]
    rng = np.random.default_rng(5)
    dense = [rng.uniform(-s, s, 50_000).astype(np.float32) for s in (1, 5, 90, 9000)]
    x = np.concatenate([f32_patterns(256), *dense])
    x = x[(x >= low) & (x <= high) & np.isfinite(x)]
    with np.errstate(all="ignore"):
        want = exact(fn, x.astype(np.float64))
    usual = (np.abs(want) >= 2.0**-126) & (np.abs(want) <= np.finfo(np.float32).max)
    if fn == "recip":
        usual &= np.abs(x) >= 2.0**-126
    got, want = built.run(f"fast_{fn}", x)[usual], want[usual]
    floor = 2.0**-13 if fn in ("sin", "cos") else 0.0
    error = np.abs(got - want) / np.maximum(np.abs(want), floor)
    assert error.max() <= 2.0**-bits
    if fn in ("tanh", "erf"):
        assert np.abs(got).max() <= 1


@pytest.mark.parametrize("fn", [*FUNCTIONS, *(f"fast_{f}" for f in FUNCTIONS)])
def test_every_f32_lane_count_gives_the_same_bits(built: Built, fn: str):
    x = f32_patterns(101, seed=6)[:-3]
    wide = built.run(fn, x)
    assert all(same_bits(wide, built.run(fn, x, lanes)) for lanes in built.isa.f32[1:])


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_every_f64_lane_count_gives_the_same_bits(built: Built, fn: str):
    x = f64_inputs()[:-3]
    wide = built.run(fn, x)
    assert all(same_bits(wide, built.run(fn, x, lanes)) for lanes in built.isa.f64[1:])


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_precise_bits_do_not_depend_on_compiler_or_instruction_set(
    built: Built, reference_build: Built, fn: str
):
    x = np.concatenate(
        [f32_patterns(40, seed=7), np.random.default_rng(8).normal(0, 8, 20_000).astype("f4")]
    )
    y = np.concatenate([f64_patterns(2, seed=9), np.random.default_rng(10).normal(0, 8, 20_000)])
    for values in (x, y):
        assert same_bits(built.run(fn, values), reference_build.run(fn, values))
