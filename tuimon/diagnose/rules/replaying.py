"""What two replays that disagree are consistent with; never more than that."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import structs

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_autopsy, from_symptom
from tuimon.model.autopsy import NOT_REPRODUCED, Autopsy
from tuimon.model.trials import DIFFERS
from tuimon.model.units import number

TWICE = 2


class Disagreeing:
    """Steps that did not show again what they had shown, although everything was put back."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        yield from _unsteady(evidence)
        found = [each for each in evidence.autopsies if _disagrees(each)]
        if len(found) < TWICE:
            return
        first = found[0]
        reasons = [
            f"{len(found)} steps gave other numbers when they were run again from the same state",
            *(
                f"step {each.step}: {number(each.recorded_loss)} at first, "
                f"{number(each.rerun_loss)} again"
                for each in found[:TWICE]
            ),
        ]
        for cause, confidence in (("backend-kernel", 0.45), ("hardware-fault", 0.4)):
            yield from_autopsy(
                cause, first, evidence.symptoms, confidence=confidence, evidence=reasons
            )


def _disagrees(autopsy: Autopsy) -> bool:
    recorded, again = autopsy.recorded_loss, autopsy.rerun_loss
    if autopsy.verdict != NOT_REPRODUCED or recorded is None or again is None:
        return False
    return not (recorded == again or (recorded != recorded and again != again))


def _unsteady(evidence: Evidence) -> Iterator[Finding]:
    """Replays on copies that differ from each other."""
    for trial in evidence.trials:
        if trial.result != DIFFERS or trial.cause not in _LIKELY:
            continue
        near = [s for s in evidence.symptoms if s.step == trial.step and s.severity != "info"]
        if not near:
            continue
        finding = from_symptom(trial.cause, near[0], _LIKELY[trial.cause], [trial.detail, _ELSE])
        where = structs.replace(finding.where, module=trial.module, op=trial.op or None)
        yield structs.replace(finding, where=where)


_LIKELY = {"backend-kernel": 0.6, "hardware-fault": 0.45}
_ELSE = (
    "a model that draws numbers from a source of its own, or reads memory that nothing has "
    "written, would look the same"
)
