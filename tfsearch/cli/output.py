"""What a command prints: one document or a few lines on standard output, all else elsewhere."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import sys
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import IO, Any, NoReturn

import click

from tfsearch.core.errors import NotSavedError, TfsearchError


@dataclass
class Output:
    """The answer of one command. ``as_json`` prints the document, else the lines."""

    as_json: bool = False
    emitted: bool = False

    def emit(self, document: Mapping[str, Any], lines: Iterable[str]) -> None:
        """Print the answer; a command has exactly one. :class:`Unprintable` when it cannot be."""
        if self.emitted:
            raise RuntimeError("a command prints one answer")
        self.emitted = True
        text = json.dumps(plain(document), indent=2, allow_nan=False) if self.as_json else None
        with _writing():
            for line in lines if text is None else (text,):
                click.echo(line)

    def copy(self, source: IO[bytes]) -> None:
        """Print a file, as the answer; raises as :meth:`emit`."""
        if self.emitted:
            raise RuntimeError("a command prints one answer")
        self.emitted = True
        source.seek(0)
        with _writing():
            sys.stdout.flush()
            shutil.copyfileobj(source, sys.stdout.buffer)

    def fail(
        self, document: Mapping[str, Any], lines: Iterable[str], error: TfsearchError
    ) -> NoReturn:
        """Print an answer that is an error too: the document says which, then it is raised."""
        details = error_json(error.code, error.message, error.exit_code)
        self.emit({**document, "error": details}, lines)
        raise error

    @staticmethod
    def flush() -> None:
        """Hand over what was printed; raises as :meth:`emit`."""
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - closed
            with _writing():
                sys.stdout.flush()


def error_json(code: str, message: str, exit_code: int) -> dict[str, Any]:
    """An error as every document carries it, under ``error``."""
    return {"code": code, "message": message, "exit_code": exit_code}


class Unprintable(NotSavedError):
    """Standard output takes nothing more."""


@contextlib.contextmanager
def _writing() -> Generator[None]:
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        raise Unprintable(
            "output.not-written", f"standard output cannot be written: {error.strerror}"
        ) from error


def note(text: str) -> None:
    """A line for people on standard error."""
    click.echo(text, err=True)


def plain(value: Any) -> Any:
    """JSON values: what is not finite becomes null, tuples become lists, enums their values."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def microseconds(value: float | None) -> str:
    """A time for people: four digits and a fitting unit."""
    if value is None:
        return "unknown"
    for factor, unit in ((1e6, "s"), (1e3, "ms"), (1.0, "µs")):
        if value >= factor * 0.99995:  # four digits of less stay below 1000 of the next unit
            return f"{value / factor:.4g} {unit}"
    return f"{value * 1e3:.4g} ns"


def table(rows: Iterable[tuple[str, ...]], indent: str = "") -> list[str]:
    """Rows of texts as aligned lines."""
    held = [tuple(str(cell) for cell in row) for row in rows]
    if not held:
        return []
    widths = [max(len(row[i]) for row in held) for i in range(len(held[0]))]
    return [
        (indent + "  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True))).rstrip()
        for row in held
    ]


def quiet_stdout() -> None:
    """After a reader closed the pipe: nothing more can be printed, also not at exit."""
    import os

    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
