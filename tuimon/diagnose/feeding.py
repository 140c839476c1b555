"""What a training was fed with over time: ranges of inputs, of predictions and targets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from tuimon.diagnose.batches import non_finite_in_words
from tuimon.model.batches import LossFacts, LossSeen, TensorSummary
from tuimon.model.records import Batch

MAX_KINDS = 16
USUAL = 3  # batches that say what is usual
SUSPECT = ("suspicion", "jump")
# Times the largest magnitude of every usual batch: heavy tails reach further than three batches
# show, by a factor of five where the logarithm has a deviation of 1.
FAR = 30.0
# Times the largest deviation, of a batch that is as much larger altogether: one value does not move
# the deviation of a whole batch so far without moving its largest magnitude further.
WIDE = 10.0


@dataclass(frozen=True)
class LossRange:
    """What a loss function was given over all looks.

    Attributes:
        facts: the function.
        low, high: of the predictions.
        target_low, target_high: of the targets.
        target_mean, target_std: of the first batch.
        zeros: whether targets held exact zeros.
        outside: targets that the function does not expect.
        spread: shapes that were spread to one larger shape.
        looks: batches.
        step: of the first one with an `outside`.
    """

    facts: LossFacts
    low: float = math.inf
    high: float = -math.inf
    target_low: float = math.inf
    target_high: float = -math.inf
    target_mean: float | None = None
    target_std: float | None = None
    zeros: bool = False
    outside: int = 0
    spread: tuple[tuple[int, ...], ...] = ()
    looks: int = 0
    step: int | None = None


@dataclass(frozen=True)
class Outlier:
    """A batch far outside of what earlier ones held."""

    step: int
    name: str
    size: float
    usual: float


class Feed:
    """Bounded figures of what was fed.

    Attributes:
        losses: by (operation, what made its predictions).
        outliers: batches that a loss or gradient jumped with, and that reach further than usual.
        inputs: tensors of the first batch that are data.
        poisoned: step -> what its batch held that is not finite, in words.
    """

    def __init__(self) -> None:
        self.losses: dict[tuple[str, ...], LossRange] = {}
        self.outliers: list[Outlier] = []
        self.inputs: list[TensorSummary] = []
        self.poisoned: dict[int, str] = {}
        self._usual: dict[str, tuple[float, float]] = {}  # name -> largest magnitude, deviation
        self._usual_looks = 0

    def see(self, batch: Batch) -> None:
        """Take one batch in."""
        for seen in batch.losses:
            self._take(seen, batch.step)
        computed = any(each.is_computed for each in batch.inputs)
        found = "" if computed else non_finite_in_words(batch)
        if found and len(self.poisoned) < MAX_KINDS:
            self.poisoned.setdefault(batch.step, found)
        named = [(f"input {each.name}", each) for each in batch.inputs if not each.is_computed]
        named += [
            (f"the target of {seen.facts.op.partition('Backward')[0]}", seen.target)
            for seen in batch.losses
            if seen.target is not None and seen.facts.classes is None
        ]
        if batch.why in SUSPECT:
            self._compare(batch, named)
        else:
            self._usual_looks += 1
            self.inputs = self.inputs or [each for each in batch.inputs if not each.is_computed]
            for name, each in named:
                if (size := _size(each)) is not None:
                    most, widest = self._usual.get(name, (0.0, 0.0))
                    self._usual[name] = max(size, most), max(each.std or 0.0, widest)

    def _compare(self, batch: Batch, named: list[tuple[str, TensorSummary]]) -> None:
        for name, each in named:
            size, (usual, widest) = _size(each), self._usual.get(name, (0.0, 0.0))
            if size is None or self._usual_looks < USUAL or usual == 0:
                continue
            is_wide = widest > 0 and (each.std or 0.0) > WIDE * widest and size > WIDE * usual
            if (size > FAR * usual or is_wide) and len(self.outliers) < MAX_KINDS:
                self.outliers.append(Outlier(batch.step, name, size, usual))

    def _take(self, seen: LossSeen, step: int) -> None:
        key = (seen.facts.op, *seen.facts.above)
        known = self.losses.get(key)
        if known is None:
            if len(self.losses) >= MAX_KINDS:
                return
            target = seen.target
            known = LossRange(
                seen.facts,
                target_mean=None if target is None else target.mean,
                target_std=None if target is None else target.std,
            )
        self.losses[key] = _with(known, seen, step)


def _with(known: LossRange, seen: LossSeen, step: int) -> LossRange:
    prediction, target = seen.prediction, seen.target
    low = known.low if prediction.low is None else min(known.low, prediction.low)
    high = known.high if prediction.high is None else max(known.high, prediction.high)
    grown = replace(known, low=low, high=high, looks=known.looks + 1)
    if seen.spread and not known.spread:
        grown = replace(grown, spread=tuple(tuple(shape) for shape in seen.spread))
    if seen.outside and known.step is None:
        grown = replace(grown, step=step)
    grown = replace(grown, outside=known.outside + (seen.outside or 0))
    if target is None or target.low is None or target.high is None:
        return grown
    return replace(
        grown,
        target_low=min(known.target_low, target.low),
        target_high=max(known.target_high, target.high),
        zeros=known.zeros or bool(target.zero_frac),
    )


def _size(each: TensorSummary) -> float | None:
    if each.low is None or each.high is None or not each.dtype.startswith(("float", "bfloat")):
        return None
    return max(abs(each.low), abs(each.high))
