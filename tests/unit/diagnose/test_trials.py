"""A trial decides about the finding that it has tested, and about no other."""

from __future__ import annotations

import pytest

from tests.unit.diagnose.test_report import facts
from tests.unit.diagnose.test_rules import examined, inf, note
from tuimon.diagnose.engine import Engine
from tuimon.diagnose.findings import Finding, Where
from tuimon.diagnose.report import build_report
from tuimon.diagnose.trials import concerns, decided
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import decode, encode
from tuimon.model.records import Symptom
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, REFUTED, TrialRecord
from tuimon.view.late_start import apply_history
from tuimon.view.staleness import Standing
from tuimon.view.store import RunState


def finding(cause: str = "log-zero", **where: object) -> Finding:
    place = Where(**{"module": "head", "op": "aten::log", **where})
    return Finding(
        cause=cause, severity="critical", confidence=0.9, status="consistent", step=5, where=place
    )


def trial(result: str, cause: str = "log-zero", **rest: object) -> TrialRecord:
    about = {"step": 5, "module": "head", "op": "aten::log", **rest}
    return TrialRecord("id", cause, "log was given more", result, "it helped", **about)


@pytest.mark.parametrize(
    ("results", "status"),
    [
        ([], "consistent"),
        ([CONFIRMED], "confirmed"),
        ([REFUTED], "refuted"),
        ([NO_DIFFERENCE], "consistent"),
        ([REFUTED, CONFIRMED], "confirmed"),
        ([NO_DIFFERENCE, REFUTED], "refuted"),
        (["of a newer version"], "consistent"),
    ],
)
def test_what_trials_say_becomes_the_status(results: list[str], status: str) -> None:
    assert decided(finding(), map(trial, results)).status == status


def test_the_guilty_sample_is_filled_and_the_identity_stays() -> None:
    before = finding()
    after = decided(before, [trial(NO_DIFFERENCE, sample=3)])
    assert (after.where.sample, after.status, after.id) == (3, "consistent", before.id)
    assert decided(finding(sample=1), [trial(CONFIRMED, sample=3)]).where.sample == 1


@pytest.mark.parametrize(
    "other",
    [{"cause": "div-zero"}, {"module": "body"}, {"op": "aten::div"}, {"rank": 1}],
)
def test_another_place_or_cause_is_not_concerned(other: dict[str, object]) -> None:
    assert not concerns(trial(CONFIRMED, **other), finding())


def test_without_an_operation_only_steps_nearby_are_concerned() -> None:
    late = trial(REFUTED, "lr-too-high", module=None, op="", step=90)
    assert not concerns(late, finding("lr-too-high", module=None, op=None))
    near = trial(REFUTED, "lr-too-high", module=None, op="", step=20)
    assert concerns(near, finding("lr-too-high", module=None, op=None))


def test_a_refuted_cause_sinks_and_the_report_has_the_trial() -> None:
    engine = Engine()
    engine.see(Symptom("non-finite-loss", 5, 0, "critical", ""))
    batch = note(0.0, 1.0, name="batch[0]", zeros=1)
    engine.see(examined("aten::log", [batch], inf()))
    assert [each.cause for each in engine.findings] == ["log-zero", "data-degenerate"]
    engine.see(trial(REFUTED))
    engine.see(trial(CONFIRMED, "data-degenerate", sample=2))
    engine.see(trial(CONFIRMED, "div-zero"))  # of no finding
    first, second = engine.findings
    assert (first.cause, first.status, first.where.sample) == ("data-degenerate", "confirmed", 2)
    assert (second.cause, second.status) == ("log-zero", "refuted")
    assert first.confidence > 0.6
    report = build_report(facts(), engine)
    assert report["trials"] == [
        {
            "finding": tested.id,
            "change": "log was given more",
            "result": result,
            "detail": "it helped",
        }
        for tested, result in ((second, "refuted"), (first, "confirmed"))
    ]


def test_a_late_viewer_has_the_trials() -> None:
    record = decode(encode(trial(CONFIRMED)))
    chronicle = Chronicle("run")
    chronicle.add(record)
    history = chronicle.snapshot(up_to_sequence=1, scribe_sequence=0, written_at_s=0.0)
    state = RunState()
    apply_history(state, history)
    assert state.frame(Standing()).trials == (trial(CONFIRMED),)
