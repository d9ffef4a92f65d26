"""kill -9 of a tuning process at random moments, then resume: nothing lost, nothing repeated.

For each target one session is run undisturbed for its duration, counted from the opened database.
Then sessions in fresh homes are killed with SIGKILL at a uniformly random moment of it, resumed,
killed again, and resumed to the end, until ``--kills`` kills hit an unfinished session; a session
that ends before its moment counts as none. The database is read after every kill and at the end.

Marks, over all kills and both targets: every trial that the database held, or that the process had
said was recorded, is there unchanged after the resume; no schedule and no index is there twice; one
session, finished, with exactly the trials asked for; the recorded winner is the reported one, came
out of the final over the best medians with nobody shown to be faster, and on the null
target, whose true times are known, is the fastest within the noise; the store verifies.

    python benchmarks/kill_resume.py --kills 20 --assert > reports/x86/kill-resume.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from _program import begin, end, parser, say

from tfsearch.core.records import Status, Trial
from tfsearch.db import SessionStatus, Store, open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits
from tfsearch.target.null import model
from tfsearch.tune import Silent, TrialEnded, TuneRequest, tune

TARGETS = ("x86", "null")
CHAIN = 2
"""Kills of one session before it is left to finish."""
GEMM = {"m": 5, "n": 6, "k": 7, "dtype": "f32"}
POLICY = {"x86": "ranked", "null": "exhaustive"}
NOISE = 0.01
"""Two points of the null target this close are equally good (its samples have 1 % of noise)."""
MOST_S = 300.0


def workload() -> Workload:
    """The tiny matrix product that is tuned."""
    return build_workload("gemm", GEMM)


class Told(Silent):
    """Prints the index of a trial as soon as the session says that it ended."""

    def trial(self, event: TrialEnded) -> None:
        """One line for each trial."""
        print(json.dumps({"trial": event.index}), flush=True)


def child(target: str, trials: int, home: Path) -> int:
    """The tuning process: one session, resumed if one was left unfinished."""
    store = open_store(url(home))
    print(json.dumps({"ready": True}), flush=True)
    request = TuneRequest(
        workload(),
        target=target,
        trials=trials,
        policy=POLICY[target],
        baseline=False,
        limits=Limits(budget_s=0.1),
    )
    report = tune(request, store=store, observer=Told())
    store.close()
    best = None if report.best is None else report.best.trial
    print(json.dumps({"best": best, "session": report.session}), flush=True)
    return report.exit_code


def url(home: Path) -> str:
    """The database of a home."""
    return f"sqlite:///{home / 'tfsearch.db'}"


@dataclass
class Run:
    """What came of one process: how far it got, whether it was killed, seconds from opening."""

    killed: bool
    told: list[int]
    answer: Mapping[str, Any] | None
    seconds: float


def run(target: str, trials: int, home: Path, moment: float | None) -> Run:
    """Start a tuning process; kill it ``moment`` seconds after it opened the database, if given."""
    env = {name: value for name, value in os.environ.items() if name != "TFSEARCH_DB"}
    words = ["--child", target, "--trials", str(trials), "--home", str(home)]
    killed = False
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            [sys.executable, __file__, *words], env={**env, "TFSEARCH_HOME": str(home)}, stdout=out
        )
        while process.poll() is None and not os.fstat(out.fileno()).st_size:
            time.sleep(0.002)
        begun = time.monotonic()
        try:
            process.wait(MOST_S if moment is None else moment)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            killed = True
        seconds = time.monotonic() - begun
        out.seek(0)
        # A process that was killed while it wrote may leave half a line.
        lines = [json.loads(line) for line in out.read().split("\n")[:-1]]
    if (killed and moment is None) or (not killed and process.returncode):
        raise SystemExit(f"a tuning process ended with {process.returncode} after {seconds:.0f} s")
    told = [line["trial"] for line in lines if "trial" in line]
    answer = next((line for line in lines if "best" in line), None)
    return Run(killed and answer is None, told, answer, seconds)


@dataclass
class Session:
    """One home, what its database held at the last look, and everything found wrong."""

    target: str
    trials: int
    home: Path
    held: dict[int, Trial] = field(default_factory=dict[int, Trial])
    told: set[int] = field(default_factory=set[int])
    finished: bool = False
    problems: list[str] = field(default_factory=list[str])

    def look(self, after: Run) -> int:
        """Read the database, compare with the last look; how many trials it holds now."""
        self.told |= set(after.told)
        if not (self.home / "tfsearch.db").exists():
            self._expect(not self.held and not self.told, "the database is gone")
            return 0
        store = open_store(url(self.home))
        try:
            now = {one.id: one.trial for one in store.trials()}
            lost = [key for key, trial in self.held.items() if now.get(key) != trial]
            self._expect(not lost, f"trials {lost} were lost or changed")
            missing = self.told - {trial.index for trial in now.values()}
            self._expect(not missing, f"trials {sorted(missing)} were told and are not recorded")
            for name, values in (
                ("schedule", [trial.schedule.key for trial in now.values()]),
                ("index", [trial.index for trial in now.values()]),
            ):
                twice = [value for value, count in Counter(values).items() if count > 1]
                self._expect(not twice, f"{name} {twice} is recorded twice")
            found = store.verify(self.home / "artifacts")
            self._expect(not found, f"the store does not verify: {found}")
            self.held = now
            states = [session.status for session in store.sessions()]
            self.finished = SessionStatus.FINISHED in states
            if self.finished or after.answer is not None:
                self._expect(states == [SessionStatus.FINISHED], f"the sessions are {states}")
                self._finished(store, after.answer)
        finally:
            store.close()
        return len(self.held)

    def _finished(self, store: Store, answer: Mapping[str, Any] | None) -> None:
        """What has to hold of an ended session; without an answer the kill came after its end."""
        indices = sorted(trial.index for trial in self.held.values())
        self._expect(indices == list(range(self.trials)), f"the trials are {indices}")
        stored = store.latest_final(workload().key)
        if stored is None:
            self.problems.append("no final is recorded")
            return
        final = stored.final
        told = final.winner if answer is None else answer["best"]
        self._expect(final.winner == told, "the reported best is not the recorded one")
        self._expect(final.winner in self.held, "the winner is no trial of the session")
        entries = {entry.trial: entry for entry in final.entries}
        best = min(self._medians(), key=self._medians().__getitem__, default=None)
        self._expect(best in entries, "the best median was not in the final")
        faster = [one for one, entry in entries.items() if entry.ratio_ci[1] < 1.0]
        self._expect(not faster, f"trials {faster} are faster than the winner")
        if self.target == "null":
            self._expect(self._is_fastest(final.winner), "the winner is not the fastest point")

    def _medians(self) -> dict[int, float]:
        return {
            key: trial.measurement.median_us
            for key, trial in self.held.items()
            if trial.status is Status.OK
            and trial.measurement is not None
            and not trial.measurement.censored
        }

    def _is_fastest(self, winner: int) -> bool:
        program = workload().program
        facts = {"work": model.work(program), "bytes": model.traffic(program)}
        times = {key: model.time_us(facts, t.schedule.params) for key, t in self.held.items()}
        return times[winner] <= min(times.values()) * (1 + NOISE)

    def _expect(self, holds: bool, otherwise: str) -> None:
        if not holds:
            self.problems.append(otherwise)


def disturbed(
    target: str, trials: int, duration: float, most: int, draw: random.Random
) -> dict[str, Any]:
    """One session that is killed up to ``most`` times and then finishes."""
    with tempfile.TemporaryDirectory(prefix="tfsearch-kill-") as folder:
        session = Session(target, trials, Path(folder))
        kills: list[dict[str, Any]] = []
        while not session.finished and len(kills) < most:
            moment = draw.uniform(0.0, duration)
            one = run(target, trials, session.home, moment)
            recorded = session.look(one)
            if one.answer is not None and not session.finished:
                break
            if one.killed and not session.finished:
                kills.append({"after_s": moment, "told": len(session.told), "recorded": recorded})
        if not session.finished and not session.problems:
            session.look(run(target, trials, session.home, None))
        return {
            "target": target,
            "kills": kills,
            "trials": len(session.held),
            "problems": session.problems,
        }


def arguments() -> argparse.Namespace:
    """The options."""
    made = parser(__doc__)
    made.add_argument("--kills", type=int, default=20, help="for each target")
    made.add_argument("--trials", type=int, default=12)
    made.add_argument("--targets", default=",".join(TARGETS))
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--child", choices=TARGETS, help=argparse.SUPPRESS)
    made.add_argument("--home", type=Path, help=argparse.SUPPRESS)
    args = made.parse_args()
    if args.quick:
        args.kills, args.trials, args.targets = 1, 4, "null"
    return args


def main() -> int:
    """Kill until every target has had its kills."""
    args = arguments()
    if args.child:
        return child(args.child, args.trials, args.home)
    begin("kill_resume", args)
    draw = random.Random(args.seed)
    problems: list[str] = []
    counts: dict[str, int] = {}
    for target in args.targets.split(","):
        with tempfile.TemporaryDirectory(prefix="tfsearch-kill-") as folder:
            whole = run(target, args.trials, Path(folder), None)
            quiet = Session(target, args.trials, Path(folder))
            quiet.look(whole)
        problems += [f"undisturbed: {problem}" for problem in quiet.problems]
        # A quick look has time for one session only, so its kill has to come early enough to hit.
        within = whole.seconds * (0.3 if args.quick else 1.0)
        say({"target": target, "undisturbed_s": whole.seconds, "problems": quiet.problems})
        counts[target] = 0
        while counts[target] < args.kills:
            left = min(CHAIN, args.kills - counts[target])
            one = disturbed(target, args.trials, within, left, draw)
            counts[target] += len(one["kills"])
            problems += one["problems"]
            say(one)
    return end(args, {"nothing lost, repeated or wrong": not problems}, kills=counts)


if __name__ == "__main__":
    sys.exit(main())
