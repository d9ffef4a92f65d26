"""Every released schema opens; migrations and table definitions agree."""

from __future__ import annotations

import re
import sqlite3
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from tests.db import make
from tfsearch.core.errors import RequestError
from tfsearch.core.records import VERIFIER_VERSION
from tfsearch.db import migrate, open_store, schema, upgrade_store

SCHEMAS = Path(__file__).parent / "schemas"
AFTER = f"{int(schema.HEAD) + 1:04}"
NEXT = f'''"""A revision of some later release."""

import sqlalchemy as sa
from alembic import op

revision = "{AFTER}"
down_revision = "{schema.HEAD}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column("sessions", sa.Column("note", sa.Text(), nullable=False, server_default=""))
'''


def tables(path: Path) -> dict[str, list[str]]:
    """Definitions by name: the parts of each, in an order that does not depend on its author."""
    connection = sqlite3.connect(path)
    query = "SELECT name, sql FROM sqlite_master WHERE sql IS NOT NULL"
    out = {}
    for name, sql in connection.execute(query):
        text = re.sub(r"\s+", " ", sql).replace("( ", "(")
        out[name] = sorted(re.split(r", (?=CONSTRAINT|[\"a-z])", text.rstrip(" )")))
    connection.close()
    return {name: sorted(part.rstrip(" )") for part in parts) for name, parts in out.items()}


def load(revision: str, path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.executescript((SCHEMAS / f"{revision}.sql").read_text())
    connection.close()


def test_every_released_revision_has_an_asset_and_a_migration():
    from alembic.script import ScriptDirectory

    with create_engine("sqlite://").connect() as connection:
        script = ScriptDirectory.from_config(migrate.config(connection))
    order = [one.revision for one in script.walk_revisions()][::-1]
    assert tuple(order) == schema.REVISIONS
    assert script.get_heads() == [schema.HEAD]
    assert sorted(file.stem for file in SCHEMAS.glob("*.sql")) == list(schema.REVISIONS)


def test_the_migrations_build_what_a_fresh_store_has(tmp_path: Path):
    engine = create_engine(f"sqlite:///{tmp_path}/migrated.db")
    with engine.begin() as connection:
        migrate.upgrade(connection)
    engine.dispose()
    open_store(f"sqlite:///{tmp_path}/fresh.db").close()
    migrated, fresh = tables(tmp_path / "migrated.db"), tables(tmp_path / "fresh.db")
    assert migrated == fresh
    assert len(fresh) > 20
    store = open_store(f"sqlite:///{tmp_path}/migrated.db", create=False)
    make.begun(store)
    pragma = "PRAGMA application_id"
    ids = [
        sqlite3.connect(tmp_path / f).execute(pragma).fetchone()
        for f in ("migrated.db", "fresh.db")
    ]
    assert ids[0] == ids[1] != (0,)


@pytest.mark.parametrize("revision", schema.REVISIONS)
def test_a_released_schema_opens_with_its_records(tmp_path: Path, revision: str):
    path = tmp_path / "old.db"
    load(revision, path)
    store = open_store(f"sqlite:///{path}")
    (stored,) = [one for one in store.trials() if one.trial.status.value == "ok"]
    record = store.workload(stored.trial.workload)
    assert record is not None
    # What an older verifier let through is kept, and served to who asks for it only.
    (version,) = sqlite3.connect(path).execute("SELECT DISTINCT verifier FROM contexts").fetchone()
    assert store.best(make.query(record, verifier=version)) == stored
    assert (store.best(make.query(record)) == stored) == (version == VERIFIER_VERSION)
    assert store.verify() == []
    open_store(f"sqlite:///{tmp_path}/fresh.db").close()
    assert tables(path) == tables(tmp_path / "fresh.db")


@pytest.fixture
def later_release(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The program as if it had one more revision."""
    folder = tmp_path / "more"
    folder.mkdir()
    (folder / f"{AFTER}_note.py").write_text(NEXT)
    monkeypatch.setattr(migrate, "VERSION_FOLDERS", [*migrate.VERSION_FOLDERS, folder])
    monkeypatch.setattr(schema, "REVISIONS", (*schema.REVISIONS, AFTER))
    monkeypatch.setattr(schema, "HEAD", AFTER)


def test_an_older_schema_is_upgraded_on_a_writable_open(tmp_path: Path, later_release: None):
    path = tmp_path / "old.db"
    load("0001", path)
    url = f"sqlite:///{path}"
    for options in ({"create": False}, {"read_only": True}):
        with pytest.raises(RequestError, match="tfsearch db upgrade") as caught:
            open_store(url, **options)
        assert caught.value.code == "db.outdated"
    store = open_store(url)
    assert store.stats().revision == AFTER
    assert "note" in "".join(tables(path)["sessions"])
    assert store.verify() == []
    assert open_store(url, create=False).stats().trials == 2


def test_the_upgrade_command_upgrades_once(tmp_path: Path, later_release: None):
    path = tmp_path / "old.db"
    load("0001", path)
    assert upgrade_store(f"sqlite:///{path}") == ("0001", AFTER)
    assert upgrade_store(f"sqlite:///{path}") == (AFTER, AFTER)


def test_an_upgraded_database_is_from_the_future_for_an_older_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
):
    path = tmp_path / "old.db"
    load("0001", path)
    request.getfixturevalue("later_release")
    upgrade_store(f"sqlite:///{path}")
    monkeypatch.undo()
    with pytest.raises(RequestError) as caught:
        open_store(f"sqlite:///{path}")
    assert caught.value.code == "db.from-the-future"


def test_a_failed_upgrade_changes_nothing(tmp_path: Path, later_release: None):
    path = tmp_path / "old.db"
    load("0001", path)
    file = tmp_path / "more" / f"{AFTER}_note.py"
    file.write_text(NEXT + '    op.execute("CREATE TABLE trials (x)")\n')
    before = tables(path)
    with pytest.raises(Exception, match="already exists"):
        open_store(f"sqlite:///{path}")
    assert tables(path) == before
