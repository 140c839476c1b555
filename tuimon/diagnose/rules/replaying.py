"""What two replays that disagree are consistent with, or weights that no update has made.

Never more than that.
"""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_autopsy, from_symptom
from tuimon.model.autopsy import NOT_REPRODUCED, Autopsy
from tuimon.model.units import number

TWICE = 2
HARMED = ("spike", "explosion", "non-finite-")
NEAR = 3  # updates between the harm and the look that shows why


class Disagreeing:
    """Steps that did not show again what they had shown, although everything was put back."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
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


class Overwritten:
    """A weight that is finite, and farther away than all updates together can have moved it.

    The arithmetic of the optimizer and what the memory holds disagree; code that writes to the
    weights by itself does the same, which is why the evidence says so.
    """

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        found = run.reach.beyond if run is not None else None
        if found is None:
            return
        harm = (s for s in evidence.symptoms if s.kind.startswith(HARMED) and s.severity != "info")
        symptom = next((s for s in harm if s.step is None or s.step <= found.step + NEAR), None)
        if symptom is None:
            return
        reasons = [
            f"{found.name} holds {number(found.size)} at step {found.step}; by their rates, all "
            f"updates so far can have led to {number(found.reach)} at most",
            "a bit of its memory changed, or code beside the optimizer wrote to it: if nothing in "
            "the script does, suspect the device",
        ]
        module = found.name.rpartition(".")[0]
        yield from_symptom("hardware-fault", symptom, 0.6, reasons, module=module, param=found.name)


def _disagrees(autopsy: Autopsy) -> bool:
    recorded, again = autopsy.recorded_loss, autopsy.rerun_loss
    if autopsy.verdict != NOT_REPRODUCED or recorded is None or again is None:
        return False
    return not (recorded == again or (recorded != recorded and again != again))
