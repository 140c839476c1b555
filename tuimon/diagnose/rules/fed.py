"""Causes in what a training is fed with: sizes that stop it from learning, odd batches."""

from __future__ import annotations

import math
from collections.abc import Iterator

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence, Rule
from tuimon.diagnose.feeding import LossRange
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import Verdict, from_symptom
from tuimon.diagnose.rules.derivatives import Derivatives
from tuimon.diagnose.rules.observing import is_stalled, observed
from tuimon.diagnose.rules.operations import Operations
from tuimon.model.batches import TensorSummary
from tuimon.model.units import number

# Initialisation and usual rates assume inputs of order 1; standardised data rarely passes 10.
FAR = 100.0
NEAR_ZERO = 1e-3
# An untrained model that is given inputs of order 1 loses about what guessing costs.
ABSURD = 20.0
HARMED = ("spike", "explosion", "non-finite-loss", "non-finite-gradient", "non-finite-parameter")
SOON = 3  # updates: what a step that is too long needs to leave single precision
AFTER = 30  # updates within which a batch does its harm
OCCASION = 0.84  # that a batch is to blame for what an operation of the step did wrong
_OF_OPERATIONS: tuple[Rule, ...] = (Operations(), Derivatives())
_SQUARES = ("MseLoss", "SmoothL1Loss", "HuberLoss", "Sub", "L1Loss")


class DataScale:
    """A training that learns nothing, or starts absurdly high, on numbers far from order 1."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or not run.loop.feed.inputs:
            return
        stalled, high = is_stalled(evidence), starts_absurdly_high(run)
        high = high or _lost_at_once(evidence, run)
        if not stalled and not high:
            return
        if any(s.kind == "explosion" and s.severity != "info" for s in evidence.symptoms):
            return  # growth has a rule of its own
        blocked = any(
            s.kind in ("dead-units", "vanishing-gradient", "saturated-output")
            and s.severity != "info"
            for s in evidence.symptoms
        )
        for verdict in _sizes(run):
            reasons = [high] if high else []
            confidence = 0.94 if blocked else verdict.confidence
            symptom = observed(verdict.reason, evidence)
            yield from_symptom(verdict.cause, symptom, confidence, reasons)
            return


class Poisoned:
    """A batch that was not finite, and a step that was not either."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        for step, found in run.loop.feed.poisoned.items():
            harm = [s for s in evidence.symptoms if s.kind.startswith("non-finite-")]
            here = [s for s in harm if s.step == step and s.severity != "info"]
            # A step before it that was bad already has another cause.
            if here and all(s.step is None or s.step >= step for s in harm):
                symptom = observed(f"the batch of step {step} held {found}", evidence, step)
                yield from_symptom("data-nonfinite", symptom, 0.96, [here[0].detail])
                return


class Outlier:
    """A batch that reaches far beyond all earlier ones, and a training that suffered from it."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None:
            return
        for outlier in run.loop.feed.outliers:
            harm = [
                s
                for s in evidence.symptoms
                if s.kind in HARMED
                and s.step is not None
                and outlier.step - 1 <= s.step <= outlier.step + AFTER
            ]
            if not harm:
                continue
            detail = (
                f"{outlier.name} reaches {number(outlier.size)} at step {outlier.step}; in every "
                f"batch before that was looked at it stayed within {number(outlier.usual)}"
            )
            symptom = observed(detail, evidence, outlier.step)
            # An operation that cannot take a finite number is at fault; the batch has shown it.
            certainty = OCCASION if _has_its_own(evidence, outlier.step) else 0.94
            yield from_symptom("data-outlier", symptom, certainty, [harm[0].detail])
            return


def _has_its_own(evidence: Evidence, step: int) -> bool:
    """Whether an operation of this step is to blame by itself."""
    found = (each for rule in _OF_OPERATIONS for each in rule.conclude(evidence))
    return any(each.step == step and each.confidence > OCCASION for each in found)


def _lost_at_once(evidence: Evidence, run: Circumstances) -> str:
    """A loss without optimizer and backward that the first updates made infinite, in words."""
    if run.updates or evidence.autopsies:
        return ""
    bad = [s for s in evidence.symptoms if s.kind == "non-finite-loss" and s.step is not None]
    first = min((s.step or 0 for s in bad), default=None)
    if first is None or not 0 < first <= SOON:
        return ""
    return f"the loss was finite at first and is not any more after {first} updates"


def starts_absurdly_high(run: Circumstances) -> str:
    """A first loss far above that of guessing, in words; "" otherwise."""
    start = run.first_loss
    if start is None or len(run.loop.feed.losses) != 1:
        return ""
    (seen,) = run.loop.feed.losses.values()
    guess = _guessing(seen)
    if guess is None or start <= ABSURD * guess:
        return ""
    return f"the first loss is {number(start)}; guessing would cost about {number(guess)}"


def _guessing(seen: LossRange) -> float | None:
    facts = seen.facts
    if facts.classes and facts.classes > 1 and facts.reduction == "mean":
        return math.log(facts.classes)
    if facts.op.startswith("MseLoss") and facts.reduction == "mean" and seen.target_std:
        return seen.target_std**2 + (seen.target_mean or 0.0) ** 2
    return None


def _sizes(run: Circumstances) -> Iterator[Verdict]:
    floats = [each for each in run.loop.feed.inputs if each.dtype.startswith(("float", "bfloat"))]
    for tensor in floats:
        if is_far(tensor):
            reason = (
                f"input {tensor.name} spans {number(tensor.low)} … {number(tensor.high)} "
                f"with a standard deviation of {number(tensor.std)}"
            )
            yield Verdict("data-scale", 0.9, reason)
    sizes = [
        max(abs(t.low), abs(t.high)) for t in floats if t.low is not None and t.high is not None
    ]
    if sizes and 0 < max(sizes) < NEAR_ZERO:
        reason = f"no input is larger than {number(max(sizes))}: next to the biases that is nothing"
        yield Verdict("data-scale", 0.9, reason)
    for seen in run.loop.feed.losses.values():
        mean, std = seen.target_mean, seen.target_std
        if mean is None or std is None or not seen.facts.op.startswith(_SQUARES):
            continue
        if max(abs(mean), std) >= FAR:
            reason = f"targets lie at {number(mean)} with a deviation of {number(std)}"
            yield Verdict("data-scale", 0.9, reason)


def is_far(tensor: TensorSummary) -> bool:
    """Whether numbers lie where no usual normalisation leaves them."""
    if tensor.low is None or tensor.high is None:
        return False
    size = max(abs(tensor.low), abs(tensor.high))
    return size >= FAR and max(tensor.std or 0.0, abs(tensor.mean or 0.0)) >= FAR / 4
