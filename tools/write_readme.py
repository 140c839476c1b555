"""Fill the parts of the documentation that the program itself knows: keys and commands.

Each part lies between `<!-- NAME -->` and `<!-- /NAME -->`. A contract test compares.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"README.md": ("keys", "overview"), "docs/commands.md": ("commands",)}
WIDTH = 88


def parts() -> dict[str, str]:
    """Markdown by the name of its place."""
    from tuimon.cli import cli
    from tuimon.tui.keys.actions import keys_markdown

    helps = [f"$ {path} --help\n{text}" for path, text in _helps(cli, "tuimon", None)]
    return {
        "keys": keys_markdown().strip(),
        "overview": _console(helps[:1]),
        "commands": _console(helps[1:]),
    }


def filled(page: str, text: str) -> str:
    """The text of a page with its parts replaced by what the program says now."""
    content = parts()
    for name in PAGES[page]:
        place = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
        text, count = place.subn(
            lambda found, name=name: f"{found[1]}{content[name]}\n{found[2]}", text
        )
        if count != 1:
            raise SystemExit(f"{page} has {count} places for {name!r}; it needs one")
    return text


def _console(helps: list[str]) -> str:
    return "```console\n" + "\n\n".join(helps) + "\n```"


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
    for page in PAGES:
        old = (ROOT / page).read_text(encoding="utf-8")
        new = filled(page, old)
        (ROOT / page).write_text(new, encoding="utf-8")
        sys.stdout.write(f"{page}: {'up to date' if new == old else 'rewritten'}\n")
