"""The help of every command as one Markdown page: ``python -m tfsearch.cli.docs``."""

from __future__ import annotations

import click

WIDTH = 100
HEAD = """# Commands

Generated from the command line's own help: `python -m tfsearch.cli.docs > docs/commands.md`.
"""


def page() -> str:
    """The whole page; the same on every terminal."""
    from tfsearch.cli.root import root

    parts = [HEAD]
    for path, command in _walk("tfsearch", root):
        context = click.Context(
            command, info_name=path, terminal_width=WIDTH, max_content_width=WIDTH,
            help_option_names=["-h", "--help"],
        )  # fmt: skip
        parts.append(f"## {path}\n\n```text\n{command.get_help(context).rstrip()}\n```\n")
    return "\n".join(parts)


def _walk(path: str, command: click.Command) -> list[tuple[str, click.Command]]:
    found = [(path, command)]
    if isinstance(command, click.Group):
        context = click.Context(command, info_name=path)
        for name in command.list_commands(context):
            child = command.get_command(context, name)
            if child is not None:
                found += _walk(f"{path} {name}", child)
    return found


if __name__ == "__main__":
    click.echo(page(), nl=False)
