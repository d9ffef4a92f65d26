from __future__ import annotations

import ctypes
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.toolchain.conftest import compiler, script
from tfsearch import toolchain
from tfsearch.core.errors import NotSavedError, RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.toolchain import Toolchain
from tfsearch.toolchain.build import classify
from tfsearch.toolchain.process import Completed

ADD = """
#include <math.h>
#include <stdint.h>
int32_t add(int32_t a, int32_t b) { return a + b + OFFSET; }
float root(float x) { return sqrtf(x) + expf(0.0f); }
"""


def test_compiles_loads_and_runs(any_compiler: Toolchain, tmp_path: Path) -> None:
    out = tmp_path / "deep" / "k.so"
    result = any_compiler.compile_shared(ADD, macros=["OFFSET=3"], out=out)
    assert (result.status, result.message) == (Status.OK, "")
    assert result.seconds > 0
    assert "-ffp-contract=off" in result.command
    assert str(any_compiler.path) in result.command
    library = ctypes.CDLL(str(out))
    assert library.add(2, 5) == 10
    library.root.restype = ctypes.c_float
    library.root.argtypes = [ctypes.c_float]
    assert library.root(9.0) == 4.0


def test_extra_sources_are_linked_in(any_compiler: Toolchain, tmp_path: Path) -> None:
    result = any_compiler.compile_shared(
        "int helper(void); int entry(void) { return helper() + 1; }",
        extra_sources=["int helper(void) { return 41; }"],
        out=tmp_path / "k.so",
    )
    assert result.status is Status.OK, result.log
    assert ctypes.CDLL(str(tmp_path / "k.so")).entry() == 42


def test_vector_flags_are_accepted(any_compiler: Toolchain, tmp_path: Path) -> None:
    if "x86_64" not in os.uname().machine:
        pytest.skip("needs x86-64")
    source = """
    #include <immintrin.h>
    void fma16(float *c, const float *a, const float *b) {
      _mm512_storeu_ps(c, _mm512_fmadd_ps(_mm512_loadu_ps(a), _mm512_loadu_ps(b),
                                          _mm512_loadu_ps(c)));
    }
    """
    flags = ["-mavx2", "-mfma", "-mavx512f", "-mavx512bw", "-mavx512vl"]
    any_compiler.check_flags(flags)
    result = any_compiler.compile_shared(source, flags=flags, out=tmp_path / "k.so")
    assert result.status is Status.OK, result.log
    without = any_compiler.compile_shared(source, out=tmp_path / "none.so")
    assert without.status is Status.COMPILE_ERROR
    assert not (tmp_path / "none.so").exists()


def test_products_are_not_contracted_unless_asked_for(
    any_compiler: Toolchain, tmp_path: Path
) -> None:
    """a·a − c with a = 1 + 2⁻¹², c = fl(a·a): 0 when rounded twice, 2⁻²⁴ when contracted."""
    if "x86_64" not in os.uname().machine or "fma" not in Path("/proc/cpuinfo").read_text():
        pytest.skip("needs fma")
    source = "float f(float a, float c) { return a * a - c; }"
    a = 1.0 + 2.0**-12
    c = ctypes.c_float(a * a).value
    answers: list[float] = []
    for extra in ([], ["-ffp-contract=fast"]):
        out = tmp_path / f"k{len(extra)}.so"
        result = any_compiler.compile_shared(source, flags=["-mfma", *extra], out=out)
        assert result.status is Status.OK, result.log
        function = ctypes.CDLL(str(out)).f
        function.restype, function.argtypes = ctypes.c_float, [ctypes.c_float, ctypes.c_float]
        answers.append(function(a, c))
    assert answers == [0.0, 2.0**-24]


def test_run_time_helpers_of_the_compiler_are_found(tmp_path: Path, settings: Settings) -> None:
    """128-bit division is a library call in gcc and clang (zig builds its own, slowly)."""
    for name in ("gcc", "clang"):
        if not toolchain.discover([name], settings=settings):
            continue
        source = "long div(long a, long b) { return (long)(((__int128)a << 70) / b >> 70); }"
        tool = toolchain.find(name, settings=settings)
        result = tool.compile_shared(source, out=tmp_path / f"{name}.so")
        assert result.status is Status.OK, result.log
        assert ctypes.CDLL(str(tmp_path / f"{name}.so")).div(84, 2) == 42


@pytest.mark.slow
def test_zig_links_its_run_time_where_a_kernel_needs_it(
    tmp_path: Path, warm_settings: Settings
) -> None:
    zig = compiler("zig", warm_settings)
    source = "long div(long a, long b) { return (long)(((__int128)a << 70) / b >> 70); }"
    result = zig.compile_shared(source, out=tmp_path / "k.so")
    assert result.status is Status.OK, result.log
    assert ctypes.CDLL(str(tmp_path / "k.so")).div(84, 2) == 42


@pytest.mark.parametrize("flags", [[], ["-g", "-O2"]])
def test_same_input_gives_the_same_bytes_in_any_folder(
    any_compiler: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    source = "#include <string.h>\n#define X(n) static int f##n(int a) { return a * n; }\nX(3)\n"
    source += "const char *file(void) { return __FILE__; }\nint g(int a) { return f3(a); }\n"
    built: list[bytes] = []
    for name in ("one", "another-longer-folder"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv("TMPDIR", str(tmp_path / name))
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path / name))
        monkeypatch.chdir(tmp_path / name)
        result = any_compiler.compile_shared(source, flags=flags, out=tmp_path / f"{name}.so")
        assert result.status is Status.OK, result.log
        built.append((tmp_path / f"{name}.so").read_bytes())
    assert built[0] == built[1]
    assert str(tmp_path).encode() not in built[0]


def test_diagnostics_become_the_message(any_compiler: Toolchain, tmp_path: Path) -> None:
    source = 'int ok;\nint f(void) { return missing; }\n#warning "internal compiler error"\n'
    result = any_compiler.compile_shared(source, out=tmp_path / "k.so")
    assert result.status is Status.COMPILE_ERROR
    assert "kernel.c:2" in result.message
    assert "missing" in result.message
    assert "\n" not in result.message
    assert not (tmp_path / "k.so").exists()


def test_words_of_a_crash_in_the_source_are_no_crash(
    any_compiler: Toolchain, tmp_path: Path
) -> None:
    source = '#error "internal compiler error: out of memory, Segmentation fault"\n'
    result = any_compiler.compile_shared(source, out=tmp_path / "k.so")
    assert result.status is Status.COMPILE_ERROR


def test_environment_of_the_parent_has_no_effect(
    any_compiler: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = any_compiler.compile_shared(ADD, macros=["OFFSET=0"], out=tmp_path / "plain.so")
    assert plain.status is Status.OK, plain.log
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "math.h").write_text("#error poisoned\n")
    for name in ("CPATH", "C_INCLUDE_PATH", "GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH"):
        monkeypatch.setenv(name, str(poison))
    monkeypatch.setenv("CFLAGS", "-O0 -DOFFSET=99")
    monkeypatch.setenv("LD_PRELOAD", str(poison / "none.so"))
    monkeypatch.setenv("ZIG_LIB_DIR", str(poison))
    headers = any_compiler.headers_digest(ADD)
    result = any_compiler.compile_shared(ADD, macros=["OFFSET=0"], out=tmp_path / "k.so")
    assert result.status is Status.OK, result.log
    assert (tmp_path / "k.so").read_bytes() == (tmp_path / "plain.so").read_bytes()
    monkeypatch.undo()
    assert any_compiler.headers_digest(ADD) == headers


def test_memory_exhaustion_ends_with_a_status(any_compiler: Toolchain, tmp_path: Path) -> None:
    """Twelve levels of tenfold macro expansion: more text than any machine holds."""
    lines = ["#define M0 x+"]
    lines += [f"#define M{n} {' '.join([f'M{n - 1}'] * 10)}" for n in range(1, 13)]
    source = "\n".join([*lines, "int x;", "int f(void) { return M12 0; }", ""])
    result = any_compiler.compile_shared(
        source, out=tmp_path / "k.so", timeout_s=25, memory_bytes=320 << 20
    )
    assert result.status is Status.COMPILE_CRASH, (result.status, result.message)
    assert (
        "memory" in result.message.lower()
        or "killed" in result.message
        or "signal" in (result.message)
    )


def _fake(tmp_path: Path, gcc: str, on_compile: str) -> Path:
    """A compiler that answers as gcc does until it is given a kernel to compile."""
    body = f'case " $* " in *" kernel.c "*) {on_compile} ;; esac\nexec {gcc} "$@"'
    return script(tmp_path / "fake" / "gcc", body)


def test_a_compiler_that_dies_of_a_signal_is_a_crash(
    tmp_path: Path, settings: Settings, gcc_path: str
) -> None:
    tool = toolchain.find(str(_fake(tmp_path, gcc_path, "kill -SEGV $$")), settings=settings)
    result = tool.compile_shared("int a;", out=tmp_path / "k.so")
    assert (result.status, result.message) == (
        Status.COMPILE_CRASH,
        "the compiler was killed by SIGSEGV",
    )


def test_an_internal_compiler_error_is_a_crash(
    tmp_path: Path, settings: Settings, gcc_path: str
) -> None:
    said = "kernel.c:1:1: internal compiler error: in expand_expr"
    fake = _fake(tmp_path, gcc_path, f"echo '{said}' >&2; exit 1")
    tool = toolchain.find(str(fake), settings=settings)
    result = tool.compile_shared("int a;", out=tmp_path / "k.so")
    assert (result.status, result.message) == (Status.COMPILE_CRASH, said)


def test_success_without_output_is_an_error(
    tmp_path: Path, settings: Settings, gcc_path: str
) -> None:
    tool = toolchain.find(str(_fake(tmp_path, gcc_path, "exit 0")), settings=settings)
    result = tool.compile_shared("int a;", out=tmp_path / "k.so")
    assert result.status is Status.COMPILE_ERROR
    assert "no output" in result.message


def test_a_timeout_kills_grandchildren(tmp_path: Path, settings: Settings, gcc_path: str) -> None:
    pid_file = tmp_path / "pid"
    hang = f"(trap '' TERM; echo $$ >/dev/null; exec sleep 60) & echo $! > {pid_file}; wait"
    tool = toolchain.find(str(_fake(tmp_path, gcc_path, hang)), settings=settings)
    started = time.monotonic()
    result = tool.compile_shared("int a;", out=tmp_path / "k.so", timeout_s=0.5)
    assert result.status is Status.COMPILE_TIMEOUT
    assert "0.5 s" in result.message
    assert time.monotonic() - started < 10
    assert _gone(int(pid_file.read_text()))


def test_a_compiler_that_leaves_a_child_behind_does_not_stall(
    tmp_path: Path, settings: Settings, gcc_path: str
) -> None:
    pid_file = tmp_path / "pid"
    fake = _fake(tmp_path, gcc_path, f"sleep 60 & echo $! > {pid_file}")
    tool = toolchain.find(str(fake), settings=settings)
    result = tool.compile_shared("int a;", out=tmp_path / "k.so", timeout_s=30)
    assert result.status is Status.OK, result.log
    assert _gone(int(pid_file.read_text()))


def test_threads_compile_at_once(warm_settings: Settings, tmp_path: Path) -> None:
    gcc = compiler("gcc", warm_settings)

    def build(value: int) -> int:
        out = tmp_path / f"k{value}.so"
        source = f"#include <stdint.h>\nint f(void) {{ return {value}; }}"
        assert gcc.headers_digest(source)
        result = gcc.compile_shared(source, out=out)
        assert result.status is Status.OK, result.log
        return int(ctypes.CDLL(str(out)).f())

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(build, range(12))) == list(range(12))


def test_an_output_that_cannot_be_written_is_not_saved(
    warm_settings: Settings, tmp_path: Path
) -> None:
    gcc = compiler("gcc", warm_settings)
    (tmp_path / "file").write_text("")
    with pytest.raises(NotSavedError, match=r"cannot write") as caught:
        gcc.compile_shared("int a;", out=tmp_path / "file" / "k.so")
    assert caught.value.code == "toolchain.output"


def test_a_compiler_that_vanished_is_missing(
    tmp_path: Path, settings: Settings, gcc_path: str
) -> None:
    fake = script(tmp_path / "gcc", f'exec {gcc_path} "$@"')
    tool = toolchain.find(str(fake), settings=settings)
    fake.unlink()
    for use in (lambda: tool.record, lambda: tool.compile_shared("", out=tmp_path / "k.so")):
        with pytest.raises(UnavailableError) as caught:
            use()
        assert caught.value.code == "toolchain.missing"


def test_a_macro_that_is_not_one_is_refused(warm_settings: Settings, tmp_path: Path) -> None:
    gcc = compiler("gcc", warm_settings)
    with pytest.raises(RequestError, match="NAME=VALUE") as caught:
        gcc.compile_shared("int a;", macros=["1X=2"], out=tmp_path / "k.so")
    assert caught.value.code == "toolchain.macro"


def _gone(pid: int) -> bool:
    """Whether the process ended within five seconds (a zombie has ended)."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


def test_a_status_that_is_no_signal_is_the_compilers_own() -> None:
    """Drivers pass on 255 when a program of theirs answers -1."""
    said = "ptxas error   : too much shared data\n"
    status, why = classify(Completed(255, "", said, 0.1, False), ("",))
    assert (status, why) == (Status.COMPILE_ERROR, said.strip())
    status, why = classify(Completed(139, "", "", 0.1, False), ("",))
    assert (status, why) == (Status.COMPILE_CRASH, "the compiler was killed by SIGSEGV")
