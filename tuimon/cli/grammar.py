"""What the subcommands' grammar shares."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import click

from tuimon.errors import OutputClosed

_Command = TypeVar("_Command", bound=Callable[..., Any])

# The screens by their keys, 1 to 9; a test holds them against the table of keys.
SCREENS = (
    "overview",
    "charts",
    "layers",
    "system",
    "events",
    "amp",
    "data",
    "ranks",
    "output",
)


class InOrder(click.Group):
    """Lists commands in the order in which they were written."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def make_context(self, *args: Any, **more: Any) -> click.Context:
        with _closed_told():
            return super().make_context(*args, **more)

    def invoke(self, ctx: click.Context) -> Any:
        with _closed_told():
            return super().invoke(ctx)


@contextmanager
def _closed_told() -> Iterator[None]:
    """Click ends at a closed pipe by a status of its own; of `OutputClosed` it knows nothing."""
    try:
        yield
    except BrokenPipeError as error:
        raise OutputClosed("who read the output has gone") from error


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


def policy_options(command: _Command) -> _Command:
    """Adds what becomes of an update that is not finite, and how far it is looked into."""
    bad = "About an update with gradients that are not finite: continue, hold, skip, rollback or "
    bad += "raise."
    how = "off, light (runs no code of the script), or full, which is the default."
    kept = "Keep a copy of the healthy state every N updates, to roll back to."
    held = "How long a hold may last."
    for option in (
        click.option("--snapshot-every", metavar="N", type=click.IntRange(0), help=kept),
        click.option("--autopsy", metavar="HOW", help=how),
        click.option("--max-hold", metavar="SECONDS", type=float, default=300.0, help=held),
        click.option("--on-non-finite", metavar="WHAT", default="continue", help=bad),
    ):
        command = option(command)
    return command


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


def _screen(context: click.Context, param: click.Parameter, value: str | None) -> str | None:
    """The screen that a name or a key stands for."""
    if value is None:
        return None
    found = dict(zip("123456789", SCREENS, strict=True)).get(value, value.lower())
    if found not in SCREENS:
        raise click.BadParameter(f"{value!r} is none of {', '.join(SCREENS)}, or 1 to 9")
    return found


def once_options(words: str) -> Callable[[_Command], _Command]:
    """Adds `--once`, which `words` explain, and what one frame can be."""

    def add(command: _Command) -> _Command:
        for option in (
            click.option(
                "--screen",
                metavar="NAME|1-9",
                callback=_screen,
                help=f"With --once: another screen than the overview: {', '.join(SCREENS[1:])}.",
            ),
            click.option(
                "--svg", metavar="F.svg", help="With --once: write the frame as a picture instead."
            ),
            click.option("--once", is_flag=True, help=words),
        ):
            command = option(command)
        return command

    return add


def via_option(command: _Command) -> _Command:
    """Adds `--via`."""
    words = "Reach the run's host by CMD, such as 'ssh gpu07'."
    return click.option("--via", metavar="CMD", help=words)(command)
