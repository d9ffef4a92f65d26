"""The record store: SQLAlchemy and Alembic, SQLite by default.

Importing this package loads no SQLAlchemy; the first use of :func:`open_store` does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tfsearch.db.artifacts import ArtifactEntry, ArtifactStore
from tfsearch.db.records import (
    BestQuery,
    GcReport,
    Lease,
    Nearest,
    Problem,
    ProofRecord,
    SessionFields,
    SessionRecord,
    SessionStatus,
    SourceRecord,
    StoredFinal,
    StoredTrial,
    StoreStats,
)

if TYPE_CHECKING:
    from tfsearch.db.opening import open_store, upgrade_store
    from tfsearch.db.store import Store

_LAZY = {"open_store": "opening", "upgrade_store": "opening", "Store": "store"}

__all__ = [
    "ArtifactEntry",
    "ArtifactStore",
    "BestQuery",
    "GcReport",
    "Lease",
    "Nearest",
    "Problem",
    "ProofRecord",
    "SessionFields",
    "SessionRecord",
    "SessionStatus",
    "SourceRecord",
    "Store",
    "StoreStats",
    "StoredFinal",
    "StoredTrial",
    "open_store",
    "upgrade_store",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LAZY[name]}"), name)
