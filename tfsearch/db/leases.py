"""Leases of devices: one session at a time measures on one. Only counters decide, never a time.

A lease that is held has a ``term`` that grows with every holder and a ``beat`` that its holder
makes grow. Whoever waits sees by its own steady clock that a beat stands still; how long that
has to be is the caller's. Clocks of different machines, and clocks that jump, play no part.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import ColumnElement, Connection, and_, or_, select, update

from tfsearch.db import schema, writing
from tfsearch.db.records import Lease

_TABLE = schema.leases


def tend(
    connection: Connection,
    holder: str,
    *,
    hold: Mapping[str, int],
    want: Mapping[str, Lease | None],
    free: Mapping[str, int],
) -> dict[str, Lease]:
    """One round of a holder over its devices; their leases as they are now.

    ``hold`` and ``free`` map devices to the terms under which they are held: their beat grows, or
    they are given back; nothing happens where another one has the lease by now. ``want`` maps
    devices to the lease that has stood still for too long and may be taken, or None. A device
    that nobody has is taken; otherwise its wishes grow. A second delivery changes no holder.
    """
    found: dict[str, Lease] = {}
    for device in sorted({*hold, *want, *free}):  # in one order, so that no two wait in a circle
        if device in free:
            _change(connection, device, _under(holder, free[device]), holder="")
        elif device in hold:
            _change(connection, device, _under(holder, hold[device]), beat=_TABLE.c.beat + 1)
        else:
            _take(connection, device, holder, want[device])
        row = connection.execute(select(_TABLE).where(_TABLE.c.device == device)).first()
        if row is not None:
            found[device] = Lease(*row)
    return found


def _take(connection: Connection, device: str, holder: str, stale: Lease | None) -> None:
    fresh = {"device": device, "holder": "", "term": 0, "beat": 0, "wishes": 0}
    writing.insert_or_ignore(connection, _TABLE, fresh)
    free = _TABLE.c.holder.in_(("", holder))
    if stale is not None:
        same = and_(_under(stale.holder, stale.term), _TABLE.c.beat == stale.beat)
        free = or_(free, same)
    values = {"holder": holder, "term": _TABLE.c.term + 1, "beat": _TABLE.c.beat + 1, "wishes": 0}
    if not _change(connection, device, free, **values):
        _change(connection, device, None, wishes=_TABLE.c.wishes + 1)


def _under(holder: str, term: int) -> ColumnElement[bool]:
    return and_(_TABLE.c.holder == holder, _TABLE.c.term == term)


def _change(
    connection: Connection, device: str, where: ColumnElement[bool] | None, **values: object
) -> bool:
    statement = update(_TABLE).where(_TABLE.c.device == device)
    if where is not None:
        statement = statement.where(where)
    return connection.execute(statement.values(**values)).rowcount == 1
