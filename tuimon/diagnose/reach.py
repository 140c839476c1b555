"""How far updates can have moved a weight, and weights that are further away. Finds nothing.

Bounded whatever the length of the run.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from tuimon.diagnose.incidents import PRIMARY
from tuimon.model.records import AnyRecord, Facts, Step
from tuimon.model.samples import ParameterSample, ParameterSamples, StartingWeights

# Their update of one element is a few rates at most, whatever the gradient: (1 - beta1) divided by
# the root of (1 - beta2) is 3 for the usual ones. RAdam and a centred RMSprop have no such bound.
BOUNDED = ("Adam", "AdamW", "NAdam", "Adamax", "Adagrad")
PLAIN = "SGD"
RATES = 100.0
# Of the farthest that can be: a copy from elsewhere stays within, the flip of a high bit does not.
FAR = 1e6
MOST = 1.0  # weights that begin at 0 may be set to something of order 1 by hand


class Beyond(NamedTuple):
    """A finite weight that no update can have made.

    Attributes:
        step: of the update before or after which it was seen.
        reach: the largest that updates can have made of any element.
    """

    step: int
    name: str
    size: float
    reach: float


class Reach:
    """The largest magnitude that the primary optimizer's updates can have led to.

    Attributes:
        beyond: the first weight that is much larger.
    """

    def __init__(self) -> None:
        self.beyond: Beyond | None = None
        self._start: float | None = None
        self._moved = 0.0
        self._next = 0
        self._optimizer = ""
        self._settings: dict[str, float] = {}

    def see(self, record: AnyRecord) -> None:
        """Take one record in."""
        if isinstance(record, Facts):
            self._optimizer = record.optimizers[0] if record.optimizers else ""
            self._settings = record.settings[0] if record.settings else {}
        elif isinstance(record, StartingWeights):
            largest = np.frombuffer(record.absmax, "<f4")
            self._start = float(largest.max()) if largest.size else None
        elif isinstance(record, Step) and record.optimizer == PRIMARY:
            missed = record.step != self._next
            self._next = record.step + 1
            self._moved += math.inf if missed else self._stride(record)
        elif isinstance(record, ParameterSamples) and record.optimizer == PRIMARY:
            for item in record.items:
                self._look(record.step, item)

    def _stride(self, update: Step) -> float:
        """The farthest that this update can have moved an element."""
        known = [rate for rate in update.lrs if rate is not None]
        if update.skipped:
            return 0.0
        if not known or len(known) < len(update.lrs):
            return math.inf
        rate = max(known)
        if self._optimizer in BOUNDED:
            return RATES * rate
        norm, kept = update.grad_norm_clipped, 1.0 - self._settings.get("momentum", 0.0)
        decays = rate * self._settings.get("weight_decay", 0.0) >= 1.0
        if self._optimizer != PLAIN or norm is None or kept <= 0 or decays:
            return math.inf
        return rate * norm / kept if math.isfinite(norm) else math.inf

    def _look(self, step: int, item: ParameterSample) -> None:
        if self.beyond is not None or self._start is None or not math.isfinite(self._start):
            return
        reach = max(MOST, self._start + self._moved)
        root = math.sqrt(max(1, item.compared))
        for size, bound in ((item.weight_norm, reach * root), (item.weight_absmax, reach)):
            if size is not None and math.isfinite(size) and size > FAR * bound:
                self.beyond = Beyond(step, item.name, size, reach)
                return
