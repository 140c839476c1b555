"""The layer × step history of gradient norms as one byte a sample, bounded in memory.

Implements `frame.HeatView`. A sample is judged when it arrives, against the running median of its
own layer; later samples never change it. Belongs to the thread that applies records.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuimon.model.records import (
    NAN,
    NEG_INF,
    NO_GRAD,
    NON_FINITE,
    NORM_OVERFLOW,
    POS_INF,
    UNMEASURED,
)
from tuimon.view.frame import (
    ALL_ZERO,
    CELL_NAN,
    CELL_NEG_INF,
    CELL_POS_INF,
    LEVEL_FIRST,
    LEVEL_LAST,
    LEVEL_USUAL,
    NO_DATA,
    Codes,
    Floats,
)
from tuimon.view.tiers import Tier, column_edges

# From calm to worst: the worst member of a group, or of a bucket of steps, has the greatest rank.
_WORST_LAST = (NO_DATA, 4, 3, 5, 2, 6, 1, ALL_ZERO, 7, 8, CELL_NEG_INF, CELL_POS_INF, CELL_NAN)
_CODE_OF_RANK = np.array(_WORST_LAST, np.uint8)
_RANK_OF_CODE = np.argsort(_CODE_OF_RANK).astype(np.uint8)

# Absolute bytes: 0 no data, 1 all zero, 2…251 half octaves from 2^-60, then what is not finite.
_ABSOLUTE_FIRST, _ABSOLUTE_LAST = 2, 251
_ABSOLUTE_LOWEST_LOG2 = -60.0
_ABSOLUTE_PER_OCTAVE = 2
_ABSOLUTE_NEG_INF, _ABSOLUTE_POS_INF, _ABSOLUTE_NAN = 253, 254, 255

ABSOLUTE_BOUNDS = (1e-6, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 10.0)
"""Norms at which the absolute levels 2 to 8 begin."""

RECENT_COLUMNS = 4096  # steps kept one by one
WHOLE_COLUMNS = 2048  # buckets that cover the whole run; no screen is wider
MIN_COLUMNS = 256
TIER_BYTES = 16 << 20  # per tier; 10,000 layers get about 840 columns
MEDIAN_SAMPLES = 32  # per layer
MEDIAN_STRIDE = 16  # steps between them once the run is long: a window of 512 steps
MEDIAN_SLICES = 16  # many layers take turns, so that no step pays for all of them
SMALL_TABLE = 1024  # layers up to which every median is fresh at every step
_MISSING = NO_GRAD | UNMEASURED

Indices = npt.NDArray[np.intp]


def _absolute_codes() -> Codes:
    table = np.zeros(256, np.uint8)
    table[1] = ALL_ZERO
    steps = np.arange(_ABSOLUTE_FIRST, _ABSOLUTE_LAST + 1)
    log2 = (steps - _ABSOLUTE_FIRST) / _ABSOLUTE_PER_OCTAVE + _ABSOLUTE_LOWEST_LOG2
    table[steps] = np.searchsorted(np.log2(ABSOLUTE_BOUNDS), log2, side="right") + LEVEL_FIRST
    table[_ABSOLUTE_NEG_INF] = CELL_NEG_INF
    table[_ABSOLUTE_POS_INF] = CELL_POS_INF
    table[_ABSOLUTE_NAN] = CELL_NAN
    return table


_CODE_OF_ABSOLUTE = _absolute_codes()


class RunningMedian:
    """Per layer, the median of log2 norms over the whole run at first, later over 512 steps."""

    def __init__(self, layers: int) -> None:
        self.value: Floats = np.full(layers, np.nan, np.float32)
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
        unknown = np.isnan(self.value)
        if unknown.any():
            self.value[unknown] = log2[unknown]

    def amend(self, log2: Floats) -> None:
        """Correct the step added last for the layers that have a value here."""
        known = ~np.isnan(log2)
        if self._place is not None:
            self._samples[known, self._place] = log2[known]
            if len(self.value) <= SMALL_TABLE:
                self._refresh(0, len(self.value))
        unknown = np.isnan(self.value)
        self.value[unknown] = log2[unknown]

    def remap(self, source: Indices) -> None:
        """Reorder the layers; -1 is a new one."""
        known = source >= 0
        value, samples = self.value, self._samples
        self.value = np.full(len(source), np.nan, np.float32)
        self._samples = np.full((len(source), MEDIAN_SAMPLES), np.nan, np.float32)
        self.value[known] = value[source[known]]
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


class Heat:
    """What every layer's gradient did at every step: recent steps one by one, older ones folded."""

    def __init__(self, layers: int) -> None:
        self._version = 0
        self._median = RunningMedian(layers)
        self._recent = Tier(layers, _columns(layers, RECENT_COLUMNS), folds=False)
        self._whole = Tier(layers, _columns(layers, WHOLE_COLUMNS), folds=True)
        self._first_step: int | None = None
        self._last_step: int | None = None
        self._ever_bad: npt.NDArray[np.bool_] = np.zeros(layers, np.bool_)
        self._norm: Floats = np.full(layers, np.nan, np.float32)
        self._flags: Codes = np.full(layers, NO_GRAD, np.uint8)

    @property
    def layers(self) -> int:
        return len(self._ever_bad)

    @property
    def version(self) -> int:
        """Grows with every change of the content."""
        return self._version

    @property
    def first_step(self) -> int | None:
        return self._first_step

    @property
    def last_step(self) -> int | None:
        return self._last_step

    def append(self, step: int, norms: Floats, flags: Codes | None = None) -> None:
        """Add the norms of one step, as float32[layers] and record flag bits.

        A step that is not newer than the last one is merged into its column.
        """
        bits = np.zeros(self.layers, np.uint8) if flags is None else flags
        if self._last_step is not None and step <= self._last_step:
            self.merge(step, norms, bits)
            return
        ranks, absolute, log2 = self._judge(norms, bits)
        self._median.add(log2)
        for tier in (self._recent, self._whole):
            tier.append(step, ranks, absolute)
        self._first_step = step if self._first_step is None else self._first_step
        self._last_step = step
        self._norm = np.where((bits & _MISSING) != 0, np.float32(np.nan), norms)
        self._flags = bits
        self._version += 1

    def merge(self, step: int, norms: Floats, flags: Codes) -> None:
        """Let what is known of some layers join the column of `step`, or of the newest one.

        For the device part of a step, and for an optimizer that counts its own steps.
        """
        if self._last_step is None:
            return self.append(step, norms, flags)
        ranks, absolute, log2 = self._judge(norms, flags)
        self._median.amend(log2)
        place = min(step, self._last_step)
        for tier in (self._recent, self._whole):
            tier.merge(place, ranks, absolute)
        if place == self._last_step:
            known = (flags & _MISSING) == 0
            self._norm = np.where(known, norms, self._norm)
            self._flags = np.where(known, flags, self._flags)
        self._version += 1

    def seed(self, first_step: int, width: int, norms: Floats, flags: Codes) -> None:
        """Begin with buckets of a thinned history; must come before any step newer than they.

        Args:
            first_step: first step of bucket 0.
            width: steps per bucket, a power of two.
            norms: float32[buckets, layers], the largest finite norm; NaN where there is none.
            flags: uint8[buckets, layers], flag bits of all steps of the bucket.
        """
        self._whole.coarsen(width.bit_length() - 1)
        for index, (row, bits) in enumerate(zip(norms, flags, strict=True)):
            known = ~np.isnan(row)
            empty = ~known & ((bits & (NON_FINITE | NORM_OVERFLOW)) == 0)
            cleared = np.where(known, bits & ~np.uint8(_MISSING), bits)
            cleared[empty] |= UNMEASURED
            ranks, absolute, log2 = self._judge(row, cleared)
            if empty.all():
                continue
            step = first_step + index * width
            self._median.add(log2)
            if self._last_step is None or step > self._last_step:
                self._whole.append(step, ranks, absolute)
            else:
                self._whole.merge(step, ranks, absolute)
            self._first_step = step if self._first_step is None else self._first_step
            self._last_step = max(step, self._last_step or 0)
            self._norm, self._flags = row, cleared
        self._version += 1

    def cut(self, step: int) -> None:
        """Forget `step` and everything after it: the run was taken up again from there."""
        if self._last_step is None or self._last_step < step:
            return
        self._recent.cut(step)
        self._whole.cut(step)
        self._last_step = max(self._recent.last_step, self._whole.last_step)
        if self._last_step < (self._first_step or 0):
            self._first_step = self._last_step = None
        self._version += 1

    def remap(self, source: Indices) -> None:
        """Another layer table: row `i` continues the old row `source[i]`, or is new where -1."""
        self._median.remap(source)
        self._recent.remap(source)
        self._whole.remap(source)
        known = source >= 0
        bad, norm, flags = self._ever_bad, self._norm, self._flags
        self._ever_bad = np.zeros(len(source), np.bool_)
        self._norm = np.full(len(source), np.nan, np.float32)
        self._flags = np.full(len(source), NO_GRAD, np.uint8)
        self._ever_bad[known] = bad[source[known]]
        self._norm[known] = norm[source[known]]
        self._flags[known] = flags[source[known]]
        self._version += 1

    def cells(
        self,
        groups: Sequence[Sequence[int]],
        first_step: int,
        end_step: int,
        columns: int,
        *,
        absolute: bool = False,
    ) -> Codes:
        """uint8[len(groups), columns]: each group of layers shows its worst member.

        Relative: NaN > +Inf > -Inf > far from the median > usual. Absolute: the largest norm.
        Passing the same group objects again makes the call cheap.
        """
        cells = np.zeros((len(groups), max(columns, 0)), np.uint8)
        if not len(groups) or columns <= 0 or end_step <= first_step:
            return cells
        edges = column_edges(first_step, end_step, columns)
        plane = 1 if absolute else 0
        split = 0
        if self._recent.count and self._whole.count:
            split = int(np.searchsorted(edges[:-1], self._recent.first_step))
        elif self._whole.count:
            split = columns
        if split:
            self._whole.fill(cells[:, :split], groups, edges[: split + 1], plane)
        if split < columns:
            self._recent.fill(cells[:, split:], groups, edges[split:], plane)
        table = _CODE_OF_ABSOLUTE if absolute else _CODE_OF_RANK
        return table[cells]

    def ever_bad(self) -> npt.NDArray[np.bool_]:
        """bool[layers]: the layer had a NaN or an infinity at any step."""
        return self._ever_bad

    def latest_norm(self) -> Floats:
        """float32[layers]; NaN where there is none."""
        return self._norm

    def latest_flags(self) -> Codes:
        """uint8[layers], record flag bits of the newest step."""
        return self._flags

    def _judge(self, norms: Floats, flags: Codes) -> tuple[Codes, Codes, Floats]:
        """Ranks, absolute bytes, and log2 norms with NaN where a norm says nothing."""
        usable = np.isfinite(norms) & (norms > 0)
        special = not usable.all() or bool(flags.any())
        if special:
            usable &= (flags & (NON_FINITE | NORM_OVERFLOW | _MISSING)) == 0
        log2: Floats = np.log2(np.where(usable, norms, np.float32(1)))
        away = log2 - np.where(np.isnan(self._median.value), log2, self._median.value)
        level = np.clip(np.rint(away) + LEVEL_USUAL, LEVEL_FIRST, LEVEL_LAST).astype(np.uint8)
        ranks = _RANK_OF_CODE[level]
        place = np.rint((log2 - _ABSOLUTE_LOWEST_LOG2) * _ABSOLUTE_PER_OCTAVE) + _ABSOLUTE_FIRST
        absolute = np.clip(place, _ABSOLUTE_FIRST, _ABSOLUTE_LAST).astype(np.uint8)
        if special:
            self._mark(norms, flags, ranks, absolute)
            log2[~usable] = np.nan
        return ranks, absolute, log2

    def _mark(self, norms: Floats, flags: Codes, ranks: Codes, absolute: Codes) -> None:
        """Overwrite what is not an ordinary norm, the worst last."""
        missing = (flags & _MISSING) != 0
        overflow = (flags & NORM_OVERFLOW) != 0
        silent = (flags & (NON_FINITE | NORM_OVERFLOW | _MISSING)) == 0
        marks = (
            (silent & (norms == 0), ALL_ZERO, 1),
            (missing, NO_DATA, 0),
            (overflow, LEVEL_LAST, _ABSOLUTE_LAST),
            ((flags & NEG_INF) != 0, CELL_NEG_INF, _ABSOLUTE_NEG_INF),
            ((flags & POS_INF) != 0, CELL_POS_INF, _ABSOLUTE_POS_INF),
            (silent & np.isinf(norms), CELL_POS_INF, _ABSOLUTE_POS_INF),
            ((flags & NAN) != 0, CELL_NAN, _ABSOLUTE_NAN),
            (silent & np.isnan(norms), CELL_NAN, _ABSOLUTE_NAN),
        )
        for where, code, byte in marks:
            ranks[where] = _RANK_OF_CODE[code]
            absolute[where] = byte
        self._ever_bad |= ranks >= _RANK_OF_CODE[CELL_NEG_INF]


def _columns(layers: int, most: int) -> int:
    fitting = TIER_BYTES // max(1, 2 * layers)
    return max(MIN_COLUMNS, min(most, fitting)) & ~1
