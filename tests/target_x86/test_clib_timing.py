"""Timing loops, probes and CPU features of the support library."""

from __future__ import annotations

import ctypes
import mmap

import numpy as np
import pytest
from clib_build import AVX2, AVX512, BASELINE, cpu_flags, lacking, load, pointer

from tfsearch.target.x86 import clib

pytestmark = pytest.mark.xdist_group("clib_support")

# A kernel's arguments: a log of calls, its own number, the code it returns when the log is full.
DRIVER = """
typedef struct { int64_t used, room; int64_t entry[4096]; } call_log;
static int note(void** args, int64_t kernel) {
  call_log* log = args[0];
  if (log->used >= log->room) return 7;
  log->entry[log->used++] = kernel * 100 + *(int64_t*)args[1];
  return 0;
}
int kernel_a(void** args) { return note(args, 1); }
int kernel_b(void** args) { return note(args, 2); }
int kernel_c(void** args) { return note(args, 3); }
"""

BUILDS = [("gcc", AVX512), ("gcc", BASELINE), ("clang", AVX2), ("zig", AVX512)]


class Flush(ctypes.Structure):
    _fields_ = (("buffer", ctypes.c_void_p), ("bytes", ctypes.c_size_t))


class Bench:
    """The library, a call log, and ``sets`` argument sets that share it."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.log = np.zeros(4098, np.int64)
        self.numbers = np.arange(8, dtype=np.int64)
        self.log[1] = 4096
        pair = ctypes.c_void_p * 2
        self.sets = [pair(self.log.ctypes.data, self.numbers.ctypes.data + 8 * i) for i in range(8)]

    def argsets(self, count: int) -> ctypes.Array:
        return (ctypes.c_void_p * count)(*(ctypes.addressof(s) for s in self.sets[:count]))

    @property
    def calls(self) -> list[int]:
        return self.log[2 : 2 + self.log[0]].tolist()


@pytest.fixture(scope="module", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1].name}")
def lib(request, tmp_path_factory) -> ctypes.CDLL:
    compiler, isa = request.param
    if (missing := lacking(compiler, isa)) is not None:
        pytest.skip(f"needs {missing}")
    text = clib.support_source() + DRIVER
    library = load(tmp_path_factory.mktemp("timing"), text, compiler, isa.flags)
    for name in ("tfs_probe_fma", "tfs_probe_copy", "tfs_probe_read", "tfs_probe_tile"):
        getattr(library, name).restype = ctypes.c_double
    library.tfs_now_ns.restype = ctypes.c_int64
    return library


@pytest.fixture
def bench(lib) -> Bench:
    return Bench(lib)


def test_time_calls_warmup_plus_samples_and_rotates_the_sets(bench):
    out = np.full(6, -1, np.int64)
    rc = bench.lib.tfs_time(bench.lib.kernel_a, bench.argsets(3), 3, 2, 4, 5, pointer(out), None)
    assert rc == 0
    assert bench.calls == [100 + i % 3 for i in range(2 + 4 * 5)]
    assert np.all(out[:5] >= 0)
    assert out[5] == -1


def test_the_cold_protocol_reads_the_whole_buffer_and_leaves_it_readable(bench):
    buffer = mmap.mmap(-1, 1 << 20)
    flush = Flush(ctypes.addressof(ctypes.c_char.from_buffer(buffer)), len(buffer))
    out = np.full(3, -1, np.int64)
    rc = bench.lib.tfs_time(
        bench.lib.kernel_b, bench.argsets(2), 2, 0, 3, 3, pointer(out), ctypes.byref(flush)
    )
    assert rc == 0
    assert bench.calls == [200 + i % 2 for i in range(9)]
    assert np.all(out >= 0)
    assert set(buffer[::64]) == {1}  # written once, so every page is its own


def test_the_first_failing_call_stops_the_measurement(bench):
    bench.log[1] = 10
    out = np.zeros(50, np.int64)
    rc = bench.lib.tfs_time(bench.lib.kernel_a, bench.argsets(1), 1, 0, 1, 50, pointer(out), None)
    assert rc == 7
    assert len(bench.calls) == 10


@pytest.mark.parametrize(
    "bad", [{"nsets": 0}, {"warmup": -1}, {"batch": 0}, {"samples": 0}], ids=lambda b: next(iter(b))
)
def test_a_meaningless_request_is_refused_before_any_call(bench, bad: dict[str, int]):
    ask = {"nsets": 1, "warmup": 0, "batch": 1, "samples": 1} | bad
    out = np.zeros(4, np.int64)
    rc = bench.lib.tfs_time(bench.lib.kernel_a, bench.argsets(1), *ask.values(), pointer(out), None)
    assert (rc, bench.calls) == (-1, [])


def test_pairs_alternate_abba(bench):
    out = np.full(8, -1, np.int64)
    lib = bench.lib
    rc = lib.tfs_time_pair(
        lib.kernel_a, lib.kernel_b, bench.argsets(1), bench.argsets(1),
        1, 1, 2, 1, 4, pointer(out), None,
    )  # fmt: skip
    a, b = [100] * 3, [200] * 2
    assert rc == 0
    assert bench.calls == (a + b + b + a) * 2
    assert np.all(out >= 0)


def many(bench: Bench, rounds: int, seed: int) -> tuple[list[int], np.ndarray]:
    """Three kernels, one untimed call before batches of 1, 2 and 3."""
    lib = bench.lib
    bench.log[0] = 0
    fns = (ctypes.c_void_p * 3)(
        *(ctypes.cast(f, ctypes.c_void_p).value for f in (lib.kernel_a, lib.kernel_b, lib.kernel_c))
    )
    sets = [bench.argsets(1) for _ in range(3)]
    argsets = (ctypes.c_void_p * 3)(*(ctypes.addressof(s) for s in sets))
    batch = (ctypes.c_int * 3)(1, 2, 3)
    out = np.full((rounds, 3), -1, np.int64)
    rc = lib.tfs_time_many(
        fns, argsets, 3, 1, 1, batch, rounds, ctypes.c_uint64(seed), pointer(out), None
    )
    assert rc == 0
    return bench.calls, out


def test_many_times_every_kernel_once_a_round_in_a_random_order(bench):
    rounds = 60
    calls, out = many(bench, rounds, 11)
    assert np.all(out >= 0)
    assert len(calls) == rounds * (2 + 3 + 4)
    orders = set()
    for r in range(rounds):
        part = calls[9 * r : 9 * r + 9]
        assert sorted(part) == [100] * 2 + [200] * 3 + [300] * 4
        orders.add(tuple(dict.fromkeys(part)))
    assert len(orders) == 6


def test_the_order_depends_on_the_seed_alone(bench):
    first, _ = many(bench, 20, 5)
    again, _ = many(bench, 20, 5)
    other, _ = many(bench, 20, 6)
    assert first == again
    assert first != other


def test_the_clock_does_not_go_back(lib):
    times = [lib.tfs_now_ns() for _ in range(1000)]
    assert times == sorted(times)
    assert times[-1] > times[0]


def test_probes_give_positive_rates_and_copy_copies(lib):
    assert lib.tfs_probe_fma(2) > 0
    size = 1 << 16
    buffer = mmap.mmap(-1, 2 * size)
    base = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
    buffer[:size] = np.random.default_rng(0).bytes(size)
    src, dst, n = ctypes.c_void_p(base), ctypes.c_void_p(base + size), ctypes.c_size_t(size)
    assert lib.tfs_probe_copy(dst, src, n, 2) > 0
    assert buffer[size:] == buffer[:size]
    assert lib.tfs_probe_read(src, n, 2) > 0


def test_probes_refuse_unaligned_or_ragged_buffers(lib):
    base = ctypes.addressof(ctypes.create_string_buffer(4096)) & ~63
    assert lib.tfs_probe_copy(ctypes.c_void_p(base), ctypes.c_void_p(base + 8), 64, 1) == 0
    assert lib.tfs_probe_read(ctypes.c_void_p(base), ctypes.c_size_t(65), 1) == 0


def test_the_tile_probe_says_why_there_is_no_rate(lib):
    assert lib.tfs_probe_tile(1) == -1  # built without the tile flags


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_tile_probe_built_for_tiles_is_guarded_at_run_time(compiler: str, tmp_path):
    if (missing := lacking(compiler)) is not None:
        pytest.skip(f"needs {missing}")
    flags = ("-mamx-tile", "-mamx-bf16")
    library = load(tmp_path, clib.support_source(), compiler, flags)
    library.tfs_probe_tile.restype = ctypes.c_double
    rate = library.tfs_probe_tile(2)
    if "amx_tile" in cpu_flags() and library.tfs_amx_enable() == 0:
        assert rate > 0
    else:
        assert rate == -2


def text_of(function) -> str:
    """The string that a tfs_cpu_ function writes."""
    buffer = ctypes.create_string_buffer(4096)
    length = function(buffer, len(buffer))
    assert length == len(buffer.value)
    short = ctypes.create_string_buffer(b"x" * 16)
    assert function(short, 5) == length
    assert short.raw[:5] == buffer.raw[:4] + b"\0"
    assert short.raw[5:16] == b"x" * 11
    return buffer.value.decode()


def test_cpu_features_agree_with_the_kernel(lib):
    names = text_of(lib.tfs_cpu_features).split()
    assert "sse2" in names
    assert len(names) == len(set(names))
    assert set(names) <= cpu_flags()
    known = {"sse2", "ssse3", "sse4_1", "sse4_2", "avx", "avx2", "fma", "f16c", "bmi1", "bmi2"}
    known |= {f for f in cpu_flags() if f.startswith(("avx512f", "avx512bw", "avx512_", "amx_"))}
    assert known & cpu_flags() - {"avx512_vp2intersect"} <= set(names)


def test_cpu_identity_agrees_with_the_kernel(lib):
    fields: dict[str, str] = {}
    with open("/proc/cpuinfo", encoding="utf-8") as text:
        for line in text:
            key, _, value = line.partition(":")
            fields.setdefault(key.strip(), value.strip())
    wanted = [fields[k] for k in ("vendor_id", "cpu family", "model", "stepping")]
    assert text_of(lib.tfs_cpu_identity).split() == wanted
