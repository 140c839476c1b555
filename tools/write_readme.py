"""Fill the parts of README.md that the program itself knows: the key table and the commands.

Each part lies between `<!-- NAME -->` and `<!-- /NAME -->`. A contract test compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

README = Path(__file__).resolve().parent.parent / "README.md"
WIDTH = 88


def parts() -> dict[str, str]:
    """Markdown by the name of its place."""
    from tuimon.tui.actions import keys_markdown

    return {"keys": keys_markdown().strip(), "commands": commands_markdown()}


def commands_markdown() -> str:
    """The help of `tuimon` and of each of its commands, as `--help` prints it."""
    from tuimon.cli import cli

    helps = "\n\n".join(f"$ {path} --help\n{text}" for path, text in _helps(cli, "tuimon", None))
    return f"```console\n{helps}\n```"


def filled(text: str) -> str:
    """The text with every part replaced by what the program says now."""
    for name, content in parts().items():
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = place.subn(lambda found, new=content: found[1] + new + "\n" + found[2], text)
        if count != 1:
            raise SystemExit(f"README.md has {count} places for {name!r}; it needs one")
    return text


def _helps(
    command: click.Command, name: str, parent: click.Context | None
) -> Iterator[tuple[str, str]]:
    context = click.Context(
        command, parent=parent, info_name=name, terminal_width=WIDTH, max_content_width=WIDTH
    )
    yield context.command_path, command.get_help(context).rstrip()
    if isinstance(command, click.Group) and parent is None:
        for child in command.list_commands(context):
            yield from _helps(command.commands[child], child, context)


if __name__ == "__main__":
    new = filled(README.read_text(encoding="utf-8"))
    changed = new != README.read_text(encoding="utf-8")
    README.write_text(new, encoding="utf-8")
    sys.stdout.write(f"README.md: {'rewritten' if changed else 'up to date'}\n")
