"""The world that faults happen in: a database server behind a relay, a cluster, a false clock.

The server's data lies on a small file system of its own where that can be mounted. Nodes are
raylets of this machine; one of them is in a network namespace of its own where one can be
made. What cannot be had is said by ``missing``.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

HERE = Path(__file__).parent
ROOT = HERE.parent
PG_MB = 160
BALLAST_MB = 200

SHIM = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
static volatile int64_t *ahead;
__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CHAOS_CLOCK");
    int handle = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (handle < 0) return;
    void *page = mmap(0, 4096, PROT_READ, MAP_SHARED, handle, 0);
    if (page != MAP_FAILED) ahead = page;
}
/* Only for the interpreter: others hand what they read to the kernel, whose clock stays right. */
static int believes(const void *caller) {
    Dl_info info;
    if (!dladdr(caller, &info) || !info.dli_fname) return 0;
    const char *slash = strrchr(info.dli_fname, '/');
    const char *name = slash ? slash + 1 : info.dli_fname;
    return !strncmp(name, "python", 6) || !strncmp(name, "libpython", 9);
}
int clock_gettime(clockid_t which, struct timespec *out) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int rc = real(which, out);
    if (!rc && ahead && *ahead && which == CLOCK_REALTIME && believes(__builtin_return_address(0)))
        out->tv_sec += *ahead;
    return rc;
}
"""


def run(*command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    """A command with its output kept."""
    return subprocess.run(command, check=check, capture_output=True, text=True, timeout=120)


class Clock:
    """A clock that Python reads in processes with :attr:`environment`; so many seconds ahead."""

    def __init__(self, folder: Path) -> None:
        self._page = folder / "clock"
        self._page.write_bytes(bytes(4096))
        source, shim = folder / "clock.c", folder / "clock.so"
        source.write_text(SHIM)
        run("gcc", "-shared", "-fPIC", "-O2", "-o", str(shim), str(source), "-ldl")
        self.environment = {"LD_PRELOAD": str(shim), "CHAOS_CLOCK": str(self._page)}

    def set_ahead(self, seconds: int) -> None:
        """Jump, for all of them at once."""
        with self._page.open("r+b") as page:
            page.write(struct.pack("<q", seconds))


class Server:
    """A PostgreSQL server that can be stopped, filled up and started again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir()
        self.own_disk = self._mount()
        self._bin = Path(shutil.which("pg_ctl") or "pg_ctl").resolve().parent
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres")
        self.port = free_port()
        self._as_owner("initdb", "-A", "trust", "-U", "tfsearch", "-E", "UTF8", "--no-sync")
        (folder / "data" / "postgresql.auto.conf").write_text(
            f"port = {self.port}\nlisten_addresses = '127.0.0.1'\n"
            f"unix_socket_directories = '{folder}'\nfsync = off\nmax_wal_size = 64MB\n"
            "min_wal_size = 32MB\nwal_recycle = off\nmax_connections = 60\nshared_buffers = 16MB\n"
        )
        self.start()

    def _mount(self) -> bool:
        done = run(
            "mount", "-t", "tmpfs", "-o", f"size={PG_MB}m", "tmpfs", str(self._folder), check=False
        )
        return done.returncode == 0

    def start(self) -> None:
        """Until it answers."""
        for _ in range(5):
            done = self._as_owner("pg_ctl", "-w", "-l", str(self._folder / "log"), "start")
            if done.returncode == 0:
                return
            time.sleep(1.0)
        raise RuntimeError(
            f"PostgreSQL does not start: {(self._folder / 'log').read_text()[-500:]}"
        )

    def stop(self) -> None:
        """As if it had crashed."""
        self._as_owner("pg_ctl", "-m", "immediate", "-w", "stop")

    def runs(self) -> bool:
        """Whether it does."""
        return self._as_owner("pg_ctl", "status").returncode == 0

    def fill(self) -> None:
        """Leave no room on its file system."""
        with contextlib.suppress(OSError), (self._folder / "ballast").open("wb") as stream:
            for _ in range(BALLAST_MB):
                stream.write(bytes(1 << 20))

    def make_room(self) -> None:
        """Take that back."""
        (self._folder / "ballast").unlink(missing_ok=True)
        if not self.runs():
            self.start()

    def close(self) -> None:
        """Stop it and forget its data."""
        self.stop()
        if self.own_disk:
            run("umount", "-l", str(self._folder), check=False)

    def _as_owner(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [str(self._bin / program), "-D", str(self._folder / "data"), *arguments]
        if os.geteuid() == 0:
            command = ["runuser", "-u", "postgres", "--", *command]
        return subprocess.run(
            command,
            cwd=self._folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=180,
            check=False,
            text=True,
        )


class Relay:
    """Stands between drivers and the server, byte for byte; cuts, holds, or swallows an answer.

    ``lose_commits`` is the number of messages whose answer is still to be swallowed: the server
    does it, the driver sees the connection end.
    """

    def __init__(self, port: int) -> None:
        self._server_port = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._lock = threading.Lock()
        self._pairs: set[tuple[socket.socket, socket.socket]] = set()
        self._open = threading.Event()
        self._open.set()
        self.lose_commits = 0
        self.lost_commits = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def cut(self) -> int:
        """End all connections; how many there were."""
        with self._lock:
            pairs = list(self._pairs)
        for pair in pairs:
            self._end(pair)
        return len(pairs)

    def hold(self) -> None:
        """Pass nothing on, as a network that is cut."""
        self._open.clear()

    def release(self) -> None:
        """Pass on again, what was kept first."""
        self._open.set()

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            try:
                server = socket.create_connection(("127.0.0.1", self._server_port), 5)
                server.settimeout(None)
            except OSError:
                client.close()
                continue
            pair = (client, server)
            with self._lock:
                self._pairs.add(pair)
            doomed = threading.Event()
            threading.Thread(target=self._pass_on, args=(pair, doomed), daemon=True).start()
            threading.Thread(target=self._answer, args=(pair, doomed), daemon=True).start()

    def _pass_on(self, pair: tuple[socket.socket, socket.socket], doomed: threading.Event) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while data := client.recv(1 << 16):
                self._open.wait()
                with self._lock:
                    if self.lose_commits > 0:  # a commit, or a statement that is its own one
                        self.lose_commits -= 1
                        doomed.set()
                server.sendall(data)
        self._end(pair)

    def _answer(self, pair: tuple[socket.socket, socket.socket], doomed: threading.Event) -> None:
        client, server = pair
        with contextlib.suppress(OSError):
            while data := server.recv(1 << 16):
                self._open.wait()
                if doomed.is_set():
                    with self._lock:
                        self.lost_commits += 1
                    break
                client.sendall(data)
        self._end(pair)

    def _end(self, pair: tuple[socket.socket, socket.socket]) -> None:
        with self._lock:
            self._pairs.discard(pair)
        for one in pair:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()


class Namespace:
    """A network namespace that one cable connects with this machine's; needs the right to."""

    def __init__(self) -> None:
        self.name = f"chaos{os.getpid()}"
        self._near, self._far = f"cz{os.getpid()}a", f"cz{os.getpid()}b"
        third = os.getpid() % 250
        self.here, self.there = f"10.213.{third}.1", f"10.213.{third}.2"
        try:
            run("ip", "netns", "add", self.name)
            run("ip", "link", "add", self._near, "type", "veth", "peer", "name", self._far,
                "netns", self.name)  # fmt: skip
            run("ip", "addr", "add", f"{self.here}/24", "dev", self._near)
            run("ip", "link", "set", self._near, "up")
            inside = ("ip", "netns", "exec", self.name, "ip")
            run(*inside, "addr", "add", f"{self.there}/24", "dev", self._far)
            run(*inside, "link", "set", self._far, "up")
            run(*inside, "link", "set", "lo", "up")
        except BaseException:
            self.close()
            raise

    def cut(self) -> None:
        """Pull the cable."""
        run("ip", "link", "set", self._near, "down")

    def mend(self) -> None:
        """Plug it in again."""
        run("ip", "link", "set", self._near, "up")

    @contextlib.contextmanager
    def entered(self) -> Iterator[None]:
        """What this thread starts meanwhile is inside."""
        libc = ctypes.CDLL(None, use_errno=True)
        with (
            open("/proc/thread-self/ns/net") as outside,
            open(f"/var/run/netns/{self.name}") as inside,
        ):
            if libc.setns(inside.fileno(), 0):
                raise OSError(ctypes.get_errno(), "setns")
            try:
                yield
            finally:
                libc.setns(outside.fileno(), 0)

    def close(self) -> None:
        """Take it down."""
        run("ip", "link", "del", self._near, check=False)
        run("ip", "netns", "del", self.name, check=False)


def free_port() -> int:
    """A port that nobody listens on now."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return one.getsockname()[1]


def processes(word: str) -> list[int]:
    """Ids of this cluster's processes whose title begins with a word."""
    found: list[int] = []
    mark = f"CHAOS_FOLDER={os.environ.get('CHAOS_FOLDER', '-')}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            title = (folder / "cmdline").read_bytes()
            if title.startswith(word.encode()) and mark in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return sorted(found)


def python_path(folder: Path) -> str:
    """A path on which every process finds the package, these files and the target."""
    info = folder / "path" / "chaos_target-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chaos-target\nVersion: 0\n")
    (info / "entry_points.txt").write_text("[tfsearch.targets]\nchaos = _chaos_target:target\n")
    given = os.environ.get("PYTHONPATH", "")
    return os.pathsep.join(filter(None, [str(folder / "path"), str(ROOT), str(HERE), given]))


def start_driver(options: str, log: Path) -> subprocess.Popen[bytes]:
    """A driver process; what it says goes to a file."""
    with log.open("ab") as stream:
        return subprocess.Popen(
            [sys.executable, str(HERE / "_chaos_target.py"), options],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
        )


class Fleet:
    """Raylets on this machine. The devices' homes differ, as in containers of one machine.

    ``nodes`` maps names to nodes; ``far`` is the one in the namespace. Two nodes reach the device
    ``d0``.
    """

    DEVICES: ClassVar = {"near-a": "d0", "near-b": "d0", "near-c": "d1", "far": "d2"}

    def __init__(self, folder: Path, namespace: Namespace | None) -> None:
        self._folder = folder
        self._namespace = namespace
        self.nodes: dict[str, Any] = {}
        self._cluster: Any = None
        self.start()

    @property
    def address(self) -> str:
        """The head's."""
        return self._cluster.gcs_address

    def start(self) -> None:
        """All of it."""
        from ray.cluster_utils import Cluster

        settings = {
            "health_check_initial_delay_ms": 5000,
            "health_check_period_ms": 2000,
            "health_check_timeout_ms": 4000,
            "health_check_failure_threshold": 3,
        }
        args: dict[str, Any] = {
            "num_cpus": 1,
            "_system_config": settings,
            "include_dashboard": False,
        }
        if self._namespace is not None:
            args["node_ip_address"] = self._namespace.here
        os.environ["CHAOS_DEVICE"] = ""
        os.environ["TFSEARCH_HOME"] = str(self._folder / "home-head")
        self._cluster = Cluster(
            initialize_head=True, head_node_args={**args, "resources": self._offer("", 2)}
        )
        for name in self.DEVICES:
            self.add(name)

    def add(self, name: str) -> None:
        """A node, in its place."""
        if name == "far" and self._namespace is None:
            return
        os.environ["CHAOS_DEVICE"] = self.DEVICES[name]
        os.environ["TFSEARCH_HOME"] = str(self._folder / f"home-{name}")
        args: dict[str, Any] = {"num_cpus": 1, "resources": self._offer(self.DEVICES[name], 0)}
        if self._namespace is None:
            self.nodes[name] = self._cluster.add_node(**args)
        elif name == "far":
            args["node_ip_address"] = self._namespace.there
            with self._namespace.entered():
                self.nodes[name] = self._cluster.add_node(wait=False, **args)
        else:
            args["node_ip_address"] = self._namespace.here
            self.nodes[name] = self._cluster.add_node(wait=False, **args)

    def kill(self, name: str) -> None:
        """Kill a node and everything on it."""
        node = self.nodes.pop(name, None)
        if node is not None:
            self._cluster.remove_node(node, allow_graceful=False)

    def gone(self) -> list[str]:
        """Nodes that have ended by themselves, as after a long partition."""
        return [name for name, node in self.nodes.items() if not node.live_processes()]

    def kill_head(self) -> None:
        """Kill the head, and what is left without it."""
        head = self._cluster.head_node
        head.kill_gcs_server(check_alive=False)
        head.kill_raylet(check_alive=False)

    def stop(self) -> None:
        """Everything."""
        for name in list(self.nodes):
            with contextlib.suppress(Exception):
                self.kill(name)
        self.nodes.clear()
        if self._cluster.head_node is not None:
            with contextlib.suppress(Exception):
                self._cluster.remove_node(self._cluster.head_node, allow_graceful=False)

    def _offer(self, selector: str, compilers: int) -> dict[str, float]:
        from _chaos_target import resources

        from tfsearch.measure import cluster

        return cluster.join_resources(resources(selector, compilers))
