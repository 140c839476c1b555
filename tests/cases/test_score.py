"""The scorer itself: what counts as right, and what of a rival's words is read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cases import metamorphic, rivals, score
from tests.cases.corpus import Case, cases_of
from tests.cases.judged import alarms_of, detection, marked_lines, marks_of, operation

FOLDER = Path(__file__).parent / "own"
TRUTH: dict[str, Any] = {
    "accept": ["log-zero"],
    "outcome_accept": ["diverged"],
    "first_non_finite": {"what": "loss", "step": 7, "tolerance": 0},
    "op_accept": ["aten::log"],
    "module_accept": [""],
    "line_accept": "marked",
    "exception": None,
}


@pytest.fixture
def case(tmp_path: Path) -> Case:
    script = tmp_path / "X01_log.py"
    script.write_text("import torch\nloss = p.log()  # <- here\n")
    return Case("X01", script, TRUTH)


def report(**more: Any) -> dict[str, Any]:
    first = {"op": "aten::log", "phase": "forward", "module": None, "line": 2, "node": None}
    symptom = {"kind": "non-finite-loss", "step": 8, "severity": "critical"}
    finding = {"cause": "log-zero", "confidence": 0.9, "severity": "critical"}
    finding |= {"status": "consistent", "where": None}
    return {
        "outcome": "diverged",
        "symptoms": [symptom],
        "findings": [finding],
        "autopsies": [{"step": 7, "verdict": "operation", "first": first}],
    } | more


def test_everything_right(case: Case) -> None:
    marks = marks_of(case, report())
    assert (marks.seen, marks.delay) == (True, 1)
    assert (marks.op, marks.module, marks.line, marks.outcome) == (True, True, True, True)
    assert (marks.top1, marks.top3, marks.confirmed) == (True, True, False)


def test_nothing_said_is_nothing_right(case: Case) -> None:
    marks = marks_of(case, report(outcome="healthy", symptoms=[], findings=[], autopsies=[]))
    assert (marks.seen, marks.op, marks.module, marks.line) == (False, False, False, False)
    assert not (marks.outcome or marks.top1 or marks.top3)


def test_an_abstention_is_a_miss_and_a_second_place_counts_among_three(case: Case) -> None:
    unknown = {"cause": "unknown", "confidence": 0.1, "severity": "info", "status": "unknown"}
    right = report()["findings"][0]
    marks = marks_of(case, report(findings=[unknown, right]))
    assert (marks.top1, marks.top3) == (False, True)
    assert not marks_of(case, report(findings=[unknown])).top3


@pytest.mark.parametrize(
    ("accept", "first", "right"),
    [
        ([None], None, None),
        ([None], {"op": "aten::add", "node": None}, None),
        (["aten::add", None], None, True),
        (["aten::add", None], {"op": "aten::mul", "node": None}, False),
        (["aten::add"], {"op": "aten::add_", "node": None}, True),
        (["aten::addcdiv_"], {"op": "aten::_foreach_addcdiv_", "node": None}, True),
        (["SqrtBackward0"], {"op": "aten::div", "node": "SqrtBackward0"}, True),
        (["aten::add"], None, False),
    ],
)
def test_operations(accept: list[str | None], first: dict[str, Any] | None, right: bool) -> None:
    assert operation(accept, first) is right


def test_what_is_only_mentioned_is_not_detected() -> None:
    said = [{"kind": "non-finite-loss", "step": 3, "severity": "info"}]
    assert detection({"what": "loss", "step": 3}, said) == (False, None)
    assert detection({"what": None, "step": None}, said) == (None, None)


def test_alarms_in_a_healthy_run(tmp_path: Path) -> None:
    twin = Case("T01", tmp_path / "T01.py", None, allowed=("spike",))
    mild = {"cause": "drift", "confidence": 0.4, "severity": "info"}
    sure = {"cause": "lr-too-high", "confidence": 0.5, "severity": "info"}
    symptoms = [
        {"kind": "spike", "step": 2, "severity": "warning"},
        {"kind": "plateau", "step": 9, "severity": "warning"},
        {"kind": "drift", "step": 9, "severity": "info"},
    ]
    said = alarms_of(twin, {"symptoms": symptoms, "findings": [mild, sure]})
    assert said == ["plateau@9", "lr-too-high 0.50 info"]


def test_anomaly_mode_names_a_node_and_the_line_of_its_forward() -> None:
    stderr = (
        "UserWarning: Error detected in SqrtBackward0. Traceback of forward call that caused the "
        'error:\n  File "/a/case.py", line 40, in <module>\n  File "/a/case.py", line 13, in f\n'
        'Traceback (most recent call last):\n  File "/a/case.py", line 42, in <module>\n'
        "RuntimeError: Function 'SqrtBackward0' returned nan values in its 0th output.\n"
    )
    said = rivals.anomaly_in(stderr, "case.py")
    assert said == rivals.Anomaly("Sqrt", 13)
    assert rivals.names_operation(said, ["aten::sqrt"])
    assert not rivals.names_operation(said, ["aten::log", None])
    assert rivals.anomaly_in("all went well", "case.py") == rivals.Anomaly(None, None)


def test_each_case_of_our_own_has_a_twin_and_a_marked_line() -> None:
    expected = json.loads((FOLDER / "expected.json").read_text())
    for truth in expected.values():
        script = FOLDER / truth["file"]
        assert (FOLDER / "healthy" / f"T{truth['file'][1:]}").exists()
        assert bool(marked_lines(script)) == (truth["line_accept"] == "marked"), script


def test_forms_of_a_fault_are_programs_that_mark_one_line(tmp_path: Path) -> None:
    assert metamorphic.main([str(tmp_path)]) == 0
    scripts = sorted(tmp_path.glob("*.py"))
    assert len(scripts) == len(metamorphic.FAULTS) * len(metamorphic.FORMS)
    for script in scripts:
        compile(script.read_text(), str(script), "exec")
        assert len(marked_lines(script)) == 1


def test_a_second_call_only_scores(case: Case, tmp_path: Path) -> None:
    folder = tmp_path / "cases"
    folder.mkdir()
    (folder / case.path.name).write_text("raise SystemExit('must not run')  # <- here\n")
    (folder / "expected.json").write_text(json.dumps({"X01": TRUTH | {"file": case.path.name}}))
    kept = tmp_path / "kept"
    kept.mkdir()
    found = report()
    found["autopsies"][0]["first"]["line"] = 1
    (kept / "X01_log.json").write_text(json.dumps(found))
    assert score.main([str(folder), "--reports", str(kept)]) == 0


def test_a_kept_report_is_enough_but_for_rules_on_losses(tmp_path: Path) -> None:
    report, records = tmp_path / "X01.json", tmp_path / "X01.bin"
    assert score.is_due(report, None)
    report.write_text("{}")
    assert not score.is_due(report, None)
    assert score.is_due(report, records)
    records.write_bytes(b"")
    assert not score.is_due(report, records)


def test_scripts_are_found_from_any_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parent)
    assert all(case.path.is_absolute() for case in cases_of(Path("own")))
