"""Alembic environment of the record store; one file per released schema in ``versions``."""
