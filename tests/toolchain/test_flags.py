from __future__ import annotations

from pathlib import Path

import pytest

from tests.toolchain.conftest import compiler, script
from tfsearch import toolchain
from tfsearch.core.errors import RequestError
from tfsearch.core.settings import Settings
from tfsearch.toolchain import Toolchain
from tfsearch.toolchain import flags as flag_rules

REFUSED = """
-o -oout -E -S -c -M -MD -MMD -xc++ -v -### -dM -fsyntax-only --version -print-search-dirs
@args kernel.o - -B/tmp -specs=a --sysroot=/x -wrapper -Xclang -Wp,-MD,x -Wa,-a=x -Wl,-z -lm
-L/x -static -shared -nostdlib -flto -flto=auto -fwhole-program -fplugin=x.so -fuse-ld=gold
-fprofile-use=x -fsanitize=address --coverage -pg -save-temps -ftime-trace -fopenmp -fopenacc
-m32 -target --target=arm -fno-pic -fmodules -I- -include-pch -fdump-tree-all=/x -gsplit-dwarf
-frandomize-layout-seed-file=x -fbasic-block-sections=list=x
-no-integrated-as --define-macro=A --include=x
"""
ALLOWED = """
-O2 -funroll-loops -ffast-math -fno-tree-vectorize -mavx512f -march=native -mtune=native -DA=1
-UA -Iinclude -isystem/usr/include -g -std=c11 -Wall -Werror=undef -fopenmp-simd -pipe
-pthread -fno-sanitize=all -fprefetch-loop-arrays -mprefer-vector-width=512 -falign-loops=64
-w -ansi -fno-plt -fno-lto -fno-builtin -ftree-loop-distribution
"""


@pytest.mark.parametrize("flag", REFUSED.split())
def test_flags_that_break_identity_or_safety_are_refused(flag: str) -> None:
    with pytest.raises(RequestError) as caught:
        flag_rules.refuse(["-O2", flag])
    assert caught.value.code == "toolchain.flag-refused"
    assert flag in caught.value.message


@pytest.mark.parametrize("flag", ALLOWED.split())
def test_flags_that_tune_are_allowed(flag: str) -> None:
    flag_rules.refuse([flag])


def test_refusal_holds_in_every_entry(warm_settings: Settings, tmp_path: Path) -> None:
    gcc = compiler("gcc", warm_settings)
    calls = (
        lambda: gcc.check_flags(["-fplugin=x"]),
        lambda: gcc.headers_digest("", ["-fplugin=x"]),
        lambda: gcc.compile_shared("", flags=["-fplugin=x"], out=tmp_path / "k.so"),
    )
    for call in calls:
        with pytest.raises(RequestError, match="fplugin"):
            call()


def test_llvm_options_may_not_load_files() -> None:
    flag_rules.refuse(["-mllvm", "-unroll-count=4"])
    for value in ("-load=/x.so", "-info-output-file=x", "/x", "-x=/y"):
        with pytest.raises(RequestError):
            flag_rules.refuse(["-mllvm", value])


def test_an_option_without_its_argument_is_refused() -> None:
    with pytest.raises(RequestError, match="lacks its argument"):
        flag_rules.refuse(["-O2", "-I"])


def test_only_paths_become_absolute_and_order_stays() -> None:
    flags = ["-O2", "-I", "a", "-DX=b", "-isystemc", "-D", "d", "-I/e", "-include", "no-such"]
    assert flag_rules.absolute(flags, "/w") == [
        *("-O2", "-I", "/w/a", "-DX=b", "-isystem/w/c", "-D", "d", "-I/e", "-include", "no-such")
    ]


def test_a_rejected_flag_is_named_with_the_compilers_words(any_compiler: Toolchain) -> None:
    with pytest.raises(RequestError) as caught:
        any_compiler.check_flags(["-O2", "-mno-such-thing", "-g"])
    assert caught.value.code == "toolchain.flag-rejected"
    assert f"{any_compiler.label} rejects '-mno-such-thing': " in caught.value.message
    any_compiler.check_flags(["-O2", "-g"])
    any_compiler.check_flags([])


def test_macros_and_what_every_kernel_includes_are_tried_too(any_compiler: Toolchain) -> None:
    text = '#ifdef NEVER\n#error "never this"\n#endif\nint one(void) { return ONE; }\n'
    own = ("-DONE=1",)
    any_compiler.check_flags(["-O2"], ["A", "B(x)=x"], source=text, own_flags=own)
    any_compiler.check_flags(["-O2"], ["NEVER"])
    with pytest.raises(RequestError, match=r"rejects '-DNEVER': .*never this") as caught:
        any_compiler.check_flags(["-O2"], ["A", "NEVER"], source=text, own_flags=own)
    assert caught.value.code == "toolchain.flag-rejected"
    with pytest.raises(RequestError, match="1x") as caught:
        any_compiler.check_flags([], ["1x"])
    assert caught.value.code == "toolchain.macro"


def test_flags_that_only_fail_together_are_named_together(
    settings: Settings, tmp_path: Path, gcc_path: str
) -> None:
    body = f'case "$*" in *-DA*-DB*) echo "error: A and B" >&2; exit 1;; esac\nexec {gcc_path} "$@"'
    gcc = toolchain.find(str(script(tmp_path / "gcc", body)), settings=settings)
    gcc.check_flags(["-DB", "-DA"])
    with pytest.raises(RequestError, match=r"rejects '-DA -DB': error: A and B"):
        gcc.check_flags(["-DA", "-DB"])


def test_a_probe_is_made_once(warm_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    gcc = compiler("gcc", warm_settings)
    gcc.check_flags(["-funroll-loops", "-O1"])
    again = toolchain.find("gcc", settings=warm_settings)
    monkeypatch.setattr(again, "_run", lambda *_: pytest.fail("the compiler ran again"))
    again.check_flags(["-funroll-loops", "-O1"])


def test_fast_maths_does_not_switch_the_process_to_flush_denormals(
    any_compiler: Toolchain, tmp_path: Path
) -> None:
    import ctypes

    result = any_compiler.compile_shared(
        "double half(double x) { return x * 0.5; }", flags=["-ffast-math"], out=tmp_path / "k.so"
    )
    assert result.status.value == "ok", result.log
    ctypes.CDLL(str(tmp_path / "k.so"))
    smallest = 5e-324
    assert smallest * 2.0 / 2.0 == 5e-324
