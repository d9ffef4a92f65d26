"""Backends that the contract suite runs over: SQLite always, others by environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tfsearch.db import Store, open_store

POSTGRES = "TFSEARCH_TEST_POSTGRES"


@pytest.fixture(params=["sqlite", "memory", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of an empty database on each backend."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/store.db"
    elif request.param == "memory":
        yield "sqlite://"
    else:
        yield from postgres_database()


@pytest.fixture
def server_url() -> Iterator[str]:
    """URL of an empty database on a PostgreSQL server."""
    yield from postgres_database()


def postgres_database() -> Iterator[str]:
    """URL of an empty database on the server, which is dropped afterwards."""
    yield from _postgres_schema(_server())


def _server() -> str:
    server = os.environ.get(POSTGRES)
    if not server:
        pytest.skip(f"PostgreSQL: {POSTGRES} names no server")
    return server


def _postgres_schema(server: str) -> Iterator[str]:
    import uuid

    from sqlalchemy import create_engine, make_url, text

    name = f"tfsearch_test_{uuid.uuid4().hex[:12]}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield make_url(server).set(database=name).render_as_string(hide_password=False)
    finally:
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name} WITH (FORCE)"))
        engine.dispose()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    """An empty store on each backend."""
    opened = open_store(url)
    yield opened
    opened.close()
