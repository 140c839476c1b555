"""`tuimon attach`: the live view on this terminal, or one frame of it as text."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tuimon.config import price_per_hour
from tuimon.errors import EXIT_OK, Refused, UsageError
from tuimon.feed import private, recordings, registry
from tuimon.feed.registry import RunInfo
from tuimon.model.text import plain

if TYPE_CHECKING:
    from tuimon.tui.printing import Shot

DEFAULT_HZ = 10.0
ONCE_COLUMNS, ONCE_LINES = 120, 40  # what the screen is made for


def attach(
    token: str | None,
    *,
    via: str | None = None,
    readonly: bool,
    hz: float,
    glyphs: str,
    price: float | None = None,
    theme: str | None = None,
    other: str | None = None,
) -> int:
    """Open the viewer; returns when the user leaves it.

    A run that is named must be there. Without a name the person picks one of several live runs;
    where there is none the viewer waits for the first one.

    Raises:
        UsageError: there is no terminal to draw on.
        NoSuchRun, Refused, IncompatibleVersion: the named run cannot be watched.
    """
    # A run that is not there is said first: another terminal would not help.
    info = recordings.find_run_or_say(token) if token is not None and via is None else None
    need_terminal("tuimon attach --once", "prints one frame as text")
    if via is not None:
        from tuimon.tui import start

        price = price if price is not None else price_per_hour()
        return start.attach_far(
            via,
            token,
            readonly=readonly,
            hz=hz,
            glyphs=glyphs,
            price_per_hour=price,
            theme=theme,
            other=other or "",
        )
    picks = token is None and len(_live_runs()) > 1
    return view(
        info,
        readonly=readonly,
        hz=hz,
        glyphs=glyphs,
        price=price,
        theme=theme,
        picks=picks,
        other=other or "",
    )


def view(
    info: RunInfo | None,
    *,
    readonly: bool = False,
    hz: float = DEFAULT_HZ,
    glyphs: str = "auto",
    price: float | None = None,
    theme: str | None = None,
    picks: bool = False,
    other: str = "",
) -> int:
    """The live view of a run, or of the newest one once there is one; the exit status."""
    from tuimon.tui import start

    price = price if price is not None else price_per_hour()
    return start.attach(
        info,
        readonly=readonly,
        hz=hz,
        glyphs=glyphs,
        price_per_hour=price,
        theme=theme,
        picks=picks,
        other=other,
    )


def once(
    token: str | None,
    *,
    via: str | None = None,
    other: str | None = None,
    glyphs: str,
    theme: str | None = None,
    screen: str | None = None,
    svg: str | None = None,
) -> int:
    """Print one frame, or write it to the file `svg`, as large as COLUMNS and LINES say.

    Raises:
        UsageError: the file cannot be written.
        NoSuchRun, Refused, IncompatibleVersion: the run cannot be watched.
    """
    from tuimon.tui import printing

    run: RunInfo | str | None = token
    if via is None:
        run = recordings.find_run_or_say(token)
        if token is None and svg is None:
            _say_if_several(run)
    shot = shot_of(glyphs=glyphs, theme=theme, screen=screen, svg=svg is not None)
    return hand_out(printing.once(run, shot, via=via, other=other), svg)


def shot_of(*, glyphs: str, theme: str | None, screen: str | None, svg: bool) -> Shot:
    """The picture that is asked for, of the size that COLUMNS and LINES say."""
    from tuimon.tui.printing import Shot

    width = _positive(os.environ.get("COLUMNS", "")) or ONCE_COLUMNS
    height = _positive(os.environ.get("LINES", "")) or ONCE_LINES
    screen = screen or "overview"
    return Shot(width, height, screen=screen, glyphs=glyphs, theme=theme, svg=svg)


def need_once(*, svg: str | None, screen: str | None) -> None:
    """Raise UsageError where something of one frame is asked for, but not one frame."""
    if svg is not None:
        raise UsageError("--svg goes with --once; in the live view P writes a picture")
    if screen is not None:
        raise UsageError("--screen goes with --once; in the live view 1 to 9 show the screens")


def hand_out(picture: str, svg: str | None) -> int:
    """Print a picture, or write an SVG where a person wants it; the exit status."""
    if svg is None:
        click.echo(picture)
        return EXIT_OK
    try:
        private.put(Path(svg), picture.encode())
    except OSError as error:
        raise Refused(f"cannot write {svg}: {error.strerror or error}") from error
    return EXIT_OK


def relay(token: str | None) -> int:
    """Serve one viewer over stdin and stdout until it leaves.

    Raises:
        UsageError: stdout is a terminal, where only a person would read.
        NoSuchRun, Refused, IncompatibleVersion: the run cannot be watched.
    """
    from tuimon.feed.relay import Relay

    if os.isatty(1):
        raise UsageError("a relay speaks to a viewer: `tuimon attach --via CMD` starts it")
    # What anybody prints from now on must not get between the messages.
    sink = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)
    with os.fdopen(os.dup(0), "rb") as source:
        Relay(lambda again: registry.find_run(again or token), source, sink).serve()
    return EXIT_OK


def _live_runs() -> list[RunInfo]:
    """Runs of this user on this host whose processes exist, oldest first."""
    return [info for info in registry.list_runs() if registry.is_alive(info)]


def _say_if_several(shown: RunInfo) -> None:
    others = sum(info.id != shown.id for info in _live_runs())
    if others:
        words = (
            f"showing {plain(shown.name, 40)} ({shown.id}), the newest of {others + 1} live runs"
        )
        click.echo(f"tuimon: {words}; name another: tuimon attach RUN", err=True)


def need_terminal(instead: str, what_it_does: str) -> None:
    """Raise UsageError unless both ends of the conversation are a terminal."""
    if not has_terminal():
        raise UsageError(f"the live view needs a terminal; `{instead}` {what_it_does}")


def has_terminal() -> bool:
    """Whether there are a keyboard to read and a screen to draw on."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    return all(stream is not None and stream.isatty() for stream in streams)


def _positive(text: str) -> int | None:
    return int(text) if text.isdecimal() and int(text) > 0 else None
