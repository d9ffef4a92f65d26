"""The artifact store: content-addressed, verified, private."""

from __future__ import annotations

import hashlib
import os
import threading
from pathlib import Path

import pytest

from tests.db import child
from tfsearch.core.errors import NotSavedError, RequestError, UnavailableError
from tfsearch.db import ArtifactStore

DATA = b"\x7fELF kernel"
DIGEST = hashlib.sha256(DATA).hexdigest()


def test_content_comes_back_by_its_hash(tmp_path: Path):
    store = ArtifactStore(tmp_path / "artifacts")
    assert not store.folder.exists()
    assert store.put(DATA) == DIGEST
    assert store.put(DATA) == DIGEST
    assert store.get(DIGEST) == DATA
    assert store.path(DIGEST).read_bytes() == DATA
    assert store.has(DIGEST)
    assert [(entry.digest, entry.bytes) for entry in store.entries()] == [(DIGEST, len(DATA))]


def test_a_file_is_stored_by_its_content(tmp_path: Path):
    source = tmp_path / "kernel.so"
    source.write_bytes(DATA)
    assert ArtifactStore(tmp_path / "artifacts").put_file(source) == DIGEST


def test_folder_and_files_are_private(tmp_path: Path):
    store = ArtifactStore(tmp_path / "artifacts")
    store.put(DATA)
    path = store.path(DIGEST)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert store.folder.stat().st_mode & 0o777 == 0o700


def test_a_changed_file_is_not_loaded_and_is_replaced_by_a_put(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    store.put(DATA)
    path = store.path(DIGEST)
    path.write_bytes(DATA[:-1] + b"L")
    for read in (store.get, store.path):
        with pytest.raises(UnavailableError) as caught:
            read(DIGEST)
        assert caught.value.code == "artifacts.wrong-hash"
    store.put(DATA)
    assert store.get(DIGEST) == DATA


def test_an_absent_artifact_is_unavailable(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    assert not store.has(DIGEST)
    with pytest.raises(UnavailableError) as caught:
        store.get(DIGEST)
    assert caught.value.code == "artifacts.missing"
    store.remove(DIGEST)


@pytest.mark.parametrize("digest", ["", "../../etc/passwd", "A" * 64, "a" * 63, "a" * 64 + "\n"])
def test_a_name_that_is_no_digest_is_refused(tmp_path: Path, digest: str):
    with pytest.raises(RequestError) as caught:
        ArtifactStore(tmp_path).get(digest)
    assert caught.value.code == "artifacts.bad-digest"


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702])
def test_a_folder_that_others_may_write_is_refused(tmp_path: Path, mode: int):
    tmp_path.chmod(mode)
    with pytest.raises(RequestError, match="chmod 700") as caught:
        ArtifactStore(tmp_path)
    assert caught.value.code == "artifacts.unsafe-folder"


def test_a_folder_opened_up_later_is_refused_on_a_write(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    tmp_path.chmod(0o777)
    with pytest.raises(RequestError):
        store.put(DATA)


def test_a_folder_of_another_user_is_refused(tmp_path: Path):
    if os.geteuid() != 0:
        pytest.skip("root: to give a folder to another user")
    os.chown(tmp_path, child.NOBODY, child.NOBODY)
    with pytest.raises(RequestError, match="belongs to user id 65534") as caught:
        ArtifactStore(tmp_path)
    assert caught.value.code == "artifacts.unsafe-folder"


def test_a_failed_write_leaves_nothing_behind(tmp_path: Path):
    def write() -> None:
        ArtifactStore(tmp_path).put(b"x" * 100_000)

    assert child.in_child(write, file_limit=4096) == "artifacts.io-error"
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_a_full_or_read_only_disk_is_not_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    import errno

    store = ArtifactStore(tmp_path)
    for number, code in ((errno.ENOSPC, "disk-full"), (errno.EROFS, "read-only")):

        def fail(*_args: object, number: int = number) -> None:
            raise OSError(number, os.strerror(number))

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(NotSavedError) as caught:
            store.put(DATA)
        assert caught.value.code == f"artifacts.{code}"
    assert list(store.entries()) == []


def test_writers_of_the_same_content_do_not_disturb_one_another(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    done: list[str] = []
    threads = [threading.Thread(target=lambda: done.append(store.put(DATA))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert done == [DIGEST] * 8
    assert len(list(store.entries())) == 1


def test_what_a_killed_writer_left_is_swept_later(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    store.put(DATA)
    left = store.path(DIGEST).parent / ".incoming-x"
    left.write_bytes(b"half")
    assert store.remove_stale_temporaries() == 0
    os.utime(left, (0, 0))
    assert store.remove_stale_temporaries() == 1
    assert store.get(DIGEST) == DATA


def test_a_read_marks_an_old_file_as_used(tmp_path: Path):
    store = ArtifactStore(tmp_path)
    store.put(DATA)
    os.utime(store.path(DIGEST), (0, 0))
    store.get(DIGEST)
    (entry,) = store.entries()
    assert entry.used_at > 1e9


MADE = hashlib.sha256(b"a build's key").hexdigest()


def test_a_note_says_what_was_made_of_a_key(tmp_path: Path):
    store = ArtifactStore(tmp_path / "artifacts")
    assert store.noted(MADE) is None
    digest = store.put(DATA)
    store.note(MADE, digest)
    store.note(MADE, digest)
    assert store.noted(MADE) == digest
    assert [entry.digest for entry in store.entries()] == [digest], "notes are no artifacts"
    other = store.put(b"built again")
    store.note(MADE, other)
    assert store.noted(MADE) == other


def test_notes_are_private(tmp_path: Path):
    store = ArtifactStore(tmp_path / "artifacts")
    store.note(MADE, DIGEST)
    (note,) = (path for path in (store.folder / "notes").rglob("*") if path.is_file())
    assert note.stat().st_mode & 0o777 == 0o600
    assert note.parent.stat().st_mode & 0o777 == 0o700
    assert note.parent.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("text", ["", DIGEST[:-1], DIGEST + "0", "x" * 64])
def test_a_damaged_note_says_nothing(tmp_path: Path, text: str):
    store = ArtifactStore(tmp_path / "artifacts")
    store.note(MADE, DIGEST)
    (note,) = (path for path in (store.folder / "notes").rglob("*") if path.is_file())
    note.write_text(text)
    assert store.noted(MADE) is None


def test_notes_of_files_that_are_gone_are_removed(tmp_path: Path):
    store = ArtifactStore(tmp_path / "artifacts")
    other = hashlib.sha256(b"another key").hexdigest()
    store.note(MADE, store.put(DATA))
    store.note(other, store.put(b"short-lived"))
    store.remove(hashlib.sha256(b"short-lived").hexdigest())
    assert store.remove_idle_notes() == 1
    assert (store.noted(MADE), store.noted(other)) == (DIGEST, None)


@pytest.mark.parametrize("wrong", ["", "../" + DIGEST, DIGEST.upper()])
def test_a_note_is_named_by_a_digest(tmp_path: Path, wrong: str):
    store = ArtifactStore(tmp_path / "artifacts")
    for call in (lambda: store.note(wrong, DIGEST), lambda: store.note(MADE, wrong)):
        with pytest.raises(RequestError) as caught:
            call()
        assert caught.value.code == "artifacts.bad-digest"
    with pytest.raises(RequestError):
        store.noted(wrong)
