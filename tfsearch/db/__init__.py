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
    ModelRecord,
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
    Timing,
)

if TYPE_CHECKING:
    from tfsearch.db.exchange.items import Counts, Selection
    from tfsearch.db.exchange.transfer import check_files, export_records, import_file, merge
    from tfsearch.db.opening import open_store, upgrade_store
    from tfsearch.db.store import Store

_LAZY = {
    "Counts": "tfsearch.db.exchange.items",
    "Selection": "tfsearch.db.exchange.items",
    "Store": "tfsearch.db.store",
    "check_files": "tfsearch.db.exchange.transfer",
    "export_records": "tfsearch.db.exchange.transfer",
    "import_file": "tfsearch.db.exchange.transfer",
    "merge": "tfsearch.db.exchange.transfer",
    "open_store": "tfsearch.db.opening",
    "upgrade_store": "tfsearch.db.opening",
}

__all__ = [
    "ArtifactEntry",
    "ArtifactStore",
    "BestQuery",
    "Counts",
    "GcReport",
    "Lease",
    "ModelRecord",
    "Nearest",
    "Problem",
    "ProofRecord",
    "Selection",
    "SessionFields",
    "SessionRecord",
    "SessionStatus",
    "SourceRecord",
    "Store",
    "StoreStats",
    "StoredFinal",
    "StoredTrial",
    "Timing",
    "check_files",
    "export_records",
    "import_file",
    "merge",
    "open_store",
    "upgrade_store",
]


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(_LAZY[name]), name)
