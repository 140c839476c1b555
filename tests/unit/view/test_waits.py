"""For how long a training waits, by whom, until when, and what it costs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuimon.model.records import Event
from tuimon.view.frame import HELD, LIVE, PAUSED, Frame
from tuimon.view.waits import cost_of, waited, with_wait

PAUSE = Event(7, 10.0, "info", "pause", "paused before update 7", "by kim@gpu07 (pts/3)")
HIT = Event(9, 20.0, "warning", "breakpoint", "breakpoint 2: lr > 1 (lr = 2) at step 9", "", 320.0)
HOLD = Event(9, 20.0, "critical", "hold", "held before update 9", "", 320.0)


@pytest.mark.parametrize(
    ("state", "events", "words", "left_s"),
    [
        (PAUSED, (PAUSE,), "paused by kim@gpu07 (pts/3) before update 7: space resumes", None),
        (PAUSED, (PAUSE, HIT), "breakpoint 2: lr > 1 (lr = 2) at step 9: space resumes", 280.0),
        (PAUSED, (HIT, PAUSE), "only resume or stop ends it", None),
        (PAUSED, (), "as it was told", None),
        (HELD, (PAUSE, HOLD), "as it was told", 280.0),
    ],
)
def test_who_waits_and_until_when(
    state: str, events: tuple[Event, ...], words: str, left_s: float | None
) -> None:
    frame = Frame(state=state, events=events, state_detail="as it was told")
    found = with_wait(frame, 28.0, 40.0)
    assert words in found.state_detail
    alone = with_wait(frame, 28.0, 40.0, ["the scribe has left"]).state_detail
    assert alone.endswith("; the scribe has left") or words == "as it was told"
    assert (found.waits_for_s, found.hold_left_s) == (12.0, left_s)


def test_after_one_step_a_pause_is_before_the_next_update() -> None:
    frame = Frame(state=PAUSED, events=(PAUSE,), step=6)
    assert " before update 7: " in with_wait(frame, 28.0, 40.0).state_detail
    assert " before update 8: " in with_wait(replace(frame, step=7), 28.0, 40.0).state_detail


def test_who_does_not_wait_is_left_alone() -> None:
    frame = Frame(state=LIVE, events=(PAUSE,))
    assert with_wait(frame, 1.0, 2.0) is frame
    assert with_wait(Frame(state=PAUSED), 0.0, 2.0).waits_for_s is None


def test_what_it_costs() -> None:
    assert cost_of(1800.0, 2.5) == 1.25 and cost_of(1800.0, None) is None
    assert waited(192.7, None) == "3m12s"
    assert waited(1800.0, 2.5) == "30m00s cost 1.25"
    assert waited(None, 2.5) == ""
