"""A full temporary folder is said to be one, and no compiler is blamed for it."""

from __future__ import annotations

import errno
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.toolchain.conftest import script
from tfsearch import toolchain
from tfsearch.core.errors import NotSavedError
from tfsearch.core.settings import Settings
from tfsearch.toolchain import Toolchain, room
from tfsearch.toolchain.room import NoRoomError, delivering, require_room, workdir

FULL = OSError(errno.ENOSPC, "No space left on device")


def test_a_disk_with_room_is_no_excuse(tmp_path: Path) -> None:
    require_room(tmp_path, "kernel.c:1:1: error: nothing right here")
    with pytest.raises(NoRoomError, match=r"is full.*set TMPDIR"):
        require_room(tmp_path, "as: kernel.o: No space left on device")


def test_a_silent_failure_on_a_full_disk_is_the_disk_s(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "LEAST_BYTES", 1 << 62)
    with pytest.raises(NoRoomError):
        require_room(tmp_path)


def test_a_folder_that_cannot_be_made_or_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(NoRoomError), workdir("x-"):
        raise FULL
    with pytest.raises(PermissionError), workdir("x-"):
        raise PermissionError(errno.EACCES, "denied")

    def full(*_: Any, **__: Any) -> Any:
        raise FULL

    monkeypatch.setattr(tempfile, "mkdtemp", full)
    with pytest.raises(NoRoomError), workdir("x-"):
        pass


def test_errors_made_from_a_full_disk_count_where_the_result_is_temporary() -> None:
    with pytest.raises(NoRoomError), delivering():
        raise NotSavedError("toolchain.output", "cannot write") from FULL
    with pytest.raises(NotSavedError), delivering():
        raise NotSavedError("toolchain.output", "cannot write") from PermissionError()


def test_a_compiler_that_runs_out_of_room_is_not_blamed(
    settings: Settings, tmp_path: Path, gcc_path: str
) -> None:
    full = 'case "$*" in *full*) echo "No space left on device" >&2; exit 1;; esac'
    body = f'{full}\nexec {gcc_path} "$@"'
    gcc: Toolchain = toolchain.find(str(script(tmp_path / "gcc", body)), settings=settings)
    for call in (
        lambda: gcc.check_flags(["-Dfull"]),
        lambda: gcc.headers_digest("", ["-Dfull"]),
        lambda: gcc.compile_shared("int one;\n", flags=["-Dfull"], out=tmp_path / "k.so"),
    ):
        with pytest.raises(NoRoomError):
            call()
