"""Alembic calls this file; the connection comes from :mod:`tfsearch.db.migrate`."""

from __future__ import annotations

from alembic import context

from tfsearch.db.schema import metadata

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=metadata,
    transactional_ddl=False,  # the caller's transaction holds all of it, under the write lock
)
context.run_migrations()
