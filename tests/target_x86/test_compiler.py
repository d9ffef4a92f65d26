"""C compilers as compilers of the target: flags, keys, outcomes."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from clib_build import any_compiler

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.plugin.target import Compiler, Source
from tfsearch.target.x86 import target
from tfsearch.target.x86.atoms import vector_atoms
from tfsearch.target.x86.compiler import FEATURE_FLAGS, feature_flags
from tfsearch.target.x86.tiles import tile_atoms

LAUNCH = LaunchSpec(EntrySpec("answer", (), 1, 0))
TEXT = '#include "kernel.h"\nint answer(void **args) { (void)args; return ANSWER; }\n'
SOURCE = Source(TEXT, "c", LAUNCH, (), ())


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    return target.compiler(any_compiler())


def build(compiler: Compiler, source: Source, out: Path, *macros: str, **options: float) -> Status:
    limits = {"timeout_s": 60, "memory_bytes": 4 << 30, **options}
    return compiler.compile(source, (), macros, out, **limits).status  # type: ignore[arg-type]


def test_a_source_with_the_support_headers_is_built(compiler: Compiler, tmp_path: Path) -> None:
    out = tmp_path / "a.so"
    assert build(compiler, SOURCE, out, "ANSWER=42") is Status.OK
    assert ctypes.CDLL(str(out)).answer(None) == 42


def test_a_source_that_does_not_compile_says_where(compiler: Compiler, tmp_path: Path) -> None:
    out = tmp_path / "a.so"
    done = compiler.compile(SOURCE, (), (), out, timeout_s=60, memory_bytes=4 << 30)
    assert done.status is Status.COMPILE_ERROR
    assert "ANSWER" in done.log
    assert not out.exists()


def test_a_compiler_that_takes_too_long_is_stopped(compiler: Compiler, tmp_path: Path) -> None:
    out = tmp_path / "a.so"
    found = build(compiler, SOURCE, out, "ANSWER=1", timeout_s=0.001)
    assert found is Status.COMPILE_TIMEOUT
    assert not out.exists()


EDITS: dict[str, tuple[Callable[[Source], Source], set[str]]] = {
    "text": (lambda s: replace(s, text=s.text + "\n"), {"source"}),
    "own flags": (lambda s: replace(s, flags=("-mavx2",)), {"source", "headers"}),
    "features": (lambda s: replace(s, features=("avx2",)), {"features"}),
    "launch": (lambda s: replace(s, launch=replace(LAUNCH, attributes={"x": 1})), {"launch"}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_key_tells_sources_apart(compiler: Compiler, edit: str) -> None:
    change, fields = EDITS[edit]
    one = compiler.key(SOURCE, (), ("ANSWER=1",)).key_fields()
    other = compiler.key(change(SOURCE), (), ("ANSWER=1",)).key_fields()
    different = {name for name in one if one[name] != other[name]}
    assert fields - {"headers"} <= different <= fields


def test_the_key_keeps_flags_and_macros_in_order(compiler: Compiler) -> None:
    key = compiler.key(SOURCE, ("-O1", "-g"), ("ANSWER=1", "B"))
    assert (key.flags, key.macros) == (("-O1", "-g"), ("ANSWER=1", "B"))
    assert key.key != compiler.key(SOURCE, ("-g", "-O1"), ("ANSWER=1", "B")).key
    assert key.key != compiler.key(SOURCE, ("-O1", "-g"), ("B", "ANSWER=1")).key
    assert key.key == compiler.key(SOURCE, ("-O1", "-g"), ("ANSWER=1", "B")).key
    assert key.target == "x86"


def test_fixed_flags_are_part_of_the_record(compiler: Compiler) -> None:
    assert len(compiler.record.programs["flags"]) == 64
    assert {"driver", "flags"} < set(compiler.record.programs)


def test_a_rejected_flag_is_refused_before_anything_is_built(compiler: Compiler) -> None:
    compiler.check_flags(("-O2",))
    with pytest.raises(RequestError, match="-fno-such-flag-exists"):
        compiler.check_flags(("-fno-such-flag-exists",))


@pytest.mark.parametrize(
    ("flags", "macros", "named"),
    [
        (("-O2", "-ffast-math"), (), "-ffast-math"),
        (("-std=c89",), (), "-std=c89"),
        ((), ("A=1", "float=double"), "-Dfloat=double"),
        ((), ("1x",), "1x"),
    ],
)
def test_what_no_kernel_compiles_with_is_refused(
    compiler: Compiler, flags: tuple[str, ...], macros: tuple[str, ...], named: str
) -> None:
    compiler.check_flags(("-mno-avx512f",), ("A=1",))
    with pytest.raises(RequestError, match=named):
        compiler.check_flags(flags, macros)


def test_every_feature_of_an_atom_has_a_flag() -> None:
    needed = {f for atom in (*vector_atoms(), *tile_atoms()) for f in atom.features}
    assert needed <= set(FEATURE_FLAGS)
    assert feature_flags(("fma", "avx2", "sse2")) == ("-mfma", "-mavx2")
