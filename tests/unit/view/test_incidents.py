"""Findings on their way from the ring to the frame."""

from __future__ import annotations

from tuimon.feed.chronicle import Chronicle
from tuimon.feed.codec import decode, encode
from tuimon.model.findings import MAX_FINDINGS, FindingRecord
from tuimon.view.incidents import incidents
from tuimon.view.late_start import apply_history
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
    for index in range(2 * MAX_FINDINGS):
        state.apply(_finding(f"more{index}", 0.1))
    frame = state.frame(Standing())
    assert len(frame.findings) == MAX_FINDINGS
    assert {each.findings[0].id for each in incidents(frame)} >= {"a", "b", "c"}


def test_a_late_viewer_has_the_findings() -> None:
    chronicle = Chronicle("run")
    chronicle.add(_finding("a", 0.4))
    chronicle.add(_finding("a", 0.5))
    state = RunState()
    apply_history(state, chronicle.snapshot(up_to_sequence=2, scribe_sequence=0, written_at_s=1.0))
    assert [each.confidence for each in state.frame(Standing()).findings] == [0.5]
