"""A run that ended well by its status, and whose weights are NaN, does not sound healthy."""

from __future__ import annotations

import math
from dataclasses import replace

from tests.unit.view.test_staleness import SIGNS, STATUS
from tuimon.model.records import BadTensor, Step, Symptom
from tuimon.view.frame import Exit
from tuimon.view.staleness import judge
from tuimon.view.store import RunState

NAN = [BadTensor("parameter", "head.weight", 3, 0, 0, 8)]


def step(at: int, *, loss: float = 1.0, bad: list[BadTensor] | None = None) -> Step:
    return Step(at, 0, loss=loss, bad=bad or [], bad_total=len(bad or []), weights_checked="after")


def state_of(*records: Step | Symptom) -> RunState:
    state = RunState()
    for record in records:
        state.apply(record)
    return state


def test_weights_that_are_not_finite_are_told_with_the_step() -> None:
    first = step(7, bad=NAN)
    assert state_of(step(6), first, step(8, loss=math.nan, bad=NAN)).finite.words == (
        "weights not finite since step 7"
    )
    assert state_of(first, step(8)).finite.words == ""  # rolled back
    assert state_of(step(8, loss=math.inf)).finite.words == "loss not finite since step 8"


def test_a_late_viewer_tells_the_step_of_the_symptom() -> None:
    symptom = Symptom("non-finite-parameter", 7, 0, "critical", "")
    assert state_of(step(900, bad=NAN), symptom).finite.words == "weights not finite since step 7"
    assert state_of(step(900), symptom).finite.words == ""  # it was over by then


def test_the_end_of_such_a_run_is_not_called_normal() -> None:
    end = Exit("ok", 0, "", "weights not finite since step 7")
    signs = replace(SIGNS, goodbye=Exit("ok", 0, ""), not_finite=end.not_finite)
    told = judge(1001.0, STATUS, signs)
    assert told.exit == end
    assert "ended with status 0 after step 99; weights not finite since step 7" in told.detail
    assert "normally" not in told.detail
