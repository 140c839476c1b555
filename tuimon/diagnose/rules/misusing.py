"""Causes in what a loss function is given, by its node and by the range of what it was given."""

from __future__ import annotations

from collections.abc import Iterator

from tuimon.diagnose.circumstances import Circumstances
from tuimon.diagnose.evidence import Evidence
from tuimon.diagnose.feeding import LossRange
from tuimon.diagnose.findings import Finding
from tuimon.diagnose.rules.concluding import Verdict, from_symptom
from tuimon.diagnose.rules.observing import observed
from tuimon.model.batches import LossFacts
from tuimon.model.units import number

LONG = 20  # updates: a look at a loss that is used
_LOGARITHMS = ("Log", "Add", "Sub")  # LogSoftmax and sums of logarithms
ABOVE_ZERO = 0.01  # a logarithm of a probability is never above 0, but for rounding
# What hands numbers on without changing them: between two softmaxes only these may stand.
_PASSING = (
    "View", "Reshape", "UnsafeView", "Squeeze", "Unsqueeze", "Transpose", "Permute", "T", "Clone",
    "Select", "Slice", "ToCopy", "Index", "Expand", "Alias", "Cat", "Stack", "Split", "Unbind",
    "MaskedSelect", "Flatten", "Dropout", "NativeDropout",
)  # fmt: skip


class Misuse:
    """A loss that gets what another loss expects."""

    def conclude(self, evidence: Evidence) -> Iterator[Finding]:
        run = evidence.circumstances
        if run is None or run.updates < LONG:
            return
        for seen in run.loop.feed.losses.values():
            verdict = next(_judge(seen), None) or _negative(seen, run)
            if verdict is not None:
                symptom = observed(verdict.reason, evidence)
                yield from_symptom(verdict.cause, symptom, verdict.confidence, _warned(run))


def _judge(seen: LossRange) -> Iterator[Verdict]:
    facts = seen.facts
    op = facts.op.partition("Backward")[0]
    if shapes := crossed(seen):
        yield Verdict("loss-api", 0.95, shapes)
    if twice := applied_twice(facts):
        yield Verdict("loss-api", 0.93, twice)
    yield from _ranges(op, seen)
    if facts.classes == 1 and op.startswith("NllLoss"):
        reason = "cross-entropy over a single class is always 0: it teaches nothing"
        yield Verdict("loss-api", 0.95, reason)
    if facts.axis is not None and op.startswith("NllLoss") and facts.axis != facts.class_axis:
        reason = (
            f"the softmax before the loss runs over axis {facts.axis}; the classes lie on axis "
            f"{facts.class_axis}"
        )
        yield Verdict("loss-api", 0.92, reason)
    if facts.is_swapped and op.startswith("BinaryCrossEntropy"):
        reason = f"{op} was given the target as its prediction: only its target needs a gradient"
        yield Verdict("loss-api", 0.9, reason)


def _negative(seen: LossRange, run: Circumstances) -> Verdict | None:
    """A divergence that is negative: its prediction is no logarithm."""
    above = [_plain(name) for name in seen.facts.above[:1]]
    if seen.facts.op != "KlDiv" or not above or above[0].startswith(_LOGARITHMS):
        return None
    level = run.motion.level
    if level is None or level >= 0:
        return None
    reason = (
        f"the divergence is {number(level)}, which none can be: its prediction comes from "
        f"{above[0]} and not from a logarithm"
    )
    return Verdict("loss-api", 0.95, reason)


def _ranges(op: str, seen: LossRange) -> Iterator[Verdict]:
    if op.startswith(("NllLoss", "KlDiv")) and seen.high > ABOVE_ZERO:
        what = "probabilities" if seen.low >= 0 and seen.high <= 1.0001 else "scores"
        reason = (
            f"{op} expects logarithms of probabilities, which are never above 0, and was given "
            f"{what} of {number(seen.low)} … {number(seen.high)}"
        )
        yield Verdict("loss-api", 0.96, reason)
    if op.startswith("BinaryCrossEntropy") and seen.outside:
        reason = (
            f"{op} was given targets of {number(seen.target_low)} … {number(seen.target_high)}; it "
            f"expects 0 … 1, and has no lower bound outside of that"
        )
        yield Verdict("label-range", 0.96, reason)
    if op.startswith("SoftMarginLoss") and seen.zeros and seen.target_low >= 0:
        reason = f"{op} expects targets of -1 and 1 and was given 0: those teach nothing"
        yield Verdict("label-range", 0.93, reason)


def crossed(seen: LossRange) -> str:
    """A column compared with a row, each number with each; "" where shapes agree."""
    if len(seen.spread) != 2:
        return ""
    column, row = sorted(seen.spread, key=len, reverse=True)
    if len(column) != 2 or len(row) != 1 or column != (row[0], 1) or row[0] < 2:
        return ""
    return (
        f"shapes {column} and {row} were spread to {(row[0], row[0])}: every prediction is "
        f"compared with every target, and only their mean can be learned"
    )


def applied_twice(facts: LossFacts) -> str:
    """Probabilities given to a loss that takes a softmax or sigmoid of its own; "" otherwise."""
    above = [_plain(name) for name in facts.above]
    with_logits = facts.op.startswith("BinaryCrossEntropyWithLogits")
    if not with_logits and above[:1] != ["LogSoftmax"]:
        return ""
    for name in above if with_logits else above[1:]:
        if name in ("Softmax", "Sigmoid"):
            own = "sigmoid" if with_logits else "softmax"
            return f"the predictions went through {name} before the loss took its own {own}"
        if name not in _PASSING:
            return ""
    return ""


def _plain(name: str) -> str:
    return name.partition("Backward")[0]


def _warned(run: Circumstances) -> list[str]:
    text = run.loop.warned.get("broadcast") or run.loop.warned.get("softmax-axis")
    return [f"PyTorch warned: {text}"] if text else []
