"""Every atom does on the processor what its NumPy semantics say, and touches nothing else."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from atom_kernels import Array, OneCall, at_the_edge, one_call, one_text
from clib_build import AVX2, AVX512, BASELINE, Isa, build, cpu_flags, require

from tfsearch.atoms.contract import Atom, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.budgets import ULPS, unary_budget
from tfsearch.ir.hir.ops import UnaryFn
from tfsearch.prove.interpret import interpret
from tfsearch.prove.limits import Limits
from tfsearch.prove.verify import verify
from tfsearch.target.x86 import target
from tfsearch.target.x86.atoms import vector_atoms
from tfsearch.target.x86.tiles import tile_atoms

pytestmark = [
    pytest.mark.xdist_group("x86_atoms"),
    # Not-a-numbers and overflows are what is tested.
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]

EXACT_MATHS = {UnaryFn.SQRT.value, UnaryFn.RECIP.value}
MATHS = {fn.value for fn in ULPS} - EXACT_MATHS
QUICK = ("-O1",)
QUIET = ("-Wno-unused-variable", "-Wno-unused-parameter")
NATIVE_ROUNDING = ("avx512_bf16", "-mavx512bf16")


@dataclass(frozen=True)
class Level:
    """A compiler and what it may use; ``features`` as atoms name them."""

    compiler: str
    isa: Isa
    native: bool = False

    @property
    def features(self) -> frozenset[str]:
        extra = {"avx2"} if self.isa.needs else set()
        return self.isa.needs | extra | ({NATIVE_ROUNDING[0]} if self.native else set())

    @property
    def flags(self) -> tuple[str, ...]:
        return (*QUICK, *self.isa.flags, *((NATIVE_ROUNDING[1],) if self.native else ()))


LEVELS = {
    "gcc-avx512-bf16": Level("gcc", AVX512, native=True),
    "gcc-avx512": Level("gcc", AVX512),
    "clang-avx2": Level("clang", AVX2),
    "gcc-baseline": Level("gcc", BASELINE),
}
"""Functions of narrow registers differ between levels, so each level is built."""


@cache
def _table(features: frozenset[str]) -> AtomTable:
    return AtomTable((*tile_atoms(), *vector_atoms()), features)


def _testable(level: Level) -> list[Atom]:
    """Atoms that one unit alone can run on the level; those of its own only on the native one."""
    table = _table(level.features)
    usable = [
        atom
        for atom in table.values()
        if atom.features <= level.features and atom.effects.synchronises != "unit_barrier"
    ]
    if level.native:
        return [atom for atom in usable if NATIVE_ROUNDING[0] in atom.features]
    return usable


def _require(level: Level) -> None:
    require(level.compiler, level.isa)
    if level.native and NATIVE_ROUNDING[0] not in cpu_flags():
        pytest.skip(f"needs CPU features {NATIVE_ROUNDING[0]}")


@pytest.fixture(scope="module", params=list(LEVELS))
def built(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Level, list[OneCall], ctypes.CDLL]:
    level = LEVELS[request.param]
    _require(level)
    calls = [one_call(a, f"k{i}", seed=i) for i, a in enumerate(_testable(level))]
    text = one_text((c.kernel for c in calls), _table(level.features))
    folder = tmp_path_factory.mktemp("atoms")
    flags = (*level.flags, *QUIET, "-shared", "-fPIC")
    return level, calls, ctypes.CDLL(str(build(folder, text, level.compiler, flags, "lib.so")))


def test_every_atom_gives_what_its_semantics_say(
    built: tuple[Level, list[OneCall], ctypes.CDLL],
) -> None:
    level, calls, library = built
    atoms = _table(level.features)
    limits: Limits = target.limits(target.nominal())
    wrong: list[str] = []
    for call in calls:
        refused = verify(call.module, atoms, limits)
        assert not refused, (call.atom.id, refused)
        expected = interpret(call.module, atoms, call.inputs, detect_races=False)
        assert not expected.refusals, (call.atom.id, expected.refusals)
        found = call.call(library)
        assert set(found) == set(expected.outputs)
        wrong += [
            f"{call.atom.id}: {text}"
            for name, value in found.items()
            if (text := _difference(call.atom, value, expected.outputs[name]))
        ]
    assert not wrong, "\n".join(wrong[:20])
    assert len(calls) >= (3 if level.native else 90)


def _difference(atom: Atom, got: Array, want: Array) -> str:
    """ "" when the arrays agree as far as the atom promises."""
    allowed = _allowed(atom, want)
    with np.errstate(all="ignore"):
        a, b = got.astype(np.float64), want.astype(np.float64)
        same = (np.isnan(a) & np.isnan(b)) | (got.view(_word(got)) == want.view(_word(want)))
        if atom.computes.fn in ("max", "min"):
            same |= a == b  # NumPy chooses either of two zeros
        same |= np.abs(a - b) <= allowed
    if same.all():
        return ""
    place = tuple(int(i) for i in np.argwhere(~same)[0])
    return f"at {place} got {got[place]!r}, expected {want[place]!r}; {(~same).sum()} wrong"


def _word(array: Array) -> np.dtype:
    return np.dtype(f"u{array.dtype.itemsize}")


def _allowed(atom: Atom, want: Array) -> Array:
    """Absolute error: the budget of maths functions, one ulp of a fused multiply-add."""
    computes, dtype = atom.computes, DType.of_numpy(want.dtype)
    size = np.abs(want.astype(np.float64))
    ulp = 2 * dtype.unit_roundoff * size if dtype.is_float else 0 * size
    if (computes.kind is Kind.MMA or computes.fn == "fma") and dtype.is_float:
        return ulp  # the reference rounds twice
    if computes.kind is not Kind.MAP or computes.fn not in ULPS_BY_NAME:
        return np.full(want.shape, -1.0)
    if computes.fn in EXACT_MATHS and computes.accuracy == "precise":
        return np.full(want.shape, -1.0)
    budget = unary_budget(ULPS_BY_NAME[computes.fn], dtype, Accuracy(computes.accuracy))
    return budget.relative * size + budget.absolute + ulp


ULPS_BY_NAME = {fn.value: fn for fn in ULPS}


# Memory that ends ------------------------------------------------------------------------------

EDGE_SCRIPT = """
import ctypes, mmap, sys
library, page = ctypes.CDLL(sys.argv[1]), mmap.PAGESIZE
area = mmap.mmap(-1, 3 * page)
start = ctypes.addressof(ctypes.c_char.from_buffer(area))
libc = ctypes.CDLL(None, use_errno=True)
for guard in (start, start + 2 * page):
    assert libc.mprotect(ctypes.c_void_p(guard), page, 0) == 0
other = (ctypes.c_char * (1 << 16))()
for line in sys.stdin:
    name, symbol, size, end = line.split()
    print(name, flush=True)
    address = start + (2 * page - int(size) if end == "1" else page)
    block = (ctypes.c_void_p * 5)(address, ctypes.addressof(other), 0, 0, 0)
    assert getattr(library, symbol)(block) == 0
print("done")
"""


@pytest.mark.parametrize("name", ["gcc-avx512", "clang-avx2", "gcc-baseline"])
def test_partial_accesses_touch_no_byte_outside_of_their_window(tmp_path: Path, name: str) -> None:
    level = LEVELS[name]
    _require(level)
    atoms = [a for a in _testable(level) if _is_partial_access(a)]
    kernels, lines = [], []
    for index, (atom, end) in enumerate((a, e) for a in atoms for e in (True, False)):
        kernel = at_the_edge(atom, f"edge{index}", end=end)
        kernels.append(kernel)
        size = kernel.params[0].buffer.bytes
        lines.append(f"{atom.id} tfsearch_edge{index} {size} {int(end)}")
    text = one_text(kernels, _table(level.features))
    flags = (*level.flags, *QUIET, "-shared", "-fPIC")
    library = build(tmp_path, text, level.compiler, flags, "lib.so")
    assert _last_words(library, lines) == "done"
    assert len(atoms) >= 28


def test_the_guard_pages_catch_an_access_that_leaves_its_window(tmp_path: Path) -> None:
    level = LEVELS["gcc-avx512"]
    _require(level)
    atom = _table(level.features)["x86.load_partial.f32x16.f32"]
    whole = one_text([at_the_edge(atom, "edge0", end=True)], _table(level.features))
    text = whole.replace("tfs_loadn_f32_f32x16(", "tfs_load_f32_f32x16(").replace(
        ", (int)(extent))", ")"
    )
    assert text != whole
    flags = (*level.flags, "-shared", "-fPIC")
    library = build(tmp_path, text, level.compiler, flags, "lib.so")
    assert _last_words(library, [f"{atom.id} tfsearch_edge0 64 1"]) == atom.id


def _is_partial_access(atom: Atom) -> bool:
    access = atom.computes.kind in (Kind.LOAD, Kind.STORE)
    return access and atom.computes.partial and atom.computes.fn == ""


def _last_words(library: Path, lines: Sequence[str]) -> str:
    done = subprocess.run(
        [sys.executable, "-c", EDGE_SCRIPT, str(library)],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    return done.stdout.split("\n")[-2]


def test_a_wrong_instruction_is_noticed(tmp_path: Path) -> None:
    level = LEVELS["gcc-baseline"]
    _require(level)
    atoms = _table(level.features)
    wrong = {
        "x86.add.f32x1": ("tfs_add_f32x1", "tfs_sub_f32x1"),
        "x86.max.f64x1": ("tfs_max_f64x1", "tfs_min_f64x1"),
        "x86.exp.f32x1": ("tfs_exp_f32x1", "tfs_sigmoid_f32x1"),
        "x86.store.bf16.f32x1": ("tfs_store_bf16_f32x1", "tfs_store_f16_f32x1"),
        "x86.load.i32x1.i8": ("*)args[1];", "*)args[1] + 1;"),
    }
    calls = [one_call(atoms[name], f"k{i}", seed=i) for i, name in enumerate(wrong)]
    for call in calls:
        text = one_text([call.kernel], atoms)
        planted = text.replace(*wrong[call.atom.id])
        assert planted != text
        flags = (*level.flags, "-shared", "-fPIC")
        library = ctypes.CDLL(str(build(tmp_path, planted, "gcc", flags, f"{call.symbol}.so")))
        expected = interpret(call.module, atoms, call.inputs).outputs
        found = call.call(library)
        assert any(_difference(call.atom, found[name], expected[name]) for name in found)
