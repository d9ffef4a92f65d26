"""Audits of the support library: exchanged inputs, canaries in outputs, soiled memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys

import numpy as np
import pytest
from clib_build import AVX512, BASELINE, lacking, load

from tfsearch.target.x86 import clib
from tfsearch.target.x86.runner import _Array, _Arrays, _Audited

pytestmark = pytest.mark.xdist_group("clib_support")

N = 32
DRIVER = """
static int calls;
static float seen[4096][32];
static int64_t reset(void) { int was = calls; calls = 0; return was; }
int64_t driver_reset(void) { return reset(); }
void driver_seen(float* out) { memcpy(out, seen, sizeof seen); }
int right(void** args) {
  const float* x = args[0];
  float* y = args[1];
  memcpy(seen[calls++ & 4095], x, sizeof *seen);
  for (int i = 0; i < 32; ++i) y[i] = 2 * x[i];
  return 0;
}
int skips(void** args) { return calls == 5 ? calls++, 0 : right(args); }
int fails(void** args) { (void)args; return 9; }
int stack(void** args) {
  volatile unsigned char own[64];
  return args ? own[32] : 0;
}
int heap(void** args) {
  int size = *(int*)args[0], found;
  unsigned char* own = malloc((size_t)size);
  found = *(volatile unsigned char*)&own[size * 3 / 4];
  free(own);
  return found;
}
"""
BUILDS = [("gcc", AVX512), ("gcc", BASELINE), ("clang", BASELINE)]


@pytest.fixture(scope="module", params=BUILDS, ids=lambda b: f"{b[0]}-{b[1].name}")
def lib(request, tmp_path_factory) -> ctypes.CDLL:
    compiler, isa = request.param
    if (missing := lacking(compiler, isa)) is not None:
        pytest.skip(f"needs {missing}")
    text = clib.support_source() + DRIVER
    quiet = ("-Wno-uninitialized", *(("-Wno-maybe-uninitialized",) if compiler == "gcc" else ()))
    flags = (*isa.flags, *quiet)
    return load(tmp_path_factory.mktemp("audit"), text, compiler, flags)


class Sets:
    """Two argument sets: 32 floats in, 32 out."""

    def __init__(self, lib: ctypes.CDLL) -> None:
        self.lib = lib
        self.x = np.random.default_rng(0).standard_normal((2, N)).astype(np.float32)
        self.before = self.x.copy()
        self.y = np.zeros((2, N), np.float32)
        pair = ctypes.c_void_p * 2
        self.blocks = [pair(self.x[s].ctypes.data, self.y[s].ctypes.data) for s in range(2)]
        self.row = pair(*(ctypes.addressof(block) for block in self.blocks))
        self.arrays = (_Arrays * 2)(*(self._arrays(s) for s in range(2)))
        lib.driver_reset()

    def _arrays(self, s: int) -> _Arrays:
        inputs = (_Array * 1)(_Array(self.x[s].ctypes.data, N, 0, 4))
        outputs = (_Array * 1)(_Array(self.y[s].ctypes.data, N, 0x7FA5A5A5, 4))
        return _Arrays(inputs, outputs, 1, 1)

    def audit(self, name: str, calls: int, *, exchange: bool) -> tuple[int, _Audited]:
        found = _Audited()
        code = self.lib.tfs_audit(
            self.lib[name], self.row, self.arrays, 2, calls, int(exchange), ctypes.c_uint64(7),
            ctypes.byref(found),
        )  # fmt: skip
        return code, found

    def seen(self, count: int) -> np.ndarray:
        out = np.zeros((4096, N), np.float32)
        self.lib.driver_seen(ctypes.c_void_p(out.ctypes.data))
        return out[:count]


@pytest.fixture
def sets(lib) -> Sets:
    return Sets(lib)


def test_each_call_but_a_sets_last_sees_two_elements_exchanged(sets: Sets) -> None:
    code, found = sets.audit("right", 20, exchange=True)
    assert code == 0
    assert (found.calls, found.counted, found.exchanged) == (40, 38, 38)
    assert (found.unwritten, found.late) == (0, 0)
    assert found.ns > 0
    seen = sets.seen(40)
    differing = (seen != sets.before[np.arange(40) % 2]).sum(axis=1)
    assert differing.tolist() == [2] * 38 + [0, 0]
    assert len({row.tobytes() for row in seen[:38]}) > 30
    np.testing.assert_array_equal(np.sort(seen[0]), np.sort(sets.before[0]))
    np.testing.assert_array_equal(sets.x, sets.before)
    np.testing.assert_array_equal(sets.y, 2 * sets.before)


def test_without_exchange_contents_stay(sets: Sets) -> None:
    code, found = sets.audit("right", 5, exchange=False)
    assert (code, found.exchanged, found.counted) == (0, 0, 8)
    np.testing.assert_array_equal(sets.seen(10), sets.before[np.arange(10) % 2])


def test_a_call_that_writes_nothing_is_found_and_contents_are_put_back(sets: Sets) -> None:
    code, found = sets.audit("skips", 20, exchange=True)
    assert (code, found.unwritten, found.late) == (0, 1, 0)
    assert found.calls < 40
    np.testing.assert_array_equal(sets.x, sets.before)


def test_a_kernels_own_code_ends_the_audit_and_one_call_a_set_is_refused(sets: Sets) -> None:
    assert sets.audit("fails", 5, exchange=True)[0] == 9
    assert sets.audit("right", 1, exchange=True)[0] == -1
    np.testing.assert_array_equal(sets.x, sets.before)


# In smaller pieces that are free the allocator keeps words of its own.
SOILED = """
import ctypes, sys
lib, fill = ctypes.CDLL(sys.argv[1]), int(sys.argv[2])
assert lib.tfs_call_soiled(lib.stack, ctypes.c_void_p(1), fill) == fill
for size in (64, 500, 1000, 5000, 50_000, 500_000):
    place = ctypes.c_int(size)
    block = (ctypes.c_void_p * 1)(ctypes.addressof(place))
    for _ in range(3):
        assert lib.tfs_call_soiled(lib.heap, block, fill) == fill, size
"""


@pytest.mark.parametrize("fill", [0xFE, 0x7F, 0])
def test_stack_and_heap_hold_what_was_asked_for(lib, fill: int) -> None:
    """In a process of its own, as a measuring process is: a long one has many free pieces."""
    words = [sys.executable, "-c", SOILED, lib._name, str(fill)]
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
