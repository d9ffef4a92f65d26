"""The one place where errors become lines and exit codes."""

from __future__ import annotations

import io
import sys
import tempfile
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tfsearch.cli.output import Output, Unprintable, error_json, note, quiet_stdout
from tfsearch.core import settings
from tfsearch.core.errors import TfsearchError

USAGE = 2
INTERRUPTED = 130
BUG = 1


def run(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code. Nothing but ``SystemExit`` of the interpreter escapes."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    output = Output(as_json=_wants_json(arguments))
    _print_anything()
    try:
        return _command(arguments, output)
    except BrokenPipeError:
        _close_quietly()  # whoever read has what it wanted
        return 0


def _print_anything() -> None:
    """Let streams of a small character set show a mark for what they cannot print."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper) and stream.encoding.lower() != "utf-8":
            stream.reconfigure(errors="replace")


def _command(arguments: list[str], output: Output) -> int:
    try:
        from tfsearch.cli.root import root

        # Not ``main``: it prints by itself when interrupted, and exits when a pipe is closed.
        with root.make_context("tfsearch", arguments, obj=output) as context:
            result = root.invoke(context)
        output.flush()
    except Unprintable as error:
        output.emitted = True  # no second attempt
        _close_quietly()
        return _failed(output, error.code, error.message, error.exit_code, error)
    except TfsearchError as error:
        return _failed(output, error.code, error.message, error.exit_code, error)
    except click.exceptions.Exit as error:
        return error.exit_code
    except click.UsageError as error:
        return _failed(output, "usage", _usage(error), USAGE, error)
    except click.ClickException as error:
        return _failed(output, "usage", error.format_message(), USAGE, error)
    except (KeyboardInterrupt, click.Abort) as error:
        return _failed(output, "interrupted", "stopped by Ctrl-C", INTERRUPTED, error)
    except BrokenPipeError:
        raise
    except Exception as error:  # noqa: BLE001 - the boundary of the process: one line, and a file
        return _failed(output, "internal", _bug(error), BUG, error)
    return result if isinstance(result, int) else 0


def _wants_json(arguments: Sequence[str]) -> bool:
    """Whether ``--json`` was given, known before the arguments turn out to be wrong."""
    before = arguments[: arguments.index("--")] if "--" in arguments else arguments
    return "--json" in before


def _failed(output: Output, code: str, message: str, exit_code: int, error: BaseException) -> int:
    line = " ".join(message.split())
    if output.as_json and not output.emitted:
        details = error_json(code, line, exit_code)
        table = getattr(error, "table", None)  # of a session in which every candidate failed
        if table is not None:
            details["failed"] = [row.to_json() for row in table]
        document: dict[str, Any] = {"error": details}
        if exit_code == INTERRUPTED:
            document["interrupted"] = True
        output.emit(document, ())
    if settings.debug():
        note("".join(traceback.format_exception(error)).rstrip())
    note(f"error[{code}]: {line}")
    return exit_code


def _usage(error: click.UsageError) -> str:
    message = error.format_message().rstrip(".")
    where = "tfsearch" if error.ctx is None else error.ctx.command_path
    return f"{message}; see {where} --help"


def _bug(error: Exception) -> str:
    """One line about a bug of tfsearch, and where its traceback is."""
    text = "".join(traceback.format_exception(error))
    short = f"{type(error).__name__}: {error}"
    try:
        place = _crash_file(settings.load().home / "crashes", text)
    except OSError:
        place = _crash_file(Path(tempfile.gettempdir()), text)
    return f"this is a bug in tfsearch: {short}; the traceback is in {place}"


def _crash_file(folder: Path, text: str) -> str:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(
        "w", prefix="tfsearch-", suffix=".txt", dir=folder, delete=False, encoding="utf-8"
    ) as file:
        file.write(text)
    return file.name


def _close_quietly() -> None:
    try:
        quiet_stdout()
    except (io.UnsupportedOperation, ValueError, OSError):
        return  # standard output is no file (a test's buffer): there is nothing to redirect
