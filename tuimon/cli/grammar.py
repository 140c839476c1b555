"""What the subcommands' grammar shares."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

_Command = TypeVar("_Command", bound=Callable[..., Any])


class InOrder(click.Group):
    """Lists commands in the order in which they were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)


def via_option(command: _Command) -> _Command:
    """Adds `--via`."""
    words = "Reach the run's host by CMD, such as 'ssh gpu07'."
    return click.option("--via", metavar="CMD", help=words)(command)
