"""Findings on their way from the ring to the frame."""

from __future__ import annotations

from tests.unit.diagnose.test_trials import finding
from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import decode, encode
from tuimon.model.autopsy import OPERATION, Autopsy, OpSite
from tuimon.model.findings import MAX_FINDINGS, WITHDRAWN, FindingRecord
from tuimon.model.records import Event
from tuimon.scribe.conclusions import Conclusions
from tuimon.view.frame import Frame
from tuimon.view.incidents import incidents, newest
from tuimon.view.late_start import apply_history
from tuimon.view.marks import marks
from tuimon.view.store import RunState, Standing


def _finding(name: str, confidence: float, status: str = "consistent") -> FindingRecord:
    return FindingRecord(name, "log-zero", confidence=confidence, status=status, step=7)


def test_findings_are_ranked_replaced_by_id_and_bounded() -> None:
    state = RunState()
    for record in (_finding("a", 0.4), _finding("b", 0.9, "refuted"), _finding("c", 0.6)):
        state.apply(decode(encode(record)))
    assert [each.id for each in state.frame(Standing()).findings] == ["c", "a", "b"]
    state.apply(_finding("a", 0.99, "confirmed"))
    assert [each.id for each in state.frame(Standing()).findings] == ["a", "c", "b"]
    state.apply(_finding("c", 0.6, WITHDRAWN))
    assert [each.id for each in state.frame(Standing()).findings] == ["a", "b"]
    for index in range(2 * MAX_FINDINGS):
        state.apply(_finding(f"more{index}", 0.1))
    frame = state.frame(Standing())
    assert len(frame.findings) == MAX_FINDINGS
    assert {each.findings[0].id for each in incidents(frame)} >= {"a", "b"}


def test_a_late_viewer_has_the_findings() -> None:
    chronicle = Chronicle("run")
    chronicle.add(_finding("a", 0.4))
    chronicle.add(_finding("a", 0.5))
    chronicle.add(_finding("b", 0.5))
    chronicle.add(_finding("b", 0.5, WITHDRAWN))
    state = RunState()
    apply_history(state, chronicle.snapshot(up_to_sequence=2, scribe_sequence=0, written_at_s=1.0))
    assert [each.confidence for each in state.frame(Standing()).findings] == [0.5]


def _at(name: str, step: int, *, severity: str = "critical", op: str = "") -> FindingRecord:
    return FindingRecord(name, "lr-schedule", severity, 0.9, "consistent", step, op=op)


def _run(*found: FindingRecord, examined: tuple[int, ...]) -> Frame:
    state = RunState()
    for step in examined:
        site = OpSite("aten::mm", module="cell")
        state.apply(Autopsy(step, step * 10**9, trigger="non-finite-loss", verdict=OPERATION,
                            first=site))  # fmt: skip
    for record in found:
        state.apply(record)
    return state.frame(Standing())


def _of_each(frame: Frame) -> dict[int | None, list[str]]:
    return {
        each.step: [finding.id for finding in each.findings]
        for each in incidents(frame)
        if each.autopsy is not None
    }


def test_a_finding_belongs_to_the_incident_it_follows_else_to_the_one_it_leads_to() -> None:
    found = _at("before", 94), _at("first", 95, op="aten::mm"), _at("next", 130, op="aten::log")
    frame = _run(*found, examined=(95, 130))
    assert _of_each(frame) == {95: ["before", "first", "next"], 130: ["before", "next"]}
    frame = _run(*found[:2], examined=(95, 96, 200))  # the second look at the same trouble
    assert _of_each(frame) == {95: ["before", "first"], 96: ["before"], 200: ["before", "first"]}


def test_a_growth_that_began_long_before_explains_the_incident_that_nothing_else_explains() -> None:
    grown, slow = _at("grown", 900), _at("slow", 950, severity="warning")
    assert _of_each(_run(grown, slow, examined=(2000,))) == {2000: ["grown"]}
    own = _at("own", 2000, op="aten::mm")
    assert _of_each(_run(grown, own, examined=(2000,))) == {2000: ["own"]}


def test_a_symptom_that_was_not_examined_carries_its_causes() -> None:
    state = RunState()
    state.apply(Event(50, 1.0, "critical", "explosion", "the loss grows"))
    state.apply(_at("it", 50))
    frame = state.frame(Standing())
    last = newest(frame)
    assert last is not None and [each.id for each in last.findings] == ["it"]
    assert last.identity in [each.identity for each in incidents(frame)]


def test_causes_stand_in_the_order_of_the_verdict() -> None:
    first, second = finding("lr-schedule"), finding("lr-too-high")
    told = Conclusions()
    records = told.changed([second], 1)
    records += told.changed([first, second], 2)  # both as certain: the verdict decides
    frame = _run(*records, examined=())
    assert [each.cause for each in frame.findings] == ["lr-schedule", "lr-too-high"]
    assert [each.findings[0].cause for each in incidents(frame)] == ["lr-schedule", "lr-too-high"]
    assert told.changed([first, second], 3) == []
    gone = told.changed([second], 4)
    assert [(each.cause, each.status) for each in gone] == [
        ("lr-too-high", "consistent"),
        ("lr-schedule", WITHDRAWN),
    ]
    assert [each.time_ns for each in gone] == [1, 4]  # its conclusion is as old as before


def test_what_a_roll_back_has_undone_says_so() -> None:
    """Steps and evidence of the abandoned updates stay, and are told as void everywhere."""
    bad = Event(73, 7.0, "critical", "non-finite-loss", "loss is NaN at step 73")
    back = Event(75, 9.0, "warning", "rollback", "rolled back", "by kim", first_step=41)
    again = Event(76, 10.0, "critical", "non-finite-loss", "loss is NaN at step 76")
    early = Event(40, 4.0, "warning", "spike", "loss jumps at step 40")
    told = {each.step: each.text for each in incidents(Frame(events=(early, bad, back, again)))}
    assert told[73] == "loss is NaN at step 73; undone: rolled back at step 75"
    assert "undone" not in told[40] + told[75] + told[76]
    newest_bad = newest(Frame(events=(bad, back), alert=bad))
    assert newest_bad is not None and newest_bad.text.endswith("undone: rolled back at step 75")
    found = [(mark.step, mark.words) for mark in marks(Frame(events=(bad, back)))]
    assert (41, "from here to step 74 undone by the roll back at step 75") in found
