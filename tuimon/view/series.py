"""One metric over time: append-only samples, running readings, and windows reduced to columns.

Implements `frame.SeriesView`. Belongs to the thread that applies records; holds no lock.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tuimon.view.blocks import Block
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Envelope
from tuimon.view.pyramid import Pyramid

FLOAT32_MAX = float(np.finfo(np.float32).max)
EMA_KEEP = 0.98
EMA_MEMORY = 4096  # samples after which a factor of 0.98 has forgotten everything (1e-36)
LATE_LIMIT = 4096  # samples that an out-of-order one may have to pass


class Series:
    """An append-only series of (step, value).

    Values beyond float32 are clipped to its largest finite number; NaN and infinities stay what
    they are and never touch bounds or the moving average. Several samples of one step are kept.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._pyramid = Pyramid()
        self._version = 0
        self._seeded = np.empty(0, np.int64)  # samples that each seeded bucket stands for
        self._last_step: int | None = None
        self._last: float | None = None
        # Average and total weight of an average that gives the newest sample 1 - EMA_KEEP; their
        # quotient does not lean towards the first sample (Kingma and Ba 2015, section 3).
        self._ema_sum = self._ema_weight = 0.0
        self._minimum = math.inf
        self._maximum = -math.inf

    @property
    def version(self) -> int:
        """Grows with every change of the content."""
        return self._version

    @property
    def count(self) -> int:
        """Samples seen, including those that seeded buckets stand for."""
        return int(self._seeded.sum()) + self._pyramid.raw.count

    @property
    def first_step(self) -> int | None:
        raw = self._pyramid.raw
        return raw.step_at(0) if raw.total else None

    @property
    def last_step(self) -> int | None:
        return self._last_step

    @property
    def last(self) -> float | None:
        """The newest value; may be NaN or infinite."""
        return self._last

    @property
    def ema(self) -> float | None:
        """Exponential moving average of the finite values, factor 0.98."""
        return self._ema_sum / self._ema_weight if self._ema_weight else None

    @property
    def minimum(self) -> float | None:
        return self._minimum if self._minimum <= self._maximum else None

    @property
    def maximum(self) -> float | None:
        return self._maximum if self._minimum <= self._maximum else None

    def seed(
        self,
        steps: npt.ArrayLike,
        low: npt.ArrayLike,
        high: npt.ArrayLike,
        *,
        mean: npt.ArrayLike,
        last: npt.ArrayLike,
        flags: npt.ArrayLike,
        counts: npt.ArrayLike,
        newest_step: int | None = None,
        width: int = 1,
    ) -> None:
        """Begin with buckets of a thinned history; without effect once there are samples.

        Args:
            steps: first step of each bucket, increasing.
            low, high, mean: over the finite samples of each bucket; ignored where `flags` has
                no `HAS_FINITE`.
            last: newest value of each bucket.
            flags: `HAS_*` bits of each bucket, never 0.
            counts: finite samples of each bucket.
            newest_step: step of the newest sample; the last of `steps` when absent.
            width: steps that each bucket covers.
        """
        keys = np.asarray(steps, np.int64)
        if self._last_step is not None or not len(keys):
            return
        bits = np.asarray(flags, np.uint8)
        finite = (bits & HAS_FINITE) != 0
        weight = np.where(finite, np.maximum(np.asarray(counts), 1), 0)
        raw = self._pyramid.raw
        raw.prefix = Block(
            keys,
            np.where(finite, _stored(low), np.float32(np.inf)),
            np.where(finite, _stored(high), np.float32(-np.inf)),
            np.where(finite, _stored(mean), np.float32(0)),
            weight.astype(np.float32),
            bits,
        )
        self._seeded = np.maximum(weight, 1).astype(np.int64)
        self._last_step = int(keys[-1]) if newest_step is None else newest_step
        raw.prefix_width, raw.prefix_end = width, self._last_step + 1
        self._last = float(_stored(last)[-1])
        self._measure()
        self._version += 1

    def append(self, step: int, value: float) -> bool:
        """Add one sample; a late one is sorted in.

        Returns:
            False when the sample is too old to be placed: it is not kept.
        """
        if value > FLOAT32_MAX:
            value = value if value == math.inf else FLOAT32_MAX
        elif value < -FLOAT32_MAX:
            value = value if value == -math.inf else -FLOAT32_MAX
        if self._last_step is not None and step < self._last_step:
            return self._sort_in(step, value)
        self._pyramid.raw.append(step, value)
        self._last_step = step
        self._last = value
        self._read(value)
        return True

    def extend(self, steps: npt.ArrayLike, values: npt.ArrayLike) -> None:
        """Add many samples in step order, none older than the last one."""
        keys = np.asarray(steps, np.int64)
        if not len(keys):
            return
        stored = _stored(values)
        self._pyramid.raw.extend(keys, stored)
        self._last_step = int(keys[-1])
        self._last = float(stored[-1])
        finite = stored[np.isfinite(stored)]
        if len(finite):
            self._minimum = min(self._minimum, float(finite.min()))
            self._maximum = max(self._maximum, float(finite.max()))
            self._smooth(finite[-EMA_MEMORY:].tolist())
        self._version += 1

    def cut(self, step: int) -> None:
        """Forget `step` and everything after it: the run was taken up again from there."""
        if self._last_step is None or self._last_step < step:
            return
        raw = self._pyramid.raw
        keep = int(raw.find(np.array([step], np.int64))[0])
        self._pyramid.truncate(keep)
        raw.prefix_end = min(raw.prefix_end, step)
        self._seeded = self._seeded[: len(raw.prefix.keys)]
        self._version += 1
        self._last_step = raw.step_at(keep - 1) if keep else None
        self._last = self._newest() if keep else None
        self._measure()

    def envelope(self, first_step: int, end_step: int, columns: int) -> Envelope:
        """Reduce the steps in [first_step, end_step) to `columns`.

        A sample is displaced by less than a quarter of a column and never lost. The cost depends
        on the columns, not on the length of the history.
        """
        return self._pyramid.envelope(first_step, end_step, columns)

    def non_finite_near(self, step: int, *, forward: bool) -> int | None:
        """The nearest step strictly after (or before) `step` at which NaN or Inf begin."""
        return self._pyramid.non_finite_near(step, forward=forward)

    def value_at(self, step: int) -> tuple[int, float] | None:
        """The newest sample at or before `step`, as (step, value)."""
        raw = self._pyramid.raw
        index = int(raw.find(np.array([step + 1], np.int64))[0]) - 1
        if index < 0:
            return None
        return raw.step_at(index), _shown(raw.part(index, index + 1))

    def _sort_in(self, step: int, value: float) -> bool:
        raw = self._pyramid.raw
        place = int(raw.find(np.array([step + 1], np.int64))[0])
        if place < len(raw.prefix.keys) or raw.total - place > LATE_LIMIT:
            return False
        steps, values = raw.tail(place)
        self._pyramid.truncate(place)
        raw.append(step, value)
        for later_step, later_value in zip(steps, values, strict=True):
            raw.append(later_step, later_value)
        self._read(value)
        return True

    def _read(self, value: float) -> None:
        self._version += 1
        if -FLOAT32_MAX <= value <= FLOAT32_MAX:
            if value < self._minimum:
                self._minimum = value
            if value > self._maximum:
                self._maximum = value
            self._ema_sum = EMA_KEEP * self._ema_sum + (1 - EMA_KEEP) * value
            self._ema_weight = EMA_KEEP * self._ema_weight + (1 - EMA_KEEP)

    def _smooth(self, values: list[float]) -> None:
        total, weight = self._ema_sum, self._ema_weight
        for value in values:
            total = EMA_KEEP * total + (1 - EMA_KEEP) * value
            weight = EMA_KEEP * weight + (1 - EMA_KEEP)
        self._ema_sum, self._ema_weight = total, weight

    def _measure(self) -> None:
        """Take bounds and average anew from what is kept."""
        self._minimum, self._maximum = self._pyramid.bounds()
        self._ema_sum = self._ema_weight = 0.0
        raw = self._pyramid.raw
        if raw.count < EMA_MEMORY and len(raw.prefix.keys):
            prefix = raw.prefix.mean[raw.prefix.weight > 0]
            self._smooth(prefix[-EMA_MEMORY:].tolist())
        newest = raw.values(EMA_MEMORY)
        self._smooth(newest[np.isfinite(newest)].tolist())

    def _newest(self) -> float:
        raw = self._pyramid.raw
        return _shown(raw.part(raw.total - 1, raw.total))


def _stored(values: npt.ArrayLike) -> npt.NDArray[np.float32]:
    wide = np.asarray(values, np.float64)
    clipped = np.where(np.isfinite(wide), np.clip(wide, -FLOAT32_MAX, FLOAT32_MAX), wide)
    return clipped.astype(np.float32)


def _shown(bucket: Block) -> float:
    """A bucket as one number: the worst thing in it, else its mean."""
    flags = int(bucket.flags[0])
    if flags & HAS_NAN:
        return math.nan
    if flags & HAS_POS_INF:
        return math.inf
    if flags & HAS_NEG_INF:
        return -math.inf
    return float(bucket.mean[0])
