"""Frozen bundles: complete without a database, refused when changed or on another device."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.runtime.conftest import GEMM
from tfsearch.core.errors import NotRecordedError, RequestError, TfsearchError, UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.runtime import empty, export_bundle, load_bundle
from tfsearch.runtime.serve import question_of
from tfsearch.target import null


@pytest.fixture
def bundle(home: Settings, tmp_path: Path) -> tuple[Path, str]:
    path = tmp_path / "kernels.zip"
    return path, export_bundle(path, [question_of("gemm", {**GEMM, "target": "null"})])


def rewrite(path: Path, change: Callable[[dict[str, bytes]], None]) -> None:
    with zipfile.ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def edit(change: Callable[[Any], None]) -> Callable[[dict[str, bytes]], None]:
    def apply(files: dict[str, bytes]) -> None:
        document = json.loads(files["bundle.json"])
        change(document)
        files["bundle.json"] = json.dumps(document).encode()

    return apply


def test_a_bundle_serves_without_the_database(
    bundle: tuple[Path, str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path, digest = bundle
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path / "empty"))
    loaded = load_bundle(path, sha256=digest)
    kernel = loaded.lookup("gemm", **GEMM)
    assert kernel is loaded.lookup("gemm", **GEMM)
    a, b = empty((12, 8), np.dtype("f4")), empty((8, 10), np.dtype("f4"))
    a[...], b[...] = 2, 3
    assert np.array_equal(kernel(a, b), a @ b)
    assert [r.workload.op for r in loaded.records] == ["gemm"]
    with pytest.raises(NotRecordedError, match="m=12"):
        loaded.lookup("gemm", **{**GEMM, "m": 13})


def test_a_bundle_needs_neither_sqlalchemy_nor_a_compiler(
    bundle: tuple[Path, str], tmp_path: Path
) -> None:
    path, digest = bundle
    code = f"""
import sys
sys.modules["sqlalchemy"] = sys.modules["alembic"] = None
import numpy as np
from tfsearch.runtime import empty, load_bundle
from tfsearch.target.null import NullTarget
NullTarget.compiler = None
kernel = load_bundle({str(path)!r}, sha256={digest!r}).lookup("gemm", **{GEMM!r})
a, b = empty((12, 8), np.dtype("f4")), empty((8, 10), np.dtype("f4"))
a[...], b[...] = 2, 3
assert (kernel(a, b) == a @ b).all()
print("served")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={"TFSEARCH_HOME": str(tmp_path / "empty"), "PATH": ""},
        check=False,
    )
    assert done.stdout == "served\n", done.stderr


def test_equal_kernels_give_equal_bundles(bundle: tuple[Path, str], tmp_path: Path) -> None:
    path, digest = bundle
    again = tmp_path / "again.zip"
    assert export_bundle(again, [question_of("gemm", {**GEMM, "target": "null"})]) == digest
    assert again.read_bytes() == path.read_bytes()


def _spoil(files: dict[str, bytes]) -> None:
    (name,) = (n for n in files if n.startswith("artifacts/"))
    files[name] += b" "


def _drop(files: dict[str, bytes]) -> None:
    (name,) = (n for n in files if n.startswith("artifacts/"))
    del files[name]


CHANGES: dict[str, tuple[str, Callable[[dict[str, bytes]], None]]] = {
    "executable": ("bundle.tampered", _spoil),
    "no executable": ("bundle.malformed", _drop),
    "no document": ("bundle.malformed", lambda files: files.pop("bundle.json") and None),
    "not JSON": ("bundle.malformed", lambda files: files.update({"bundle.json": b"{"})),
    "schema": ("bundle.malformed", edit(lambda d: d.update(schema=99))),
    "launch": ("bundle.malformed", edit(lambda d: d["entries"][0]["launch"].pop("main"))),
    "schedule": ("bundle.malformed", edit(lambda d: d["entries"][0]["schedule"].pop("params"))),
    "model": ("bundle.device", edit(lambda d: d["entries"][0]["device"].update(model="null-2"))),
    "kind": ("bundle.device", edit(lambda d: d["entries"][0]["device"].update(kind="gpu"))),
    "features": ("bundle.device", edit(lambda d: d["entries"][0].update(features=["avx9"]))),
    "target": ("target.unknown", edit(lambda d: d["entries"][0].update(target="nosuch"))),
}


@pytest.mark.parametrize("what", CHANGES)
def test_a_changed_bundle_is_refused(bundle: tuple[Path, str], what: str) -> None:
    path, _ = bundle
    code, change = CHANGES[what]
    rewrite(path, change)
    with pytest.raises(RequestError) as caught:
        load_bundle(path)
    assert caught.value.code == code
    assert "\n" not in caught.value.message


def test_the_digest_covers_every_record(bundle: tuple[Path, str]) -> None:
    path, digest = bundle
    rewrite(path, edit(lambda d: d["entries"][0].update(median_us=0.001)))
    load_bundle(path)
    with pytest.raises(RequestError) as caught:
        load_bundle(path, sha256=digest)
    assert caught.value.code == "bundle.tampered"


def test_a_file_that_others_may_write_needs_its_digest(bundle: tuple[Path, str]) -> None:
    path, digest = bundle
    path.chmod(0o666)
    with pytest.raises(RequestError) as caught:
        load_bundle(path)
    assert caught.value.code == "bundle.unsafe"
    assert load_bundle(path, sha256=digest).records


def test_a_bundle_that_is_not_there_or_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError):
        load_bundle(tmp_path / "nothing.zip")
    with pytest.raises(UnavailableError):
        load_bundle(tmp_path / "nothing.zip", sha256="0" * 64)
    (tmp_path / "text.zip").write_text("no bundle")
    with pytest.raises(RequestError) as caught:
        load_bundle(tmp_path / "text.zip")
    assert caught.value.code == "bundle.malformed"


def test_another_device_refuses_it(
    bundle: tuple[Path, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, digest = bundle
    device = null._DEVICE
    other = replace(device, record=replace(device.record, model="null-3"))
    monkeypatch.setattr(null.NullTarget, "devices", lambda self: (other,))
    with pytest.raises(RequestError, match="model null-1, not null-3"):
        load_bundle(path, sha256=digest)


def test_what_kernels_need_beside_them_travels_along(
    home: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = tmp_path / "pool.so"
    pool.write_bytes(b"threads")
    provided: dict[str, bytes] = {}

    def provide(self: Any, files: Any) -> None:
        provided.update({name: path.read_bytes() for name, path in files.items()})

    monkeypatch.setattr(null.NullTarget, "companions", lambda self: {"pool": pool}, raising=False)
    monkeypatch.setattr(null.NullTarget, "provide", provide, raising=False)
    path = tmp_path / "b.zip"
    digest = export_bundle(path, [question_of("gemm", {**GEMM, "target": "null"})])
    load_bundle(path, sha256=digest).lookup("gemm", **GEMM)
    assert provided == {"pool": b"threads"}


def test_what_is_not_recorded_cannot_be_exported(home: Settings, tmp_path: Path) -> None:
    with pytest.raises(NotRecordedError):
        export_bundle(tmp_path / "b.zip", [question_of("gemm", {**GEMM, "m": 5, "target": "null"})])
    with pytest.raises(RequestError):
        export_bundle(tmp_path / "b.zip", [])
    wanted = [question_of("gemm", {**GEMM, "target": "null"})]
    with pytest.raises(TfsearchError) as caught:
        export_bundle(tmp_path / "no" / "folder" / "b.zip", wanted)
    assert caught.value.exit_code == 6
    assert list(tmp_path.glob("*.zip")) == []
