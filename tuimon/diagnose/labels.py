"""What targets tell about their loss function: range, balance, and shapes that do not match."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from tuimon.model.batches import LossSeen
from tuimon.model.records import Batch
from tuimon.model.text import plain
from tuimon.model.units import number, percent

MANY_IGNORED_FRAC = 0.5


class Labels:
    """Adds up the class indices of the first batches, for the first loss function that has any."""

    def __init__(self) -> None:
        self._op = ""
        self._classes = 0
        self._counts: Counter[int] = Counter()
        self._low: int | None = None
        self._high: int | None = None
        self._targets = 0
        self._ignored = 0

    def add(self, batch: Batch) -> None:
        """Take in one batch."""
        for seen in batch.losses:
            facts, target = seen.facts, seen.target
            if facts.classes is None or target is None or target.why_not:
                continue
            if (facts.op, facts.classes) != (self._op, self._classes) and self._op:
                continue
            self._op, self._classes = facts.op, facts.classes
            self._counts.update(dict(seen.labels))
            self._ignored += seen.ignored or 0
            self._targets += target.looked_at
            if seen.label_range:
                low, high = seen.label_range
                self._low = low if self._low is None else min(self._low, low)
                self._high = high if self._high is None else max(self._high, high)

    def in_words(self) -> str:
        """ "labels 1 … 5 for 6 classes, never 0, in 96 targets"; "" without class indices."""
        if self._low is None or self._high is None:
            return ""
        text = f"labels {self._low:,} … {self._high:,} for {self._classes:,} classes"
        if self._low > 0:
            text += ", never 0" if self._low == 1 else f", never below {self._low:,}"
        text += f", in {self._targets:,} targets"
        counted = self._counts.total()
        if counted and self._classes > 1:
            label, most = self._counts.most_common(1)[0]
            text += f"; the most frequent is {label} with {percent(most / counted)}"
        if self._ignored and self._ignored >= MANY_IGNORED_FRAC * self._targets:
            text += f"; {percent(self._ignored / self._targets)} of the targets are ignored"
        return text


def target_remarks(seen: LossSeen) -> Iterator[tuple[str, str, str]]:
    """(kind, text, severity) about the targets of one loss function."""
    name = loss_name(seen)
    target = seen.target
    if target is None or target.why_not:
        return
    if seen.outside:
        expected = f"0 … {seen.facts.classes - 1:,}" if seen.facts.classes else "0 … 1"
        text = (
            f"{seen.outside:,} of {target.looked_at:,} targets of {name} lie outside {expected}: "
            f"they reach from {number(target.low)} to {number(target.high)}"
        )
        yield "target-range", text, "warning"
    if seen.ignored and not seen.label_range and seen.facts.reduction == "mean":
        ignored = f"every target of {name} is ignored ({seen.facts.ignore_index})"
        text = f"{ignored}: the mean of nothing is NaN"
        yield "ignored-labels", text, "warning"
    if len(seen.spread) == 2:
        yield from _spread_remark(name, seen)


def loss_name(seen: LossSeen) -> str:
    """The node's name as people know it: "NllLoss"."""
    return plain(seen.facts.op.rstrip("0123456789").removesuffix("Backward"), 60)


def _spread_remark(name: str, seen: LossSeen) -> Iterator[tuple[str, str, str]]:
    prediction, target = seen.spread
    whole = seen.prediction.shape
    text = (
        f"{name} compares every prediction with every target: {_shape(prediction)} against "
        f"{_shape(target)} was spread to {_shape(whole)}"
    )
    # Loss functions over pairs of quantiles or sets do this on purpose, with an axis for batches.
    is_meant = len(whole) != 2 or _count(prediction) != _count(target)
    yield "loss-shapes", text, "info" if is_meant else "warning"


def _shape(shape: list[int]) -> str:
    return "×".join(map(str, shape)) if shape else "one number"


def _count(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
