"""A PostgreSQL server of a test's own, to be stopped and started; skips where there is none."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


class OwnServer:
    """Runs as another user where the tests are root's, which the server refuses to be."""

    def __init__(self, programs: Path, folder: Path) -> None:
        self._programs = programs
        self._folder = folder
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = free.getsockname()[1]
        self._run("initdb", "-A", "trust", "-U", "tfsearch", "-E", "UTF8", "--no-sync")
        self.url = f"postgresql+psycopg://tfsearch@127.0.0.1:{self._port}/postgres"

    def start(self) -> None:
        """Until it answers."""
        options = f"-h 127.0.0.1 -p {self._port} -k {self._folder} -c fsync=off"
        self._run("pg_ctl", "-w", "-l", str(self._folder / "log"), "-o", options, "start")

    def stop(self) -> None:
        """As if it had crashed."""
        with contextlib.suppress(subprocess.CalledProcessError):
            self._run("pg_ctl", "-m", "immediate", "-w", "stop")

    def _run(self, program: str, *arguments: str) -> None:
        command = [str(self._programs / program), "-D", str(self._folder / "data"), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        subprocess.run(
            command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=120,
            check=True,
        )


@contextlib.contextmanager
def own_server() -> Iterator[OwnServer]:
    """A server that runs; its data goes away with it."""
    pytest.importorskip("psycopg", reason="psycopg is not installed")
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    program = str(found[-1]) if found else shutil.which("initdb")
    if program is None:
        pytest.skip("postgresql: no initdb on this machine")
    folder = Path(tempfile.mkdtemp(prefix="tfsearch-pg-"))  # where any user may go, unlike tmp_path
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        made = OwnServer(Path(program).resolve().parent, folder)
        made.start()
        try:
            yield made
        finally:
            made.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
