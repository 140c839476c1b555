"""Observations that no detector makes, because they are no symptom by themselves."""

from __future__ import annotations

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.model.causes import SEVERITIES
from tuimon.model.records import Symptom

UNDONE = 0.8  # of the first loss: below it a training has learned something
ENOUGH = 100  # updates, before a training that has learned nothing is asked why
_STALLS = ("plateau", "slow-progress", "vanishing-gradient", "dead-units", "frozen-parameters")


def observed(
    detail: str, evidence: Evidence | None = None, step: int | None = 0, least: str = "warning"
) -> Symptom:
    """What was seen, as severe as the worst that the training shows.

    Args:
        detail: one sentence.
        evidence: of the training; None where it does not matter.
        step: the first that shows it.
        least: severity where the training shows nothing.
    """
    shown = [s.severity for s in evidence.symptoms] if evidence is not None else []
    severity = max([least, *shown], key=SEVERITIES.index)
    return Symptom("slow-progress", step, 0, severity, detail)


def is_stalled(evidence: Evidence) -> bool:
    """Whether the training has learned nothing, by a detector or by its loss."""
    if any(s.kind in _STALLS and s.severity != "info" for s in evidence.symptoms):
        return True
    run = evidence.circumstances
    return run is not None and has_not_improved(run)


def has_not_improved(run: Circumstances) -> bool:
    """Whether the loss stands about where it began, after enough updates."""
    start, level = run.motion.start, run.motion.level
    if start is None or level is None or start <= 0 or run.updates < ENOUGH:
        return False
    return level > UNDONE * start
