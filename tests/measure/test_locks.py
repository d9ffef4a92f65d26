import errno
import fcntl
import os
import tempfile
import threading
import time
from pathlib import Path

import pytest

from tfsearch.core.errors import UnavailableError
from tfsearch.measure.locks import DeviceLock


def lock(folder, device="cpu", wait_s=5.0):
    return DeviceLock(folder, device, wait_s=wait_s)


def is_locked(path):
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(file, fcntl.LOCK_UN)
    return False


def test_a_second_holder_waits_for_a_bounded_time_and_learns_who_holds_it(tmp_path):
    with lock(tmp_path):
        with pytest.raises(UnavailableError, match=f"process {os.getpid()}") as found:
            lock(tmp_path, wait_s=0.05).acquire()
        assert found.value.exit_code == 5
    lock(tmp_path, wait_s=0.05).acquire()


def test_a_full_disk_keeps_nobody_from_the_device(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with lock(tmp_path), pytest.raises(UnavailableError, match="another process"):
        lock(tmp_path, wait_s=0.05).acquire()
    lock(tmp_path, wait_s=0.05).acquire()


def test_a_folder_that_cannot_be_written_keeps_nobody_from_the_device(tmp_path, monkeypatch):
    real = os.open
    home = tmp_path / "home"

    def read_only(path, *rest):
        if home in Path(path).parents:
            raise OSError(errno.EROFS, "Read-only file system")
        return real(path, *rest)

    monkeypatch.setattr(os, "open", read_only)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with lock(home), pytest.raises(UnavailableError, match=f"process {os.getpid()}"):
        lock(home, wait_s=0.05).acquire()
    with lock(home):
        pass


def test_a_lock_file_that_is_a_link_is_not_followed(tmp_path):
    with lock(tmp_path):
        pass
    for path in tmp_path.iterdir():
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnavailableError) as found:
        lock(tmp_path).acquire()
    assert found.value.code == "device.lock"


def test_different_devices_do_not_wait_for_one_another(tmp_path):
    with lock(tmp_path, "gpu0"), lock(tmp_path, "gpu1", wait_s=0.0):
        pass


def test_releasing_twice_is_harmless(tmp_path):
    held = lock(tmp_path)
    held.acquire()
    held.release()
    held.release()


def test_who_waits_is_served_before_who_comes_back(tmp_path):
    order = []
    held = lock(tmp_path)
    held.acquire()

    def wait():
        with lock(tmp_path):
            order.append("waiting")

    thread = threading.Thread(target=wait)
    thread.start()
    (queue,) = tmp_path.glob("*.queue")
    deadline = time.monotonic() + 10
    while not is_locked(queue):
        assert time.monotonic() < deadline
        time.sleep(0.005)
    held.release()
    with lock(tmp_path):
        order.append("back")
    thread.join()
    assert order == ["waiting", "back"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UnavailableError, match="lock file") as found:
        lock(tmp_path / "file" / "locks").acquire()
    assert found.value.code == "device.lock"
