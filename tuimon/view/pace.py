"""How fast a training steps: its newest step times, and what follows from them.

Owns no clock; times are what the records say.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from itertools import pairwise

from tuimon.model.records import Step
from tuimon.view.frame import Timing

WINDOW_STEPS = 128  # enough for a 95th percentile, few enough to follow a change
WINDOW_S = 10.0  # means speak of the last seconds
_PARTS = ("step_s", "data_s", "forward_s", "backward_s", "optimizer_s")


class Pace:
    """Readings over the newest steps of the primary optimizer."""

    def __init__(self) -> None:
        self._steps: deque[Step] = deque(maxlen=WINDOW_STEPS)
        self._durations: deque[float] = deque(maxlen=WINDOW_STEPS)
        self.last_time_s: float | None = None  # unix time of the newest step

    def add(self, record: Step) -> None:
        """Take in one step."""
        time_s = record.time_ns / 1e9
        duration = record.step_s
        if duration is None and self._steps and record.step == self._steps[-1].step + 1:
            duration = time_s - self.last_time_s if self.last_time_s is not None else None
        if duration is not None and math.isfinite(duration) and duration >= 0:
            self._durations.append(duration)
        self._steps.append(record)
        self.last_time_s = time_s

    def restart(self) -> None:
        """Forget: the steps that follow do not continue these."""
        self._steps.clear()

    @property
    def usual_slowest_s(self) -> float | None:
        """95th percentile of the newest step times; None before the first."""
        if not self._durations:
            return None
        ordered = sorted(self._durations)
        return ordered[int(0.95 * (len(ordered) - 1))]

    @property
    def steps_per_s(self) -> float | None:
        """Steps per second over the last seconds; None with fewer than two steps."""
        newest = self._newest()
        if len(newest) < 2:
            return None
        span_s = (newest[-1].time_ns - newest[0].time_ns) / 1e9
        return (newest[-1].step - newest[0].step) / span_s if span_s > 0 else None

    @property
    def batches_per_s(self) -> float | None:
        """Batches per second over the last seconds, from step to step; None when not known.

        From the end of a pass to the beginning of the next nothing is counted.
        """
        newest = self._newest()
        count = span_ns = 0
        for before, after in pairwise(newest):
            old, new = before.batch_index, after.batch_index
            if old is None or new is None or new <= old or before.data_epoch != after.data_epoch:
                continue
            count += new - old
            span_ns += after.time_ns - before.time_ns
        return count / span_ns * 1e9 if span_ns > 0 else None

    def timing(self) -> Timing:
        """Mean parts of a step over the last seconds."""
        newest = self._newest()
        means = {part: _mean(getattr(step, part) for step in newest) for part in _PARTS}
        both = [
            (step.cost_s, step.step_s)
            for step in newest
            if step.cost_s is not None and step.step_s is not None
        ]
        whole_s = sum(step_s for _, step_s in both)
        cost = sum(cost_s for cost_s, _ in both) / whole_s if whole_s > 0 else None
        return Timing(**means, cost_frac=cost)

    def _newest(self) -> list[Step]:
        """The steps of the last seconds, at least the last two."""
        steps = list(self._steps)
        if not steps:
            return []
        since_ns = steps[-1].time_ns - int(WINDOW_S * 1e9)
        first = next(i for i, step in enumerate(steps) if step.time_ns >= since_ns)
        return steps[max(0, min(first, len(steps) - 2)) :]


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
