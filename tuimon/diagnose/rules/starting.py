"""Causes that lie in the weights a training begins with, also where it learns in spite of them."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.fed import starts_absurdly_high
from tuimon.diagnose.rules.observing import observed
from tuimon.diagnose.rules.scales import initial

# Low-rank adapters begin with half of their matrices at 0, residual blocks with their last one.
MOST_CONSTANT = 0.75
FEW = 2  # a single matrix may begin at 0: it has no twin to stay equal to


class Beginnings:
    """Weights that are all one number, old memory, or so large that the first loss is absurd."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        begun = run.motion.begun if run is not None else []
        if run is None or not begun:
            return
        constant = [weight for weight in begun if weight.is_constant]
        if len(constant) >= FEW and len(constant) >= MOST_CONSTANT * len(begun):
            values = "0" if not any(weight.rms for weight in constant) else "one number each"
            detail = (
                f"{len(constant)} of {len(begun)} weight matrices begin at {values}, such as "
                f"{constant[0].name}: units that are equal get equal gradients and stay equal"
            )
            yield from_symptom("bad-init", observed(detail, evidence), 0.94, [])
            return
        high = starts_absurdly_high(run)
        for verdict in initial(begun):
            if verdict.cause == "uninit-weights" or high:
                symptom = observed(verdict.reason, evidence)
                yield from_symptom(verdict.cause, symptom, 0.9, [high] if high else [])
                return
