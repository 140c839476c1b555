"""The record of a trial: a likely cause tested by replaying a step with one thing changed.

Wire rules are those of `model.records`.
"""

from __future__ import annotations

from tuimon.model.wire import Record

CONFIRMED = "confirmed"  # with the change the step is sound, without it it was not
REFUTED = "refuted"  # the change took hold, and the place is as bad as before
NO_DIFFERENCE = "no-difference"  # it changed nothing there, or something else is bad as well
DIFFERS = "differs"  # the same gave something else: no trial of that step can decide anything
RESULTS = (CONFIRMED, REFUTED, NO_DIFFERENCE)

MAX_TRIALS = 32  # kept by a reader; a run makes a dozen


class TrialRecord(Record, frozen=True, array_like=True, tag=51):
    """One cause, tested on a copy of the state.

    Attributes:
        finding: id of the finding that was tested, as it was concluded then.
        cause: its slug.
        change: what was changed in the replay, as a phrase: "log is given 1.2e-07 where it got 0".
        result: "confirmed" | "refuted" | "no-difference", or "differs" of what decides nothing.
        detail: what came of it, in one or two sentences with figures.
        step: index of the update that was about to happen.
        module, op: the place of the cause, as in the finding; it holds for findings of that place.
        sample: the guilty sample along the first axis of the batch, where one was found.
        runs: how often the step was replayed for it.
        duration_s: what that took; no part of the step.
        time_ns: unix time.
        is_absent: the operation went wrong in the replay, and nothing of what the cause says was
            there.
    """

    finding: str
    cause: str
    change: str
    result: str
    detail: str = ""
    step: int | None = None
    rank: int = 0
    module: str | None = None
    op: str = ""
    sample: int | None = None
    runs: int = 0
    duration_s: float = 0.0
    time_ns: int = 0
    is_absent: bool = False
