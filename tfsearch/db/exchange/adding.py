"""Records into a database, inside the caller's write transaction. Twice is as once.

They are data: nothing here or later loads an executable that they name (decision 0008), and what
only this program may say of itself (proofs, emitted sources) is taken from databases of the
user's own alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Table, func, select, update

from tfsearch.core.errors import InternalError, RequestError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Final, WorkloadRecord
from tfsearch.db import codec, recording, schema, writing
from tfsearch.db.exchange.items import Counts, FinalItem, Item, Place, TrialItem
from tfsearch.db.exchange.reading import finals_of_session
from tfsearch.db.records import ProofRecord, SessionRecord, SessionStatus, SourceRecord
from tfsearch.db.schema import contexts, finals, sessions, trials

COUNTED: dict[str, Table] = {
    "workloads": schema.workloads,
    "sessions": sessions,
    "trials": trials,
    "finals": finals,
    "launches": schema.launches,
    "sources": schema.sources,
    "proofs": schema.proofs,
}
_CONTEXT = ("environment_id", "device_id", "verifier")
_NAMES: dict[type[Any], str] = {
    WorkloadRecord: "workloads",
    SessionRecord: "sessions",
    TrialItem: "trials",
    FinalItem: "finals",
    LaunchSpec: "launches",
    SourceRecord: "sources",
    ProofRecord: "proofs",
}
_PROGRESS = {
    SessionStatus.RUNNING: 0,
    SessionStatus.INTERRUPTED: 0,
    SessionStatus.FAILED: 1,
    SessionStatus.FINISHED: 1,
}


def add(connection: Connection, items: Iterable[Item], *, own: bool) -> Counts:
    """Add what is not there yet.

    ``own``: the records are of a database of the user's own, so its proofs and emitted sources
    count too. ``RequestError`` (``db.import-conflict``) where the same session or the same trial of
    a session is there with another content; the caller's transaction is then to be undone.
    """
    seen = dict.fromkeys(COUNTED, 0)
    before = _counts(connection)
    waiting: list[FinalItem] = []
    for item in items:
        if isinstance(item, (SourceRecord, ProofRecord)) and not own:
            continue
        seen[_NAMES[type(item)]] += 1
        if isinstance(item, FinalItem):
            waiting.append(item)  # their order among those that are here is decided together
        else:
            _add(connection, item)
    _add_finals(connection, waiting)
    after = _counts(connection)
    added = {name: after[name] - before[name] for name in COUNTED}
    return Counts(added, {name: seen[name] - added[name] for name in COUNTED})


def _counts(connection: Connection) -> dict[str, int]:
    return {
        name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
        for name, table in COUNTED.items()
    }


def _add(connection: Connection, item: Item) -> None:
    if isinstance(item, WorkloadRecord):
        values = codec.workload_values(item)
        writing.insert_or_ignore(connection, schema.workloads, values)
    elif isinstance(item, SessionRecord):
        _add_session(connection, item)
    elif isinstance(item, TrialItem):
        _add_trial(connection, item)
    elif isinstance(item, LaunchSpec):
        values = {"digest": item.digest, "spec": codec.dump(item.to_json())}
        writing.insert_or_ignore(connection, schema.launches, values)
    elif isinstance(item, SourceRecord):
        writing.insert_or_ignore(connection, schema.sources, vars(item))
    elif isinstance(item, ProofRecord):
        values = {
            "shape": item.shape,
            "prover": item.prover,
            "ok": int(item.ok),
            "refusals": codec.refusals(item.refusals),
        }
        writing.insert_or_ignore(connection, schema.proofs, values)


def _add_session(connection: Connection, record: SessionRecord) -> None:
    """A session that went on elsewhere goes on here: its end replaces an earlier state."""
    known = connection.execute(
        select(sessions.c.id, sessions.c.key, sessions.c.status).where(sessions.c.name == record.id)
    ).first()
    if known is None:
        workload = writing.workload_id(connection, record.fields.workload)
        values = {**codec.session_values(record), "workload_id": workload}
        connection.execute(sessions.insert().values(values))
        return
    if known.key != record.fields.key:
        raise RequestError(
            "db.import-conflict",
            f"session {record.id} is recorded here with another identity; the databases cannot be "
            "merged",
        )
    if _PROGRESS[record.status] > _PROGRESS[SessionStatus(known.status)]:
        values = codec.session_values(record)
        changed = ("status", "owner", "finished_at")
        connection.execute(
            update(sessions)
            .where(sessions.c.id == known.id)
            .values({name: values[name] for name in changed})
        )


def _add_trial(connection: Connection, item: TrialItem) -> None:
    try:
        recording.insert_trial(connection, item.trial)
    except InternalError as error:
        if error.code != "db.different-trial":
            raise
        raise RequestError(
            "db.import-conflict",
            f"trial {item.trial.session}/{item.trial.index} is recorded here with another content: "
            "its session went on in both databases, and they cannot be merged",
        ) from error


def _add_finals(connection: Connection, items: list[FinalItem]) -> None:
    """Finals that are not there yet.

    The latest final of a workload in a context is what lookups serve, and the latest is the one
    with the highest id. So what ended before the latest one here gets an id below all others.
    """
    recorded: dict[str, set[str]] = {}
    new: list[tuple[Final, bool]] = []
    for item in items:
        final = _with_local_ids(connection, item)
        if final.session not in recorded:
            known = finals_of_session(connection, writing.session_id(connection, final.session))
            recorded[final.session] = {_content(one.final) for one in known}
        content = _content(final)
        if content not in recorded[final.session]:
            recorded[final.session].add(content)
            new.append((final, _is_older(connection, final)))
    lowest = connection.execute(select(func.min(finals.c.id))).scalar()
    below = min(0, 0 if lowest is None else int(lowest))
    for final, older in new:
        if not older:
            writing.insert_final(connection, final)
    for final, older in reversed(new):
        if older:
            below -= 1
            writing.insert_final(connection, final, final_id=below)


def _is_older(connection: Connection, final: Final) -> bool:
    """Whether a final that ended later is here, of the same workload and context."""
    winner, own, other = trials.alias("winner"), contexts.alias("own"), contexts.alias("other")
    same = (column == own.c[column.name] for column in (*other.c,) if column.name in _CONTEXT)
    latest = connection.execute(
        select(func.max(finals.c.finished_at))
        .join_from(finals, other, other.c.id == finals.c.context_id)
        .join(winner, winner.c.id == final.winner)
        .join(own, own.c.id == winner.c.context_id)
        .where(
            finals.c.workload_id == winner.c.workload_id,
            finals.c.protocol == final.protocol,
            *same,
        )
    ).scalar()
    return latest is not None and latest > final.finished_at


def _with_local_ids(connection: Connection, item: FinalItem) -> Final:
    ids = {number: _trial_id(connection, place) for number, place in item.places.items()}
    return replace(
        item.final,
        winner=ids[item.final.winner],
        entries=tuple(replace(one, trial=ids[one.trial]) for one in item.final.entries),
    )


def _trial_id(connection: Connection, place: Place) -> int:
    found = connection.execute(
        select(trials.c.id)
        .join_from(trials, sessions, sessions.c.id == trials.c.session_id)
        .where(sessions.c.name == place[0], trials.c.position == place[1])
    ).scalar()
    if found is None:
        raise RequestError(
            "db.import-reference", f"a final names trial {place[0]}/{place[1]}, which is not there"
        )
    return int(found)


def _content(final: Final) -> str:
    """Everything in a final, trials by their ids here."""
    entries = [
        [one.trial, one.median_us, one.ci_us, one.ratio, one.ratio_ci] for one in final.entries
    ]
    said = [final.session, final.workload, final.winner, entries]
    return codec.dump([*said, final.protocol, final.finished_at, dict(final.conditions)])
