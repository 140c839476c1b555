"""One sentence about the end of several processes."""

from __future__ import annotations

from tuimon.feed.registry import ExitInfo
from tuimon.scribe.ends import End, together

OK, KILLED = ExitInfo("ok", 0, ""), ExitInfo("killed", None, "ended without a last word: killed")
FAILED = ExitInfo("exception", 1, "ProcessExitedException: process 1 terminated")


def of(*hows: ExitInfo) -> list[End]:
    return [End(rank, 100 + rank, how) for rank, how in enumerate(hows)]


def test_who_was_killed_first_is_named_and_the_others_are_counted() -> None:
    ranks = of(KILLED, KILLED, OK, KILLED)
    said = "rank 1 (pid 101) ended without a last word: killed; then ranks 0, 3 without a last word"
    assert together(ranks, ranks[1], None) == ExitInfo("killed", None, said)
    launcher = End(0, 99, FAILED)
    assert together(ranks, ranks[1], launcher) == ExitInfo(
        "exception", 1, f"{said}; {FAILED.detail}"
    )


def test_a_launcher_that_was_killed_is_no_rank_without_a_step() -> None:
    said = "the process that spawned them (pid 99) was killed"
    assert together(of(OK, OK), None, End(0, 99, KILLED)) == ExitInfo("killed", None, said)
    assert together(of(OK, OK), None, End(0, 99, OK)) == OK


def test_without_a_bad_end_a_stop_counts() -> None:
    stopped = ExitInfo("stopped", 130, "by me")
    assert together(of(OK, stopped), None, None) == stopped
    assert together(of(OK, OK), None, None) == OK
