"""Faults of all kinds into a fleet that works, and a judge who looks at every record afterwards.

Two sessions at a time measure on four simulated nodes (raylets of this machine, one in a network
namespace) and record to a real PostgreSQL server behind a relay. Their kernels' true times are
known, and so is which of them hang. Faults are drawn from ``--seed`` and put into compile tasks,
measuring actors, nodes, drivers, the head, the database, the network and the clock. A session
whose driver ended is started again, until it finishes.

Marks: every record that a session told of is there, once, and true; no two sessions used a device
at once; every session finishes or resumes, with the right best.

    python benchmarks/fleet_chaos.py --faults 1000 --seed 1 --assert --report chaos.jsonl
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _program
from _chaos_world import (
    Clock,
    Fleet,
    Namespace,
    Relay,
    Server,
    processes,
    python_path,
    start_driver,
)
from _program import begin, end, parser, say

AT_ONCE = 2
TRIALS = 60
MOST_RUNS = 40
"""How often a session is started again before that counts as never finishing."""
MOST_IDLE_S = 1800.0
PAUSE_S = (0.1, 0.8)
"""Between two faults."""

WEIGHTS = {
    "compile": 12,
    "actor": 8,
    "node": 3,
    "driver": 5,
    "head": 1,
    "db-cut": 16,
    "db-commit-lost": 18,
    "db-restart": 6,
    "db-down": 3,
    "db-full": 2,
    "db-silent": 5,
    "partition": 3,
    "clock": 16,
    "late": 2,
}
"""How often each kind is drawn. Hung kernels come of themselves, one point in thirty."""


@dataclass(eq=False)
class Session:
    """A session to be brought to its end, by as many drivers as it takes."""

    number: int
    folder: Path
    dims: dict[str, int]
    process: subprocess.Popen[bytes] | None = None
    runs: int = 0
    codes: list[int] = field(default_factory=list[int])
    last_told: int = 0
    moved: float = field(default_factory=time.monotonic)

    @property
    def told(self) -> Path:
        return self.folder / f"told-{self.number}.jsonl"

    @property
    def log(self) -> Path:
        return self.folder / f"driver-{self.number}.log"


class Chaos:
    """The world, its sessions, and the faults; see the module."""

    def __init__(
        self, folder: Path, faults: int, seed: int, trials: int, seconds: float | None = None
    ) -> None:
        self.ends = None if seconds is None else time.monotonic() + seconds
        self.folder = folder
        self.wanted = faults
        self.trials = trials
        self.draw = random.Random(seed)
        self.seed = seed
        self.counts: Counter[str] = Counter()
        self.orders = 0
        self.sessions: list[Session] = []
        self.finished: list[Session] = []
        self.problems: list[str] = []
        self.namespace: Namespace | None = None
        self.missing: list[str] = []
        for name in ("orders", "done", "home-drivers"):
            (folder / name).mkdir()
        folder.chmod(0o755)  # the database server runs as another user
        self.server = Server(folder / "postgres")
        if not self.server.own_disk:
            self.missing.append("db-full: no file system of its own")
        self.relay = Relay(self.server.port)
        self.database = f"postgresql+psycopg://tfsearch@127.0.0.1:{self.relay.port}/postgres"
        self.direct = f"postgresql+psycopg://tfsearch@127.0.0.1:{self.server.port}/postgres"
        try:
            self.namespace = Namespace()
        except (OSError, subprocess.SubprocessError) as error:
            self.missing.append(f"partition: no network namespace ({error}); raylets are stopped")
        self.clock = Clock(folder)
        os.environ.update(self.clock.environment)
        self.fleet = Fleet(folder, self.namespace)
        self.kinds: dict[str, Callable[[], bool]] = {
            "compile": lambda: self.order("compile"),
            "actor": self.kill_actor,
            "node": self.kill_node,
            "driver": self.kill_driver,
            "head": self.kill_head,
            "db-cut": lambda: self.relay.cut() > 0,
            "db-commit-lost": self.lose_commit,
            "db-restart": self.restart_database,
            "db-down": self.stop_database,
            "db-full": self.fill_database,
            "db-silent": self.silence_database,
            "partition": self.partition,
            "clock": self.jump,
            "late": lambda: self.order("late"),
        }

    # Faults: each says whether it really happened.

    def order(self, kind: str) -> bool:
        """Ask whoever does this kind of work next; it counts when it is carried out."""
        self.orders += 1
        (self.folder / "orders" / f"{kind}-{self.orders:06}").touch()
        return False

    def carried_out(self) -> None:
        """Count the orders that were carried out, and hung kernels, once each."""
        for path in (self.folder / "done").iterdir():
            self.counts[path.name.partition("-")[0]] += 1
            path.unlink()

    def kill_actor(self) -> bool:
        found = processes("ray::_Actor")
        return bool(found) and self.kill(self.draw.choice(found))

    def kill_driver(self) -> bool:
        alive = [one for one in self.sessions if one.process is not None]
        if not alive:
            return False
        process = self.draw.choice(alive).process
        return process is not None and process.poll() is None and self.kill(process.pid)

    def kill(self, pid: int) -> bool:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def kill_node(self) -> bool:
        name = self.draw.choice(sorted(self.fleet.nodes) or [""])
        if not name:
            return False
        self.fleet.kill(name)
        time.sleep(self.draw.choice((0.0, 1.0)))
        self.fleet.add(name)
        return True

    def kill_head(self) -> bool:
        """The head is gone for good: the drivers notice and end, then there is a new fleet."""
        self.fleet.kill_head()
        deadline = time.monotonic() + 90
        for one in self.sessions:
            if one.process is not None:
                try:
                    one.process.wait(max(1.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    self.problems.append(
                        f"session {one.number}: a driver outlived its head by 90 s"
                    )
                    one.process.kill()
                self.look_at(one, head_lost=True)
        self.fleet.stop()
        self.fleet.start()
        return True

    def lose_commit(self) -> bool:
        """The server commits, the driver hears of a lost connection."""
        before = self.relay.lost_commits
        self.relay.lose_commits = 1
        deadline = time.monotonic() + 5
        while self.relay.lost_commits == before and time.monotonic() < deadline:
            time.sleep(0.05)
        self.relay.lose_commits = 0
        return self.relay.lost_commits > before

    def restart_database(self) -> bool:
        self.server.stop()
        self.server.start()
        return True

    def stop_database(self) -> bool:
        self.server.stop()
        time.sleep(self.draw.choice((1.0, 3.0, 6.0, 15.0, 60.0)))
        self.server.start()
        return True

    def fill_database(self) -> bool:
        if not self.server.own_disk:
            return False
        self.server.fill()
        time.sleep(self.draw.uniform(1.0, 8.0))
        self.server.make_room()
        return True

    def silence_database(self) -> bool:
        self.relay.hold()
        time.sleep(self.draw.uniform(0.5, 12.0))
        self.relay.release()
        return True

    def partition(self) -> bool:
        seconds = self.draw.choice((1.0, 3.0, 8.0, 25.0))
        if self.namespace is not None:
            self.namespace.cut()
            time.sleep(seconds)
            self.namespace.mend()
            return True
        name = self.draw.choice(sorted(self.fleet.nodes) or [""])
        if not name:
            return False
        pids = [one.process.pid for one in self.fleet.nodes[name].all_processes.get("raylet", ())]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in pids:
                os.kill(pid, number)
            time.sleep(seconds if number == signal.SIGSTOP else 0)
        return True

    def jump(self) -> bool:
        self.clock.set_ahead(self.draw.choice((-86400, -3600, -61, 0, 61, 3600, 86400, 10**8)))
        return True

    # Sessions

    def go(self) -> None:
        """Faults until there were enough, then peace until every session has finished."""
        fresh = True
        while fresh or self.sessions:
            late = self.ends is not None and time.monotonic() >= self.ends
            fresh = sum(self.counts.values()) < self.wanted and not late
            self.tend(fresh)
            if not fresh:
                time.sleep(1.0)
                continue
            kind = self.draw.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
            if self.kinds[kind]():
                self.counts[kind] += 1
            self.carried_out()
            time.sleep(self.draw.uniform(*PAUSE_S))
        for path in (self.folder / "orders").iterdir():
            path.unlink()

    def tend(self, fresh: bool) -> None:
        """Look at the drivers, start those that ended again, and mend what has to be there."""
        for name in self.fleet.gone():
            self.fleet.kill(name)
        for name in set(Fleet.DEVICES) - set(self.fleet.nodes):
            self.fleet.add(name)
        for one in list(self.sessions):
            self.look_at(one)
        while fresh and len(self.sessions) < AT_ONCE:
            number = len(self.sessions) + len(self.finished)
            dims = {"m": 5 + number, "n": 6, "k": 7}
            self.sessions.append(Session(number, self.folder, dims))
        for one in self.sessions:
            if one.process is None:
                self.start(one)

    def start(self, one: Session) -> None:
        one.runs += 1
        options = {
            "home": str(self.folder / "home-drivers"),
            "database": self.database,
            "address": self.fleet.address,
            "dims": one.dims,
            "trials": self.trials,
            "seed": self.seed,
            "told": str(one.told),
        }
        one.process = start_driver(json.dumps(options), one.log)

    def look_at(self, one: Session, *, head_lost: bool = False) -> None:
        if one.process is None:
            return
        told = len(one.told.read_bytes().splitlines()) if one.told.exists() else 0
        code = one.process.poll()
        if told != one.last_told or code is not None:
            one.last_told, one.moved = told, time.monotonic()
        if code is None:
            if time.monotonic() - one.moved > MOST_IDLE_S:
                self.problems.append(f"session {one.number} stood still for {MOST_IDLE_S:.0f} s")
                one.process.kill()
            return
        one.codes.append(code)
        one.process = None
        if code == 0:
            self.sessions.remove(one)
            self.finished.append(one)
            say({"finished": one.number, "runs": one.runs, "told": told, "codes": one.codes,
                 "faults": sum(self.counts.values())})  # fmt: skip
        elif code not in (-signal.SIGKILL, 5, 6) and not head_lost:
            last = one.log.read_text(errors="replace")[-600:]
            self.problems.append(f"session {one.number}: a driver ended with {code}: {last}")
        if one.runs >= MOST_RUNS and code != 0:
            self.problems.append(f"session {one.number} did not finish in {one.runs} runs")
            self.sessions.remove(one)
            self.finished.append(one)

    def close(self) -> None:
        for one in self.sessions:
            if one.process is not None:
                one.process.kill()
        self.relay.release()
        self.fleet.stop()
        self.server.close()
        if self.namespace is not None:
            self.namespace.close()


def main() -> int:
    """Run and say."""
    # Leave in order when told to end: servers and raylets would stay.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    made = parser(__doc__)
    made.add_argument("--faults", type=int, default=1000)
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--trials", type=int, default=TRIALS)
    made.add_argument("--seconds", type=float, help="no more faults after this long")
    made.add_argument("--report", type=Path, help="the lines go to this file too")
    made.add_argument("--only", nargs="*", default=[], help="kinds of faults; all without it")
    args = made.parse_args()
    if args.quick:
        args.faults, args.trials = min(args.faults, 12), 12
    for kind in set(WEIGHTS) - set(args.only) if args.only else ():
        del WEIGHTS[kind]
    if args.report is not None:
        _program.say = globals()["say"] = _also_to(args.report)
    with tempfile.TemporaryDirectory(prefix="tfsearch-chaos-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        os.environ.update(
            CHAOS_FOLDER=name,
            PYTHONPATH=python_path(folder),
            RAY_AUTH_MODE="token",
            RAY_AUTH_TOKEN="c" * 32,
            RAY_DEDUP_LOGS="0",
        )
        sys.path.insert(0, str(folder / "path"))
        begin("fleet_chaos", args)
        started = time.monotonic()
        chaos = Chaos(folder, args.faults, args.seed, args.trials, args.seconds)
        try:
            chaos.go()
            from _chaos_judge import judge

            found = judge(chaos)
        finally:
            chaos.close()
        counts = {**chaos.counts, "hung-kernel": found["hung"]}
        problems = [*chaos.problems, *found["problems"]]
        for text in problems:
            say({"problem": text})
        say({"codes": {one.number: one.codes for one in chaos.finished}})
        every = set(WEIGHTS) <= {kind for kind, count in counts.items() if count}
        marks: dict[str, bool | None] = {
            "nothing lost": not found["lost"],
            "nothing twice": not found["twice"],
            "nothing wrong": not found["wrong"],
            "no other problem": not problems,
            "every kind happened": every if not args.quick else None,
            "as many faults as asked for": sum(counts.values()) >= args.faults,
        }
        return end(
            args,
            marks,
            faults=sum(counts.values()),
            by_kind=dict(sorted(counts.items())),
            sessions=len(chaos.finished),
            driver_runs=sum(one.runs for one in chaos.finished),
            records=found["records"],
            told=found["told"],
            uses=found["uses"],
            cannot=chaos.missing,
            elapsed_s=time.monotonic() - started,
        )


def _also_to(path: Path) -> Callable[[Any], None]:
    plain = _program.say
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")

    def both(line: Any) -> None:
        plain(line)
        with path.open("a") as stream:
            stream.write(json.dumps(line, default=str) + "\n")

    return both


if __name__ == "__main__":
    sys.exit(main())
