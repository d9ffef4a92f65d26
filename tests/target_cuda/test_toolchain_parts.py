"""Flags that are let through, headers that a source reaches, what the assembler says."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tfsearch.core.errors import RequestError
from tfsearch.target.cuda import flags as flag_rules
from tfsearch.target.cuda import resources
from tfsearch.target.cuda.closure import closure


@pytest.mark.parametrize(
    "flags",
    [
        ("-lineinfo",),
        ("--use_fast_math",),
        ("-Xptxas", "-O2"),
        ("--ptxas-options=--allow-expensive-optimizations=true",),
        ("-Xptxas=-dlcm=cg",),
        ("-D", "A=1", "-I", "folder", "-DB"),
        ("--maxrregcount=128", "-maxrregcount=64"),
        ("--std=c++20",),
    ],
)
def test_flags_that_change_code_alone_are_let_through(flags: tuple[str, ...]) -> None:
    flag_rules.refuse(flags)


@pytest.mark.parametrize(
    "flags",
    [
        ("--gpu-architecture=sm_80",),
        ("-arch=sm_80",),
        ("-gencode=arch=compute_80,code=sm_80",),
        ("--options-file", "x"),
        ("-o", "x"),
        ("--time=x",),
        ("--pre-include=x",),
        ("-Xcompiler", "-B/tmp"),
        ("-ccbin", "/tmp"),
        ("-Xptxas", "--options-file=x"),
        ("--ptxas-options=--output-file=x",),
        ("-dlto",),
        ("-rdc=true",),
        ("-lineinfo\n",),
        ("kernel.cu",),
        ("-Xptxas",),
    ],
)
def test_other_flags_are_refused(flags: tuple[str, ...]) -> None:
    with pytest.raises(RequestError) as caught:
        flag_rules.refuse(flags)
    assert caught.value.code == "toolchain.flag-refused"


def test_folders_are_absolute_and_in_order(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    flags = ("-I", "one", "-DA", "-I/two", "--include-path=three")
    here = str(tmp_path)
    assert flag_rules.folders(flags) == [f"{here}/one", "/two", f"{here}/three"]
    assert flag_rules.without_folders(flags) == ["-DA"]


def test_the_closure_follows_includes_and_leaves_out_what_is_not_there(tmp_path: Path) -> None:
    for name, text in {
        "a.h": '#include "sub/b.h"\n  #  include <missing.h>\n',
        "sub/b.h": '#include "c.h"\n#include "a.h"\n',
        "sub/c.h": "#if 0\n#inc\\\nlude <d.h>\n#endif\n",
        "d.h": "",
        "unused.h": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = closure('#include <a.h>\n#include "a.h"\n', [str(tmp_path)])
    assert list(found.paths) == ["a.h", "c.h", "d.h", "sub/b.h"]
    assert found.paths["c.h"] == str(tmp_path / "sub" / "c.h")
    assert found.contents["d.h"] == b""


def test_the_digest_of_a_closure_is_of_names_and_contents(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "a.h").write_text("int a;\n")
    one, two = (closure("#include <a.h>\n", [str(tmp_path / f)]) for f in ("one", "two"))
    assert one.digest == two.digest
    (tmp_path / "two" / "a.h").write_text("int b;\n")
    assert closure("#include <a.h>\n", [str(tmp_path / "two")]).digest != one.digest
    assert closure("", [str(tmp_path / "two")]).digest != one.digest


def test_a_name_that_means_two_files_is_refused(tmp_path: Path) -> None:
    for name, text in {
        "a.h": '#include "x/one.h"\n#include "y/two.h"\n',
        "x/one.h": '#include "same.h"\n',
        "y/two.h": '#include "same.h"\n',
        "x/same.h": "",
        "y/same.h": "",
    }.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    with pytest.raises(RequestError, match=r"same\.h") as caught:
        closure("#include <a.h>\n", [str(tmp_path)])
    assert caught.value.code == "cuda.header-ambiguous"


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads every file")
def test_a_header_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.h").write_text("")
    (tmp_path / "a.h").chmod(0)
    with pytest.raises(RequestError, match=r"cannot read .*a\.h"):
        closure("#include <a.h>\n", [str(tmp_path)])


LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'pack' for 'sm_90a'
ptxas info    : Function properties for pack
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 16 bytes cumulative stack size
ptxas info    : Compiling entry function 'main' for 'sm_90a'
ptxas info    : Function properties for main
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 3 barriers, 1024 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 25.411 ms
"""


def test_resources_of_every_entry_are_read() -> None:
    found = resources.parse(LOG)
    assert found["main"] == {
        "registers": 168,
        "shared_bytes": 1024,
        "stack_bytes": 0,
        "spill_store_bytes": 0,
        "spill_load_bytes": 0,
    }
    assert found["pack"]["spill_store_bytes"] == 12
    assert resources.of_entries(LOG, "main") == {**found["main"], "spilled": 1}
    assert resources.of_entries("", "main") == {"spilled": 0}
    assert "Compile time" not in resources.without_timing(LOG)
    assert resources.without_timing(LOG).count("\n") == LOG.count("\n") - 1
