"""Every state of a viewer, with a sentence that says what it means and what to do."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tuimon.view.frame import (
    CUT_OFF,
    GONE,
    HELD,
    LATE,
    LIVE,
    LOADING,
    OTHER_VERSION,
    PAUSED,
    RECONNECTING,
    SILENT,
    UNWATCHED,
    Exit,
)
from tuimon.view.source import SourceStatus
from tuimon.view.staleness import Signs, judge

STATUS = SourceStatus(connected=True, caught_up=True, lost={"torn": 1})
SIGNS = Signs(
    pid=42,
    was_connected=True,
    was_caught_up=True,
    step=99,
    last_step_s=1000.0,
    usual_slowest_s=0.1,
    started_s=900.0,
    goodbye=None,
)


@pytest.mark.parametrize(
    ("usual_s", "waited_s", "state"),
    [
        (0.1, 1.9, LIVE),
        (0.1, 2.1, LATE),
        (0.1, 9.9, LATE),
        (0.1, 10.1, SILENT),
        (3.0, 14.9, LIVE),
        (3.0, 15.1, LATE),
        (3.0, 59.9, LATE),
        (3.0, 60.1, SILENT),
        (None, 1.9, LIVE),
        (None, 2.1, LATE),
        (None, 10.1, SILENT),
        (0.1, -5.0, LIVE),  # a clock that was put back
    ],
)
def test_silence_is_measured_by_the_runs_own_pace(usual_s, waited_s, state):
    standing = judge(1000.0 + waited_s, STATUS, replace(SIGNS, usual_slowest_s=usual_s))
    assert standing.state == state
    assert standing.silent_for_s == pytest.approx(max(0.0, waited_s))
    assert standing.lost == {"torn": 1}


def test_silence_names_the_process_and_what_to_try():
    detail = judge(1060.0, STATUS, SIGNS).detail
    assert "no step for 1m00s (usually 100 ms)" in detail and "--pid 42" in detail


@pytest.mark.parametrize(("waited_s", "state"), [(20, LIVE), (31, LATE), (121, SILENT)])
def test_the_first_step_may_take_its_time(waited_s, state):
    signs = replace(SIGNS, step=None, last_step_s=None, usual_slowest_s=None)
    standing = judge(900.0 + waited_s, STATUS, signs)
    assert standing.state == state and "no step yet" in standing.detail


def test_a_run_just_resumed_is_not_silent():
    standing = judge(1061.0, replace(STATUS, changed_s=1060.0), SIGNS)
    assert standing.state == LIVE


def test_a_viewer_that_is_behind_does_not_blame_the_training():
    standing = judge(2000.0, replace(STATUS, caught_up=False), SIGNS)
    assert standing.state == LIVE and standing.silent_for_s == 0


@pytest.mark.parametrize(("word", "state"), [("paused", PAUSED), ("held", HELD)])
def test_a_word_in_the_ring_is_stronger_than_silence(word, state):
    standing = judge(5000.0, replace(STATUS, word=word), SIGNS)
    assert standing.state == state
    assert "after step 99" in standing.detail and "resume" in standing.detail
    assert standing.silent_for_s is None


@pytest.mark.parametrize("word", ["running", "paused", "held"])
def test_a_deleted_folder_is_told_before_anything_else(word):
    """Nothing reaches the training any more, whatever it does."""
    told = judge(1000.1, replace(STATUS, word=word, deleted=True), SIGNS)
    assert told.state == CUT_OFF and "run folder was deleted" in told.detail
    assert "kill -INT 42" in told.detail, "what to do next"
    at_end = judge(1001.0, replace(STATUS, deleted=True), replace(SIGNS, goodbye=Exit("ok", 0, "")))
    assert at_end.state == GONE and "tuimon ls" in at_end.detail


def test_a_watch_that_is_off_is_no_silence():
    status, signs = replace(STATUS, word="unwatched"), replace(SIGNS, watch_off="RuntimeError: x")
    standing = judge(5000.0, status, signs)
    assert standing.state == UNWATCHED and standing.silent_for_s is None
    assert "RuntimeError: x" in standing.detail and "the training goes on" in standing.detail
    assert "start it again" in standing.detail and "after step 99" in standing.detail
    assert judge(5000.0, replace(status, alive=False), signs).state == GONE


@pytest.mark.parametrize(
    ("exit_", "words"),
    [
        (Exit("ok", 0, ""), "ended normally with status 0 after step 99"),
        (Exit("exception", 1, "ValueError: \x1b[31mx"), "exception with status 1 after step 99: V"),
        (Exit("stopped", None, "by me"), "stopped on request after step 99: by me"),
        (Exit("killed", -9, "SIGKILL"), "killed or crashed with status -9 after step 99: SIGKILL"),
    ],
)
def test_the_end_says_why(exit_, words):
    for signs, status in (
        (replace(SIGNS, goodbye=exit_), STATUS),
        (SIGNS, replace(STATUS, alive=False, exit=exit_)),
    ):
        standing = judge(1001.0, status, signs)
        assert standing.state == GONE and standing.exit == exit_
        assert words in standing.detail and standing.detail.isprintable()


@pytest.mark.parametrize("who", ["", "rank 1 (pid 9) "])
def test_who_left_no_last_word_is_said_to_be_killed_once(who):
    why = f"{who}ended without a last word after step 99: killed (kill, no memory) or crashed"
    detail = judge(
        1001.0, replace(STATUS, alive=False, exit=Exit("killed", None, why)), SIGNS
    ).detail
    assert why in detail and detail.startswith("the training ")
    assert (detail.count("killed"), detail.count("after step 99")) == (1, 1)


def test_a_process_that_vanished_was_killed():
    standing = judge(1001.0, replace(STATUS, alive=False), SIGNS)
    assert standing.exit is not None and standing.exit.kind == "killed"


def test_last_words_are_read_before_the_end_is_announced():
    standing = judge(1001.0, replace(STATUS, alive=False, caught_up=False), SIGNS)
    assert standing.state == LOADING and standing.exit is None


@pytest.mark.parametrize(
    ("status", "signs", "state"),
    [
        (SourceStatus(), replace(SIGNS, was_connected=False), LOADING),
        (SourceStatus(), SIGNS, RECONNECTING),
        (SourceStatus(alive=False), SIGNS, GONE),
        (replace(STATUS, caught_up=False), replace(SIGNS, was_caught_up=False), LOADING),
        (SourceStatus(problem="format 9"), SIGNS, OTHER_VERSION),
    ],
)
def test_what_is_not_readable_is_explained(status, signs, state):
    standing = judge(1001.0, status, signs)
    assert standing.state == state and standing.detail


@pytest.mark.parametrize("word", ["running", "paused"])
def test_a_scribe_that_has_ended_is_said(word):
    told = judge(1000.1, replace(STATUS, word=word, scribe_has_left=True), SIGNS)
    assert told.state == (LIVE if word == "running" else PAUSED)
    assert "the scribe has ended: no readings" in told.detail
    assert "scribe" not in judge(1000.1, replace(STATUS, word=word), SIGNS).detail
