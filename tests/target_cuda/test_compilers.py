"""NVRTC and nvcc as compilers of the target: no driver and no GPU is needed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.target_cuda.support import (
    COMPILERS,
    MANY,
    MEMORY,
    SCALE,
    built,
    compiler_named,
    disassembled,
    source,
)
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.plugin.target import Compiler, Source
from tfsearch.target.cuda import compilers, toolkit
from tfsearch.target.cuda.hardware import ARCHITECTURES

CODE = source(SCALE, "scale")
FACTOR = ("FACTOR=2.0f",)


@pytest.fixture(params=COMPILERS)
def compiler(request: pytest.FixtureRequest) -> Compiler:
    return compiler_named(request.param)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_cubin_is_built_for_every_architecture(
    compiler: Compiler, architecture: str, tmp_path: Path
) -> None:
    out = tmp_path / "a.cubin"
    done = built(compiler, source(SCALE, "scale", architecture), out, macros=FACTOR)
    assert out.read_bytes()[:4] == b"\x7fELF"
    assert done.resources["registers"] > 0
    assert done.resources["spilled"] == 0
    code = disassembled(out)
    assert "STG" in code
    assert architecture in code


def test_equal_builds_are_equal_bytes(compiler: Compiler, tmp_path: Path) -> None:
    one, two = (
        built(compiler, CODE, tmp_path / name, macros=FACTOR) and (tmp_path / name).read_bytes()
        for name in "ab"
    )
    assert one == two


def test_registers_shared_memory_and_spills_are_recorded(
    compiler: Compiler, tmp_path: Path
) -> None:
    code = source(MANY, "many")
    free = built(compiler, code, tmp_path / "a").resources
    tight = built(compiler, code, tmp_path / "b", "--maxrregcount=32").resources
    assert free["shared_bytes"] == tight["shared_bytes"] == 512
    assert free["registers"] > 64
    assert (free["spilled"], free["spill_store_bytes"], free["stack_bytes"]) == (0, 0, 0)
    assert tight["registers"] == 32
    assert tight["spilled"] == 1
    assert tight["spill_store_bytes"] > 100
    assert tight["spill_load_bytes"] > 100


def test_nothing_is_contracted_unless_the_source_asks(compiler: Compiler, tmp_path: Path) -> None:
    text = """extern "C" __global__ void f(float *y, float a, float b, float c) {
      y[0] = a * b + c;
      y[1] = __fmaf_rn(a, b, c);
    }"""
    built(compiler, source(text, "f"), tmp_path / "a")
    code = disassembled(tmp_path / "a")
    assert code.count("FFMA") == 1
    assert code.count("FMUL") == 1
    built(compiler, source(text, "f"), tmp_path / "b", "--fmad=true")
    assert "FMUL" not in disassembled(tmp_path / "b")


def test_a_source_that_does_not_compile_says_where(compiler: Compiler, tmp_path: Path) -> None:
    out = tmp_path / "a.cubin"
    done = compiler.compile(CODE, (), (), out, timeout_s=60, memory_bytes=MEMORY)
    assert done.status is Status.COMPILE_ERROR
    assert done.log.splitlines()[0].startswith("kernel.cu(4): error:")
    assert "FACTOR" in done.log.splitlines()[0]
    assert not out.exists()


def test_a_compiler_that_takes_too_long_is_stopped(compiler: Compiler, tmp_path: Path) -> None:
    out = tmp_path / "a.cubin"
    done = compiler.compile(CODE, (), FACTOR, out, timeout_s=0.01, memory_bytes=MEMORY)
    assert done.status is Status.COMPILE_TIMEOUT
    assert not out.exists()


def test_a_compiler_without_memory_is_a_crash(compiler: Compiler, tmp_path: Path) -> None:
    done = compiler.compile(CODE, (), FACTOR, tmp_path / "a", timeout_s=60, memory_bytes=100 << 20)
    assert done.status is Status.COMPILE_CRASH
    assert not (tmp_path / "a").exists()


def test_a_kernel_that_uses_too_much_shared_memory_is_an_error_that_says_so(
    compiler: Compiler, tmp_path: Path
) -> None:
    text = """extern "C" __global__ void f(int *y, int i) {
      __shared__ int s[200000]; s[threadIdx.x] = i; __syncthreads(); y[i] = s[i]; }"""
    done = compiler.compile(
        source(text, "f"), (), (), tmp_path / "a", timeout_s=60, memory_bytes=MEMORY
    )
    assert done.status is Status.COMPILE_ERROR
    assert "too much shared data" in done.log.splitlines()[0]


EDITS: dict[str, tuple[Callable[[Source], Source], set[str]]] = {
    "text": (lambda s: replace(s, text=s.text + "\n"), {"source"}),
    "own flags": (lambda s: replace(s, flags=("-lineinfo",)), {"source", "headers"}),
    "features": (lambda s: replace(s, features=("sm_80",)), {"features", "headers"}),
    "launch": (lambda s: replace(s, launch=replace(s.launch, attributes={"x": 1})), {"launch"}),
}


@pytest.mark.parametrize("edit", EDITS)
def test_the_key_tells_sources_apart(compiler: Compiler, edit: str) -> None:
    change, fields = EDITS[edit]
    one = compiler.key(CODE, (), FACTOR).key_fields()
    other = compiler.key(change(CODE), (), FACTOR).key_fields()
    different = {name for name in one if one[name] != other[name]}
    assert fields - {"headers"} <= different <= fields


def test_the_key_keeps_flags_and_macros_in_order(compiler: Compiler) -> None:
    key = compiler.key(CODE, ("-lineinfo", "--ftz=true"), ("A=1", "B"))
    assert (key.flags, key.macros) == (("-lineinfo", "--ftz=true"), ("A=1", "B"))
    assert key.key != compiler.key(CODE, ("--ftz=true", "-lineinfo"), ("A=1", "B")).key
    assert key.key != compiler.key(CODE, ("-lineinfo", "--ftz=true"), ("B", "A=1")).key
    assert key.key == compiler.key(CODE, ("-lineinfo", "--ftz=true"), ("A=1", "B")).key
    assert key.target == "cuda"


def test_every_header_that_is_read_is_in_the_key(compiler: Compiler, tmp_path: Path) -> None:
    (tmp_path / "factor.h").write_text('#include "deep.h"\n')
    (tmp_path / "deep.h").write_text("#define FACTOR 3.0f\n")
    code = replace(CODE, text='#include "factor.h"\n' + SCALE)
    flags = (f"-I{tmp_path}",)
    before = compiler.key(code, flags, ())
    built(compiler, code, tmp_path / "a", *flags)
    assert compiler.key(code, flags, ()).key == before.key
    (tmp_path / "deep.h").write_text("#define FACTOR 4.0f\n")
    after = compiler.key(code, flags, ())
    assert after.headers != before.headers
    built(compiler, code, tmp_path / "b", *flags)
    assert (tmp_path / "a").read_bytes() != (tmp_path / "b").read_bytes()


def test_headers_of_cuda_are_found(compiler: Compiler, tmp_path: Path) -> None:
    if not toolkit.include_folders():
        pytest.skip("needs CUDA's headers: pip install nvidia-cuda-runtime")
    text = """#include <cuda_bf16.h>
    #include <cuda_fp16.h>
    extern "C" __global__ void f(float *y, const __nv_bfloat16 *x) {
      y[threadIdx.x] = __bfloat162float(x[threadIdx.x]); }"""
    code = source(text, "f")
    built(compiler, code, tmp_path / "a")
    assert compiler.key(code, (), ()).headers != compiler.key(CODE, (), ()).headers


def test_the_record_is_content(compiler: Compiler) -> None:
    record = compiler.record
    expected = {
        "nvrtc": {"libnvrtc", "libnvrtc-builtins", "flags"},
        "nvcc": {"nvcc", "cicc", "ptxas", "libdevice", "host", "host-cc1plus", "flags"},
    }[record.name]
    assert expected <= set(record.programs)
    assert all(len(digest) == 64 for digest in record.programs.values())
    assert record.version.startswith("13.")
    assert record == compiler_named(record.name).record


@pytest.mark.parametrize(
    ("flags", "macros", "named"),
    [
        (("-lineinfo", "--std=c++99"), (), "--std=c\\+\\+99"),
        ((), ("A=1", "extern=5"), "-Dextern=5"),
        ((), ("1x",), "1x"),
        (("-Xptxas", "--no-such-option"), (), "no-such-option"),
    ],
)
def test_what_no_kernel_compiles_with_is_refused(
    compiler: Compiler, flags: tuple[str, ...], macros: tuple[str, ...], named: str
) -> None:
    compiler.check_flags(("-lineinfo", "-Xptxas", "-O2"), ("A=1",))
    with pytest.raises(RequestError, match=named) as caught:
        compiler.check_flags(flags, macros)
    assert caught.value.code in ("toolchain.flag-rejected", "toolchain.macro")


def test_the_process_that_compiles_never_loads_the_library_here(tmp_path: Path) -> None:
    compiler_named("nvrtc")
    program = f"""
from pathlib import Path
from tests.target_cuda.support import SCALE, built, compiler_named, source
built(compiler_named("nvrtc"), source(SCALE, "scale"), Path({str(tmp_path / "a")!r}),
      macros=("FACTOR=1.0f",))
print("nvrtc" in open("/proc/self/maps").read(), "libcuda" in open("/proc/self/maps").read())
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False", "False"], done.stderr


def test_the_environment_does_not_reach_the_compiler(
    compiler: Compiler, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = built(compiler, CODE, tmp_path / "a", macros=FACTOR)
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DFACTOR=9.0f")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--use_fast_math")
    monkeypatch.setenv("CPATH", str(tmp_path))
    again = built(compiler, CODE, tmp_path / "b", macros=FACTOR)
    assert plain.resources == again.resources
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()


def test_without_wheels_and_nvcc_the_advice_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolkit, "bindings", lambda: False)
    monkeypatch.setattr(toolkit, "nvcc", lambda: None)
    assert compilers.present() == []
    for name in (None, "nvcc", "nvrtc"):
        with pytest.raises(UnavailableError, match="pip install 'tfsearch\\[cuda\\]'"):
            compilers.named(name)
    with pytest.raises(UnavailableError, match="not 'gcc'"):
        compilers.named("gcc")
    rows = compilers.rows()
    assert [(row.name, row.usable) for row in rows] == [("nvrtc", False), ("nvcc", False)]
    assert all("pip install" in row.problem for row in rows)


def test_doctor_rows_name_version_place_and_identity(compiler: Compiler) -> None:
    row = next(row for row in compilers.rows() if row.name == compiler.record.name)
    assert row.usable, row.problem
    assert row.identity == compiler.record.digest[:12]
    assert Path(row.path).exists()
