"""Opening the database of a command, and finding in it what a command names."""

from __future__ import annotations

import contextlib
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from tfsearch.cli import options as shared
from tfsearch.core.errors import NotRecordedError, RequestError

if TYPE_CHECKING:
    from tfsearch.core.settings import Settings
    from tfsearch.db import Store


@contextlib.contextmanager
def opened(
    url: str | None, *, write: bool = False, create: bool = False
) -> Generator[tuple[Store, Settings]]:
    """The store at a URL (None: the user's own) and where things are kept."""
    from tfsearch.db import open_store

    places = shared.settings_of(url)
    store = open_store(places.database_url, create=create, read_only=not write)
    try:
        yield store, places
    finally:
        store.close()


def by_key(store: Store, beginning: str) -> Any:
    """The workload whose key begins so; ``NotRecordedError`` or ``RequestError`` without one."""
    text = beginning.lower().rstrip("…")
    found = store.workload(text) if len(text) == 64 else None
    if found is not None:
        return found
    matching = [w for w in store.workloads() if w.key.startswith(text)]
    if not matching:
        raise NotRecordedError("db.no-workload", f"no workload has a key that starts {text!r}")
    if len(matching) > 1:
        raise RequestError(
            "db.ambiguous", f"{len(matching)} workloads have keys that start {text!r}; give more"
        )
    return matching[0]
