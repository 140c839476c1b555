"""Causes of a loss that jumps and comes back."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.scales import unsteady
from tuimon.diagnose.rules.stalling import is_adaptive

FEW = 2  # spikes that built up: too few for a warning, and worth a thought
REMARK = 0.45


class Spiking:
    """Data that came and went, or an optimizer whose steps are too long for where it is."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        gradual = [s for s in evidence.symptoms if s.kind == "spike" and "lead_steps" in s.figures]
        if len(gradual) >= FEW and all(s.severity == "info" for s in gradual):
            cause = "opt-dynamics" if is_adaptive(evidence) else "lr-too-high"
            yield from_symptom(cause, gradual[0], REMARK, _leads(evidence))
        for symptom in evidence.symptoms:
            if symptom.kind != "spike" or symptom.severity == "info":
                continue
            if "spikes" in symptom.figures:
                run = evidence.circumstances
                for verdict in unsteady(run.motion) if run is not None else ():
                    yield from_symptom("opt-dynamics", symptom, 0.92, [verdict.reason])
                cause = "opt-dynamics" if is_adaptive(evidence) else "lr-too-high"
                yield from_symptom(cause, symptom, 0.9, _leads(evidence))
            else:
                yield from_symptom("data-outlier", symptom, 0.9, [])


def _leads(evidence: Evidence) -> list[str]:
    leads = [s.figures["lead_steps"] for s in evidence.symptoms if "lead_steps" in s.figures]
    if not leads:
        return []
    return [f"the gradient norm left its band up to {max(leads):.0f} steps before the loss did"]
