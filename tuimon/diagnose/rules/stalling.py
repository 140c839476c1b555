"""Causes of a training that learns nothing although every number is finite."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec.structs import replace

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import from_symptom
from tuimon.diagnose.rules.misusing import applied_twice
from tuimon.diagnose.rules.observing import observed
from tuimon.diagnose.rules.rates import SPENT
from tuimon.model.records import Symptom
from tuimon.model.units import number

LONG = 50  # updates from which on a training is one
MOST = 0.5  # of the updates
UNDONE = 0.5  # of the first loss: below it the training has come somewhere
SLOW = ("plateau", "slow-progress")
PASSES = 4  # over the data
ENOUGH = 150  # updates
BY_HEART = 0.94  # of guessing
MOVING = 1e-4  # an update against the length of a weight
_ADAPTIVE = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "RMSprop", "Lion", "Adafactor")
_SATURATING = ("Sigmoid", "Tanh", "Hardsigmoid", "Softsign")
_STALLS = ("plateau", "slow-progress", "frozen-parameters", "vanishing-gradient", "dead-units")


class Frozen:
    """Weights that stand still: no gradient, a gradient of zero, a rate of zero, lost rounding."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        for symptom in evidence.symptoms:
            if symptom.kind != "frozen-parameters" or symptom.severity == "info":
                continue
            figures = symptom.figures
            if "rate_row" in figures:
                yield from self._rate(run, symptom)
            elif "missing_row" in figures:
                yield from self._missing(run, symptom)
            elif "zero_row" in figures:
                yield from self._zero(run, evidence, symptom)
            elif "share" in figures and not _has(evidence, "missing_row"):
                yield from_symptom("params-stuck", symptom, 0.93, [])
            elif "changed_frac" in figures:
                yield from self._rounded(run, symptom)

    def _rate(self, run: Circumstances, symptom: Symptom) -> Iterator[Finding]:
        rates = ", ".join(number(rate) for rate in run.rates[:4])
        reason = f"learning rates of the first updates: {rates}; highest {number(run.top_rate)}"
        yield from_symptom("lr-schedule", symptom, 0.95, [reason])

    def _missing(self, run: Circumstances, symptom: Symptom) -> Iterator[Finding]:
        calls = run.loop.calls
        if calls is not None and calls.unreached > calls.emptied:
            yield from_symptom("params-stuck", symptom, 0.93, ["backward left no gradient in them"])
        else:
            yield from_symptom("zero-grad", symptom, 0.93, ["backward ran before every update"])

    def _zero(self, run: Circumstances, evidence: Evidence, symptom: Symptom) -> Iterator[Finding]:
        if any(s.kind in ("dead-units", "saturated-output") for s in evidence.symptoms):
            return  # what lets nothing through is named by its own rule
        scaler = evidence.facts.scaler if evidence.facts else None
        if run.is_half and scaler is None:
            reason = "modules compute in float16 and there is no GradScaler"
            yield from_symptom("fp16-underflow", symptom, 0.93, [reason])
        elif run.is_half:
            reason = "modules compute in float16, and the loss scale is too small"
            yield from_symptom("fp16-underflow", symptom, 0.7, [reason])

    def _rounded(self, run: Circumstances, symptom: Symptom) -> Iterator[Finding]:
        dtypes = set(run.table.dtypes) if run.table else set()
        if "bfloat16" in dtypes:
            yield from_symptom("bf16-stall", symptom, 0.95, ["weights are stored in bfloat16"])
        elif "float16" in dtypes:
            reason = "weights are stored in float16, whose resolution swallows the updates"
            yield from_symptom("bf16-stall", symptom, 0.7, [reason])


class Faint:
    """A learning rate that fell to next to nothing long before the loss was low.

    Schedules end at a thousandth of their height and less; they spend a small part of a run there.
    """

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.first_loss is None or run.level_when_faint is None:
            return
        if run.updates < LONG or run.faint < MOST * run.updates:
            return
        if not run.level_when_faint > UNDONE * run.first_loss > 0:
            return
        detail = (
            f"the learning rate was below a thousandth of {number(run.top_rate)} in {run.faint:,} "
            f"of {run.updates:,} updates, from a loss of {number(run.level_when_faint)} on"
        )
        yield from_symptom("lr-schedule", _observed(detail), 0.85, [], remedy=SPENT)


def _observed(detail: str) -> Symptom:
    """An observation that no detector makes, because it is no symptom by itself."""
    return Symptom("slow-progress", 0, 0, "warning", detail)


class Blocked:
    """Gradients that fade or end on their way back."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        for symptom in evidence.symptoms:
            if symptom.kind == "dead-units" and _loses_gradients(run, evidence, symptom):
                reason = "modules compute in float16 without a GradScaler: gradients became 0"
                known = observed(symptom.detail, evidence, symptom.step)
                yield from_symptom("fp16-underflow", known, 0.93, [reason])
                continue
            if symptom.severity == "info":
                continue
            if symptom.kind == "dead-units":
                yield from_symptom("dead-relu", symptom, 0.93, _after_explosion(evidence))
                if any(s.kind == "explosion" for s in evidence.symptoms):
                    yield from_symptom("lr-too-high", symptom, 0.7, _after_explosion(evidence))
            elif symptom.kind == "vanishing-gradient":
                yield from self._fading(run, evidence, symptom)
            elif symptom.kind == "saturated-output":
                reason = f"the learning rate is {number(run.top_rate)}"
                yield from_symptom("lr-too-high", symptom, 0.7, [reason])

    def _fading(
        self, run: Circumstances, evidence: Evidence, symptom: Symptom
    ) -> Iterator[Finding]:
        normalised = any("Norm" in kind for kind in run.kinds)
        saturating = [kind for kind in run.kinds if kind in _SATURATING]
        if normalised and not saturating and is_adaptive(evidence) and not run.warms_up:
            rates = number(run.rates[0]) if run.rates else "unknown"
            reason = (
                f"a deep net with normalisation under an adaptive optimizer that starts at its "
                f"full learning rate of {rates}: there is no warm-up"
            )
            yield from_symptom("lr-schedule", symptom, 0.85, [reason])
            yield from_symptom("lr-too-high", symptom, 0.6, [reason])
            yield from_symptom("grad-vanish", symptom, 0.5, [])
            return
        reasons = [f"activations of kind {saturating[0]}"] if saturating else []
        yield from_symptom("grad-vanish", symptom, 0.93 if saturating else 0.8, reasons)


class Plateau:
    """A loss at the level of guessing while gradients, rates and outputs look healthy."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        plateaus = [
            s
            for s in evidence.symptoms
            if s.kind in ("plateau", "slow-progress") and s.severity != "info"
        ]
        if run is None:
            return
        symptom = plateaus[0] if plateaus else _memorising(run, evidence)
        if symptom is None:
            return
        if run.spread:
            shapes = " against ".join(str(tuple(shape)) for shape in run.spread)
            reason = f"the loss was given {shapes} and spread both to one larger shape"
            yield from_symptom("loss-api", symptom, 0.96, [reason])
            return
        twice = next((words for seen in run.seen if (words := applied_twice(seen.facts))), "")
        if twice:
            yield from_symptom("loss-api", symptom, 0.94, [twice])
            return
        if any(s.kind in _STALLS[2:] and s.severity != "info" for s in evidence.symptoms):
            return  # what stands still explains the plateau
        if any(s.kind == "explosion" and s.severity == "critical" for s in evidence.symptoms):
            return  # what does not fit the labels stands still; it does not blow up
        if run.calls is not None and run.calls.clipped_scaled:
            return  # so does a wrong order of calls
        if "chance" in symptom.figures and symptom.kind == "plateau":
            norms = [n for n in run.grad_norms if n > 0]
            reason = (
                f"gradients are alive (norm {number(norms[-1]) if norms else '0'}) and the "
                f"learning rate is {number(run.last_rate)}, yet nothing is learned"
            )
            certain = any(symptom is each for each in plateaus)
            yield from_symptom("label-semantics", symptom, 0.75 if certain else 0.6, [reason])


def _memorising(run: Circumstances, evidence: Evidence) -> Symptom | None:
    """A loss a little below guessing after several passes over the same data, and no lower.

    What a task has to teach shows in the first pass; what comes slowly later is learned by heart.
    """
    slow = next((s for s in evidence.symptoms if "chance" in s.figures and s.kind in SLOW), None)
    ratio, level = run.motion.usual_ratio, run.motion.level
    if slow is None or level is None or ratio is None or run.loop.passes < PASSES:
        return None
    if level < BY_HEART * slow.figures["chance"] or run.updates < ENOUGH or ratio < MOVING:
        return None
    return replace(slow, kind="plateau", severity="warning")


def _has(evidence: Evidence, figure: str) -> bool:
    return any(figure in s.figures for s in evidence.symptoms if s.severity != "info")


def is_adaptive(evidence: Evidence) -> bool:
    """Whether the primary optimizer's update does not depend on the gradient's scale."""
    optimizers = evidence.facts.optimizers if evidence.facts else []
    return bool(optimizers) and optimizers[0] in _ADAPTIVE


def _loses_gradients(run: Circumstances, evidence: Evidence, symptom: Symptom) -> bool:
    """Whether gradients of exactly 0 are those of half precision rather than of dead units."""
    scaler = evidence.facts.scaler if evidence.facts else None
    return "dead_share" in symptom.figures and run.is_half and scaler is None


def _after_explosion(evidence: Evidence) -> list[str]:
    found = next((s for s in evidence.symptoms if s.kind == "explosion"), None)
    return [f"it followed an explosion: {found.detail}"] if found else []
