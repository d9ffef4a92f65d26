"""How a benchmark program begins and ends: its options, its lines, its marks.

Every program prints JSON lines: the machine first, results next, last the marks it is held to.
With ``--assert`` the exit code is 1 when a mark is missed.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from x86_common import machine_facts


def parser(text: str | None) -> argparse.ArgumentParser:
    """A parser with the options of every program; ``text`` is the program's own."""
    made = argparse.ArgumentParser(
        description=text, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument(
        "--assert", dest="asserted", action="store_true", help="exit with 1 when a mark is missed"
    )
    made.add_argument(
        "--quick", action="store_true", help="tiny sizes, to see that the program works"
    )
    return made


def say(line: Mapping[str, Any]) -> None:
    """Print one JSON line at once."""
    print(json.dumps(line, default=str), flush=True)


def begin(name: str, args: argparse.Namespace) -> None:
    """The first line: which program, how it was called, on which machine."""
    say({"benchmark": name, "machine": machine_facts(), "args": told(args)})


def told(args: argparse.Namespace) -> dict[str, Any]:
    """The options as a report has them: of files and folders their names alone."""
    return {name: _named(value) for name, value in vars(args).items()}


def _named(value: Any) -> Any:
    if isinstance(value, PurePath) or (isinstance(value, str) and value.startswith("/")):
        return PurePath(value).name
    return value


def end(args: argparse.Namespace, marks: Mapping[str, bool | None], **more: Any) -> int:
    """The last line and the exit code. None stands for a mark that was not measured.

    Under ``--assert`` every mark has to be met, and at least one measured.
    """
    met = all(value is not False for value in marks.values())
    met = met and any(value is not None for value in marks.values())
    say({"marks": dict(marks), "met": met, **more})
    return 0 if met or not args.asserted else 1
