"""What went wrong in a run, newest first: events grouped with their autopsy, crash and findings.

Pure functions of a frame; draws nothing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec
from msgspec import structs

from tuimon.model.autopsy import LEAF, OPERATION, Autopsy
from tuimon.model.causes import SYMPTOMS
from tuimon.model.crash import Crash
from tuimon.model.explained import EXPLAINED
from tuimon.model.findings import REFUTED, FindingRecord, ranked
from tuimon.model.records import Event
from tuimon.model.text import plain
from tuimon.model.trials import TrialRecord
from tuimon.model.verdict import sentence
from tuimon.view.frame import HELD, Frame
from tuimon.view.log import INCIDENT_STEPS

CRITICAL = "critical"
HOLD = "hold"  # kind of the event that a hold begins with
EXAMINING_S = 10.0  # after the begin of a hold: how long a cause that is still to come is awaited
REQUEST = "request"  # `Autopsy.trigger` of an examination that somebody asked for


class Incident(msgspec.Struct, frozen=True):
    """One line of the list of what happened, with everything that is known of it.

    Attributes:
        text: one sentence; `detail` is the rest, by lines.
        event: what it was made of, where it is nothing but an event.
        symptoms: of an autopsy or a crash, what was seen in that step.
        trials: of its findings.
        is_open: the training is held for it, and what is concluded is still to come.
    """

    time_s: float
    step: int | None
    severity: str
    text: str
    detail: str = ""
    kind: str = ""
    event: Event | None = None
    autopsy: Autopsy | None = None
    crash: Crash | None = None
    symptoms: tuple[Event, ...] = ()
    findings: tuple[FindingRecord, ...] = ()
    trials: tuple[TrialRecord, ...] = ()
    is_open: bool = False

    @property
    def identity(self) -> tuple[float, int | None, str, str]:
        """Tells it from the others, also after newer ones have come."""
        return (self.time_s, self.step, self.kind, self.text)

    @property
    def is_examined(self) -> bool:
        """Whether there is more to say than an event tells."""
        return self.autopsy is not None or self.crash is not None


def incidents(frame: Frame) -> list[Incident]:
    """Everything that happened, newest first; an autopsy or a crash stands above its symptoms."""
    told = {sentence(each) for each in frame.autopsies}  # the log has them as events, too
    found = [
        _of_symptom(frame, each)
        for each in reversed(frame.events)
        if each.text not in told and not _is_of_crash(frame, each)
    ]
    examined = [of_autopsy(frame, each) for each in frame.autopsies]
    if frame.crash is not None:
        examined.append(of_crash(frame, frame.crash))
    claimed = {finding.id for incident in examined for finding in incident.findings}
    examined += _of_findings(frame, [each for each in frame.findings if each.id not in claimed])
    for incident in examined:
        index = next((i for i, each in enumerate(found) if _is_before(each, incident)), len(found))
        found.insert(index, incident)
    undone = undone_by(frame)
    return [_told_as_undone(each, undone) for each in found] if undone else found


def undone_by(frame: Frame) -> tuple[Event, ...]:
    """The roll backs, each of which undoes the steps from its `first_step` to before its own."""
    return tuple(
        each for each in frame.events if each.first_step is not None and each.step is not None
    )


def _told_as_undone(incident: Incident, undone: Sequence[Event]) -> Incident:
    """What was seen in a step that a roll back has undone is told, and said to be void."""
    step = incident.step
    for back in undone:
        if step is not None and (back.first_step or 0) <= step < (back.step or 0):
            text = f"{incident.text}; undone: rolled back at step {back.step:,}"
            return structs.replace(incident, text=text)
    return incident


def of_autopsy(frame: Frame, autopsy: Autopsy) -> Incident:
    """An autopsy with the symptoms of its step."""
    first = autopsy.first
    if first is not None:  # the source line has a place of its own
        autopsy_told = structs.replace(autopsy, first=structs.replace(first, source=""))
    else:
        autopsy_told = autopsy
    told = sentence(autopsy_told).partition(": ")[2]
    severity = CRITICAL if autopsy.verdict in (OPERATION, LEAF) else "warning"
    findings = _findings(frame, autopsy.step)
    return Incident(
        time_s=autopsy.time_ns / 1e9,
        step=autopsy.step,
        severity="info" if autopsy.trigger == REQUEST else severity,
        text=told,
        kind="autopsy",
        autopsy=autopsy,
        symptoms=_symptoms(frame, autopsy.step),
        findings=findings,
        trials=_trials(frame, findings),
        is_open=not findings and _is_open(frame, autopsy.step),
    )


def of_crash(frame: Frame, crash: Crash) -> Incident:
    """A crash with the symptoms of its step."""
    findings = _findings(frame, crash.step)
    return Incident(
        time_s=crash.time_ns / 1e9,
        step=crash.step,
        severity=CRITICAL,
        text=crash_sentence(crash),
        kind="exception",
        crash=crash,
        symptoms=_symptoms(frame, crash.step),
        findings=findings,
        trials=_trials(frame, findings),
    )


def crash_sentence(crash: Crash) -> str:
    """What was raised where."""
    text = f"{crash.kind}: {crash.message}" if crash.message else crash.kind
    where = []
    if crash.in_model:
        where.append(crash.module or "the model")
    if crash.place is not None:
        where.append(f"{os.path.basename(crash.place.file)}:{crash.place.line}")
    return plain(f"{text}  in {', '.join(where)}" if where else text, 400)


def newest(frame: Frame) -> Incident | None:
    """The newest thing that went wrong, told as well as it can be.

    Where an autopsy names the operation it speaks for the symptoms of its incident; where it names
    nothing the symptom is the better sentence. While the run is held it is what it is held for.
    """
    if frame.state == HELD:
        hold = next((each for each in reversed(frame.events) if each.kind == HOLD), None)
        if hold is not None:
            found = _held_for(frame, hold)
            return found if found is not None and found.event is None else _of_hold(frame, hold)
    alert = None if frame.alert is None else _of_symptom(frame, frame.alert)
    found = alert
    if frame.autopsies:
        last = of_autopsy(frame, frame.autopsies[-1])
        if last.severity == CRITICAL and _speaks_for(last, alert):
            found = last
    if frame.crash is not None:
        crash = of_crash(frame, frame.crash)
        if found is None or found.event is not None or crash.time_s >= found.time_s:
            found = crash
    return None if found is None else _told_as_undone(found, undone_by(frame))


def examined_at(frame: Frame, event: Event) -> Incident | None:
    """The autopsy that looked at what an event tells; None for any other event."""
    if event.kind == HOLD:
        return _held_for(frame, event)
    if event.step is None or event.kind not in SYMPTOMS:
        return None
    for autopsy in reversed(frame.autopsies):
        if autopsy.step == event.step:
            return of_autopsy(frame, autopsy)
    return None


def _held_for(frame: Frame, hold: Event) -> Incident | None:
    """The autopsy of a hold, or an earlier one of the same place: each place has one autopsy."""
    said = hold.detail.partition(": ")[2]
    for autopsy in reversed(frame.autopsies):
        if sentence(autopsy) == hold.detail:
            return of_autopsy(frame, autopsy)
        if said and sentence(autopsy).partition(": ")[2] == said:
            same = f"{hold.detail}\nas at step {autopsy.step:,}, whose figures follow"
            return structs.replace(_of_hold(frame, hold), detail=same, autopsy=autopsy)
    return None


def _of_hold(frame: Frame, hold: Event) -> Incident:
    """A hold with the causes of its own step."""
    findings = () if hold.step is None else _findings(frame, hold.step)
    return structs.replace(
        _of_event(hold),
        findings=findings,
        trials=_trials(frame, findings),
        is_open=not findings and _is_open(frame, hold.step),
    )


def _is_open(frame: Frame, step: int | None) -> bool:
    hold = next((each for each in reversed(frame.events) if each.kind == HOLD), None)
    if frame.state != HELD or hold is None or hold.until_s is None or frame.hold_left_s is None:
        return False
    held_s = hold.until_s - frame.hold_left_s - hold.time_s
    return hold.step is not None and step is not None and step >= hold.step and held_s < EXAMINING_S


def _of_event(event: Event) -> Incident:
    return Incident(
        event.time_s, event.step, event.severity, event.text, event.detail, event.kind, event
    )


def _of_symptom(frame: Frame, event: Event) -> Incident:
    """An event; a critical symptom carries what was concluded from it."""
    told = _of_event(event)
    if event.severity != CRITICAL or event.kind not in SYMPTOMS or event.step is None:
        return told
    findings = tuple(each for each in frame.findings if each.step == event.step)
    return structs.replace(told, findings=findings, trials=_trials(frame, findings))


def has_tested(trial: TrialRecord, finding: FindingRecord) -> bool:
    """Whether a trial has tested this cause at this place."""
    if trial.finding == finding.id:
        return True
    tried = (trial.cause, trial.rank, trial.module, trial.op)
    return bool(trial.op) and tried == (finding.cause, finding.rank, finding.module, finding.op)


def _trials(frame: Frame, findings: Sequence[FindingRecord]) -> tuple[TrialRecord, ...]:
    return tuple(
        trial for trial in frame.trials if any(has_tested(trial, each) for each in findings)
    )


def _of_findings(frame: Frame, findings: Sequence[FindingRecord]) -> list[Incident]:
    """Causes that no examination speaks for: those of a step stand together, the likeliest on top.

    Each is put above what is as old, so that the likeliest comes last.
    """
    times = {
        each.step: max(f.time_ns for f in findings if f.step == each.step) for each in findings
    }
    return [
        structs.replace(_of_finding(frame, each), time_s=times[each.step] / 1e9)
        for each in reversed(ranked(findings))
    ]


def _of_finding(frame: Frame, finding: FindingRecord) -> Incident:
    known = EXPLAINED.get(finding.cause)
    return Incident(
        time_s=finding.time_ns / 1e9,
        step=finding.step,
        severity=finding.severity,
        text=plain(known.title if known else finding.cause, 200),
        kind="finding",
        findings=(finding,),
        trials=_trials(frame, (finding,)),
    )


def _is_before(older: Incident, incident: Incident) -> bool:
    """Whether an event stands below an incident in a list whose newest is on top."""
    if older.step is not None and older.step == incident.step and older.event is not None:
        return older.kind in SYMPTOMS or older.time_s <= incident.time_s
    return older.time_s <= incident.time_s


def _speaks_for(autopsy: Incident, alert: Incident | None) -> bool:
    if alert is None:
        return True
    if alert.step is None or autopsy.step is None:
        return autopsy.time_s >= alert.time_s
    return alert.step <= autopsy.step + INCIDENT_STEPS


def _symptoms(frame: Frame, step: int) -> tuple[Event, ...]:
    return tuple(
        each
        for each in frame.events
        if each.step == step and each.kind in SYMPTOMS and not _is_of_crash(frame, each)
    )


def _is_of_crash(frame: Frame, event: Event) -> bool:
    """Whether an event is the short story of the crash that the frame tells in whole."""
    crash = frame.crash
    return crash is not None and event.kind == "exception" and event.step == crash.step


def _findings(frame: Frame, step: int) -> tuple[FindingRecord, ...]:
    """Those that belong to the incident of a step, or to no step at all."""
    own = [each for each in frame.findings if _is_own(each, step)]
    if any(each.status != REFUTED for each in own):
        return tuple(own)
    # A second look at the same trouble, or the end of one that began long before.
    before = [each for each in frame.findings if each.step is not None and each.step < step]
    near = [each for each in before if step - (each.step or 0) <= INCIDENT_STEPS]
    earlier = near or [each for each in before if each.severity == CRITICAL]
    return tuple(each for each in frame.findings if each in own or each in earlier)


def _is_own(finding: FindingRecord, step: int) -> bool:
    """Whether it came with the incident of a step, or what it tells of led there."""
    if finding.step is None:
        return True
    after = finding.step - step
    return 0 <= after <= INCIDENT_STEPS or (not finding.op and -INCIDENT_STEPS <= after < 0)
