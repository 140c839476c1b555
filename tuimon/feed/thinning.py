"""Folds the records of a run into a bounded `History`: buckets that double in width when full.

Pure arithmetic on plain data. The cost of one record does not depend on the length of the run.
"""

from __future__ import annotations

import math
from array import array

import numpy as np
import numpy.typing as npt

from tuimon.feed.history import (
    HAS_FINITE,
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    HeatHistory,
    SeriesHistory,
)
from tuimon.model.records import NO_GRAD, UNMEASURED

MAX_BUCKETS = 4096  # per series: more than any screen has columns, 170 KB each
MAX_HEAT_BUCKETS = 512  # twice the columns of the widest screen in use
HEAT_BYTES = 4 << 20  # per epoch of the layer table; 10,000 layers get 82 buckets
_MIN_HEAT_BUCKETS = 2  # two are needed to merge

_NAN = math.nan
_BYTES_PER_CELL = 5  # float32 norm and uint8 flags
_MISSING = NO_GRAD | UNMEASURED

FloatRows = npt.NDArray[np.float32]
FlagRows = npt.NDArray[np.uint8]


def flags_of(value: float) -> int:
    """The `HAS_*` bit of one sample."""
    if math.isfinite(value):
        return HAS_FINITE
    if math.isnan(value):
        return HAS_NAN
    return HAS_POS_INF if value > 0 else HAS_NEG_INF


class SeriesFold:
    """One scalar series under construction. Not shared between threads."""

    def __init__(self, max_buckets: int = MAX_BUCKETS) -> None:
        self._max_buckets = max_buckets
        self._first_step: int | None = None
        self._width = 1
        self._low = array("d")
        self._high = array("d")
        self._mean = array("d")
        self._last = array("d")
        self._flags = bytearray()
        self._count = array("I")
        self._newest_step: int | None = None

    def add(self, step: int, value: float) -> None:
        """Fold one sample in; a step before the first one counts as the first."""
        index = self._bucket(step)
        self._newest_step = step
        flag = flags_of(value)
        self._flags[index] |= flag
        self._last[index] = value
        if flag != HAS_FINITE:
            return
        seen = self._count[index]
        if seen == 0:
            self._low[index] = self._high[index] = self._mean[index] = value
        else:
            self._low[index] = min(self._low[index], value)
            self._high[index] = max(self._high[index], value)
            # Weighted terms instead of a sum: neither overflows for large samples.
            share = 1 / (seen + 1)
            self._mean[index] = self._mean[index] * (1 - share) + value * share
        self._count[index] = min(seen + 1, 0xFFFF_FFFF)

    def snapshot(self) -> SeriesHistory:
        """The series as it is now."""
        return SeriesHistory(
            first_step=self._first_step or 0,
            width=self._width,
            low=self._low.tobytes(),
            high=self._high.tobytes(),
            mean=self._mean.tobytes(),
            last=self._last.tobytes(),
            flags=bytes(self._flags),
            count=self._count.tobytes(),
            newest_step=self._newest_step,
        )

    def _bucket(self, step: int) -> int:
        if self._first_step is None:
            self._first_step = step
        index = max(0, (step - self._first_step) // self._width)
        while index >= self._max_buckets:
            self._halve()
            index //= 2
        missing = index + 1 - len(self._flags)
        if missing > 0:
            for column in (self._low, self._high, self._mean, self._last):
                column.extend([_NAN] * missing)
            self._flags.extend(bytes(missing))
            self._count.extend([0] * missing)
        return index

    def _halve(self) -> None:
        self._width *= 2
        if len(self._flags) % 2:
            for column in (self._low, self._high, self._mean, self._last):
                column.append(_NAN)
            self._flags.append(0)
            self._count.append(0)
        count = np.frombuffer(self._count, np.uint32).astype(np.float64).reshape(-1, 2)
        flags = np.frombuffer(self._flags, np.uint8).reshape(-1, 2)
        mean = np.nan_to_num(np.frombuffer(self._mean, np.float64)).reshape(-1, 2)
        last = np.frombuffer(self._last, np.float64).reshape(-1, 2)
        total = count.sum(axis=1)
        share = count / np.maximum(total, 1)[:, None]
        merged_mean = np.where(total > 0, (mean * share).sum(axis=1), _NAN)
        merged_last = np.where(flags[:, 1] != 0, last[:, 1], last[:, 0])
        low = np.frombuffer(self._low, np.float64).reshape(-1, 2)
        high = np.frombuffer(self._high, np.float64).reshape(-1, 2)
        merged_low = np.fmin(low[:, 0], low[:, 1])
        merged_high = np.fmax(high[:, 0], high[:, 1])
        merged_count = np.minimum(total, 0xFFFF_FFFF).astype(np.uint32)
        merged_flags = flags[:, 0] | flags[:, 1]
        self._low = array("d", merged_low.tobytes())
        self._high = array("d", merged_high.tobytes())
        self._mean = array("d", merged_mean.tobytes())
        self._last = array("d", merged_last.tobytes())
        self._count = array("I", merged_count.tobytes())
        self._flags = bytearray(merged_flags.tobytes())


class HeatFold:
    """Norms and flags of every layer of one layer-table epoch, under construction."""

    def __init__(
        self,
        epoch: int,
        layers: int,
        max_buckets: int = MAX_HEAT_BUCKETS,
        max_bytes: int = HEAT_BYTES,
    ) -> None:
        self.epoch = epoch
        self.layers = layers
        fitting = max_bytes // max(1, layers * _BYTES_PER_CELL)
        self._max_buckets = max(_MIN_HEAT_BUCKETS, min(max_buckets, fitting) & ~1)
        self._first_step: int | None = None
        self._width = 1
        self._used = 0
        self._norms: FloatRows = np.empty((0, layers), np.float32)
        self._flags: FlagRows = np.empty((0, layers), np.uint8)

    @property
    def size_bytes(self) -> int:
        return self._norms.nbytes + self._flags.nbytes

    def add(
        self, step: int, norms: bytes, flags: bytes, mine: npt.NDArray[np.bool_] | None = None
    ) -> bool:
        """Fold one step in; False when the arrays do not belong to this number of layers.

        `mine` marks the layers that the record speaks of; None means all of them.
        """
        if len(norms) not in (0, 4 * self.layers) or len(flags) not in (0, self.layers):
            return False
        if not norms and not flags:
            return True
        index = self._bucket(step)
        bits = np.frombuffer(flags, np.uint8) if flags else None
        if bits is not None and mine is not None:
            bits = np.where(mine, bits, np.uint8(0))
        if norms:
            values = np.frombuffer(norms, "<f4")
            usable = np.isfinite(values)
            if bits is not None:
                usable &= (bits & _MISSING) == 0
            if mine is not None:
                usable &= mine
            row = self._norms[index]
            np.fmax(row, np.where(usable, values, np.float32(_NAN)), out=row)
        if bits is not None:
            self._flags[index] |= bits
        return True

    def snapshot(self) -> HeatHistory:
        """The heat as it is now."""
        return HeatHistory(
            epoch=self.epoch,
            layers=self.layers,
            first_step=self._first_step or 0,
            width=self._width,
            norms=self._norms[: self._used].tobytes(),
            flags=self._flags[: self._used].tobytes(),
        )

    def _bucket(self, step: int) -> int:
        if self._first_step is None:
            self._first_step = step
        index = max(0, (step - self._first_step) // self._width)
        while index >= self._max_buckets:
            self._halve()
            index //= 2
        if index >= len(self._flags):
            self._grow(min(self._max_buckets, max(8, 2 * (index + 1))))
        self._used = max(self._used, index + 1)
        return index

    def _grow(self, buckets: int) -> None:
        norms = np.full((buckets, self.layers), _NAN, np.float32)
        flags = np.zeros((buckets, self.layers), np.uint8)
        norms[: self._used] = self._norms[: self._used]
        flags[: self._used] = self._flags[: self._used]
        self._norms, self._flags = norms, flags

    def _halve(self) -> None:
        self._width *= 2
        # Rows are merged in place; a temporary copy of all of them would double the memory.
        for target in range((self._used + 1) // 2):
            first, second = 2 * target, 2 * target + 1
            self._norms[target] = self._norms[first]
            self._flags[target] = self._flags[first]
            if second < self._used:
                np.fmax(self._norms[target], self._norms[second], out=self._norms[target])
                self._flags[target] |= self._flags[second]
        self._used = (self._used + 1) // 2
        self._norms[self._used :] = _NAN
        self._flags[self._used :] = 0
