"""Everything in a database without its row numbers, read by nothing but the table definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Connection, Table, select

from tfsearch.db import Store, schema

NOT_UNIQUE = ("builds", "finals")
"""Tables whose rows have no key of their own: their number counts too."""
PASSING = ("leases",)
"""Tables of what holds now, which is no record."""


def contents(store: Store) -> dict[str, list[str]]:
    """Sorted rows of every table; a reference is replaced by the row that it names."""

    def work(connection: Connection) -> dict[str, list[str]]:
        tables = [t for t in schema.metadata.sorted_tables if t.name not in PASSING]
        rows = {t.name: [dict(r) for r in connection.execute(select(t)).mappings()] for t in tables}
        by_id = {
            t.name: {row["id"]: row for row in rows[t.name]} for t in tables if "id" in t.columns
        }
        return {t.name: sorted(_text(t, row, by_id) for row in rows[t.name]) for t in tables}

    return store.database.read(work)


def _text(table: Table, row: Mapping[str, Any], by_id: Mapping[str, Any]) -> str:
    found: dict[str, Any] = {}
    for column in table.columns:
        value = row[column.name]
        if column.name == "id":
            continue
        for key in column.foreign_keys:
            other = key.column.table
            if value is not None:
                value = _text(other, by_id[other.name][value], by_id)
        found[column.name] = value
    return repr(found)
