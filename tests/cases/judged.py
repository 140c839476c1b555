"""One report against what is known about its script: pure functions on plain data."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.cases.corpus import ALARMS, NON_FINITE, Case

MARK = "# <- here"
UNKNOWN = "unknown"
LOUD_CONFIDENCE = 0.5  # a finding above it is an alarm in a healthy run, however mild its severity


@dataclass(frozen=True)
class Marks:
    """What a failing script's report got right; None where there is nothing to be right about."""

    seen: bool | None
    delay: int | None
    op: bool | None
    module: bool | None
    line: bool | None
    outcome: bool
    top1: bool
    top3: bool
    confirmed: bool
    said: str


def marks_of(case: Case, report: dict[str, Any]) -> Marks:
    """Judge the report of a failing script."""
    truth = case.expected
    assert truth is not None
    seen, delay = detection(truth["first_non_finite"], report["symptoms"])
    first = first_of(report)
    has_place = first is not None and first.get("line") is not None
    place: dict[str, Any] = first if first is not None and has_place else finding_place(report)
    causes = [finding["cause"] for finding in report["findings"]]
    statuses = [finding["status"] for finding in report["findings"][:1]]
    accept = truth["accept"]
    top1 = (causes or [UNKNOWN])[0] in accept
    return Marks(
        seen=seen,
        delay=delay,
        op=operation(truth["op_accept"], first),
        module=among(truth["module_accept"], module_in(place), truth),
        line=among(lines_of(case), place.get("line"), truth),
        outcome=report["outcome"] in truth["outcome_accept"],
        top1=top1,
        top3=any(cause in accept for cause in causes[:3]) or top1,
        confirmed=top1 and statuses == ["confirmed"],
        said=spoken(report, first, place),
    )


def detection(
    truth: dict[str, Any], symptoms: list[dict[str, Any]]
) -> tuple[bool | None, int | None]:
    """Whether the non-finite value was told of, and how many steps after it arose."""
    if truth["what"] is None:
        return None, None
    steps = [
        symptom["step"] - truth["step"]
        for symptom in symptoms
        if symptom["severity"] in ALARMS
        and symptom["kind"].startswith(NON_FINITE)
        and symptom["step"] is not None
    ]
    return bool(steps), min(steps) if steps else None


def first_of(report: dict[str, Any]) -> dict[str, Any] | None:
    """The operation that the first autopsy names."""
    autopsies = report["autopsies"]
    return autopsies[0]["first"] if autopsies else None


def finding_place(report: dict[str, Any]) -> dict[str, Any]:
    """Where the verdict is said to lie; empty without one."""
    return report["findings"][0]["where"] or {} if report["findings"] else {}


def module_in(place: dict[str, Any]) -> str | None:
    """A module path; a known line outside of every module counts as the root."""
    module: str | None = place.get("module")
    return "" if module is None and place.get("line") is not None else module


def operation(accept: list[str | None], first: dict[str, Any] | None) -> bool | None:
    """Whether the named operation is accepted; None where there is none to name."""
    names = {plain_op(name) for name in accept if name is not None}
    named = None if first is None else first["op"]
    if not names:
        return None
    if named is None:
        return None in accept
    node = None if first is None else first.get("node")
    return plain_op(named) in names or (node is not None and node in accept)


def plain_op(name: str) -> str:
    """`aten::_foreach_log_.Tensor` and `aten::log` are one operation."""
    word = name.partition("::")[2].partition(".")[0] if "::" in name else name
    return word.removeprefix("_foreach_").strip("_")


def among(accept: list[Any] | None, said: Any, truth: dict[str, Any]) -> bool | None:
    """Whether a place is accepted; a crash and a poisoned leaf are judged like the rest."""
    has_site = truth["first_non_finite"]["what"] is not None or truth["exception"] is not None
    if accept is None or not has_site:
        return None
    return said in accept


def lines_of(case: Case) -> list[int] | None:
    """Accepted lines; "marked" stands for those that the script marks itself."""
    assert case.expected is not None
    accept = case.expected["line_accept"]
    if accept != "marked":
        lines: list[int] | None = accept
        return lines
    return marked_lines(case.path)


def marked_lines(script: Path) -> list[int]:
    """Numbers of the lines that end in the mark."""
    text = script.read_text().splitlines()
    return [number for number, line in enumerate(text, 1) if MARK in line]


def alarms_of(case: Case, report: dict[str, Any]) -> list[str]:
    """What a healthy training is accused of."""
    said = [
        f"{symptom['kind']}@{symptom['step']}"
        for symptom in report["symptoms"]
        if symptom["severity"] in ALARMS and symptom["kind"] not in case.allowed
    ]
    said += [
        f"{finding['cause']} {finding['confidence']:.2f} {finding['severity']}"
        for finding in report["findings"]
        if finding["severity"] in ALARMS or finding["confidence"] >= LOUD_CONFIDENCE
    ]
    return said


def spoken(report: dict[str, Any], first: dict[str, Any] | None, place: dict[str, Any]) -> str:
    """Outcome, operation, place and causes in a few words."""
    if first is not None:
        op = f"{first['op']} {first['phase']}"
    else:
        op = report["autopsies"][0].get("verdict", "no site") if report["autopsies"] else "none"
    where = f"[{place.get('module')}]:{place.get('line')}"
    causes = " > ".join(
        f"{finding['cause']} {finding['confidence']:.2f}" for finding in report["findings"][:3]
    )
    return f"{report['outcome']}; {op} {where}; {causes or 'no finding'}"
