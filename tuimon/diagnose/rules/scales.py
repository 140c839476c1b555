"""What makes an update too long beside the learning rate: sizes of data, loss, weights, settings.

Each function tells what it sees, whether or not that did any harm; rules ask when a training
suffers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import pairwise
from statistics import median

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.motion import Begun, Motion
from tuimon.diagnose.rules.concluding import Verdict
from tuimon.diagnose.rules.rates import bounded, factor_of, not_raised
from tuimon.model.graphs import LossTerm
from tuimon.model.units import number

# Initialisation and usual rates assume inputs of order 1; standardised data rarely passes 10.
FAR_INPUT = 100.0
SUMMED = 32  # elements: below it a sum and a mean differ by less than learning rates do
ACCUMULATED = 4  # backward calls of one update: likewise
WEIGHTY = 100.0  # times: a summand so much heavier than the others decides alone
# Gains of the initialisations in use lie between 0.5 and 2 (Glorot & Bengio 2010; He et al. 2015).
LARGE_GAIN, HUGE_GAIN = 3.0, 30.0
MANY = 1 / 3  # of the weights
FAR_TABLE = 10.0  # biases and embeddings begin at 0 or at order 1
SMALL_GAIN = 0.1
OLD_MEMORY = 1e6  # magnitude of a weight that no initialisation draws
FAINT = 0.2
# 1 / (1 - momentum) updates add up: 0.9 makes an update 10 times longer, 0.99 makes it 100 times.
LONG_MOMENTUM = 0.98
RISEN = 10.0  # times: a rate so far above the one that the training began with
RISEN_FOREVER = 2.5  # likewise, by the same factor at every step
EXPONENTIAL = 0.05  # relative difference between the growth of a rate's two halves
DECAYED = 0.03  # of the weights in each update, by weight decay alone


def oversized(run: Circumstances, step: int | None) -> Iterator[Verdict]:
    """Causes of updates that were too long up to `step`, but for the learning rate itself."""
    motion = run.motion
    yield from _inputs(run)
    yield from _targets(run)
    yield from summed(run)
    yield from _accumulated(run)
    yield from weighted(motion)
    yield from initial(motion.begun)
    yield from displaced(motion)
    yield from unsteady(motion)
    yield from raised(motion, step)


def _inputs(run: Circumstances) -> Iterator[Verdict]:
    for tensor in run.inputs:
        if tensor.is_computed:
            continue  # grown inside of the training
        if tensor.low is None or tensor.high is None or not tensor.dtype.startswith(("f", "b")):
            continue
        size = max(abs(tensor.low), abs(tensor.high))
        spread = tensor.std or 0.0
        if size >= FAR_INPUT and max(spread, abs(tensor.mean or 0.0)) >= FAR_INPUT / 4:
            reason = (
                f"input {tensor.name} spans {number(tensor.low)} … {number(tensor.high)} "
                f"with a standard deviation of {number(tensor.std)}"
            )
            yield Verdict("data-scale", 0.93, reason)
            return


def _targets(run: Circumstances) -> Iterator[Verdict]:
    for seen in run.seen:
        target = seen.target
        if target is None or target.std is None or not target.dtype.startswith(("f", "b")):
            continue
        if max(target.std, abs(target.mean or 0.0)) >= FAR_INPUT:
            reason = (
                f"targets lie at {number(target.mean)} with a deviation of {number(target.std)}"
            )
            yield Verdict("data-scale", 0.9, reason)
            return


def summed(run: Circumstances) -> Iterator[Verdict]:
    """A loss that grows with the number of elements."""
    for seen in run.seen:
        elements = 1
        for size in seen.prediction.shape:
            elements *= size
        if seen.facts.reduction == "sum" and elements >= SUMMED and not _divided(run.motion):
            reason = f"the loss is a sum over {elements:,} elements ({seen.facts.op})"
            yield Verdict("loss-scaling", 0.92, reason)
            return
    for term in terms_of(run.motion):
        if term.reduction == "sum" and (term.elements or 0) * abs(term.factor) >= SUMMED:
            times = "" if term.factor == 1 else f", times {number(term.factor)}"
            reason = f"the loss is a sum over {term.elements:,} elements{times} ({term.op})"
            yield Verdict("loss-scaling", 0.92, reason)
            return


def terms_of(motion: Motion) -> list[LossTerm]:
    """The summands of the loss, without the loss scale."""
    terms = motion.graph.terms if motion.graph is not None else []
    scale = motion.first_scale
    if motion.is_scaled and scale is None:
        return []  # which of the factors is the scale is not known
    if not scale or not any(abs(term.factor) >= scale / 2 for term in terms):
        return terms
    return [LossTerm(term.op, term.reduction, term.elements, term.factor / scale) for term in terms]


def _divided(motion: Motion) -> bool:
    """Whether a sum was divided by about the number of its elements."""
    found = [term for term in terms_of(motion) if term.reduction == "sum"]
    return bool(found) and all((term.elements or 0) * abs(term.factor) < SUMMED for term in found)


def _accumulated(run: Circumstances) -> Iterator[Verdict]:
    terms = terms_of(run.motion)
    if run.accumulated < ACCUMULATED or not terms:
        return
    if all(abs(term.factor) * run.accumulated >= ACCUMULATED for term in terms):
        reason = (
            f"gradients of {run.accumulated} backward calls add up in one update, and the loss of "
            f"each is not divided by their number"
        )
        yield Verdict("loss-scaling", 0.9, reason)


def weighted(motion: Motion) -> Iterator[Verdict]:
    """A summand that outweighs the others by its factor."""
    terms = terms_of(motion)
    heaviest = max(terms, key=lambda term: abs(term.factor), default=None)
    if heaviest is not None and abs(heaviest.factor) >= WEIGHTY and heaviest.reduction != "sum":
        reason = f"a part of the loss ({heaviest.op}) is multiplied by {number(heaviest.factor)}"
        yield Verdict("loss-scaling", 0.88, reason)


def initial(begun: list[Begun]) -> Iterator[Verdict]:
    """Weights that were too large before the first update."""
    old = next(_old_memory(begun), None)
    if old is not None:
        yield old
        return
    free = [weight for weight in begun if not weight.is_constant]
    if not free:
        return
    largest = max(free, key=lambda weight: weight.gain)
    middle = median(weight.gain for weight in free)
    large = sum(weight.gain >= LARGE_GAIN for weight in free)
    if large >= MANY * len(free) or largest.gain >= HUGE_GAIN:
        reason = (
            f"{largest.name} begins with a spread of {number(largest.rms)} at a fan-in of "
            f"{largest.fan_in}: it makes what it is given {number(largest.gain)} times larger "
            f"(the median of all weights is {number(middle)}; 1 to 1.4 keeps the size)"
        )
        yield Verdict("bad-init", 0.9, reason)


def _old_memory(begun: list[Begun]) -> Iterator[Verdict]:
    for weight in begun:
        if weight.absmax >= OLD_MEMORY or weight.faint >= FAINT:
            reason = (
                f"before the first update {weight.name} holds magnitudes of "
                f"{number(weight.rms)} on average and {number(weight.absmax)} at most: no "
                f"initialisation draws such numbers, old memory holds them"
            )
            yield Verdict("uninit-weights", 0.94, reason)


def displaced(motion: Motion) -> Iterator[Verdict]:
    """Biases or embeddings that begin far from 0."""
    old = next(_old_memory(motion.tables), None)
    if old is not None:
        yield old
        return
    far = max(motion.tables, key=lambda weight: weight.rms, default=None)
    if far is not None and far.rms >= FAR_TABLE:
        reason = f"{far.name} begins at magnitudes of {number(far.rms)}, not at 0 or order 1"
        yield Verdict("bad-init", 0.87, reason)


def unsteady(motion: Motion) -> Iterator[Verdict]:
    """Settings of the optimizer under which it does not settle."""
    settings = motion.settings
    momentum = settings.get("momentum", 0.0)
    first, second = settings.get("beta1"), settings.get("beta2")
    if momentum >= LONG_MOMENTUM:
        reason = (
            f"a momentum of {momentum:g} adds up {1 / max(1e-9, 1 - momentum):,.0f} updates and "
            f"makes the step that much longer than the learning rate says"
        )
        yield Verdict("opt-dynamics", 0.88, reason)
    elif first is not None and second is not None and first > second:
        reason = (
            f"beta1 = {first:g} is larger than beta2 = {second:g}: the step is divided by a "
            f"gradient that is newer than the one it is made of, which bounds nothing"
        )
        yield Verdict("opt-dynamics", 0.9, reason)
    elif first is not None and first >= LONG_MOMENTUM:
        yield Verdict(
            "opt-dynamics", 0.8, f"beta1 = {first:g} adds up {1 / (1 - first):,.0f} steps"
        )


def raised(motion: Motion, step: int | None) -> Iterator[Verdict]:
    """A learning rate that rose to where the training broke."""
    points = [p for p in motion.rates.points if step is None or p[0] <= step]
    if len(points) < 2 or not points[0][1] > 0:
        return
    for at, before, after in motion.raises:
        if step is None or step - 40 <= at <= step + 1:
            reason = (
                f"the learning rate was raised from {number(before)} to {number(after)} at step "
                f"{at}, right before"
            )
            yield Verdict("lr-schedule", 0.9, reason, not_raised(at, before, after))
            return
    first, last = points[0], points[-1]
    if last[1] < RISEN_FOREVER * first[1] or any(b < a for (_, a), (_, b) in pairwise(points)):
        return
    reason = (
        f"the learning rate has risen from {number(first[1])} to {number(last[1])} by step "
        f"{last[0]}, and was still rising"
    )
    if points[-2][1] < last[1] and _is_exponential(points):
        remedy = bounded(factor_of(first, last))
        yield Verdict("lr-schedule", 0.9, f"{reason}, by the same factor at every step", remedy)
    elif points[-2][1] < last[1] >= RISEN * first[1]:
        yield Verdict("lr-schedule", 0.75, reason, bounded(None))


def _is_exponential(points: list[tuple[int, float]]) -> bool:
    """Whether both halves of a rising rate grow by the same factor per step: no warm-up does."""
    middle = points[len(points) // 2]
    first, last = points[0], points[-1]
    before, after = middle[0] - first[0], last[0] - middle[0]
    if len(points) < 8 or before <= 0 or after <= 0:
        return False
    one = math.exp(math.log(middle[1] / first[1]) / before)
    other = math.exp(math.log(last[1] / middle[1]) / after)
    return one > 1 and abs(other - one) <= EXPONENTIAL * (one - 1)
