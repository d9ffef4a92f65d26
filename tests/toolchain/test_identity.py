from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from tests.toolchain.conftest import compiler, rewrite_keeping_times, script
from tfsearch import toolchain
from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import ToolchainRecord
from tfsearch.core.settings import Settings
from tfsearch.toolchain import Toolchain, filehash, identity


def test_names_the_programs_that_run(any_compiler: Toolchain) -> None:
    record = any_compiler.record
    expected = {
        "gcc": {"driver", "cc1", "as", "ld", "collect2", "plugin", "link.libc.so.6"},
        "clang": {"driver", "clang", "ld", "link.libc.so.6"},
        "zig": {"driver", "zig", "lib"},
    }[record.name]
    assert expected <= set(record.programs)
    assert all(len(digest) == 64 for digest in record.programs.values())
    assert record.version[0].isdigit()
    assert record.version.split()[0] in any_compiler.versions
    assert any_compiler.label == f"{record.name} {record.version.split()[0]}"


def test_shared_code_generators_are_part_of_clang(warm_settings: Settings) -> None:
    clang = compiler("clang", warm_settings)
    linked = os.popen(f"ldd {os.path.realpath(clang.path)}").read()
    if "libLLVM" not in linked:
        pytest.skip("needs a clang that links libLLVM dynamically")
    assert any(role.startswith("lib.libLLVM") for role in clang.record.programs)
    assert not any(role.startswith("lib.libxml2") for role in clang.record.programs)


@pytest.mark.parametrize("name", ["gcc", "clang"])
def test_identity_is_the_same_cold_warm_and_in_another_cache(
    name: str, warm_settings: Settings, tmp_path: Path
) -> None:
    known = compiler(name, warm_settings).record
    other = Settings(tmp_path / "home", "sqlite://")
    cold = toolchain.find(name, settings=other).record
    warm = toolchain.find(name, settings=other).record
    assert cold == warm == known


def _fake_with_own_cc1(tmp_path: Path, gcc: str) -> tuple[Path, Path]:
    cc1 = tmp_path / "lib" / "cc1"
    cc1.parent.mkdir(exist_ok=True)
    real = os.popen(f"{gcc} -print-prog-name=cc1").read().strip()
    shutil.copy(real, cc1)
    answer = f'case "$1" in -print-prog-name=cc1) echo {cc1}; exit 0;; esac'
    return script(tmp_path / "bin" / "gcc", f'{answer}\nexec {gcc} "$@"'), cc1


def _record(tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch) -> ToolchainRecord:
    path = f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}"
    monkeypatch.setenv("PATH", path)
    tool = toolchain.find("gcc", settings=settings)
    assert tool.path == str(tmp_path / "bin" / "gcc")
    return tool.record


def test_a_changed_wrapper_script_changes_the_identity(
    tmp_path: Path, settings: Settings, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper, _ = _fake_with_own_cc1(tmp_path, gcc_path)
    before = _record(tmp_path, settings, monkeypatch)
    assert _record(tmp_path, settings, monkeypatch) == before
    wrapper.write_text(wrapper.read_text() + "# edited\n")
    after = _record(tmp_path, settings, monkeypatch)
    assert after.digest != before.digest
    assert {k for k in after.programs if after.programs[k] != before.programs.get(k)} == {"driver"}


def test_a_changed_program_behind_the_wrapper_changes_the_identity(
    tmp_path: Path, settings: Settings, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, cc1 = _fake_with_own_cc1(tmp_path, gcc_path)
    before = _record(tmp_path, settings, monkeypatch)
    with cc1.open("r+b") as stream:
        stream.seek(-1, os.SEEK_END)
        last = stream.read(1)
        stream.seek(-1, os.SEEK_END)
        stream.write(bytes([last[0] ^ 1]))
    after = _record(tmp_path, settings, monkeypatch)
    assert after.digest != before.digest
    assert after.programs["cc1"] != before.programs["cc1"]
    assert after.programs["driver"] == before.programs["driver"]


def test_a_driver_behind_two_scripts_is_part_of_the_identity(
    tmp_path: Path, settings: Settings, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inner = script(tmp_path / "opt" / "real-cc", f'exec {gcc_path} "$@"')
    script(tmp_path / "bin" / "gcc", f'exec {inner} "$@"')
    before = _record(tmp_path, settings, monkeypatch)
    inner.write_text(inner.read_text() + "# edited\n")
    assert _record(tmp_path, settings, monkeypatch).digest != before.digest


def test_another_assembler_first_on_path_changes_the_identity(
    tmp_path: Path, settings: Settings, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.sep in os.popen(f"{gcc_path} -print-prog-name=as").read():
        pytest.skip("needs a gcc that finds as on PATH")
    assembler = shutil.which("as")
    script(tmp_path / "bin" / "gcc", f'exec {gcc_path} "$@"')
    before = _record(tmp_path, settings, monkeypatch)
    script(tmp_path / "bin" / "as", f'exec {assembler} "$@"')
    after = _record(tmp_path, settings, monkeypatch)
    assert after.programs["as"] != before.programs["as"]


def test_an_edit_that_restores_size_and_mtime_is_seen(
    tmp_path: Path, settings: Settings, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrapper = script(tmp_path / "bin" / "gcc", f'# aaaa\nexec {gcc_path} "$@"')
    before = _record(tmp_path, settings, monkeypatch)
    rewrite_keeping_times(wrapper, wrapper.read_bytes().replace(b"aaaa", b"bbbb"))
    assert _record(tmp_path, settings, monkeypatch).digest != before.digest


def test_a_settled_identity_is_served_without_running_the_compiler(
    tmp_path: Path, settings: Settings, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wrapper logs each run; once its files count as settled none is added."""
    monkeypatch.setattr(filehash, "RACY_NS", 50_000_000)
    log = tmp_path / "log"
    wrapper = script(tmp_path / "bin" / "gcc", f'echo run >> {log}\nexec {gcc_path} "$@"')
    time.sleep(0.1)
    tool = toolchain.find(str(wrapper), settings=settings)
    first = tool.record
    runs = log.read_text().count("run")
    assert runs > 1
    # A new object reads the cache from disk; finding by path asks a script who it is.
    again = toolchain.find(str(wrapper), settings=settings)
    asked = log.read_text().count("run") - runs
    assert again.record == first
    assert log.read_text().count("run") == runs + asked
    wrapper.write_text(wrapper.read_text() + "# edited\n")
    assert again.record.digest != first.digest


def test_a_compiler_that_cannot_link_is_unusable(
    tmp_path: Path, settings: Settings, gcc_path: str
) -> None:
    said = "/usr/bin/ld: cannot find crti.o: No such file or directory"
    body = f'case "$*" in *probe.c*) echo "{said}" >&2; exit 1;; esac\nexec {gcc_path} "$@"'
    tool = toolchain.find(str(script(tmp_path / "gcc", body)), settings=settings)
    with pytest.raises(UnavailableError, match=r"cannot find crti\.o") as caught:
        _ = tool.record
    assert caught.value.code == "toolchain.unusable"


def test_key_flags_hold_base_user_and_link_flags_in_order(any_compiler: Toolchain) -> None:
    one = any_compiler.key_flags(["-O2", "-O3"])
    other = any_compiler.key_flags(["-O3", "-O2"])
    assert one != other
    assert sorted(one) == sorted(other)
    assert one[: len(any_compiler.base_flags)] == any_compiler.base_flags
    assert one[-len(any_compiler.link_flags) :] == any_compiler.link_flags


def test_programs_named_in_scripts_are_followed(tmp_path: Path) -> None:
    leaf = script(tmp_path / "leaf", "true")
    middle = script(tmp_path / "middle", f"exec {leaf} -I/usr/include")
    top = script(tmp_path / "top", f'PATH=/nowhere exec "{middle}" "$@"')
    assert identity.script_programs(str(top)) == [str(middle), str(leaf)]
    assert identity.script_programs(str(tmp_path / "absent")) == []


def test_the_dynamic_loader_of_a_program_is_read_from_its_header() -> None:
    shell = os.path.realpath("/bin/sh")
    loader = identity.interpreter(shell)
    if loader is None:
        pytest.skip("needs a dynamically linked 64-bit /bin/sh")
    assert os.path.isfile(loader)
    assert identity.interpreter(__file__) is None
