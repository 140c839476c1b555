"""Starting the viewer: what the terminal can show, one frame or a live view, and its exit code."""

from __future__ import annotations

import gc
import getpass
import os
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from tuimon.config import AttachSettings, read_settings
from tuimon.errors import EXIT_DEFECT, EXIT_OK, NoSuchRun, UsageError
from tuimon.tui.draw.glyphs import SETS, set_for
from tuimon.tui.draw.theme import Look, colours_for
from tuimon.tui.keeping import dressed
from tuimon.tui.keys.playback import Playback
from tuimon.tui.picking import Choices, NoSession
from tuimon.tui.signs import SignOptions
from tuimon.view.frame import END, Frame
from tuimon.view.kept import keep, read_kept
from tuimon.view.runs import Runs
from tuimon.view.session import watch_named, watch_relay, watch_run

if TYPE_CHECKING:
    from tuimon.tui.bridge import RunSession
    from tuimon.view.replay import ReplaySession

AUTO = "auto"
_HINT = "`tuimon attach --once` prints one frame as text"


def attach(
    run: Any,
    *,
    readonly: bool = False,
    hz: float = 10.0,
    glyphs: str | None = AUTO,
    price_per_hour: float | None = None,
    theme: str | None = None,
    picks: bool = False,
    other: str = "",
) -> int:
    """Watch a run on this terminal until the person leaves.

    Args:
        run: a `RunInfo`, or the id, name or pid of one; None is the newest, waited for.
        readonly: without any key that reaches into the training.
        hz: frames a second, 0.5 to 60.
        glyphs: "braille", "block", "ascii", or "auto" by locale and TERM.
        price_per_hour: of the training, to say what a wait costs.
        theme: of `theme.PALETTES`; None is the one that was chosen last.
        picks: let the person choose among the runs of this host first.
        other: a run, or a recording, that is laid over the charts.

    Returns:
        The exit code.

    Raises:
        UsageError: the terminal cannot show the viewer.
    """
    problem = terminal_problem(os.environ)
    if problem:
        raise UsageError(problem)
    here = partial(watch_run, readonly=readonly, by=_whoever(), environ=os.environ)
    session: RunSession = NoSession() if picks else here(run)
    if other:
        beside(other).close()  # what cannot be found is said before the screen is drawn
    return watch(
        session,
        other=other,
        open_run=beside,
        choices=Choices(Runs().poll, lambda each: here(each.info)),
        picks=picks,
        readonly=readonly,
        hz=hz,
        glyphs=glyphs,
        dump_folder=dump_folder_of(getattr(run, "cwd", "")),
        price_per_hour=price_per_hour,
        theme=theme,
    )


def attach_far(
    via: str,
    run: str | None,
    *,
    readonly: bool = False,
    hz: float = 10.0,
    glyphs: str | None = AUTO,
    price_per_hour: float | None = None,
    theme: str | None = None,
    other: str = "",
) -> int:
    """Watch a run on another host, which the command `via` leads to; the exit code.

    The command is started before the screen is drawn, so that it can ask for a password.

    Raises:
        UsageError: the terminal cannot show the viewer, or the command cannot be used.
        NoSuchRun, Refused, IncompatibleVersion: as the relay says, or why there is none.
    """
    problem = terminal_problem(os.environ)
    if problem:
        raise UsageError(problem)
    session = watch_relay(via, run, readonly=readonly, by=_whoever())
    place = dump_folder_of(session.folder)
    return watch(
        session,
        other=other,
        open_run=lambda name: watch_relay(via, name, readonly=True),
        readonly=readonly,
        hz=hz,
        glyphs=glyphs,
        dump_folder=place,
        price_per_hour=price_per_hour,
        theme=theme,
    )


def replay(
    run: str | None,
    *,
    at: int | None = None,
    other: str | None = None,
    hz: float = 10.0,
    glyphs: str | None = AUTO,
    theme: str | None = None,
) -> int:
    """Play what was recorded of a run on this terminal; the exit code.

    Args:
        run: id, name or pid of a recorded run, a folder or a file; None is the newest.
        at: the step to begin at; -1 is the end.
        other: another recording, which is laid over the charts as a whole.
        hz, glyphs, theme: as of `attach`.

    Raises:
        UsageError: the terminal cannot show the viewer.
        NoSuchRun, Refused, IncompatibleVersion: there is nothing to play.
    """
    problem = terminal_problem(os.environ)
    if problem:
        raise UsageError(problem.replace("tuimon attach", "tuimon replay"))
    from tuimon.view.replay import find_recording, replay_run

    session = replay_run(run, at=at)
    if other is not None:
        find_recording(other)  # what cannot be found is said before the screen is drawn
    return watch(
        session,
        readonly=True,
        hz=hz,
        glyphs=glyphs,
        theme=theme,
        open_run=_finished,
        other=other or "",
    )


def arrived(session: ReplaySession) -> Frame:
    """The frame of a recording once the step that was asked for is reached."""
    frame = session.tick()
    while session.is_busy:
        frame = session.tick()
    return frame


def _finished(name: str) -> RunSession:
    """The whole of another recording; takes its time, in a thread that may."""
    from tuimon.view.replay import replay_run

    session = replay_run(name, at=END)  # plays on where the run does
    arrived(session)
    return session


def beside(name: str) -> RunSession:
    """Another run of this host, or a recording of one, to lay over the charts.

    Raises:
        NoSuchRun, Refused, IncompatibleVersion: as their messages say.
    """
    try:
        return watch_named(name, os.environ)
    except NoSuchRun as error:
        try:
            return _finished(name)
        except NoSuchRun:
            raise error from None


def watch(
    session: RunSession,
    *,
    readonly: bool = False,
    hz: float = 10.0,
    glyphs: str | None = AUTO,
    dump_folder: Callable[[Frame], str] | None = None,
    price_per_hour: float | None = None,
    theme: str | None = None,
    choices: Choices | None = None,
    picks: bool = False,
    open_run: Callable[[str], RunSession] | None = None,
    other: str = "",
) -> int:
    """The live view of a session; closes it. Returns the exit code."""
    kept, problem = read_kept()
    has_glyphs = glyphs not in (None, AUTO)
    look = dressed(look_of(os.environ, glyphs), kept, theme=theme, has_glyphs=has_glyphs)
    # A shell that exports them tells the size it once had; the terminal knows the present one.
    for stale in ("COLUMNS", "LINES"):
        os.environ.pop(stale, None)
    # What is loaded now stays; to search it for garbage takes long. The app turns that on again.
    gc.disable()
    from tuimon.tui.app import TuimonApp, ViewerOptions

    options = ViewerOptions(
        readonly=readonly,
        hz=min(60.0, max(0.5, hz)),
        price_per_hour=price_per_hour,
        dump_folder=dump_folder or dump_folder_of(""),
        kept=kept,
        problem=problem,
        remember=keep,
        choices=choices,
        picks_first=picks,
        replays=isinstance(session, Playback),
        open_run=open_run,
        other=other,
        signs=_signs(read_settings().attach),
    )
    app = TuimonApp(session, look, clock=time.monotonic, options=options)
    try:
        app.run()
    finally:
        session.close()
        app.bridge.close()
        app.second.close()
    if app.failure is not None:
        return _report(app.failure)
    return app.return_code or EXIT_OK


def terminal_problem(environ: Mapping[str, str]) -> str:
    """Why this terminal cannot show the viewer; "" when it can."""
    streams = (sys.__stdin__, sys.__stdout__, sys.__stderr__)
    if not all(stream is not None and stream.isatty() for stream in streams):
        return f"the live view needs a terminal; {_HINT}"
    if environ.get("TERM", "") in ("dumb", "unknown"):
        return f"TERM={environ['TERM']} cannot show the live view; {_HINT}"
    return ""


def dump_folder_of(cwd: str) -> Callable[[Frame], str]:
    """The folder a dump proposes: below where the training was started.

    The training makes one of the step in it.
    """
    return lambda _: os.path.join(cwd or os.getcwd(), "tuimon-dumps")


def look_of(environ: Mapping[str, str], glyphs: str | None) -> Look:
    """What a terminal of that environment can show, unless the glyphs are given."""
    alphabet = set_for(environ) if glyphs is None or glyphs == AUTO else SETS[glyphs]
    return Look(colours=colours_for(environ), glyphs=alphabet)


def _signs(settings: AttachSettings) -> SignOptions:
    return SignOptions(
        title=settings.title is not False,
        bell=settings.bell or "off",
        tab=settings.tab is True,
    )


def _whoever() -> str:
    """Who asks, for the ledger of commands; not a credential."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{os.uname().nodename} ({os.ttyname(0) if os.isatty(0) else 'no terminal'})"


def _report(failure: BaseException) -> int:
    """One line about a defect of ours; the whole story only when asked for."""
    words = (str(failure).splitlines() or [""])[0][:200]
    print(
        f"tuimon: the viewer failed ({type(failure).__name__}: {words}); the training goes on; "
        "TUIMON_DEBUG=1 shows the traceback",
        file=sys.stderr,
    )
    if os.environ.get("TUIMON_DEBUG"):
        traceback.print_exception(failure)
    return EXIT_DEFECT
