"""`tuimon replay`: what was recorded of a run, on the same screens as the run itself."""

from __future__ import annotations

import time

import click

from tuimon.cli.grammar import picture_options
from tuimon.errors import EXIT_OK


@click.command()
@click.argument("recording", metavar="[RUN|FILE]", required=False)
@click.option("--list", "list_them", is_flag=True, help="What is recorded, the oldest first.")
@click.option("--at", metavar="STEP", help="Begin at this step; end is the last one.")
@click.option("--with", "other", metavar="RUN|FILE", help="Lay another recording over the charts.")
@click.option("--once", is_flag=True, help="Print one frame as text and leave: the last, or --at.")
@click.option("--svg", metavar="F.svg", help="With --once: write the frame as a picture instead.")
@picture_options
def replay(
    *,
    recording: str | None,
    list_them: bool,
    at: str | None,
    other: str | None,
    once: bool,
    svg: str | None,
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
    from tuimon.tui import start

    if svg is not None:
        viewing.need_once(once=once)
    if once:
        width, height = viewing.size_of_once()
        picture = start.replay_once(
            recording,
            at=step,
            other=other,
            width=width,
            height=height,
            glyphs=glyphs,
            theme=theme,
            svg=svg is not None,
        )
        if svg is not None:
            return viewing.write_picture(svg, picture)
        click.echo(picture)
        return EXIT_OK
    from tuimon.feed.recording import read_recording
    from tuimon.feed.recordings import find_recording

    # What is not there is said first: another terminal would not help.
    for named in (each for each in (recording, other) if each is not None):
        read_recording(find_recording(named))
    viewing.need_terminal("tuimon replay --once", "prints one frame as text")
    return start.replay(recording, at=step, other=other, hz=hz, glyphs=glyphs, theme=theme)


def print_recordings(now_s: float) -> None:
    """A line for each recorded run."""
    from tuimon.feed.recordings import list_recordings
    from tuimon.model.text import plain
    from tuimon.model.units import count, duration_s, size_bytes

    kept = list_recordings()
    if not kept:
        click.echo("nothing is recorded yet; `tuimon run SCRIPT` records as it goes")
    for each in kept:
        info = each.info
        age = duration_s(max(0.0, now_s - info.started_at_s))
        ended = info.exit.kind if info.exit is not None else ""
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
