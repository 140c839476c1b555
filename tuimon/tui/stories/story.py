"""One incident told in lines: the same for the screen and for a copy as plain text.

Every piece of data passes `plain` on its way in, so that a story holds no control characters.
"""

from __future__ import annotations

from collections.abc import Sequence

from tuimon.model.autopsy import LEAF
from tuimon.model.explained import EXPLAINED
from tuimon.model.findings import REFUTED, FindingRecord, ranked
from tuimon.model.records import Event
from tuimon.model.text import plain
from tuimon.model.trials import TrialRecord
from tuimon.model.units import count, percent
from tuimon.tui.stories.autopsy_story import (
    examination_lines,
    leaf_lines,
    module_lines,
    operation_lines,
    path_lines,
)
from tuimon.tui.stories.crash_story import crash_lines
from tuimon.tui.stories.lines import LABEL, Line, Part, heading, table
from tuimon.view.incidents import Incident, has_tested

_SEVERITY_TONES = {"critical": "bad", "warning": "warn"}
_STATUS_TONES = {"confirmed": "ok", "refuted": "dim", "consistent": "key"}


def story(incident: Incident, room: int | None = None) -> list[Line]:
    """Everything that is known of an incident, the most important first; in a room of so many
    cells for values long names give way.
    """
    tone = _SEVERITY_TONES.get(incident.severity, "text")
    where = "" if incident.step is None else f"step {count(incident.step)}: "
    lines = [Line(((plain(where + incident.text, 500), tone),))]
    lines += [Line(((plain(line), "text"),)) for line in incident.detail.splitlines()]
    first = _likeliest(incident.findings) if incident.is_examined else None
    lines += likeliest_lines(first) if first is not None else []
    lines += [Line((("examining…", "key"),), "cause")] if incident.is_open else []
    autopsy = incident.autopsy
    is_leaf = autopsy is not None and autopsy.verdict == LEAF
    if autopsy is not None:
        lines += leaf_lines(autopsy) if is_leaf else []
        lines += operation_lines(autopsy)
    if incident.crash is not None:
        lines += crash_lines(incident.crash)
    lines += finding_lines(incident.findings, incident.trials, told=first)
    if autopsy is not None:
        lines += [] if is_leaf else leaf_lines(autopsy)
        lines += path_lines(autopsy, room)
        lines += module_lines(autopsy.modules)
    lines += _symptoms(incident.symptoms)
    if autopsy is not None:
        lines += examination_lines(autopsy)
    return lines


def as_text(incident: Incident, run: str = "") -> str:
    """The story as plain text for a bug report or a chat."""
    out = [f"run {plain(run, 200)}"] if run else []
    for line in story(incident):
        words = line.text if line.is_heading else f"{plain(line.label):<{LABEL}}{line.text}"
        has_column = bool(line.label) or line.is_whole or line.indent > 0
        out.append((words if has_column or line.is_heading else line.text).rstrip())
    return "\n".join(out) + "\n"


def _likeliest(findings: Sequence[FindingRecord]) -> FindingRecord | None:
    return next((each for each in ranked(findings) if each.status != REFUTED), None)


def likeliest_lines(finding: FindingRecord) -> list[Line]:
    """A cause and its remedy in short: what a person in a hurry reads."""
    lines = [Line(tuple(_cause(finding)), "cause")]
    if remedy := _remedy(finding):
        lines.append(Line(((plain(remedy, 800), "ok"),), "remedy"))
    return lines


def _remedy(finding: FindingRecord) -> str:
    known = EXPLAINED.get(finding.cause)
    return finding.remedy or (known.remedy if known else "")


def finding_lines(
    findings: Sequence[FindingRecord],
    trials: Sequence[TrialRecord] = (),
    *,
    told: FindingRecord | None = None,
) -> list[Line]:
    """The causes that were concluded, the most certain first: evidence, trials, remedy.

    Args:
        trials: of these findings.
        told: the finding whose remedy stands above already.
    """
    if not findings:
        return []
    lines = heading("causes", "the most certain first")
    for finding in ranked(findings):
        known = EXPLAINED.get(finding.cause)
        share = percent(round(finding.confidence, 2))
        lines.append(Line(tuple(_cause(finding)), share, indent=2))
        tested = trial_lines([trial for trial in trials if has_tested(trial, finding)])
        if finding.status == REFUTED:
            lines += tested
            continue
        lines += [Line(((plain(each, 400), "text"),), "because") for each in finding.evidence]
        lines += tested
        remedy = _remedy(finding)
        if remedy and finding is not told:
            lines.append(Line(((plain(remedy, 800), "ok"),), "remedy"))
        code = finding.code or (known.code if known else "")
        for index, each in enumerate(code.splitlines()):
            label = "code" if index == 0 else ""
            lines.append(Line(((plain(each), "key"),), label, is_whole=True))
    return lines


def trial_lines(trials: Sequence[TrialRecord]) -> list[Line]:
    """What was changed in a replay of the step, and what came of it."""
    lines = []
    for trial in trials:
        told = f": {plain(trial.detail, 400)}" if trial.detail else ""
        parts: tuple[Part, ...] = (
            (plain(trial.result, 20), _STATUS_TONES.get(trial.result, "dim")),
            (f"  {plain(trial.change, 400)}{told}", "text"),
        )
        lines.append(Line(parts, "tested"))
    return lines


def _cause(finding: FindingRecord) -> list[Part]:
    """Title, slug and how sure it is."""
    known = EXPLAINED.get(finding.cause)
    title = plain(known.title if known else finding.cause, 120)
    return [
        (title, "dim" if finding.status == REFUTED else "strong"),
        (f"  {plain(finding.cause, 40)}", "dim"),
        (f"  {plain(finding.status, 20)}", _STATUS_TONES.get(finding.status, "text")),
    ]


def _symptoms(symptoms: Sequence[Event]) -> list[Line]:
    if not symptoms:
        return []
    lines = heading("symptoms", "of this step")
    rows: list[list[Part]] = [
        [(plain(each.kind, 60), _SEVERITY_TONES.get(each.severity, "dim")), (each.text, "text")]
        for each in symptoms
    ]
    return lines + table(rows)
