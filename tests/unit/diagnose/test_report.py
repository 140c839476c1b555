"""Outcome and report: the order of outcomes, the exact schema, strict JSON, atomic writing."""

from __future__ import annotations

import json
import math

import msgspec
import pytest

from tuimon.diagnose.engine import Engine
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding, Remedy, Where
from tuimon.diagnose.outcome import outcome
from tuimon.diagnose.report import RunFacts, build_report, text_of
from tuimon.model.records import NAN, CommandState, Goodbye, Record, Step, Symptom

BAD = Step(1, 0, loss=math.nan, grad_norm=math.nan, flags=bytes([NAN]))
GOOD = Step(0, 0, loss=1.0, grad_norm=1.0)


def facts(**changes: object) -> RunFacts:
    settings: dict[str, object] = {
        "id": "abc",
        "name": "net",
        "argv": ["train.py", "bad\udc80"],
        "steps": 2,
        "ranks": 1,
        "exit_kind": "ok",
        "exit_code": 0,
        "exit_detail": "",
        **changes,
    }
    return RunFacts(**settings)  # type: ignore[arg-type]


def engine_of(*records: Record, **options: object) -> Engine:
    engine = Engine(**options)  # type: ignore[arg-type]
    for record in records:
        engine.see(record)
    engine.close()
    return engine


@pytest.mark.parametrize(
    ("records", "exit_kind", "code", "expected"),
    [
        ([GOOD], "ok", 0, "healthy"),
        ([GOOD, BAD], "ok", 0, "diverged"),
        ([GOOD, BAD], "exception", 1, "crashed"),
        ([GOOD], "killed", None, "crashed"),
        ([GOOD], "ok", 3, "crashed"),
        ([GOOD], "stopped", 130, "healthy"),
        ([GOOD, BAD, Step(2, 0, loss=1.0, grad_norm=1.0)], "ok", 0, "unhealthy"),
        ([Step(0, 0, loss=math.nan, grad_norm=0.0)], "ok", 0, "unhealthy"),
        ([Step(i, 0, loss_scale=2.0 / 2**i, skipped=True) for i in range(9)], "ok", 0, "stalled"),
        ([Step(0, 0, grad_norm=math.nan, loss_scale=4.0, skipped=True)], "ok", 0, "healthy"),
    ],
)
def test_outcome(records: list[Record], exit_kind: str, code: int | None, expected: str):
    document = build_report(facts(exit_kind=exit_kind, exit_code=code), engine_of(*records))
    assert document["outcome"] == expected


def test_a_symptom_that_grew_worse_at_the_same_step_is_listed_once():
    warning = Symptom("non-finite-optimizer-state", 2, 0, "warning", "Inf")
    other = Symptom("explosion", 2, 0, "critical", "grew")
    worse = Symptom("non-finite-optimizer-state", 2, 0, "critical", "NaN")
    later = Symptom("non-finite-optimizer-state", 9, 0, "critical", "again")
    engine = engine_of(GOOD)
    engine.symptoms[:] = [warning, other, worse, later]
    listed = build_report(facts(), engine)["symptoms"]
    assert [(each["step"], each["detail"]) for each in listed] == [
        (2, "NaN"),
        (2, "grew"),
        (9, "again"),
    ]


def test_a_finding_makes_a_run_unhealthy_unless_it_is_refuted():
    def verdict(status: str) -> str:
        finding = Finding(
            cause="unknown", severity="warning", confidence=0.5, status=status, step=0
        )
        return outcome(
            exit_kind="ok",
            exit_code=0,
            symptoms=[],
            findings=[finding],
            unrecovered=(),
            amp_verdict="none",
        )

    assert (verdict("consistent"), verdict("refuted")) == ("unhealthy", "healthy")


class Always:
    """A rule that concludes the same in any case, twice."""

    def conclude(self, evidence: Evidence) -> list[Finding]:
        assert evidence.symptoms
        where = Where(module="head", op="aten::log")
        return [
            Finding(
                cause="log-zero",
                severity="critical",
                confidence=confidence,
                status="consistent",
                step=1,
                where=where,
                evidence=["loss is NaN"],
                remedy=Remedy(text="use log_softmax"),
            )
            for confidence in (0.5, math.inf)
        ]


def test_the_document_has_the_schema():
    run = facts(overhead_frac=math.nan, lost={"overrun": 3, "torn": 1})
    document = build_report(run, engine_of(BAD, rules=[Always()]))
    text = json.dumps(document, allow_nan=False)
    assert msgspec.json.decode(text) == document
    assert list(document) == [
        *("schema", "run", "outcome", "symptoms", "findings", "autopsies", "trials"),
        *("amp", "interventions", "cost", "lost"),
    ]
    assert document["schema"] == "tuimon.report/1"
    assert document["run"] == {
        "id": "abc",
        "name": "net",
        "argv": ["train.py", "bad?"],
        "steps": 2,
        "ranks": 1,
        "exit": {"kind": "ok", "code": 0, "detail": ""},
    }
    assert [set(symptom) for symptom in document["symptoms"]] == [
        {"kind", "step", "rank", "severity", "detail"}
    ] * 2
    (finding,) = document["findings"]
    assert finding["confidence"] == "+Inf"
    assert set(finding) == {
        *("id", "cause", "severity", "confidence", "status", "step", "where", "evidence"),
        "remedy",
    }
    amp = {key: document["amp"][key] for key in ("scale_first", "scale_last", "skipped", "verdict")}
    assert amp == {"scale_first": None, "scale_last": None, "skipped": 0, "verdict": "none"}
    assert document["cost"] == {"overhead_frac": "NaN", "snapshots": None}
    assert document["lost"] == {"records": 4, "reasons": {"overrun": 3, "torn": 1}}


def test_the_ledger_lists_each_command_once():
    states = [
        CommandState("1", "SetClip", "applied", "me", 1.5e9, 12, "user", "on", words="clip on 1.0"),
        CommandState("2", "Pause", "accepted", "me"),
    ]
    assert build_report(facts(commands=states), engine_of())["interventions"] == [
        {
            "command": "SetClip",
            "words": "clip on 1.0",
            "by": "me",
            "asked_at": "2017-07-14T02:40:00.000+00:00",
            "state": "applied",
            "step": 12,
            "old": "user",
            "new": "on",
            "arguments": None,
            "reason": "",
        },
        {
            "command": "Pause",
            "words": "pause",
            "by": "me",
            "asked_at": None,
            "state": "expired",
            "step": None,
            "old": None,
            "new": None,
            "arguments": None,
            "reason": "",
        },
    ]


def test_text_from_the_run_carries_no_control_characters():
    engine = engine_of(GOOD, Goodbye("exception", 1, "Bad\x1b[2J\nline"))
    text = json.dumps(build_report(facts(exit_detail="x\x1b"), engine), ensure_ascii=False)
    assert "\x1b" not in text and "\\u001b" not in text


def test_what_is_no_strict_json_is_not_told():
    with pytest.raises(ValueError, match="not JSON compliant"):
        text_of({"a": math.nan})


def test_symptoms_of_several_ranks_keep_their_rank():
    engine = engine_of(BAD, rank=3)
    assert {symptom.rank for symptom in engine.symptoms} == {3}
    assert isinstance(engine.symptoms[0], Symptom)
