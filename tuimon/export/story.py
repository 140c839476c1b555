"""A report as sections that a person reads from top to bottom, for HTML and Markdown alike.

Pure: the plain data of a report in, text out. Whatever is missing in it is left out, so that
reports of other versions are told as far as they go.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from tuimon.model.commands import title_words
from tuimon.model.explained import EXPLAINED
from tuimon.model.units import DASH, count, number, percent

Document = dict[str, Any]
_MOST_ROWS = 200
_OUTCOMES = {
    "healthy": "Nothing was found that would have harmed this training.",
    "unhealthy": "The training went on, but something is wrong with it.",
    "diverged": "The training diverged: what came after is of no use.",
    "stalled": "The training made no progress.",
    "crashed": "The training ended before it was done.",
}


class Table(NamedTuple):
    """A table of text."""

    head: Sequence[str]
    rows: Sequence[Sequence[str]]


class Section(NamedTuple):
    """A part of the report; what is empty is not shown."""

    title: str
    text: Sequence[str] = ()
    points: Sequence[str] = ()
    code: str = ""
    table: Table | None = None


def verdict(document: Document) -> Section:
    """What a hurried reader needs: the outcome, and the first cause in one sentence."""
    outcome = str(document.get("outcome", "unknown"))
    lines = [_OUTCOMES.get(outcome, outcome), _ending(document)]
    findings = document.get("findings") or []
    if findings:
        lines.append(f"{_headline(findings[0])}.")
    elif outcome == "healthy":
        lines.append("There was nothing to explain.")
    elif document.get("symptoms"):
        lines.append("No cause is named: what was seen does not carry one.")
    return Section(f"Verdict: {outcome}", [each for each in lines if each])


def sections(document: Document) -> list[Section]:
    """Everything after the verdict."""
    findings = document.get("findings") or []
    found = [_cause(each, document) for each in findings[:1]]
    found += [_operation(each, document) for each in document.get("autopsies") or []]
    found += [_cause(each, document, is_first=False) for each in findings[1:]]
    found += [
        _trials(document),
        _symptoms(document),
        _amp(document),
        _interventions(document),
        _ranks(document),
        _limits(document),
    ]
    return [each for each in found if each.text or each.points or each.table]


def environment(
    document: Document, versions: dict[str, str], more: Iterable[tuple[str, str]] = ()
) -> Section:
    """Where and how it ran."""
    run = document["run"]
    rows = [
        ("run", f"{run['name']} ({run['id']})"),
        ("command", " ".join(map(str, run.get("argv") or []))),
        ("steps", count(run.get("steps"))),
        ("ranks", count(run.get("ranks"))),
        *more,
        *sorted(versions.items()),
    ]
    return Section("Environment", table=Table(("what", "value"), [row for row in rows if row[1]]))


def has_ranks(document: Document) -> bool:
    """Whether the run has several, so that what is of one has to say so."""
    return (document["run"].get("ranks") or 1) > 1


def place(where: dict[str, Any]) -> str:
    """A place in the model and in the code, as words."""
    parts = []
    if where.get("op"):
        parts.append(str(where["op"]))
    if where.get("module") is not None:
        parts.append(f"in {where['module'] or 'the model itself'}")
    if where.get("param"):
        parts.append(f"parameter {where['param']}")
    if where.get("file"):
        parts.append(f"at {where['file']}:{where.get('line')}")
    if where.get("sample") is not None:
        parts.append(f"sample {where['sample']}")
    if where.get("rank"):
        parts.append(f"rank {where['rank']}")
    return ", ".join(parts)


def figure(value: Any) -> str:
    """A number of the report, where non-finite ones are words already."""
    if value is None:
        return DASH
    return number(value) if isinstance(value, int | float) else str(value)


def _ending(document: Document) -> str:
    run, how = document["run"], document["run"].get("exit") or {}
    steps, last = f"{count(run.get('steps'))} steps", run.get("steps")
    kind = how.get("kind")
    if kind in ("running", "unrecorded"):
        detail = str(how.get("detail"))
        return f"{detail[:1].upper()}{detail[1:]}."
    if kind == "ok" and how.get("code") in (0, None):
        detail = how.get("detail") or ""
        return f"It ran {steps}" + (f"; {detail}." if detail else " and ended by itself.")
    words = {"exception": "an exception", "killed": "being killed", "stopped": "being stopped"}
    detail = how.get("detail") or f"exit status {how.get('code')}"
    if isinstance(last, int) and last > 0:
        steps += f" (the last is step {last - 1:,})"
    return f"After {steps} it ended by {words.get(str(kind), str(kind))}: {detail}"


def _headline(finding: dict[str, Any]) -> str:
    entry = EXPLAINED.get(finding["cause"])
    title = entry.title if entry else finding["cause"]
    step = finding.get("step")
    at = f" at step {step:,}" if isinstance(step, int) else ""
    return f"{title} ({finding['cause']}, {finding['status']}){at}"


def _cause(finding: dict[str, Any], document: Document, *, is_first: bool = True) -> Section:
    entry = EXPLAINED.get(finding["cause"])
    remedy = finding.get("remedy") or {}
    text = []
    where = place(finding.get("where") or {})
    if where:
        text.append(f"Where: {where}.")
    if entry is not None:
        text += [entry.what, entry.why]
    text.append(f"Status {finding['status']}, confidence {percent(finding.get('confidence'))}.")
    tests = [each for each in document.get("trials") or [] if each["finding"] == finding.get("id")]
    text += [f"Tested: {each['change']}: {each['result']}. {each['detail']}" for each in tests]
    if remedy.get("text"):
        text.append(f"What helps: {remedy['text']}")
    title = _headline(finding)
    return Section(
        f"Cause: {title}" if is_first else f"Also: {title}",
        text,
        [str(each) for each in finding.get("evidence") or []],
        str(remedy.get("code") or ""),
    )


def _operation(autopsy: dict[str, Any], document: Document) -> Section:
    first = autopsy.get("first") or {}
    rows = [
        _tensor(role, each)
        for role, name in (("input", "inputs"), ("output", "outputs"))
        for each in first.get(name) or []
    ]
    source = str(first.get("source") or "")
    code = f"{first.get('file')}:{first.get('line')}\n    {source}" if source else ""
    text = [str(autopsy.get("text") or "")]
    text += [str(each) for each in autopsy.get("notes") or []]
    title, step = "The operation", autopsy.get("step")
    title += f" at step {step:,}" if isinstance(step, int) else ""
    title += f", rank {autopsy.get('rank', 0)}" if has_ranks(document) else ""
    return Section(
        title,
        [each for each in text if each],
        [str(each) for each in autopsy.get("path") or []],
        code,
        Table(("", "name", "shape", "dtype", "finite range", "not finite"), rows) if rows else None,
    )


def _tensor(role: str, note: dict[str, Any]) -> list[str]:
    bad = [(note.get("nan"), "NaN"), (note.get("posinf"), "+Inf"), (note.get("neginf"), "-Inf")]
    return [
        role,
        str(note.get("name") or ""),
        "×".join(map(str, note.get("shape") or [])),
        str(note.get("dtype") or ""),
        f"{figure(note.get('min'))} … {figure(note.get('max'))}",
        ", ".join(f"{each:,} {name}" for each, name in bad if each) or "none",
    ]


def _trials(document: Document) -> Section:
    rows = [
        [str(each.get(key) or "") for key in ("change", "result", "detail")]
        for each in document.get("trials") or []
    ]
    text = ["The step was replayed on copies, each time with one thing changed."] if rows else []
    head = ("change", "result", "what was seen")
    return Section("What was tested", text, table=Table(head, rows) if rows else None)


def _symptoms(document: Document) -> Section:
    found = document.get("symptoms") or []
    several = has_ranks(document)
    rows = [
        [
            figure(each.get("step")),
            *([str(each.get("rank"))] if several else []),
            str(each.get("severity")),
            str(each.get("kind")),
            str(each.get("detail")),
        ]
        for each in found[:_MOST_ROWS]
    ]
    more = len(found) - len(rows)
    text = [f"{more:,} more are in the JSON report."] if more else []
    head = ("step", *(["rank"] if several else []), "severity", "symptom", "detail")
    return Section("What was seen", text, table=Table(head, rows) if rows else None)


def _amp(document: Document) -> Section:
    amp = document.get("amp") or {}
    if amp.get("verdict") in (None, "none"):
        return Section("Mixed precision")
    text = [
        f"The loss scale went from {figure(amp.get('scale_first'))} to "
        f"{figure(amp.get('scale_last'))}; {count(amp.get('skipped'))} updates were skipped. "
        f"Verdict: {amp['verdict']}. {amp.get('why') or ''}".strip()
    ]
    return Section("Mixed precision", text)


def _interventions(document: Document) -> Section:
    rows = [
        [
            figure(each.get("step")),
            _asked_for(each),
            str(each.get("state")),
            f"{each.get('old') or DASH} → {each.get('new') or DASH}",
            str(each.get("by") or ""),
            str(each.get("reason") or ""),
        ]
        for each in (document.get("interventions") or [])[:_MOST_ROWS]
    ]
    head = ("step", "what", "state", "old → new", "by", "reason")
    return Section("Interventions", table=Table(head, rows) if rows else None)


def _asked_for(intervention: Mapping[str, Any]) -> str:
    """What a person calls it; a document of an earlier version has the name of its kind only."""
    return str(intervention.get("words") or title_words(str(intervention.get("command"))))


def _ranks(document: Document) -> Section:
    rows = [
        [
            str(each.get("rank")),
            count(each.get("steps")),
            str((each.get("exit") or {}).get("kind")),
            "first" if each.get("first_bad") else "",
            "yes" if each.get("straggles") else "",
            ", ".join(map(str, each.get("differs") or [])),
        ]
        for each in document["run"].get("by_rank") or []
    ]
    head = ("rank", "steps", "end", "bad", "straggles", "weights differ from")
    return Section("Ranks", table=Table(head, rows) if rows else None)


def _limits(document: Document) -> Section:
    lost = (document.get("lost") or {}).get("reasons") or {}
    cost = (document.get("cost") or {}).get("overhead_frac")
    text = []
    if lost:
        told = ", ".join(f"{count(each)} {reason}" for reason, each in sorted(lost.items()))
        text.append(f"Records that did not arrive: {told}.")
    if cost is not None:
        text.append(f"tuimon's own share of the step time was {percent(cost)}.")
    return Section("Limits of this report", text)
