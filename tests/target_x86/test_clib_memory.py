"""Conversions, whole and partial memory access, horizontal reductions."""

from __future__ import annotations

import ctypes
import subprocess
from functools import cache

import ml_dtypes
import numpy as np
import pytest
from clib_build import (
    AVX2,
    AVX512,
    BASELINE,
    BUILDS,
    Isa,
    build,
    build_ids,
    f32_patterns,
    f64_patterns,
    load,
    mapped,
    pointer,
    require,
    same_bits,
)

pytestmark = [
    pytest.mark.xdist_group("clib_memory"),
    # Casts of NaN and overflowing numbers are what is tested.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

# Long texts of straight-line intrinsics: compiled at a lower level to keep the tests short.
QUICK = ("-O1",)

BF16 = np.dtype(ml_dtypes.bfloat16)
MEMORY = {
    "f32": np.dtype("f4"),
    "f64": np.dtype("f8"),
    "bf16": BF16,
    "f16": np.dtype("f2"),
    "i8": np.dtype("i1"),
    "i32": np.dtype("i4"),
}
FORMATS = {"f32": tuple(MEMORY), "f64": tuple(MEMORY), "i32": ("i32", "i8")}

DRIVER = """
#include "maths.h"
#define COPY(IN, OUT, N, L) \\
  void copy_##IN##_##N##_##OUT##_##L(const void* x, void* y, int64_t n) { \\
    const char* p = x; \\
    char* q = y; \\
    int64_t i = 0; \\
    for (; i + L <= n; i += L) { \\
      tfs_##N v = tfs_load_##IN##_##N(p + i * SIZE_##IN); \\
      if (i & L) tfs_stream_##OUT##_##N(q + i * SIZE_##OUT, v); \\
      else tfs_store_##OUT##_##N(q + i * SIZE_##OUT, v); \\
    } \\
    tfs_storen_##OUT##_##N(q + i * SIZE_##OUT, \\
                           tfs_loadn_##IN##_##N(p + i * SIZE_##IN, (int)(n - i)), (int)(n - i)); \\
    tfs_stream_fence(); \\
  }
#define REDUCE(RED, T, MEM, N) \\
  T reduce_##RED##_##N(const void* p) { return tfs_##RED##_##N(tfs_load_##MEM##_##N(p)); }
#define BINARY(OP, MEM, N) \\
  void binary_##OP##_##N(const void* a, const void* b, void* y) { \\
    tfs_store_##MEM##_##N(y, tfs_##OP##_##N(tfs_load_##MEM##_##N(a), tfs_load_##MEM##_##N(b))); \\
  }
"""
SIZES = "\n".join(f"#define SIZE_{name} {dtype.itemsize}" for name, dtype in MEMORY.items())
C_TYPES = {"f32": "float", "f64": "double", "i32": "int32_t"}
CTYPES = {"f32": ctypes.c_float, "f64": ctypes.c_double, "i32": ctypes.c_int32}


def registers(isa: Isa) -> list[tuple[str, int]]:
    """Every register type as (dtype, lanes)."""
    return [
        *(("f32", n) for n in isa.f32),
        *(("f64", n) for n in isa.f64),
        *(("i32", n) for n in isa.f32),
    ]


def driver(isa: Isa) -> str:
    lines = [SIZES, DRIVER]
    for kind, n in registers(isa):
        name = f"{kind}x{n}"
        pairs = {(m, kind) for m in FORMATS[kind]} | {(kind, m) for m in FORMATS[kind]}
        lines += [f"COPY({a}, {b}, {name}, {n})" for a, b in sorted(pairs)]
        for red in ("hsum", "hprod", "hmax", "hmin"):
            lines.append(f"REDUCE({red}, {C_TYPES[kind]}, {kind}, {name})")
        lines += [f"BINARY({op}, {kind}, {name})" for op in ("max", "min")]
    return "\n".join(lines)


class Built:
    def __init__(self, lib: ctypes.CDLL, isa: Isa) -> None:
        self.lib = lib
        self.isa = isa

    def copies(self, source: str, kind: str, target: str, x: np.ndarray) -> list[np.ndarray]:
        """``x`` in memory format ``source``, through registers of ``kind``, to ``target``: once
        per lane count, with aligned and with odd addresses."""
        results = []
        for n in [n for k, n in registers(self.isa) if k == kind]:
            name = f"copy_{source}_{kind}x{n}_{target}_{n}"
            results.append(mapped(self.lib, name, x, MEMORY[target]))
            shifted = np.concatenate([x[:1], x])[1:]
            results.append(mapped(self.lib, name, shifted, MEMORY[target]))
        return results


@pytest.fixture(scope="module", params=BUILDS, ids=build_ids())
def built(request, tmp_path_factory) -> Built:
    compiler, isa = request.param
    require(compiler, isa)
    return Built(
        load(tmp_path_factory.mktemp("memory"), driver(isa), compiler, (*isa.flags, *QUICK)), isa
    )


ALL_16 = np.arange(1 << 16, dtype=np.uint16)


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_all_16_bit_floats_widen_exactly(built: Built, fmt: str, kind: str):
    x = ALL_16.view(MEMORY[fmt])
    want = x.astype(MEMORY[kind])
    assert all(same_bits(got, want) for got in built.copies(fmt, kind, kind, x))


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_all_16_bit_floats_survive_the_round_trip(built: Built, fmt: str, kind: str):
    x = ALL_16.view(MEMORY[fmt])
    wide = built.copies(fmt, kind, kind, x)[0]
    assert all(same_bits(got, x) for got in built.copies(kind, kind, fmt, wide))


def rounded(x: np.ndarray, fmt: str) -> np.ndarray:
    """float64 ``x`` rounded once, half to even, to a 16-bit format; as float64."""
    digits, low, top = {"bf16": (8, -126, 2.0**128), "f16": (11, -14, 2.0**16)}[fmt]
    with np.errstate(invalid="ignore"):
        _, exponent = np.frexp(x)
        step = np.maximum(exponent - 1, low) - (digits - 1)
        near = np.ldexp(np.rint(np.ldexp(x, -step)), step)
    return np.where(np.abs(near) >= top, np.copysign(np.inf, x), near)


@cache
def narrowing_inputs() -> np.ndarray:
    """Numbers of every magnitude, ties, and numbers next to ties that rounding twice would miss."""
    f32 = f32_patterns(128, seed=1).astype(np.float64)
    halves = (ALL_16.astype(np.uint32) << 16 | 0x8000).view(np.float32).astype(np.float64)
    half16 = ALL_16.view(np.float16).astype(np.float64)
    tie16 = (half16[:-1] + half16[1:]) / 2
    ties = np.concatenate([halves, tie16])
    with np.errstate(all="ignore"):
        return np.concatenate([f32, ties, np.nextafter(ties, 0), np.nextafter(ties, np.inf)])


@pytest.mark.parametrize("kind", ["f32", "f64"])
@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_narrowing_rounds_once_to_nearest_even(built: Built, fmt: str, kind: str):
    x = narrowing_inputs()
    with np.errstate(all="ignore"):
        x = np.concatenate([x, f64_patterns(4)]) if kind == "f64" else x.astype(np.float32)
    want = rounded(x.astype(np.float64), fmt)
    for got in built.copies(kind, kind, fmt, x):
        assert same_bits(got.astype(np.float64), want)
        assert np.array_equal(
            np.signbit(got.astype(np.float32))[~np.isnan(want)], np.signbit(x)[~np.isnan(want)]
        )


@pytest.mark.parametrize("fmt", ["bf16", "f16"])
def test_f32_narrowing_agrees_with_the_python_libraries(built: Built, fmt: str):
    x = f32_patterns(1024, seed=2)
    with np.errstate(all="ignore"):
        want = x.astype(MEMORY[fmt])
    assert all(same_bits(got, want) for got in built.copies("f32", "f32", fmt, x)[:2])


def test_a_signalling_nan_becomes_a_quiet_nan(built: Built):
    x = np.array([0x7F800001, 0xFF800001, 0x7FBFFFFF], dtype=np.uint32).view(np.float32)
    quiet = {"bf16": 0x7FC0, "f16": 0x7E00}
    for fmt, bits in quiet.items():
        for got in built.copies("f32", "f32", fmt, x):
            assert np.all(got.view(np.uint16) & bits == bits)


@pytest.mark.parametrize("target", ["i8", "i32"])
@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_float_to_integer_rounds_half_to_even_and_saturates(built: Built, kind: str, target: str):
    rng = np.random.default_rng(3)
    halves = np.arange(-300, 300) / 2
    edges = np.array([2.0**31, -(2.0**31), 2.0**31 - 1, -(2.0**31) - 1, 2.0**31 - 0.5, 2.0**32])
    with np.errstate(all="ignore"):
        x = np.concatenate(
            [halves, edges, edges * (1 - 2.0**-24), rng.normal(0, 90, 4000), f64_patterns(2)]
        ).astype(MEMORY[kind])
    info = np.iinfo(MEMORY[target])
    want = np.clip(np.rint(np.nan_to_num(x.astype(np.float64), nan=0.0)), info.min, info.max)
    for got in built.copies(kind, kind, target, x):
        assert np.array_equal(got.astype(np.float64), want)


@pytest.mark.parametrize("kind", ["f32", "f64", "i32"])
def test_integers_convert_to_the_compute_type(built: Built, kind: str):
    small = np.arange(-128, 128, dtype=np.int8)
    large = np.random.default_rng(4).integers(-(2**31), 2**31, 4001).astype(np.int32)
    for name, x in (("i8", small), ("i32", large)):
        want = x.astype(MEMORY[kind])
        assert all(np.array_equal(got, want) for got in built.copies(name, kind, kind, x))


def test_i32_saturates_to_i8(built: Built):
    x = np.array([-(2**31), -129, -128, 0, 127, 128, 32768, -32769, 65536, 2**31 - 1] * 5, "i4")
    want = np.clip(x, -128, 127).astype(np.int8)
    assert all(np.array_equal(got, want) for got in built.copies("i32", "i32", "i8", x))


def test_f64_and_f32_convert_both_ways(built: Built):
    with np.errstate(all="ignore"):
        wide = np.concatenate([f64_patterns(4), narrowing_inputs()[::9]])
        narrow = wide.astype(np.float32)
        widened = narrow.astype(np.float64)
    for got in built.copies("f64", "f32", "f32", wide) + built.copies("f64", "f64", "f32", wide):
        assert same_bits(got, narrow)
    both = built.copies("f32", "f64", "f64", narrow) + built.copies("f32", "f32", "f64", narrow)
    assert all(same_bits(got, widened) for got in both)


def tree(op, values: np.ndarray):
    """The documented order: lane i meets lane i + L/2 until one is left."""
    while values.size > 1:
        half = values.size // 2
        values = op(values[:half], values[half:])
    return values[0]


REDUCTIONS = {"hsum": np.add, "hprod": np.multiply, "hmax": np.maximum, "hmin": np.minimum}


@pytest.mark.parametrize("name", REDUCTIONS)
@pytest.mark.parametrize("kind", ["f32", "f64", "i32"])
def test_horizontal_reductions_follow_the_documented_tree(built: Built, kind: str, name: str):
    rng = np.random.default_rng(5)
    for k, n in registers(built.isa):
        if k != kind:
            continue
        reduce = getattr(built.lib, f"reduce_{name}_{kind}x{n}")
        reduce.restype = CTYPES[kind]
        for _ in range(50):
            x = rng.normal(0, 1e3, n)
            x = (x * 1e6 if kind == "i32" else x).astype(MEMORY[kind])
            with np.errstate(over="ignore"):
                assert reduce(pointer(x)) == tree(REDUCTIONS[name], x)


@pytest.mark.parametrize("kind", ["f32", "f64"])
def test_max_and_min_propagate_a_nan_from_any_lane(built: Built, kind: str):
    for k, n in registers(built.isa):
        if k != kind:
            continue
        for lane in range(n):
            x = np.arange(n, dtype=MEMORY[kind])
            x[lane] = np.nan
            for name in ("hmax", "hmin"):
                reduce = getattr(built.lib, f"reduce_{name}_{kind}x{n}")
                reduce.restype = CTYPES[kind]
                assert np.isnan(reduce(pointer(x)))


@pytest.mark.parametrize("kind", ["f32", "f64", "i32"])
def test_elementwise_max_and_min_agree_with_numpy(built: Built, kind: str):
    base = np.array(
        [0, 1, -1, 7, 2**31 - 1, -(2**31)]
        if kind == "i32"
        else [0.5, -3.0, np.inf, -np.inf, np.nan, 1e30],
        dtype=MEMORY[kind],
    )
    left, right = (g.reshape(-1) for g in np.meshgrid(base, base))
    for k, n in registers(built.isa):
        if k != kind:
            continue
        for op, numpy in (("max", np.maximum), ("min", np.minimum)):
            for i in range(0, left.size - n + 1):
                a, b = left[i : i + n].copy(), right[i : i + n].copy()
                y = np.zeros(n, MEMORY[kind])
                getattr(built.lib, f"binary_{op}_{kind}x{n}")(pointer(a), pointer(b), pointer(y))
                assert np.array_equal(y, numpy(a, b), equal_nan=kind != "i32")


GUARD = """
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
static int failures;
#define EXPECT(c, what, name, n) \\
  do { if (!(c)) { ++failures; printf("%s %s n=%d\\n", what, name, n); } } while (0)
static char* page; /* one page between two that cannot be touched */
#define CHECK(MEM, N, L) do { \\
    enum { size = SIZE_##MEM }; \\
    for (int n = 0; n <= L; ++n) for (int end = 0; end < 2; ++end) { \\
      char* p = end ? page + 4096 - n * size : page; \\
      for (int i = 0; i < 4096; ++i) page[i] = (char)(i % 11); \\
      char before[4096]; \\
      tfs_##N v = tfs_loadn_##MEM##_##N(p, n); \\
      char lanes[sizeof v], zero[sizeof v] = {0}; \\
      memcpy(lanes, &v, sizeof v); \\
      int used = (int)(sizeof v) / L * n; \\
      EXPECT(!memcmp(lanes + used, zero, sizeof v - (size_t)used), \\
             "loadn lanes", #MEM " " #N, n); \\
      memset(page, 0x5a, 4096); \\
      memcpy(before, page, 4096); \\
      tfs_storen_##MEM##_##N(p, v, n); \\
      int at = (int)(p - page); \\
      EXPECT(!memcmp(page, before, (size_t)at), "storen before", #MEM " " #N, n); \\
      EXPECT(!memcmp(page + at + n * size, before, (size_t)(4096 - at - n * size)), \\
             "storen after", #MEM " " #N, n); \\
      if (n == L) { \\
        tfs_##N w = tfs_load_##MEM##_##N(p); \\
        tfs_store_##MEM##_##N(p, w); \\
        tfs_stream_##MEM##_##N(p, w); \\
        EXPECT(!memcmp(page, before, (size_t)at), "store before", #MEM " " #N, n); \\
        EXPECT(!memcmp(page + at + n * size, before, (size_t)(4096 - at - n * size)), \\
               "store after", #MEM " " #N, n); \\
      } \\
    } \\
  } while (0)
"""


@pytest.mark.parametrize("isa", [AVX512, AVX2, BASELINE], ids=lambda isa: isa.name)
def test_partial_accesses_touch_nothing_outside(isa: Isa, tmp_path):
    require("gcc", isa)
    checks = [
        f"  CHECK({m}, {kind}x{n}, {n});" for kind, n in registers(isa) for m in FORMATS[kind]
    ]
    main = """
int main(void) {
  char* map = mmap(NULL, 3 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (map == MAP_FAILED) return 2;
  page = map + 4096;
  if (mprotect(page, 4096, PROT_READ | PROT_WRITE)) return 2;
"""
    text = "\n".join(
        [SIZES, '#include "maths.h"', GUARD, main, *checks, "  return failures != 0;", "}"]
    )
    program = build(tmp_path, text, "gcc", (*isa.flags, *QUICK), "guard")
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stdout[:2000]}"


@pytest.mark.parametrize("compiler", ["gcc", "clang", "zig"])
def test_a_partial_store_of_a_known_length_spares_the_neighbour(tmp_path, compiler: str):
    """With the length a literal, as at the end of a row, optimisers narrow the store themselves."""
    require(compiler, AVX512)
    cases = [
        (mem, f"{kind}x{lanes}", n)
        for kind, lanes in registers(AVX512)
        for mem in FORMATS[kind]
        for n in range(1, min(lanes, 4))
    ]
    lines = [
        f"void few_{i}(void* p) {{ tfs_storen_{mem}_{reg}(p, tfs_set1_{reg}(one), {n}); }}"
        for i, (mem, reg, n) in enumerate(cases)
    ]
    text = "\n".join(['#include "maths.h"', "volatile int one = 1;", *lines])
    lib = load(tmp_path, text, compiler, (*AVX512.flags, "-O3"))
    for i, (mem, reg, n) in enumerate(cases):
        y = np.zeros(32, dtype=MEMORY[mem])
        getattr(lib, f"few_{i}")(pointer(y))
        assert np.array_equal(y.astype(np.float64), np.arange(32) < n), (mem, reg, n)


@pytest.mark.parametrize("compiler", ["gcc", "clang", "zig"])
@pytest.mark.parametrize("level", ["-O2", "-O3"])
def test_bytes_are_summed_in_several_variables(tmp_path, compiler: str, level: str):
    """A loop that optimisers like to turn into vector code of their own."""
    require(compiler)
    add = "a{0} = tfs_add_i32x1(a{0}, tfs_load_i8_i32x1(x + {1}));"
    lines = [
        '#include "maths.h"',
        "int32_t total(const int8_t* x) {",
        *(f"  int32_t a{i} = 0;" for i in range(8)),
        "  for (long s = 0; s < 8; ++s) {",
        *("    " + add.format(i, f"s * 8 + {i}") for i in range(8)),
        "  }",
        *("  " + add.format(i, 64 + i) for i in range(3)),
        *(
            f"  a{i} = tfs_add_i32x1(a{i}, a{i + step});"
            for step in (1, 2, 4)
            for i in range(0, 8, 2 * step)
        ),
        "  return a0;",
        "}",
    ]
    lib = load(tmp_path, "\n".join(lines), compiler, (level,))
    x = np.random.default_rng(0).integers(-128, 128, 67).astype(np.int8)
    assert lib.total(pointer(x)) == x.sum(dtype=np.int32)
