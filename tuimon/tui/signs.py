"""What a person sees of a run without looking at the viewer: window title, bell, state of the tab.

Pure: frames in, escape sequences out. Nothing of a training enters them but its name, made plain.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from tuimon.model.text import plain
from tuimon.tui.draw.glyphs import ASCII, GlyphSet, spelt
from tuimon.view.frame import (
    CUT_OFF,
    GONE,
    HELD,
    LATE,
    LIVE,
    PAUSED,
    RECONNECTING,
    SILENT,
    UNWATCHED,
    Frame,
)

Bell = Literal["off", "critical", "warning"]

_NAME_CELLS = 40
_BELL = "\x07"
# XTWINOPS: the terminal keeps the title that it had, and puts it back.
_KEEP_TITLE, _TITLE_BACK = "\x1b[22;0t", "\x1b[23;0t"
# OSC 9;4 of ConEmu, which Windows Terminal, Ghostty, WezTerm and others follow: state, percent.
_NO_STATE, _USUAL, _ERROR, _UNKNOWN, _WAITS = 0, 1, 2, 3, 4
# The Linux console and terminals of the VT line print what they do not know, or wait for its end.
_WITHOUT_TITLE = ("linux", "vt", "dumb", "ansi", "cons")


class SignOptions(msgspec.Struct, frozen=True):
    """Which signs there are; `tuimon.toml` says so.

    Attributes:
        title: state, progress and name of the run in the title of the window.
        bell: when it rings: never, on critical events and holds, or on warnings as well.
        tab: progress and trouble as OSC 9;4; some terminals show that as a notification instead.
    """

    title: bool = True
    bell: Bell = "off"
    tab: bool = False


class Signs:
    """Tells what has changed, each thing once. Used by the thread of the event loop only."""

    def __init__(self, options: SignOptions, environ: Mapping[str, str]) -> None:
        term = environ.get("TERM", "")
        is_able = bool(term) and not term.startswith(_WITHOUT_TITLE)
        self._has_title = options.title and is_able
        self._has_tab = options.tab and is_able
        # GNU screen keeps the low byte of each character of a title, and may obey it.
        self._alphabet = ASCII if term.startswith("screen") else None
        self._bell = options.bell
        self._title = self._tab = ""
        self._heard: tuple[object, ...] | None = None

    def begin(self) -> str:
        """Before the first sign, and again when the viewer goes on after a suspension."""
        self._title = self._tab = ""
        return _KEEP_TITLE if self._has_title else ""

    def end(self) -> str:
        """The terminal as it was."""
        state = f"\x1b]9;4;{_NO_STATE};0{_BELL}" if self._has_tab else ""
        return state + (_TITLE_BACK if self._has_title else "")

    def changes(self, frame: Frame, glyphs: GlyphSet) -> str:
        """What to write so that the signs are those of a frame; "" when they are already."""
        out = ""
        title = title_of(frame, self._alphabet or glyphs) if self._has_title else ""
        if title != self._title:
            self._title = title
            out += f"\x1b]0;{title}{_BELL}"
        if self._has_tab and (tab := tab_of(frame)) != self._tab:
            self._tab = tab
            out += f"\x1b]9;4;{tab}{_BELL}"
        return out + self._ring(frame)

    def _ring(self, frame: Frame) -> str:
        """A bell for what is new; what had happened before the viewer came does not ring."""
        if self._bell == "off":
            return ""
        grave = ("critical",) if self._bell == "critical" else ("critical", "warning")
        newest = next((each for each in reversed(frame.events) if each.severity in grave), None)
        ended_badly = frame.exit is not None and frame.exit.kind not in ("ok", "stopped")
        heard = (
            frame.run_id,
            None if newest is None else (newest.step, newest.time_s, newest.kind),
            frame.state == HELD,
            ended_badly,
        )
        before, self._heard = self._heard, heard
        if before is None or before[0] != frame.run_id or before == heard:
            return ""
        news = (new and new != old for new, old in zip(heard[1:], before[1:], strict=True))
        return _BELL if any(news) else ""


def done_frac(frame: Frame) -> float | None:
    """How much of the training is over, or of the epoch where its end is not known."""
    if frame.step is not None and frame.total_steps:
        return min(1.0, (frame.step + 1) / frame.total_steps)
    data = frame.data
    if data is not None and data.batches_per_epoch:
        return min(1.0, data.batch / data.batches_per_epoch)
    return None


def title_of(frame: Frame, glyphs: GlyphSet) -> str:
    """ "42% llama - tuimon": what needs somebody stands first, where narrow tabs still show it."""
    marks = {PAUSED: glyphs.paused, HELD: glyphs.paused, RECONNECTING: glyphs.again}
    marks |= dict.fromkeys((SILENT, LATE, CUT_OFF, UNWATCHED), glyphs.warning)
    mark = marks.get(frame.state, "")
    if frame.state == GONE:
        ended = frame.exit
        is_well = ended is not None and ended.kind in ("ok", "stopped")
        mark = glyphs.live if is_well else glyphs.critical
    elif frame.alert is not None and frame.state not in (HELD, UNWATCHED):
        mark = glyphs.critical
    share = done_frac(frame) if frame.total_steps else None
    percent = "" if share is None else f"{int(share * 100)}%"
    name = plain(frame.name)[:_NAME_CELLS]
    words = " ".join(each for each in (mark, percent, name) if each)
    title = f"{words} - tuimon" if words else "tuimon"
    return spelt(glyphs, title)


def tab_of(frame: Frame) -> str:
    """State and percent, as OSC 9;4 wants them."""
    share = done_frac(frame)
    percent = 0 if share is None else int(share * 100)
    if frame.state == GONE:
        is_well = frame.exit is not None and frame.exit.kind in ("ok", "stopped")
        return f"{_NO_STATE};0" if is_well else f"{_ERROR};{percent}"
    if frame.alert is not None and frame.state in (LIVE, LATE):
        return f"{_ERROR};{percent}"
    if frame.state in (PAUSED, HELD, SILENT, LATE, UNWATCHED):
        return f"{_WAITS};{percent}"
    if frame.state == LIVE:
        return f"{_UNKNOWN};0" if share is None else f"{_USUAL};{percent}"
    return f"{_NO_STATE};0"
