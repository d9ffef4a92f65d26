"""Alembic, imported only when a schema really has to change."""

from __future__ import annotations

import os
from pathlib import Path

from alembic import command
from alembic.config import Config
from sqlalchemy import Connection

from tfsearch.db import schema

FOLDER = Path(__file__).parent / "migrations"
VERSION_FOLDERS = [FOLDER / "versions"]
"""Where revision files are looked for."""


def config(connection: Connection) -> Config:
    """Alembic's configuration for an open connection; needs no ini file."""
    made = Config()
    made.set_main_option("script_location", _escaped(FOLDER))
    made.set_main_option("path_separator", "os")
    made.set_main_option("version_path_separator", "os")  # its name before Alembic 1.16
    made.set_main_option("version_locations", os.pathsep.join(map(_escaped, VERSION_FOLDERS)))
    made.attributes["connection"] = connection
    return made


def upgrade(connection: Connection, revision: str = "") -> None:
    """Run the revisions up to ``revision`` (default: the head) in the caller's transaction."""
    command.upgrade(config(connection), revision or schema.HEAD)


def _escaped(path: Path) -> str:
    return str(path).replace("%", "%%")
