"""Causes of a loss that stays where it began, in how far and how evenly the weights are moved."""

from __future__ import annotations

import math
from collections.abc import Iterator
from statistics import median

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.detectors.units import RECTIFIERS
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import Verdict, from_symptom
from tuimon.diagnose.rules.growing import recurrence
from tuimon.diagnose.rules.scales import (
    DECAYED,
    SMALL_GAIN,
    displaced,
    initial,
    oversized,
    terms_of,
    unsteady,
    weighted,
)
from tuimon.diagnose.rules.stalling import is_adaptive
from tuimon.model.records import Symptom
from tuimon.model.units import number

LONG = 80  # updates before a loss that has not moved is called standing
STANDING = 0.95  # of the first losses
# A step of a third of a weight's length leaves little of what the weight was. Steps in use are a
# thousandth (Goyal et al. 2017), a tenth while Adam begins.
OVERTURNED = 0.3
BOLD = 0.05
OVERSHOT = 3.0  # times the first loss, reached within the first updates
# Thrown so far up, a training that has not come down by more is still paying for it. Healthy ones
# hop to 2.4 times their first loss at most (59 measured).
THROWN, SLOWED = 5.0, 0.4
HIGH = 10.0  # times the level: thrown by one update
MOSTLY_ZERO, MANY_SILENT = 0.8, 0.5  # shares of what a layer gives, and of its units
SWINGING = 0.02  # ratio of update to weight; alternating data swings at any
# In a thousand such steps a weight moves by less than a hundredth of its length.
UNMOVED = 5e-6
EPSILON = 3.0  # times a usual gradient: the step is the gradient over epsilon then
DIVIDED, LESSENED = 1 / 16, 1 / 4  # of a mean
LONG_TIME = 40  # uses of one weight in a row over which a gradient fades
BLOCKS = 4
_ATTENTION = ("Softmax", "ScaledDotProduct", "SafeSoftmax")
_GATED = ("LSTM", "GRU", "LSTMCell", "GRUCell")
_KINDS = ("plateau", "slow-progress", "oscillation", "vanishing-gradient", "dead-units")


class Standing:
    """Steps too long or too short to learn anything, and weights that begin in a dead end."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.updates < LONG or _grows(evidence):
            return
        swings = _swings(run, evidence)
        told = _told(evidence) or swings
        symptom = told or _seen(run)
        if symptom is None:
            return
        verdicts = [*_begun(run), *_settings(run, evidence), *_short(run, evidence), *_long(run)]
        verdicts += _faded(run)
        if swings is not None:
            reason = f"the learning rate is {number(run.top_rate)}, too long for the curvature"
            verdicts.append(Verdict("lr-too-high", 0.85, reason))
        if told is not None:
            verdicts += [*unsteady(run.motion), *weighted(run.motion)]
            verdicts += _cold(run, evidence)
            verdicts += _thrown(run, evidence)
        for verdict in verdicts:
            yield from_symptom(verdict.cause, symptom, verdict.confidence, [verdict.reason])


def _grows(evidence: Evidence) -> bool:
    """Whether an explosion explains that nothing was learned; it has rules of its own."""
    lost = ("explosion", "non-finite-parameter")
    return any(s.kind in lost and s.severity == "critical" for s in evidence.symptoms)


def _told(evidence: Evidence) -> Symptom | None:
    found = [s for s in evidence.symptoms if s.kind in _KINDS and s.severity != "info"]
    return found[0] if found else None


def _swings(run: Circumstances, evidence: Evidence) -> Symptom | None:
    """A loss that swings from step to step, in long steps."""
    found = next((s for s in evidence.symptoms if s.kind == "oscillation"), None)
    usual = run.motion.usual_ratio
    if found is None or usual is None or usual < SWINGING:
        return None
    return Symptom(found.kind, found.step, found.rank, "warning", found.detail)


def _seen(run: Circumstances) -> Symptom | None:
    """A loss of any kind that has not come down from where it began."""
    start, level = run.motion.start, run.motion.level
    if start is None or level is None or start <= 0:
        return None
    ratio = run.motion.early_ratio
    thrown = run.motion.peak >= THROWN * start and ratio is not None and ratio >= BOLD
    if level < (SLOWED if thrown else STANDING) * start:
        return None
    if any(loss <= 0 for _, loss in run.motion.losses.points):
        return None  # a loss that crosses zero has no level
    detail = f"the loss is {number(level)} after {run.updates:,} updates, and began at "
    detail += number(start)
    return Symptom("slow-progress", 0, 0, "warning", detail)


def _begun(run: Circumstances) -> Iterator[Verdict]:
    begun = run.motion.begun
    constant = [weight for weight in begun if weight.is_constant]
    # A factor that begins at 0 is common, one of two in a product: the other one moves it.
    if len(begun) >= 2 and len(constant) > len(begun) / 2:
        reason = (
            f"{len(constant)} of {len(begun)} weights begin as one number throughout "
            f"({constant[0].name}): all units of a layer get the same gradient, or none"
        )
        yield Verdict("bad-init", 0.95, reason)
        return
    free = [weight.gain for weight in begun if not weight.is_constant]
    if len(free) >= 3 and median(free) <= SMALL_GAIN:
        reason = (
            f"weights begin so small that each layer makes its input {number(1 / median(free))} "
            f"times smaller (the median of {len(free)}): nothing of it reaches the loss"
        )
        yield Verdict("bad-init", 0.94, reason)
        return
    yield from initial(begun)
    yield from displaced(run.motion)


def _settings(run: Circumstances, evidence: Evidence) -> Iterator[Verdict]:
    settings = run.motion.settings
    decay = settings.get("weight_decay", 0.0) * run.top_rate
    if decay >= DECAYED:
        reason = (
            f"weight decay takes {100 * min(decay, 1.0):.0f} % of every weight at each update "
            f"(weight_decay = {settings['weight_decay']:g}, learning rate {number(run.top_rate)})"
        )
        yield Verdict("opt-dynamics", 0.9, reason)
    epsilon, norm = settings.get("eps"), run.motion.usual_norm
    if epsilon is None or not norm or not is_adaptive(evidence) or run.table is None:
        return
    elements = sum(math.prod(shape) for shape in run.table.shapes)
    usual = norm / math.sqrt(max(1, elements))
    if epsilon >= EPSILON * usual and epsilon > 1e-6:
        reason = (
            f"eps = {epsilon:g} outweighs the gradients, whose elements are {number(usual)} on "
            f"average: the optimizer divides by eps and makes steps that much shorter"
        )
        yield Verdict("opt-dynamics", 0.92, reason)


def _short(run: Circumstances, evidence: Evidence) -> Iterator[Verdict]:
    motion = run.motion
    factors = [abs(t.factor) * (1 if t.reduction == "mean" else t.elements or 1)
               for t in terms_of(motion) if t.reduction]  # fmt: skip
    divided = bool(factors) and run.accumulated <= 1 and not is_adaptive(evidence)
    if divided and max(factors) <= LESSENED:
        certainty = 0.92 if max(factors) <= DIVIDED else 0.7
        reason = (
            f"the loss is a mean, multiplied by {number(max(factors))} once more, while each "
            f"update follows one backward call"
        )
        yield Verdict("loss-scaling", certainty, reason)
        return
    ratio = motion.usual_ratio
    if ratio is None or ratio > UNMOVED or not run.top_rate or len(motion.ratios) < 2:
        return
    reason = f"an update moves the weights by {number(ratio)} of their length"
    first, last = run.rates[:1], run.last_rate
    if motion.scheduled or (first and first[0] != last):
        rates = f"the learning rate began at {number(first[0])} and is {number(last)} now"
        base = motion.settings.get("initial_lr")
        of = f", of the {number(base)} that it was built with" if base else ""
        yield Verdict("lr-schedule", 0.92, f"{reason}: {rates}{of}")


def _long(run: Circumstances) -> Iterator[Verdict]:
    motion = run.motion
    ratio, start = motion.early_ratio, motion.start
    overshot = start is not None and start > 0 and motion.peak >= OVERSHOT * start
    # Where the first batch was an easy one, everything after it looks like a rise.
    overshot = overshot and (ratio is None or ratio >= BOLD)
    overturned = ratio is not None and ratio >= OVERTURNED
    if not (overshot or overturned):
        return
    parts = []
    if overturned:
        parts.append(f"an early update moved the weights by {number(ratio)} of their length")
    if overshot and start is not None:
        times = motion.peak / start
        parts.append(f"the loss rose to {number(times)} times its start within the first updates")
    others = list(oversized(run, None)) if overshot else []
    yield from others
    parts.append(f"the learning rate is {number(run.top_rate)}")
    explained = any(verdict.confidence >= 0.85 for verdict in others)
    yield Verdict("lr-too-high", 0.65 if explained else 0.88, "; ".join(parts))


def _thrown(run: Circumstances, evidence: Evidence) -> Iterator[Verdict]:
    """Bold steps that threw the loss up, and what has not come back since."""
    motion = run.motion
    times = [s.figures.get("times", 0.0) for s in evidence.symptoms if s.kind == "spike"]
    high = [each for each in times if each >= HIGH]
    start, level, ratio = motion.start, motion.level, motion.early_ratio
    if not high or start is None or level is None or level < start:
        return
    if ratio is None or ratio < BOLD:
        return
    reason = (
        f"the loss jumped up to {number(max(high))} times its level and stays above where it "
        f"began; an update moved the weights by {number(ratio)} of their length, at a learning "
        f"rate of {number(run.top_rate)}"
    )
    yield Verdict("lr-too-high", 0.87, reason)
    for output in motion.outputs.values():
        zeros, silent = output.zero_frac or 0.0, output.silent_frac or 0.0
        if output.kind in RECTIFIERS and zeros >= MOSTLY_ZERO and silent >= MANY_SILENT:
            off = (
                f"{100 * zeros:.0f} % of what {output.module or 'the model'} gives is 0, and "
                f"{100 * silent:.0f} % of its units are for every sample"
            )
            yield Verdict("dead-relu", 0.8, off)
            return


def _cold(run: Circumstances, evidence: Evidence) -> Iterator[Verdict]:
    """Many attention blocks under an adaptive optimizer that began at its full rate."""
    kinds = run.motion.graph.kinds if run.motion.graph is not None else {}
    attention = sum(count for kind, count in kinds.items() if kind.startswith(_ATTENTION))
    if attention < BLOCKS or not is_adaptive(evidence) or run.warms_up:
        return
    reason = (
        f"{attention} attention layers under an adaptive optimizer that began at its full "
        f"learning rate of {number(run.top_rate)}: there is no warm-up"
    )
    yield Verdict("lr-schedule", 0.8, reason)


def _faded(run: Circumstances) -> Iterator[Verdict]:
    """A long time to remember over, without gates: what came early has no gradient."""
    graph = run.motion.graph
    uses = max((count for _, count in graph.uses), default=0) if graph is not None else 0
    uses = max(uses, run.most_calls[0])
    if uses < LONG_TIME or any(kind in _GATED for kind in run.kinds):
        return
    if reason := recurrence(run):
        faded = f"{reason}, {uses} in a row: with gains below 1 nothing early has a gradient"
        yield Verdict("grad-vanish", 0.82, faded)
