"""Builds a finding from a cause and its evidence, with the remedy that belongs to the cause."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tuimon.diagnose.findings import Finding, Remedy, Where
from tuimon.model.autopsy import Autopsy, TensorNote
from tuimon.model.causes import SEVERITIES
from tuimon.model.explained import EXPLAINED
from tuimon.model.records import Symptom
from tuimon.model.units import number


@dataclass(frozen=True)
class Verdict:
    """A cause that a rule sees, with its reason.

    Attributes:
        remedy: where another one fits better than the one of the cause.
    """

    cause: str
    confidence: float
    reason: str
    remedy: Remedy | None = None


def from_autopsy(
    cause: str,
    autopsy: Autopsy,
    symptoms: Sequence[Symptom],
    *,
    confidence: float,
    evidence: Iterable[str],
    param: str | None = None,
    sample: int | None = None,
) -> Finding:
    """A finding at the place where an autopsy saw the first bad operation.

    Args:
        confidence: 0 … 1.
        evidence: sentences with the figures that carry the cause.
        param: the parameter or buffer concerned.
        sample: index of the guilty sample along the first axis of the batch.
    """
    site = autopsy.first
    explained = EXPLAINED[cause]
    return Finding(
        cause=cause,
        severity=severity_of(autopsy, symptoms),
        confidence=confidence,
        status="consistent",
        step=autopsy.step,
        where=Where(
            module=site.module if site and site.in_model else None,
            op=site.op if site else None,
            phase=site.phase if site else None,
            file=site.file if site else None,
            line=site.line if site else None,
            param=param,
            sample=sample,
            rank=autopsy.rank,
        ),
        evidence=list(evidence),
        remedy=Remedy(text=explained.remedy, code=explained.code),
    )


def from_symptom(
    cause: str,
    symptom: Symptom,
    confidence: float,
    evidence: Iterable[str],
    *,
    module: str | None = None,
    param: str | None = None,
    remedy: Remedy | None = None,
) -> Finding:
    """A finding that rests on a symptom and the run's circumstances rather than on one operation.

    Args:
        confidence: 0 … 1.
        evidence: sentences with the figures that carry the cause.
        module: path of the module concerned.
        param: the parameter or buffer concerned.
        remedy: the one that fits what was seen; that of the cause when left out.
    """
    explained = EXPLAINED[cause]
    return Finding(
        cause=cause,
        severity=symptom.severity,
        confidence=confidence,
        status="consistent",
        step=symptom.step,
        where=Where(module=module, param=param, rank=symptom.rank),
        evidence=[*evidence, symptom.detail],
        remedy=remedy or Remedy(text=explained.remedy, code=explained.code),
    )


def from_verdict(verdict: Verdict, symptom: Symptom) -> Finding:
    """A finding that rests on a symptom."""
    return from_symptom(
        verdict.cause, symptom, verdict.confidence, [verdict.reason], remedy=verdict.remedy
    )


def severity_of(autopsy: Autopsy, symptoms: Sequence[Symptom]) -> str:
    """As severe as the worst that the examined step showed; a warning where nothing is known."""
    seen = [s.severity for s in symptoms if s.step is not None and s.step == autopsy.step]
    return max(seen, key=SEVERITIES.index, default="warning")


def described(note: TensorNote) -> str:
    """One operand in words: "argument 1 (64, 10) float32, 0 … 0.93, 3 exact zeros"."""
    shape = "×".join(str(size) for size in note.shape) or "scalar"
    parts = [f"{note.name or 'input'} ({shape}) {note.dtype}"]
    if note.minimum is not None and note.maximum is not None:
        parts.append(f"{number(note.minimum)} … {number(note.maximum)}")
    for count, word in ((note.nan, "NaN"), (note.posinf, "+Inf"), (note.neginf, "-Inf")):
        if count:
            parts.append(f"{count:,} {word}")
    if note.zeros:
        parts.append(f"{note.zeros:,} exact zero{'s' if note.zeros != 1 else ''}")
    return ", ".join(parts)
