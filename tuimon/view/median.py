"""The running median of each layer's log2 norm, which the heat map holds a new norm against."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuimon.view.frame import Floats

MEDIAN_SAMPLES = 32  # per layer
MEDIAN_STRIDE = 16  # steps between them once the run is long: a window of 512 steps
MEDIAN_SLICES = 16  # many layers take turns, so that no step pays for all of them
SMALL_TABLE = 1024  # layers up to which every median is fresh at every step

Indices = npt.NDArray[np.intp]


class RunningMedian:
    """Per layer, the median of log2 norms over the whole run at first, later over 512 steps."""

    def __init__(self, layers: int) -> None:
        self.value: Floats = np.full(layers, np.nan, np.float32)
        self.is_partial = True  # some layer may have no median yet
        self._samples: Floats = np.full((layers, MEDIAN_SAMPLES), np.nan, np.float32)
        self._filled = 0
        self._stride = 1
        self._seen = 0
        self._place: int | None = None  # column of the step added last, where it was kept

    def add(self, log2: Floats) -> None:
        """Take in one step; NaN where a layer has nothing that counts."""
        fresh = self._seen % self._stride == 0
        self._place = self._store(log2) if fresh else None
        turn = self._seen % MEDIAN_SLICES
        self._seen += 1
        layers = len(self.value)
        if layers <= SMALL_TABLE:
            if fresh:
                self._refresh(0, layers)
        else:
            size = -(-layers // MEDIAN_SLICES)
            self._refresh(turn * size, min(layers, (turn + 1) * size))
        if self.is_partial or fresh or layers > SMALL_TABLE:
            unknown = np.isnan(self.value)
            if unknown.any():
                self.value[unknown] = log2[unknown]
                unknown = np.isnan(self.value)
            self.is_partial = bool(unknown.any())

    def amend(self, log2: Floats) -> None:
        """Correct the step added last for the layers that have a value here."""
        known = ~np.isnan(log2)
        if self._place is not None:
            self._samples[known, self._place] = log2[known]
            if len(self.value) <= SMALL_TABLE:
                self._refresh(0, len(self.value))
        unknown = np.isnan(self.value)
        self.value[unknown] = log2[unknown]
        self.is_partial = bool(np.isnan(self.value).any())

    def remap(self, source: Indices) -> None:
        """Reorder the layers; -1 is a new one."""
        known = source >= 0
        value, samples = self.value, self._samples
        self.value = np.full(len(source), np.nan, np.float32)
        self._samples = np.full((len(source), MEDIAN_SAMPLES), np.nan, np.float32)
        self.value[known] = value[source[known]]
        self.is_partial = True
        self._samples[known] = samples[source[known]]

    def _store(self, log2: Floats) -> int:
        if self._filled == MEDIAN_SAMPLES and self._stride < MEDIAN_STRIDE:
            self._samples[:, : MEDIAN_SAMPLES // 2] = self._samples[:, ::2].copy()
            self._samples[:, MEDIAN_SAMPLES // 2 :] = np.nan
            self._filled //= 2
            self._stride *= 2
        if self._filled < MEDIAN_SAMPLES:
            place = self._filled
            self._filled += 1
        else:
            place = self._seen // self._stride % MEDIAN_SAMPLES
        # A layer without a norm keeps its median: what it had is the best guess.
        self._samples[:, place] = np.where(np.isnan(log2), self.value, log2)
        return place

    def _refresh(self, start: int, end: int) -> None:
        ordered = np.sort(self._samples[start:end, : self._filled], axis=1)  # NaN last
        known = self._filled - np.isnan(ordered).sum(axis=1)
        rows = np.arange(end - start)
        low = ordered[rows, np.maximum(known - 1, 0) // 2]
        high = ordered[rows, np.minimum(known // 2, self._filled - 1)]
        self.value[start:end] = np.where(known > 0, (low + high) / 2, np.nan)
