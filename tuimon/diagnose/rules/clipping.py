"""Causes of gradients that a clipping made worse: it divides all of them by one norm."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.observing import observed
from tuimon.model.autopsy import LEAF, OPERATION


class ClippedByInfinity:
    """A norm that is not finite, and a clipping that multiplied every gradient by it."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        loop = run.loop
        if loop.overflows:
            step = loop.overflows[0]
            detail = (
                f"at step {step} every gradient was finite but the square of one was not: the "
                f"norm is infinite, clipping multiplied all gradients by 0, and the update was "
                f"lost ({len(loop.overflows):,} times in all)"
            )
            yield from_symptom("clip-nonfinite", observed(detail, evidence, step), 0.94, [])
        if loop.spreads:
            step = loop.spreads[0]
            detail = (
                f"at step {step} gradients that are not finite were clipped by their norm, which "
                f"is not finite either: clipping carried it into every parameter"
            )
            explained = any(a.verdict in (OPERATION, LEAF) for a in evidence.autopsies)
            confidence = 0.7 if explained else 0.9
            yield from_symptom("clip-nonfinite", observed(detail, evidence, step), confidence, [])
