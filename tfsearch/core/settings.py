"""Settings: the only reader and writer of the process environment.

``TFSEARCH_DB`` names the database (a SQLAlchemy URL); ``TFSEARCH_HOME`` the folder for the
default database, artifacts and caches; ``TFSEARCH_DEBUG=1`` shows tracebacks.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

SCRUBBED_NAMES = ("PATH", "HOME", "TMPDIR", "LANG", "SYSTEMROOT")


@dataclass(frozen=True)
class Settings:
    """Where things are kept. ``home`` holds ``tfsearch.db``, ``artifacts/`` and ``cache/``."""

    home: Path
    database_url: str

    @property
    def artifacts(self) -> Path:
        """Folder of this user's own artifact store (content-addressed)."""
        return self.home / "artifacts"

    @property
    def cache(self) -> Path:
        """Folder of caches that can be deleted at any time."""
        return self.home / "cache"


def load(database_url: str | None = None) -> Settings:
    """Settings of this process; an explicit URL wins over ``TFSEARCH_DB``."""
    home_text = os.environ.get("TFSEARCH_HOME")
    if home_text:
        home = Path(home_text).expanduser()
    else:
        import platformdirs

        home = Path(platformdirs.user_data_dir("tfsearch", appauthor=False))
    url = database_url or os.environ.get("TFSEARCH_DB") or f"sqlite:///{home / 'tfsearch.db'}"
    return Settings(home=home, database_url=url)


def search_path() -> str:
    """The ``PATH`` on which compilers are looked for."""
    return os.environ.get("PATH", os.defpath)


def scrubbed_environment(**extra: str) -> dict[str, str]:
    """A minimal environment for child processes: nothing that changes what a compiler does.

    Variables such as ``CPATH``, ``CFLAGS``, ``LD_PRELOAD`` and ``GCC_EXEC_PREFIX`` are not
    passed on. ``LC_ALL=C`` keeps messages stable.
    """
    kept = {name: os.environ[name] for name in SCRUBBED_NAMES if name in os.environ}
    return {**kept, "LC_ALL": "C", **extra}


def set_defaults(**values: str) -> None:
    """Set variables that libraries read, where the user has not set them."""
    for name, value in values.items():
        os.environ.setdefault(name, value)


def debug() -> bool:
    """Whether ``TFSEARCH_DEBUG`` asks for tracebacks of errors."""
    return os.environ.get("TFSEARCH_DEBUG", "") not in ("", "0")
