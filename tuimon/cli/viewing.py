"""`tuimon attach`: the live view on this terminal, or one frame of it as text."""

from __future__ import annotations

import os
import sys

import click

from tuimon.errors import UsageError
from tuimon.feed import registry
from tuimon.feed.registry import RunInfo

DEFAULT_COLUMNS, DEFAULT_LINES = 120, 40  # the size the screen is designed for


def attach(token: str | None, *, readonly: bool, hz: float, glyphs: str) -> int:
    """Open the viewer; returns when the user leaves it.

    Raises:
        UsageError: there is no terminal to draw on.
        NoSuchRun, Refused, IncompatibleVersion: the run cannot be watched.
    """
    need_terminal("tuimon attach --once", "prints one frame as text")
    return view(registry.find_run(token), readonly=readonly, hz=hz, glyphs=glyphs)


def view(info: RunInfo, *, readonly: bool = False, hz: float = 4.0, glyphs: str = "auto") -> int:
    """The live view of a run; the exit status."""
    from tuimon.tui import start

    return start.attach(info, readonly=readonly, hz=hz, glyphs=glyphs)


def print_once(token: str | None, *, glyphs: str) -> int:
    """Print one frame at the size that COLUMNS and LINES say, 120×40 otherwise."""
    from tuimon.tui import start

    text = start.once(
        registry.find_run(token),
        width=_size("COLUMNS", DEFAULT_COLUMNS),
        height=_size("LINES", DEFAULT_LINES),
        glyphs=glyphs,
    )
    click.echo(text)
    return 0


def need_terminal(instead: str, what_it_does: str) -> None:
    """Raise UsageError unless both ends of the conversation are a terminal."""
    if not has_terminal():
        raise UsageError(f"the live view needs a terminal; `{instead}` {what_it_does}")


def has_terminal() -> bool:
    """Whether there are a keyboard to read and a screen to draw on."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return all(stream is not None and stream.isatty() for stream in streams)


def _size(variable: str, default: int) -> int:
    text = os.environ.get(variable, "")
    return int(text) if text.isdecimal() and int(text) > 0 else default
