"""The coded error tree.

Every error a user can meet carries a stable ``code`` (dotted, lower case), the exit code of
its family, and one line that says what was wrong, where, and what would be right.
"""

from __future__ import annotations

from typing import ClassVar


class TfsearchError(Exception):
    """Base of every error that tfsearch raises on purpose.

    ``code`` is stable across releases; ``str(error)`` is one line for people.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, code: str, message: str) -> None:
        super().__init__(" ".join(message.split()))
        self.code = code

    @property
    def message(self) -> str:
        """The line for people, without the code."""
        return str(self.args[0])


class RequestError(TfsearchError):
    """The request is wrong: unknown op, bad dimension, rejected flag, not a database."""

    exit_code = 2


class NoCandidateError(TfsearchError):
    """No legal or no correct candidate, or a schedule that is refused."""

    exit_code = 3


class NotRecordedError(TfsearchError):
    """The database holds no record for the question."""

    exit_code = 4


class UnavailableError(TfsearchError):
    """A compiler, device or server is missing, unreachable or refuses the password."""

    exit_code = 5


class NotSavedError(TfsearchError):
    """Something was measured and could not be saved: read-only, locked, full."""

    exit_code = 6


class InternalError(TfsearchError):
    """A broken invariant of tfsearch itself; never a user's mistake."""

    exit_code = 1
