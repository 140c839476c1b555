"""`tuimon replay`: what was recorded of a run, on the same screens as the run itself."""

from __future__ import annotations

import time

import click

from tuimon.cli.grammar import once_options, picture_options
from tuimon.errors import EXIT_OK


@click.command()
@click.argument("recording", metavar="[RUN|FILE]", required=False)
@click.option("--list", "list_them", is_flag=True, help="What is recorded, the oldest first.")
@click.option("--at", metavar="STEP", help="Begin at this step; end is the last one.")
@click.option("--with", "other", metavar="RUN|FILE", help="Lay another recording over the charts.")
@once_options("Print one frame as text and leave: the last, or --at.")
@picture_options
def replay(
    *,
    recording: str | None,
    list_them: bool,
    at: str | None,
    other: str | None,
    once: bool,
    svg: str | None,
    screen: str | None,
    hz: float,
    glyphs: str,
    theme: str | None,
) -> int:
    """Play what was recorded of RUN on the same screens.

    Without RUN the newest recording; FILE is a folder or a file of one. Every run is recorded
    as it goes, until its end or until it is killed.
    """
    if list_them:
        print_recordings(time.time())
        return EXIT_OK
    step = _step(at)
    from tuimon.cli import viewing

    if once:
        from tuimon.tui import printing

        shot = viewing.shot_of(glyphs=glyphs, theme=theme, screen=screen, svg=svg is not None)
        return viewing.hand_out(printing.replay_once(recording, shot, at=step, other=other), svg)
    viewing.need_once(svg=svg, screen=screen)
    from tuimon.feed.recording import read_recording
    from tuimon.feed.recordings import find_recording

    # What is not there is said first: another terminal would not help.
    for named in (each for each in (recording, other) if each is not None):
        read_recording(find_recording(named))
    viewing.need_terminal("tuimon replay --once", "prints one frame as text")
    from tuimon.tui import start

    return start.replay(recording, at=step, other=other, hz=hz, glyphs=glyphs, theme=theme)


def print_recordings(now_s: float) -> None:
    """A line for each recorded run."""
    from tuimon.feed.recordings import list_recordings
    from tuimon.feed.registry import is_alive
    from tuimon.model.text import plain
    from tuimon.model.units import count, duration_s, size_bytes

    kept = list_recordings()
    if not kept:
        click.echo("nothing is recorded yet; `tuimon run SCRIPT` records as it goes")
    for each in kept:
        info = each.info
        age = duration_s(max(0.0, now_s - info.started_at_s))
        ended = info.exit.kind if info.exit is not None else "running" if is_alive(info) else ""
        step = f"step {count(info.last_step)}"
        words = (info.id, info.name, f"{age} ago", size_bytes(each.size_bytes), step, ended)
        click.echo("  ".join(plain(word, 30) for word in words if word))


def _step(at: str | None) -> int | None:
    if at is None:
        return None
    if at in ("end", "last"):
        return -1
    if not at.isdecimal() or len(at) > 15:
        said = f"{at[:20]!r} is no step; give a number, or end"
        raise click.BadParameter(said, param_hint="--at")
    return int(at)
