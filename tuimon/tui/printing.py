"""One picture of a run, as text or as SVG: what `--once` prints. Needs no terminal."""

from __future__ import annotations

import os
import time
from typing import Any

import msgspec

from tuimon.tui.bridge import RunSession
from tuimon.tui.draw.glyphs import BRAILLE, SETS
from tuimon.tui.draw.theme import ORDER
from tuimon.tui.once import render_once, svg_once, verdict_of
from tuimon.tui.scene import OVERVIEW
from tuimon.tui.start import AUTO, arrived, beside, look_of
from tuimon.view.frame import LOADING, WAITING, Frame
from tuimon.view.kept import read_kept
from tuimon.view.replay import END, replay_run
from tuimon.view.session import watch_relay, watch_run

WAIT_S = 2.0  # a frame is taken when the history has been read, or after this long


class Shot(msgspec.Struct, frozen=True):
    """What a picture is to be.

    Attributes:
        width, height: cells.
        screen: one of `actions.SCREENS`.
        glyphs: "braille", "block", "ascii", or "auto" by locale and TERM.
        theme: of `theme.PALETTES`, for an SVG; None is the one that was chosen last.
        svg: a picture in the place of text.
    """

    width: int = 120
    height: int = 40
    screen: str = OVERVIEW
    glyphs: str | None = AUTO
    theme: str | None = None
    svg: bool = False


def once(run: Any, shot: Shot, *, via: str | None = None, other: str | None = None) -> str:
    """One frame of a run here, or on another host by the command `via`.

    Args:
        run: a `RunInfo`, or the id, name or pid of one; None is the newest.
        other: a run, or a recording, that is laid over the charts.

    Raises:
        UsageError, NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    if via is None:
        return _drawn(
            _first_of(watch_run(run, readonly=True, environ=os.environ)),
            shot,
            None if other is None else _first_of(beside(other)),
        )
    theirs = None if other is None else _first_of(watch_relay(via, other, readonly=True))
    return _drawn(_first_of(watch_relay(via, run, readonly=True)), shot, theirs)


def replay_once(
    run: str | None, shot: Shot, *, at: int | None = None, other: str | None = None
) -> str:
    """One frame of a recording: of a step, or of its end."""
    frame = arrived(replay_run(run, at=END if at is None else at, playing=False))
    theirs = None if other is None else arrived(replay_run(other, at=END, playing=False))
    return _drawn(frame, shot, theirs)


def _drawn(frame: Frame, shot: Shot, other: Frame | None) -> str:
    size = (shot.width, shot.height)
    if shot.svg:
        alphabet = SETS[BRAILLE.name if shot.glyphs in (None, AUTO) else shot.glyphs]
        theme = shot.theme or read_kept()[0].theme or ORDER[0]
        return svg_once(frame, *size, glyphs=alphabet, theme=theme, other=other, screen=shot.screen)
    alphabet = look_of(os.environ, shot.glyphs).glyphs
    picture = render_once(frame, *size, glyphs=alphabet, other=other, screen=shot.screen)
    told = verdict_of(frame, alphabet) if shot.screen == OVERVIEW else []
    return "\n".join((picture, *told))


def _first_of(session: RunSession) -> Frame:
    """The first frame that shows the run, or the last before patience ends; closes the session."""
    deadline_s = time.monotonic() + WAIT_S
    try:
        frame = session.tick()
        while frame.state in (WAITING, LOADING) and time.monotonic() < deadline_s:
            time.sleep(0.02)
            frame = session.tick()
        return frame
    finally:
        session.close()
