"""Records out of a database, each after what it refers to, inside the caller's transaction."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, and_, or_, select

from tfsearch.core.errors import NotRecordedError, RequestError, TfsearchError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Refusal
from tfsearch.db import codec, schema, writing
from tfsearch.db import select as statements
from tfsearch.db.exchange.items import FinalItem, Item, Place, Selection, TrialItem
from tfsearch.db.records import ProofRecord, SourceRecord
from tfsearch.db.schema import final_entries, finals, sessions, trials, workloads

T = TypeVar("T")
CHUNK = 500
"""Rows that are held at a time."""
_DAMAGED = (TfsearchError, ValueError, KeyError, TypeError)
"""What decoding a row raises that is not as it was written."""


def records(connection: Connection, selection: Selection, left_out: list[str]) -> Iterator[Item]:
    """Every selected record, in the order of their recording within each kind.

    Trials and launches that are not what was recorded are left out, with the finals that name
    them, and told in ``left_out``. ``RequestError`` (``db.altered-row``) for a workload or a
    session that is not. ``NotRecordedError`` when the selected workload or session is not there.
    """
    chosen = _Chosen(connection, selection)
    for row in _rows(connection, select(workloads), workloads, chosen.workloads):
        workload = _decoded(f"workload {row.id}", codec.workload_of, row)
        if workload.key != row.key:
            raise _altered(f"workload {row.id}")
        yield workload
    for row in _rows(connection, _SESSIONS, sessions, chosen.sessions):
        session = _decoded(f"session {row.name}", codec.session_of, row)
        if session.fields.key != row.key:
            raise _altered(f"session {row.name}")
        yield session
    altered: set[int] = set()
    for row in _rows(connection, statements.trial_select(), trials, chosen.trials):
        item = _trial(row)
        if item is not None:
            yield item
        else:
            altered.add(row.id)
            left_out.append(f"trial {row.id}")
    for row in _rows(connection, _FINALS, finals, chosen.finals):
        final = _decoded(f"final {row.id}", lambda one: _final(connection, one), row)
        if altered.isdisjoint(final.places):
            yield final
        else:
            left_out.append(f"final {row.id}")
    yield from _launches(connection, chosen, left_out)
    yield from _sources(connection, chosen)
    if selection.whole:
        for row in connection.execute(select(schema.proofs).order_by(*schema.proofs.primary_key)):
            refusals = _decoded(f"proof {row.shape}", _refusals, row)
            yield ProofRecord(row.shape, row.prover, bool(row.ok), refusals)


def _trial(row: codec.AnyRow) -> TrialItem | None:
    """The trial of a row, if it is what was recorded."""
    try:
        trial = codec.trial_of(row)
    except _DAMAGED:
        return None
    return TrialItem(trial, row.content) if codec.content(trial) == row.content else None


def _refusals(row: codec.AnyRow) -> tuple[Refusal, ...]:
    return tuple(Refusal(**one) for one in codec.load(row.refusals))


def _decoded(place: str, decode: Callable[[codec.AnyRow], T], row: codec.AnyRow) -> T:
    try:
        return decode(row)
    except _DAMAGED as error:
        raise _altered(place) from error


def _altered(place: str) -> RequestError:
    return RequestError(
        "db.altered-row",
        f"{place} was altered after it was recorded; tfsearch db verify shows what else was",
    )


class _Chosen:
    """Conditions on the ids of each table that hold for what is selected; None: all rows."""

    def __init__(self, connection: Connection, selection: Selection) -> None:
        self.workloads: ColumnElement[bool] | None = None
        self.sessions: ColumnElement[bool] | None = None
        self.trials: ColumnElement[bool] | None = None
        self.finals: ColumnElement[bool] | None = None
        if selection.whole:
            return
        given: dict[str, int] = {}
        if selection.workload is not None:
            given["workload_id"] = _id_of(connection, workloads.c.key, selection.workload)
        if selection.session is not None:
            given["session_id"] = _id_of(connection, sessions.c.name, selection.session)
        self.finals = _equal(finals, given)
        chosen = select(finals.c.id).where(self.finals)
        # A final may name trials of earlier sessions.
        named = select(final_entries.c.trial_id).where(final_entries.c.final_id.in_(chosen))
        self.trials = or_(_equal(trials, given), trials.c.id.in_(named))
        own = {name.replace("session_id", "id"): value for name, value in given.items()}
        self.sessions = or_(
            _equal(sessions, own),
            sessions.c.id.in_(select(trials.c.session_id).where(self.trials)),
            sessions.c.id.in_(select(finals.c.session_id).where(self.finals)),
        )
        self.workloads = or_(
            workloads.c.key == selection.workload,
            workloads.c.id.in_(select(sessions.c.workload_id).where(self.sessions)),
            workloads.c.id.in_(select(trials.c.workload_id).where(self.trials)),
        )

    @property
    def launches(self) -> Select[Any] | None:
        """Digests of the launches that selected trials were built for."""
        if self.trials is None:
            return None
        keys = select(trials.c.build_key_id).where(self.trials)
        return select(schema.build_keys.c.launch).where(schema.build_keys.c.id.in_(keys))

    @property
    def schedules(self) -> Select[Any] | None:
        """Keys of the schedules of selected trials."""
        if self.trials is None:
            return None
        ids = select(trials.c.schedule_id).where(self.trials)
        return select(schema.schedules.c.key).where(schema.schedules.c.id.in_(ids))


_SESSIONS = select(sessions, workloads.c.key.label("workload_key")).join_from(
    sessions, workloads, workloads.c.id == sessions.c.workload_id
)
_FINALS = (
    select(finals, sessions.c.name.label("session"), workloads.c.key.label("workload_key"))
    .join_from(finals, sessions, sessions.c.id == finals.c.session_id)
    .join(workloads, workloads.c.id == finals.c.workload_id)
)


def finals_of_session(connection: Connection, session: int) -> list[FinalItem]:
    """The finals of a session, by the session's number."""
    rows = connection.execute(_FINALS.where(finals.c.session_id == session)).all()
    return [_final(connection, row) for row in rows]


def _id_of(connection: Connection, column: Column[str], value: str) -> int:
    found = writing.id_of(connection, column, value)
    if found is None:
        raise NotRecordedError(
            "db.nothing-selected", f"{column.table.name} has no {column.name} {value}"
        )
    return found


def _equal(table: Table, values: dict[str, int]) -> ColumnElement[bool]:
    return and_(*(table.c[name] == value for name, value in values.items()))


def _rows(
    connection: Connection, query: Select[Any], table: Table, condition: ColumnElement[bool] | None
) -> Iterator[codec.AnyRow]:
    """Rows in the order of their ids, some at a time: drivers hold a whole result in memory."""
    if condition is not None:
        query = query.where(condition)
    query, last = query.order_by(table.c.id).limit(CHUNK), None
    while True:
        # Finals that came from elsewhere may have ids below zero.
        part = query if last is None else query.where(table.c.id > last)
        rows: Sequence[codec.AnyRow] = connection.execute(part).all()
        yield from rows
        if len(rows) < CHUNK:
            return
        last = rows[-1].id


def _final(connection: Connection, row: codec.AnyRow) -> FinalItem:
    entries = connection.execute(
        select(final_entries, sessions.c.name, trials.c.position.label("trial_position"))
        .join_from(final_entries, trials, trials.c.id == final_entries.c.trial_id)
        .join(sessions, sessions.c.id == trials.c.session_id)
        .where(final_entries.c.final_id == row.id)
        .order_by(final_entries.c.position)
    ).all()
    places: dict[int, Place] = {one.trial_id: (one.name, one.trial_position) for one in entries}
    final = codec.final_of(row, row.session, row.workload_key, entries)
    return FinalItem(final, places)


def _launches(connection: Connection, chosen: _Chosen, left_out: list[str]) -> Iterator[LaunchSpec]:
    table = schema.launches
    query = select(table).order_by(table.c.digest)
    if chosen.launches is not None:
        query = query.where(table.c.digest.in_(chosen.launches))
    for row in connection.execute(query):
        spec = _launch(row)
        if spec is not None:
            yield spec
        else:
            left_out.append(f"launch {row.digest}")


def _launch(row: codec.AnyRow) -> LaunchSpec | None:
    """The launch of a row, if it is what was recorded."""
    try:
        spec = LaunchSpec.from_json(codec.load(row.spec))
        return spec if spec.digest == row.digest else None
    except _DAMAGED:
        return None


def _sources(connection: Connection, chosen: _Chosen) -> Iterator[SourceRecord]:
    table = schema.sources
    query = select(table).order_by(table.c.schedule, table.c.generator)
    if chosen.schedules is not None:
        query = query.where(table.c.schedule.in_(chosen.schedules))
    for row in connection.execute(query):
        yield SourceRecord(*row)
