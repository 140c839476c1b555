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


class WithGrammar(click.Command):
    """Help that ends in what a condition of a breakpoint may say."""

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from tuimon.model.parsing import grammar

        with formatter.section("Conditions of a breakpoint"):
            formatter.write_dl(grammar())


def price_option(command: _Command) -> _Command:
    """Adds `--price-per-hour`; without it the environment and tuimon.toml are asked."""
    words = "What an hour of the training costs, to say what a wait has cost."
    kind = click.FloatRange(0)
    return click.option("--price-per-hour", metavar="X", type=kind, help=words)(command)


def picture_options(command: _Command) -> _Command:
    """Adds what a picture is drawn with, and how often."""
    glyphs = click.Choice(["auto", "braille", "block", "ascii"])
    themes = click.Choice(["dark", "light", "high-contrast", "colour-blind"])
    for option in (
        click.option("--glyphs", type=glyphs, default="auto", help="Characters to draw with."),
        click.option(
            "--theme", type=themes, help="Colours; the last choice of the key t otherwise."
        ),
        click.option(
            "--hz", type=click.FloatRange(0.5, 60), default=10.0, help="Pictures a second at most."
        ),
    ):
        command = option(command)
    return command


def via_option(command: _Command) -> _Command:
    """Adds `--via`."""
    words = "Reach the run's host by CMD, such as 'ssh gpu07'."
    return click.option("--via", metavar="CMD", help=words)(command)
