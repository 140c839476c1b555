"""Starting the viewer: what the terminal can show, one frame or a live view, and its exit code."""

from __future__ import annotations

import os
import shutil
import sys
import time
import traceback
from collections.abc import Mapping
from typing import TYPE_CHECKING

from tuimon.errors import EXIT_OK, UsageError
from tuimon.tui.glyphs import SETS, set_for
from tuimon.tui.once import render_once
from tuimon.tui.theme import NONE, Look, colours_for
from tuimon.view.frame import LOADING, WAITING, Frame

if TYPE_CHECKING:
    from tuimon.tui.app import RunSession

ONCE_SIZE = (120, 40)
_ONCE_WAIT_S = 2.0  # a frame is taken when the history is there, or after this long
EXIT_FAILED = 1


def look_for(environ: Mapping[str, str], *, glyphs: str | None, theme: str = "dark") -> Look:
    """The look that the environment allows; `glyphs` overrides the choice of an alphabet."""
    alphabet = SETS[glyphs] if glyphs else set_for(environ)
    return Look(theme=theme, colours=colours_for(environ), glyphs=alphabet)


def print_once(
    session: RunSession, *, glyphs: str | None = None, size: tuple[int, int] | None = None
) -> int:
    """Print one frame as text and leave; works without a terminal."""
    frame = _settled(session)
    is_terminal = sys.stdout.isatty()
    if size is None:
        size = _terminal_size() if is_terminal else ONCE_SIZE
    look = look_for(os.environ, glyphs=glyphs)
    colour = is_terminal and look.colours != NONE
    print(render_once(frame, *size, glyphs=look.glyphs, colour=colour))
    return EXIT_OK


def _terminal_size() -> tuple[int, int]:
    size = shutil.get_terminal_size(ONCE_SIZE)
    return size.columns, max(size.lines - 1, 20)


def _settled(session: RunSession) -> Frame:
    """The first frame that shows the run, or the last before patience ends."""
    deadline = time.monotonic() + _ONCE_WAIT_S
    frame = session.tick()
    while frame.state in (WAITING, LOADING) and time.monotonic() < deadline:
        time.sleep(0.02)
        frame = session.tick()
    return frame


def watch_live(
    session: RunSession,
    *,
    readonly: bool = False,
    hz: float = 10.0,
    glyphs: str | None = None,
    dump_folder: str = "",
) -> int:
    """Run the live view on this terminal until the person leaves. Returns the exit code."""
    problem = terminal_problem(os.environ)
    if problem:
        raise UsageError(problem)
    look = look_for(os.environ, glyphs=glyphs)
    from tuimon.tui.app import TuimonApp, ViewerOptions

    def folder(frame: Frame) -> str:
        step = "start" if frame.step is None else f"step-{frame.step}"
        return os.path.join(dump_folder or os.getcwd(), "tuimon-dumps", step)

    options = ViewerOptions(readonly=readonly, hz=min(60.0, max(0.5, hz)), dump_folder=folder)
    app = TuimonApp(session, look, clock=time.monotonic, options=options)
    try:
        app.run()
    finally:
        session.close()
    if app.failure is not None:
        return _report(app.failure)
    return app.return_code or EXIT_OK


def terminal_problem(environ: Mapping[str, str]) -> str:
    """Why this terminal cannot show the viewer; "" when it can."""
    hint = "use `tuimon attach --once` for one frame as text"
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if not all(stream is not None and stream.isatty() for stream in streams):
        return f"input or output is not a terminal: {hint}"
    if environ.get("TERM", "") in ("dumb", "unknown"):
        return f"TERM={environ['TERM']} cannot show the viewer: {hint}"
    return ""


def _report(failure: BaseException) -> int:
    """One line about a defect of ours; the whole story only when asked for."""
    words = f"{type(failure).__name__}: {failure}".splitlines()[0][:200]
    print(
        f"tuimon: the viewer failed ({words}); the training goes on. "
        "TUIMON_DEBUG=1 shows the traceback",
        file=sys.stderr,
    )
    if os.environ.get("TUIMON_DEBUG"):
        traceback.print_exception(failure)
    return EXIT_FAILED
