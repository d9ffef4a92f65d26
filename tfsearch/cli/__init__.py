"""The command line: thin front ends over the same functions that Python callers use."""

from __future__ import annotations

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; the process's exit code."""
    try:
        from tfsearch.cli.run import run

        return run(argv)
    except KeyboardInterrupt:  # while this program is still being loaded
        return 130
