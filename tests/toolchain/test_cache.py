from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tfsearch.toolchain import filehash
from tfsearch.toolchain.filehash import FileDigests, Store

WRITER = """
import sys
from pathlib import Path
from tfsearch.toolchain.filehash import Store
store = Store(Path(sys.argv[1]))
for n in range(40):
    store.put("numbers", f"{sys.argv[2]}-{n}", n)
    store.flush()
    seen = Store(Path(sys.argv[1])).get("numbers", f"{sys.argv[2]}-{n}")
    assert seen in (None, n), seen
    assert Store(Path(sys.argv[1])).get("numbers", "first") == 1, "the file was not whole"
"""


def test_concurrent_writers_never_leave_a_broken_file(tmp_path: Path) -> None:
    path = tmp_path / "cache" / "x.json"
    first = Store(path)
    first.put("numbers", "first", 1)
    first.flush()
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name]) for name in "abcd"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0, 0]
    assert Store(path).get("numbers", "first") == 1
    assert os.listdir(path.parent) == ["x.json"]


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[: len(data) // 2],
        lambda data: data.replace(b"41", b"42"),
        lambda data: b"\xff\xfe" + data,
        lambda data: b"{}",
    ],
)
def test_a_damaged_cache_is_built_again(tmp_path: Path, damage: object) -> None:
    path = tmp_path / "x.json"
    store = Store(path)
    store.put("numbers", "a", 41)
    store.flush()
    path.write_bytes(damage(path.read_bytes()))  # type: ignore[operator]
    again = Store(path)
    assert again.get("numbers", "a") is None
    again.put("numbers", "a", 43)
    again.flush()
    assert Store(path).get("numbers", "a") == 43


def test_a_cache_that_cannot_be_written_costs_only_the_cache(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "x.json")
    store.put("numbers", "a", 1)
    store.flush()
    assert store.get("numbers", "a") == 1


def test_sections_keep_to_their_limit_newest_last(tmp_path: Path) -> None:
    store = Store(tmp_path / "x.json", {"numbers": 3})
    for n in range(5):
        store.put("numbers", str(n), n)
    store.flush()
    assert [Store(tmp_path / "x.json").get("numbers", str(n)) for n in range(5)] == [
        *(None, None, 2, 3, 4)
    ]


def test_digest_follows_content_even_within_one_clock_tick(tmp_path: Path) -> None:
    digests = FileDigests(Store(tmp_path / "x.json"))
    path = tmp_path / "file"
    seen: set[str] = set()
    for n in range(50):
        path.write_bytes(b"%04d" % n)
        os.utime(path, ns=(10**18, 10**18))
        seen.add(digests.digest(str(path)))
    assert len(seen) == 50


def test_a_settled_file_is_hashed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store(tmp_path / "x.json")
    path = tmp_path / "file"
    path.write_bytes(b"content")
    later = time.time_ns() + 10**10
    monkeypatch.setattr(filehash.time, "time_ns", lambda: later)
    value = FileDigests(store).digest(str(path))
    store.flush()
    monkeypatch.setattr(filehash.hashlib, "file_digest", lambda *_: pytest.fail("hashed again"))
    assert FileDigests(Store(tmp_path / "x.json")).digest(str(path)) == value


def test_tree_digest_sees_names_and_contents(tmp_path: Path) -> None:
    root = tmp_path / "root"
    (root / "a").mkdir(parents=True)
    (root / "a" / "x").write_text("1")
    digests = FileDigests(Store(tmp_path / "x.json"))
    seen = [digests.tree(str(root), ["a", "b"])[0]]
    (root / "a" / "y").write_text("1")
    seen.append(digests.tree(str(root), ["a", "b"])[0])
    (root / "a" / "y").rename(root / "b")
    seen.append(digests.tree(str(root), ["a", "b"])[0])
    (root / "b").write_text("2")
    seen.append(digests.tree(str(root), ["a", "b"])[0])
    assert len(set(seen)) == 4
