"""What a model that has learned nothing would lose, from the targets that the loss was given."""

from __future__ import annotations

import math
from collections import Counter

from tuimon.model.batches import LossSeen, TensorSummary
from tuimon.model.records import AnyRecord, Batch

MIN_TARGETS = 32  # fewer say little about how labels are spread
MAX_LOOKS = 64  # batches that are remembered; later ones change nothing

CLASSES = "NllLoss"
BINARY = "BinaryCrossEntropy"
SQUARES = "MseLoss"


class Chance:
    """The loss of the best constant answer, where the loss function has one that is known.

    Cross-entropy: the entropy of the labels, at most ln C. Binary cross-entropy: the entropy of
    the share of ones. Mean squared error: the variance of the targets.

    Attributes:
        name: what the level is, for a sentence.
    """

    def __init__(self) -> None:
        self.name = ""
        self._kinds: set[str] = set()
        self._labels: Counter[int] = Counter()
        self._classes: int | None = None
        self._targets: list[TensorSummary] = []

    def see(self, record: AnyRecord) -> None:
        """Take the targets of a batch into account."""
        if not isinstance(record, Batch):
            return
        if len(record.losses) > 1:
            self._kinds.add("several")
        for loss in record.losses[:1]:
            self._kinds.add(loss.facts.op if loss.facts.reduction == "mean" else "not a mean")
            self._classes = loss.facts.classes or self._classes
            self._take(loss)

    @property
    def level(self) -> float | None:
        """The loss of the best constant answer; None where it is not known."""
        if len(self._kinds) != 1:
            return None
        (kind,) = self._kinds
        if kind.startswith(CLASSES):
            return self._entropy_of_labels()
        if kind.startswith(BINARY):
            return self._entropy_of_ones()
        if kind.startswith(SQUARES):
            return self._variance()
        return None

    def _take(self, loss: LossSeen) -> None:
        if len(self._targets) >= MAX_LOOKS or loss.target is None:
            return
        self._targets.append(loss.target)
        self._labels.update(dict(loss.labels))

    def _entropy_of_labels(self) -> float | None:
        count = sum(self._labels.values())
        if count < MIN_TARGETS or not self._classes or self._classes < 2:
            return None
        shares = [n / count for n in self._labels.values() if n]
        entropy = -sum(share * math.log(share) for share in shares)
        # A sample shows less entropy than there is (Miller & Madow 1955).
        entropy += (len(shares) - 1) / (2 * count)
        most = math.log(self._classes)
        level = min(entropy, most)
        if level <= 0:
            return None
        is_even = level > 0.97 * most
        self.name = f"ln {self._classes}" if is_even else "the entropy of the labels"
        return most if is_even else level

    def _entropy_of_ones(self) -> float | None:
        weight = sum(each.looked_at for each in self._targets)
        share = self._mean()
        if weight < MIN_TARGETS or share is None or not 0 < share < 1:
            return None
        if any((each.low or 0) < 0 or (each.high or 0) > 1 for each in self._targets):
            return None
        self.name = "the entropy of the labels"
        return -share * math.log(share) - (1 - share) * math.log(1 - share)

    def _variance(self) -> float | None:
        weight = sum(each.looked_at for each in self._targets)
        mean = self._mean()
        if weight < MIN_TARGETS or mean is None:
            return None
        total = sum(
            each.looked_at * ((each.std or 0.0) ** 2 + ((each.mean or 0.0) - mean) ** 2)
            for each in self._targets
        )
        self.name = "the variance of the targets"
        return total / weight if total > 0 else None

    def _mean(self) -> float | None:
        known = [each for each in self._targets if each.mean is not None and each.looked_at]
        weight = sum(each.looked_at for each in known)
        return (
            sum((each.mean or 0.0) * each.looked_at for each in known) / weight if weight else None
        )
