"""What trials decide: the status of the findings they have tested, and their report entries."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import structs

from tuimon.diagnose.findings import Finding
from tuimon.model.text import plain
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, RESULTS, TrialRecord

# A trial of a cause that has no operation speaks of the trouble it was made in, not of later ones.
NEAR_STEPS = 64
# These speak of how the loop is written, which is the same in every step.
_OF_THE_LOOP = ("amp-order", "zero-grad")
_ABSENT_FACTOR = 0.5  # what is left of a cause whose own mark was looked for and not found


def decided(finding: Finding, trials: Iterable[TrialRecord]) -> Finding:
    """The finding with what its trials say: one that confirms outweighs one that refutes."""
    mine = [trial for trial in trials if concerns(trial, finding)]
    if not mine:
        return finding
    best = min(mine, key=lambda trial: RESULTS.index(trial.result))
    where = finding.where
    sample = next((t.sample for t in mine if t.sample is not None), None)
    if where.sample is None and sample is not None:
        where = structs.replace(where, sample=sample)
    confidence = finding.confidence
    if best.result == NO_DIFFERENCE:
        if any(trial.is_absent for trial in mine):
            confidence *= _ABSENT_FACTOR
        return structs.replace(finding, where=where, confidence=confidence)
    if best.result == CONFIRMED:
        confidence = (1.0 + confidence) / 2  # keeps the order of causes that are all confirmed
    return structs.replace(finding, where=where, status=best.result, confidence=confidence)


def concerns(trial: TrialRecord, finding: Finding) -> bool:
    """Whether a trial has tested this cause at this place."""
    if trial.result not in RESULTS:
        return False  # of a newer version
    where = finding.where
    if (trial.cause, trial.rank) != (finding.cause, where.rank):
        return False
    if (trial.module, trial.op) != (where.module, where.op or ""):
        return False
    if trial.op or trial.cause in _OF_THE_LOOP or trial.step is None or finding.step is None:
        return True
    return abs(trial.step - finding.step) <= NEAR_STEPS


def entries(findings: Sequence[Finding], trials: Iterable[TrialRecord]) -> list[dict[str, Any]]:
    """The trials of the report, each with the finding that it has tested."""
    listed = []
    for trial in trials:
        tested = next((each for each in findings if concerns(trial, each)), None)
        if tested is not None:
            listed.append(
                {
                    "finding": tested.id,
                    "change": plain(trial.change),
                    "result": trial.result,
                    "detail": plain(trial.detail),
                }
            )
    return listed
