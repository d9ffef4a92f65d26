from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.toolchain.conftest import compiler, rewrite_keeping_times
from tfsearch import toolchain
from tfsearch.core.errors import RequestError
from tfsearch.core.settings import Settings
from tfsearch.toolchain import Toolchain, filehash, headers

SOURCE = '#include "one.h"\nint f(void) { return ONE; }\n'


def _folder(path: Path, text: str = "#define ONE 1\n") -> Path:
    path.mkdir()
    (path / "one.h").write_text(text)
    return path


def test_a_changed_header_changes_the_digest(any_compiler: Toolchain, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "include")
    flags = [f"-I{folder}"]
    before = any_compiler.headers_digest(SOURCE, flags)
    assert any_compiler.headers_digest(SOURCE, flags) == before
    rewrite_keeping_times(folder / "one.h", b"#define ONE 2\n")
    after = any_compiler.headers_digest(SOURCE, flags)
    assert after != before
    (folder / "one.h").write_text("#define ONE 1\n")
    assert any_compiler.headers_digest(SOURCE, flags) == before


@pytest.mark.parametrize("settle", [False, True])
def test_header_changes_are_seen_fresh_and_cached(
    warm_settings: Settings, tmp_path: Path, settle: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A nested header, one that newly shadows it, and one in a folder that did not exist."""
    gcc = compiler("gcc", warm_settings)
    late, early = tmp_path / "late", tmp_path / "early"
    early.mkdir()
    _folder(late, '#include "sub/two.h"\n#define ONE TWO\n')
    (late / "sub").mkdir()
    (late / "sub" / "two.h").write_text("#define TWO 2\n")
    flags = ["-I", str(tmp_path / "absent"), f"-I{early}", f"-I{late}"]
    # Young files are never cached; settled ones are, and must be invalidated.
    if settle:
        monkeypatch.setattr(filehash, "RACY_NS", 50_000_000)
        time.sleep(0.1)
    first = gcc.headers_digest(SOURCE, flags)
    assert gcc.headers_digest(SOURCE, flags) == first
    (late / "sub" / "two.h").write_text("#define TWO 22\n")
    second = gcc.headers_digest(SOURCE, flags)
    (early / "one.h").write_text("#define ONE 3\n")
    third = gcc.headers_digest(SOURCE, flags)
    (tmp_path / "absent").mkdir()
    (tmp_path / "absent" / "one.h").write_text("#define ONE 4\n")
    fourth = gcc.headers_digest(SOURCE, flags)
    assert len({first, second, third, fourth}) == 4


def test_digest_depends_on_contents_and_not_on_places(
    warm_settings: Settings, tmp_path: Path
) -> None:
    gcc = compiler("gcc", warm_settings)
    digests = {gcc.headers_digest(SOURCE, [f"-I{_folder(tmp_path / name)}"]) for name in ("a", "b")}
    assert len(digests) == 1


def test_a_header_read_by_flag_or_macro_counts(any_compiler: Toolchain, tmp_path: Path) -> None:
    folder = _folder(tmp_path / "include")
    bare = any_compiler.headers_digest("int a;")
    for flags in (["-include", f"{folder}/one.h"], [f"-imacros{folder}/one.h"]):
        if any_compiler.family == "gcc" or flags[0] == "-include":
            assert any_compiler.headers_digest("int a;", flags) != bare
    source = "#ifdef WITH\n#include <stdint.h>\n#endif\nint a;\n"
    without = any_compiler.headers_digest(source)
    assert any_compiler.headers_digest(source, macros=["WITH=1"]) != without


def test_relative_include_folders_mean_the_callers(
    any_compiler: Toolchain, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _folder(tmp_path / "include")
    monkeypatch.chdir(tmp_path)
    absolute = any_compiler.headers_digest(SOURCE, [f"-I{tmp_path}/include"])
    assert any_compiler.headers_digest(SOURCE, ["-I", "include"]) == absolute
    result = any_compiler.compile_shared(SOURCE, flags=["-Iinclude"], out=tmp_path / "k.so")
    assert result.status.value == "ok", result.log


def test_native_tuning_is_told_apart_from_none(any_compiler: Toolchain, settings: Settings) -> None:
    plain = any_compiler.headers_digest("int a;")
    native = any_compiler.headers_digest("int a;", ["-march=native"])
    assert native != plain
    other = toolchain.find(any_compiler.name, settings=settings)
    assert other._native(["-march=native"]) == any_compiler._native(["-march=native"])


def test_another_processor_is_another_native_digest(
    warm_settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The expansion is asked for again under another processor's description, then compared."""
    gcc = compiler("gcc", warm_settings)
    here = gcc.headers_digest("int a;", ["-march=native"])
    ran: list[str] = []
    real = gcc._run

    def recording(command: list[str], folder: Path) -> object:
        ran.append(" ".join(command))
        replaced = ["-march=nocona" if word == "-march=native" else word for word in command]
        return real(replaced, folder)

    monkeypatch.setattr(gcc, "_run", recording)
    assert gcc.headers_digest("int a;", ["-march=native"]) == here
    assert not ran
    monkeypatch.setattr("tfsearch.toolchain.compiler.processor_text", lambda: "another")
    assert gcc.headers_digest("int a;", ["-march=native"]) != here
    assert ran


def test_a_missing_header_is_the_requests_fault(any_compiler: Toolchain) -> None:
    with pytest.raises(RequestError, match=r"kernel\.c:1.*nowhere\.h") as caught:
        any_compiler.headers_digest('#include "nowhere.h"\n')
    assert caught.value.code == "toolchain.preprocess"


def test_directives_after_the_last_include_do_not_matter() -> None:
    head = "#define A\n#include <stdint.h>\n"
    assert headers.directives(head + "#define M 512\nint a;\n") == headers.directives(head)
    assert headers.directives("#define M 512\nint a;\n") == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("#define A 1\n#include A_H\n", "#define A 2\n#include A_H\n"),
        ("/* x */\n#include <a.h>\n", "/* x\n#include <a.h>\n*/\n"),
        ("#inc\\\nlude <a.h>\n", "int x;\n"),
        ("??=include <a.h>\n", "int x;\n"),
        ("%:include <a.h>\n", "int x;\n"),
        ("// x \\\n#include <a.h>\n", "// x\n#include <a.h>\n"),
    ],
)
def test_what_can_change_the_headers_changes_the_directives(one: str, other: str) -> None:
    assert headers.directives(one) != headers.directives(other)


def test_dependency_files_are_read_with_escapes() -> None:
    text = "kernel.o: kernel.c /a/b\\ c.h \\\n  /d/\\#e.h \\\n /f/$$g.h\n"
    assert headers.dependencies(text) == ["kernel.c", "/a/b c.h", "/d/#e.h", "/f/$g.h"]


@pytest.mark.parametrize("asked", ["source", "header"])
def test_whether_a_file_exists_counts_where_that_is_asked(
    any_compiler: Toolchain, tmp_path: Path, asked: str
) -> None:
    folder = _folder(tmp_path / "include")
    asks = '#if __has_include("fast.h")\n#define TWO 2\n#else\n#define TWO 3\n#endif\n'
    source = SOURCE + "int g(void) { return TWO; }\n"
    if asked == "source":
        source = asks + source
    else:
        (folder / "one.h").write_text(f"#define ONE 1\n{asks}")
    flags = [f"-I{folder}"]
    before = any_compiler.headers_digest(source, flags)
    assert any_compiler.headers_digest(source, flags) == before
    (folder / "fast.h").write_text("")
    assert any_compiler.headers_digest(source, flags) != before
    (folder / "fast.h").unlink()
    assert any_compiler.headers_digest(source, flags) == before


@pytest.mark.parametrize("place", ["source", "header"])
@pytest.mark.parametrize("word", ["incbin", "include"])
def test_a_file_that_only_the_assembler_reads_is_refused(
    settings: Settings, tmp_path: Path, place: str, word: str
) -> None:
    folder = _folder(tmp_path / "include")
    reads = f'__asm__(".section .rodata\\n.{word} \\"data.bin\\"\\n.text");\n'
    (folder / "data.bin").write_text("1")
    if place == "header":
        (folder / "one.h").write_text(f"#define ONE 1\n{reads}")
    source = SOURCE + (reads if place == "source" else "")
    with pytest.raises(RequestError) as caught:
        compiler("gcc", settings).headers_digest(source, [f"-I{folder}"])
    assert caught.value.code == "toolchain.assembler-file"


def test_blanks_of_any_kind_continue_a_line() -> None:
    one, other = (f'#inc\\\f\nlude "{name}.h"\nint x;\n' for name in ("one", "other"))
    assert headers.directives(one) != headers.directives(other)


@pytest.mark.parametrize("text", ['#include "my.include"\n', 'const char *s = "see a.incbin";\n'])
def test_names_that_look_like_directives_of_the_assembler_are_none(
    settings: Settings, tmp_path: Path, text: str
) -> None:
    (tmp_path / "my.include").write_text("\n")
    assert compiler("gcc", settings).headers_digest(text, [f"-I{tmp_path}"])
