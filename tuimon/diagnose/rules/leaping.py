"""Causes of a gradient that leaps while the loss of the same update has not moved."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.motion import Leap
from tuimon.diagnose.rules.concluding import Verdict, from_symptom
from tuimon.diagnose.rules.growing import recurrence
from tuimon.model.records import Symptom
from tuimon.model.units import number

FAR = 1e5  # times the usual norm: a quotient by an epsilon, not a hard batch
LARGE = 1e3  # and as many times the norms that the training began with
UNMOVED = 10.0  # times the level of the loss
# Through time a gradient grows by less and oftener; the loss must answer.
FAR_IN_TIME = 1e3
ANSWERED = 2.0  # times the level

ENORMOUS = 1e6  # times a loss: no gain of layers that keep the loss in order makes that

_LENGTHS = ("LinalgVectorNorm", "Norm", "Cdist")


class Leaping:
    """A derivative that is finite and huge: a vector of zeros that is normalised, a root near 0."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        first = [m.grad_norm for m in run.motion.first[:16] if m.grad_norm is not None]
        floor = max(first, default=0.0)
        recurrent = recurrence(run)
        if (steep := _at_once(run)) is not None:
            for verdict in _derivatives(run):
                yield from_symptom(verdict.cause, steep, verdict.confidence, [verdict.reason])
            return
        for leap in run.motion.leaps:
            if leap.clipped or leap.loss > UNMOVED * leap.level:
                continue
            if recurrent:
                answered = leap.after >= ANSWERED * leap.level
                if not (answered and leap.times >= FAR_IN_TIME and leap.norm >= 100 * floor):
                    continue
                verdicts = [Verdict("grad-explode", 0.88, recurrent)]
            elif leap.times >= FAR and leap.norm >= LARGE * floor:
                verdicts = list(_derivatives(run))
            else:
                continue
            for verdict in verdicts:
                yield from_symptom(
                    verdict.cause, _observed(leap), verdict.confidence, [verdict.reason]
                )
            return


def _at_once(run: Circumstances) -> Symptom | None:
    """A gradient out of all proportion to the loss at the very first update."""
    first = next(iter(run.motion.first), None)
    if first is None or first.loss is None or first.grad_norm is None or first.max_norm is not None:
        return None
    if first.grad_norm < ENORMOUS * max(1.0, abs(first.loss)):
        return None
    detail = (
        f"the gradient norm is {number(first.grad_norm)} at a loss of {number(first.loss)}, "
        f"before the first update"
    )
    return Symptom("explosion", first.step, 0, "warning", detail)


def _derivatives(run: Circumstances) -> Iterator[Verdict]:
    graph = run.motion.graph
    kinds = graph.kinds if graph is not None else {}
    if graph is not None and graph.functions:
        yield Verdict("custom-backward", 0.75, f"{graph.functions[0]} has a backward of its own")
    if any(kind in kinds for kind in _LENGTHS) and "Div" in kinds:
        reason = (
            "vectors are divided by their length: for one of zeros that is an epsilon of 1e-12 in "
            "F.normalize or 1e-8 in cosine_similarity, and the gradient is as many times larger"
        )
        yield Verdict("div-zero", 0.88, reason)
    if "Sqrt" in kinds or "Pow" in kinds:
        certainty = 0.8 if "Sqrt" in kinds else 0.6
        yield Verdict("sqrt-norm-zero", certainty, "a root was differentiated next to 0")
    if "Acos" in kinds or "Asin" in kinds:
        yield Verdict("domain-error", 0.8, "acos or asin was differentiated next to 1")
    if "Div" in kinds or "Reciprocal" in kinds or "Rsqrt" in kinds:
        yield Verdict("div-zero", 0.7, "a quotient was differentiated next to 0")
    if "Log" in kinds:
        yield Verdict("log-zero", 0.65, "a logarithm was differentiated next to 0")


def _observed(leap: Leap) -> Symptom:
    detail = (
        f"the gradient norm leapt from {number(leap.usual)} to {number(leap.norm)} at step "
        f"{leap.step} while the loss stood at {number(leap.loss)}"
    )
    if leap.after > UNMOVED * leap.level:
        detail += f"; the update threw the loss up to {number(leap.after)}"
    return Symptom("explosion", leap.step, 0, "warning", detail)
