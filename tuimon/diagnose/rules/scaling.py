"""Causes around mixed precision and the state of normalisation layers."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.observing import observed
from tuimon.diagnose.rules.stalling import is_adaptive
from tuimon.model.records import Symptom

COLLAPSING = "collapsing"
# No update went by way of the scaler: what overflows then was made large by the scale, and the
# scaler that would have left the update out was never asked.
PASSED_BY = 0.97
# Where the optimizer does not divide by the size of gradients, each step is longer by the scale
# than meant, from the first one on: what overflows later follows from that.
LENGTHENED = 0.985
OFTEN, MOST = 8, 0.5  # updates, and their share: a wrong order that is the rule
_LOST = ("explosion", "non-finite-loss", "non-finite-gradient", "non-finite-parameter")
_SAYINGS = {
    "clipped_scaled": ("amp-order", 0.95, "gradients were clipped while they carried the scale"),
    "direct_steps": ("amp-order", 0.9, "optimizer.step() was called past the GradScaler"),
    "unscaled_steps": ("amp-order", 0.85, "scaler.step() was called for a loss without scale"),
    "backward_after_unscale": (
        "amp-order",
        0.85,
        "scaled gradients were added to gradients that unscale_ had already divided",
    ),
}


class ScalerOrder:
    """Calls around a GradScaler in an order that changes the update.

    A finding needs a training that suffers from it: under Adam a wrong scale cancels out.
    """

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        calls = run.calls if run else None
        if calls is None:
            return
        for name, (cause, confidence, reason) in _SAYINGS.items():
            count = getattr(calls, name)
            if not count:
                continue
            step = calls.first.get(name, 0)
            times = f"{reason}: {count:,} times, first at step {step}"
            symptom = _suffering(evidence)
            # Without such an optimizer every one of these updates has another length than meant.
            always = not is_adaptive(evidence) and count >= OFTEN
            if name == "direct_steps" and count >= OFTEN and not calls.scaler_steps:
                confidence = LENGTHENED if always else PASSED_BY
                symptom = (_broken(evidence, step) if always else None) or symptom
            if symptom is None and always and count >= MOST * calls.scaler_steps:
                symptom = observed(times, evidence, step)
            if symptom is not None:
                yield from_symptom(cause, symptom, confidence, [times])


class ScalerCollapse:
    """A loss scale that never fits."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        if evidence.amp_verdict != COLLAPSING:
            return
        symptom = next((s for s in evidence.symptoms if s.kind == "loss-scale-collapse"), None)
        if symptom is not None:
            named = any(autopsy.first is not None for autopsy in evidence.autopsies)
            yield from_symptom("scaler-collapse", symptom, 0.6 if named else 0.85, [])


class NormalisationState:
    """Buffers that are lost while the weights are sound: statistics, or memory never written."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        lost = [s for s in evidence.symptoms if s.kind == "non-finite-buffer"]
        told = next((s for s in lost if s.severity != "info"), None)
        poisoned = any(
            s.kind == "non-finite-parameter" and s.severity == "critical" for s in evidence.symptoms
        )
        if run is None or told is None or poisoned:
            return
        bad = run.loop.bad_buffers
        running = next((name for name in bad if is_running(name)), None)
        if running is not None or not bad:
            reason = "weights are finite: training hides it, evaluation does not"
            yield from_symptom("norm-state", told, 0.97, [reason])
        elif 0 in bad.values():
            name = next(name for name, step in bad.items() if step == 0)
            reason = f"{name} held NaN before the first update: nothing has written to all of it"
            yield from_symptom("uninit-weights", told, 0.95, [reason], param=name)


def is_running(name: str) -> bool:
    """Whether a buffer is a running statistic of a normalisation layer."""
    return name.rpartition(".")[2] in ("running_mean", "running_var")


def _broken(evidence: Evidence, step: int) -> Symptom | None:
    """The first that was lost for good, at this step or later."""
    lost = [s for s in evidence.symptoms if s.severity == "critical" and s.kind in _LOST]
    return next((s for s in lost if s.step is not None and s.step >= step), None)


def _suffering(evidence: Evidence) -> Symptom | None:
    kinds = ("plateau", "slow-progress", "frozen-parameters", "explosion", "loss-scale-collapse")
    found = [s for s in evidence.symptoms if s.kind in kinds and s.severity != "info"]
    return found[0] if found else None
