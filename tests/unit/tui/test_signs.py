"""Title, bell and tab state: what changes is told once, and nothing of the data is obeyed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from tests.tui.fake import FakeRun
from tuimon.model.records import Event
from tuimon.tui.draw.glyphs import ASCII, BRAILLE
from tuimon.tui.signs import SignOptions, Signs, done_frac, tab_of, title_of
from tuimon.view.frame import GONE, HELD, LIVE, PAUSED, UNWATCHED, WAITING, DataPlace, Exit, Frame

XTERM = {"TERM": "xterm-256color"}
RUN = FakeRun(steps=25_000, blocks=1).frame()
ALL = SignOptions(title=True, bell="warning", tab=True)


def event(step: int, severity: str) -> Event:
    return Event(step, 1.0, severity, "spike", "words", "")


def test_what_did_not_change_is_not_written() -> None:
    signs = Signs(ALL, XTERM)
    assert signs.begin() == "\x1b[22;0t"
    first = signs.changes(RUN, BRAILLE)
    assert first == "\x1b]0;50% llama-1b-pretrain - tuimon\x07\x1b]9;4;1;50\x07"
    assert signs.changes(replace(RUN, step=25_001), BRAILLE) == ""
    assert signs.changes(replace(RUN, step=30_000), BRAILLE).count("60") == 2
    assert signs.end() == "\x1b]9;4;0;0\x07\x1b[23;0t"
    signs.begin()
    assert "llama" in signs.changes(RUN, BRAILLE), "after a suspension all is told again"


def test_by_default_only_the_title_changes_and_elsewhere_nothing() -> None:
    signs = Signs(SignOptions(), XTERM)
    assert signs.changes(RUN, BRAILLE).startswith("\x1b]0;") and signs.end() == "\x1b[23;0t"
    for term in ("linux", "vt100", "", "dumb"):
        silent = Signs(SignOptions(tab=True), {"TERM": term})
        assert silent.begin() + silent.changes(RUN, BRAILLE) + silent.end() == ""


@pytest.mark.parametrize(
    ("frame", "title", "tab"),
    [
        (Frame(state=WAITING), "tuimon", "0;0"),
        (replace(RUN, state=PAUSED), "‖ 50% llama-1b-pretrain - tuimon", "4;50"),
        (replace(RUN, state=HELD), "‖ 50% llama-1b-pretrain - tuimon", "4;50"),
        (replace(RUN, state=UNWATCHED), "▲ 50% llama-1b-pretrain - tuimon", "4;50"),
        (replace(RUN, alert=event(3, "critical")), "✖ 50% llama-1b-pretrain - tuimon", "2;50"),
        (replace(RUN, total_steps=None), "llama-1b-pretrain - tuimon", "3;0"),
        (replace(RUN, state=GONE, exit=Exit("ok", 0, "")), "● 50% llama-1b-pretrain - tuimon",
         "0;0"),
        (replace(RUN, state=GONE, exit=Exit("killed", 137, "")),
         "✖ 50% llama-1b-pretrain - tuimon", "2;50"),
    ],
)  # fmt: skip
def test_every_state_has_its_sign(frame: Frame, title: str, tab: str) -> None:
    assert title_of(frame, BRAILLE) == title
    assert tab_of(frame) == tab
    assert title_of(frame, ASCII).isascii()


def test_an_epoch_is_progress_where_the_end_is_not_known() -> None:
    known = replace(RUN, total_steps=None, data=DataPlace(2, 30, 120))
    assert done_frac(known) == 0.25 and tab_of(known) == "1;25"
    assert done_frac(replace(known, data=DataPlace(2, 30))) is None


def test_a_name_cannot_end_the_title() -> None:
    evil = replace(RUN, name="a\x07\x1b]52;c;AAAA\x07\x9c\x1b\\b" + "\u202e" + "x" * 500)
    told = Signs(ALL, XTERM).changes(evil, BRAILLE)
    assert len(told) < 120
    assert re.fullmatch(r"\x1b\]0;[^\x00-\x1f\x7f-\x9f\u202e]*\x07\x1b\]9;4;1;50\x07", told)


def test_a_title_for_gnu_screen_is_ascii() -> None:
    told = Signs(SignOptions(), {"TERM": "screen.xterm-256color"}).changes(
        replace(RUN, state=PAUSED, name="größe"), BRAILLE
    )
    assert told == "\x1b]0;= 50% gr??e - tuimon\x07"


def test_the_bell_rings_once_for_what_is_new() -> None:
    signs = Signs(SignOptions(title=False, bell="critical"), XTERM)
    old = replace(RUN, events=(event(3, "critical"),))
    assert signs.changes(old, BRAILLE) == "", "what had happened before"
    assert signs.changes(replace(old, events=(*old.events, event(4, "warning"))), BRAILLE) == ""
    news = replace(old, events=(*old.events, event(5, "critical")))
    assert signs.changes(news, BRAILLE) == "\x07"
    assert signs.changes(news, BRAILLE) == ""
    assert signs.changes(replace(news, state=HELD), BRAILLE) == "\x07"
    assert signs.changes(replace(news, state=LIVE), BRAILLE) == ""
    assert signs.changes(replace(news, exit=Exit("exception", 1, "")), BRAILLE) == "\x07"
    assert signs.changes(replace(old, run_id="another"), BRAILLE) == "", "another run was picked"
    never = Signs(SignOptions(title=False), XTERM)
    assert never.changes(old, BRAILLE) + never.changes(news, BRAILLE) == ""
