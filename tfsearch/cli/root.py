"""The root command. Command modules are imported only when their command runs."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import click

COMMANDS = {
    "tune": ("tune", "Search for the fastest correct kernel, record it."),
    "worker": ("worker", "Let this machine measure and compile for a fleet."),
    "lookup": ("lookup", "Print the recorded kernel that serves a workload."),
    "space": ("space", "Count the schedules of a workload and why others are rejected."),
    "replay": ("replay", "Run search policies on a recorded space and score them."),
    "schedule": ("schedule", "Rank, check, explain, measure and finalize single schedules."),
    "bench": ("bench", "Compare the recorded best with the target's baseline, interleaved."),
    "calibrate": ("calibrate", "Measure a device and write its hardware document."),
    "db": ("db", "Look after the database of records."),
    "doctor": ("doctor", "Show targets, devices, compilers, and where things are kept."),
}


class LazyGroup(click.Group):
    """A group whose help is known without importing what its commands need."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Names in the order in which they are explained."""
        del ctx
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import one command's module."""
        del ctx
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"tfsearch.cli.{COMMANDS[cmd_name][0]}")
        return getattr(module, cmd_name)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands with their one-line help."""
        del ctx
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items()])


def _version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:
    if not value or ctx.resilient_parsing:
        return
    from importlib.metadata import version

    click.echo(f"tfsearch {version('tfsearch')}")
    ctx.exit()


@click.group(
    cls=LazyGroup,
    no_args_is_help=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_version,
    help="Show the version and exit.",
)
def root(**_: Any) -> None:
    """Find the fastest correct kernel for a tensor program on this machine.

    Exit codes: 0 done; 2 the request is wrong; 3 no legal or correct candidate, or a refused
    schedule; 4 not in the database; 5 a compiler, device or server is missing; 6 measured but
    not saved; 130 stopped by Ctrl-C.
    """
