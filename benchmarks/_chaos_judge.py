"""Judges what a database holds after faults, by what is true of every kernel and was told."""

from __future__ import annotations

import json
import time
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _chaos_target import hangs

from tfsearch.core.records import Status, Trial
from tfsearch.db import SessionStatus, Store, open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.target.null import model
from tfsearch.tune.journal import replay

if TYPE_CHECKING:
    from fleet_chaos import Chaos, Session

FAR = 6.0
"""Standard deviations that a sample of the simulated clock may be off."""


def judge(chaos: Chaos) -> dict[str, Any]:
    """Counts and problems; ``lost``, ``twice`` and ``wrong`` are lists of what was found so."""
    found: dict[str, Any] = {
        "lost": [], "twice": [], "wrong": [], "problems": [], "records": 0, "told": 0, "hung": 0,
    }  # fmt: skip
    store = _opened(chaos.direct)
    via = _opened(chaos.database)
    left = replay(chaos.folder / "home-drivers", via)  # of sessions that a later run did not need
    if left:
        found["problems"].append(f"{left} journals were left although every session finished")
    for one in chaos.finished:
        _judge_session(one, store, found, chaos.trials)
    found["problems"] += [str(problem.to_json()) for problem in store.verify()]
    _judge_use(chaos.folder / "use.log", found)
    found["problems"] += [f"{kind}: {found[kind][:5]}" for kind in ("lost", "twice", "wrong")
                          if found[kind]]  # fmt: skip
    return found


def _opened(url: str) -> Store:
    for _ in range(30):
        try:
            return open_store(url)
        except Exception:  # noqa: BLE001 - tried again, and the last time for good
            time.sleep(1.0)
    return open_store(url)


def _judge_session(one: Session, store: Store, found: dict[str, Any], wanted: int) -> None:
    workload = build_workload("gemm", {**one.dims, "dtype": "f32"})
    key = workload.record.key
    stored = store.trials(workload=key)
    trials = [item.trial for item in stored if item.trial.status is not Status.CANCELLED]
    found["records"] += len(trials)
    place = f"session {one.number}"
    by_schedule = Counter((item.session, json.dumps(dict(item.schedule.params), sort_keys=True))
                          for item in trials)  # fmt: skip
    found["twice"] += [f"{place}: {name}" for name, count in by_schedule.items() if count > 1]
    present = {(item.status.value, _text(item.schedule.params)) for item in trials}
    told = [json.loads(line) for line in one.told.read_text().splitlines()]
    found["told"] += len(told)
    for line in told:
        if (line["status"], _text(line["params"])) not in present:
            found["lost"].append(f"{place}: {line}")
    program = workload.program
    facts = {"work": model.work(program), "bytes": model.traffic(program)}
    for item in trials:
        fault = _wrong(item, model.time_us(facts, item.schedule.params))
        if fault:
            found["wrong"].append(f"{place}: trial {item.index}: {fault}")
        found["hung"] += item.status is Status.TIMEOUT
    sessions = [item for item in store.sessions() if item.fields.workload == key]
    ended = {item.status for item in sessions}
    if ended != {SessionStatus.FINISHED}:
        found["problems"].append(f"{place}: its sessions are {[s.status.value for s in sessions]}")
    if len({name for _, name in present}) < wanted:
        found["lost"].append(f"{place}: {len(present)} candidates of {wanted}")
    final = store.latest_final(key)
    if final is None:
        found["lost"].append(f"{place}: no final")
        return
    times = {item.id: model.time_us(facts, item.trial.schedule.params)
             for item in stored if item.trial.status is Status.OK}  # fmt: skip
    if times[final.final.winner] > min(times.values()) * (1 + 2 * model.NOISE):
        found["wrong"].append(f"{place}: its best is not the best")


def _wrong(trial: Trial, true_us: float) -> str:
    """What is wrong with a record, or nothing."""
    expected = Status.TIMEOUT if hangs(trial.schedule.params) else Status.OK
    if trial.status is not expected:
        return f"{trial.status.value} instead of {expected.value}: [{trial.code}] {trial.message}"
    if trial.measurement is None:
        return ""
    most = true_us * (1 + FAR * model.NOISE) * 1.2  # a cold call takes a fifth longer
    samples = trial.measurement.samples_us
    if min(samples) < true_us * 0.99 or max(samples) > most:
        return f"samples from {min(samples)} to {max(samples)} us, truly {true_us} us"
    if trial.verification is None or not trial.verification.passed:
        return "it is not verified"
    return ""


def _judge_use(path: Path, found: dict[str, Any]) -> None:
    """No device was used twice at a time."""
    uses: dict[str, list[tuple[float, float, str]]] = {}
    lines = path.read_text().splitlines()
    for line in lines:
        device, pid, begun, ended = line.split()
        uses.setdefault(device, []).append((float(begun), float(ended), pid))
    found["uses"] = len(lines)
    for device, spans in uses.items():
        for (_, ended, one), (begun, _, other) in pairwise(sorted(spans)):
            if begun < ended and one != other:
                found["wrong"].append(f"{device} was used by {one} and {other} at a time")


def _text(params: Any) -> str:
    return json.dumps(dict(params), sort_keys=True)
