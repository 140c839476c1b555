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
    HAS_FINITE,
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    LEVEL_FIRST,
    LEVEL_LAST,
    LEVEL_USUAL,
    NO_DATA,
    Codes,
    Floats,
)
from tuimon.view.median import RunningMedian
from tuimon.view.tiers import Edges, Tier, column_edges

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
_MISSING = NO_GRAD | UNMEASURED
NEVER = -1  # in place of a step

Steps = npt.NDArray[np.int64]

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


def _absolute_norms() -> tuple[Floats, Codes]:
    """(norm, `HAS_*` bits) of each byte."""
    steps = np.arange(_ABSOLUTE_FIRST, _ABSOLUTE_LAST + 1)
    norms = np.full(256, np.nan, np.float32)
    norms[1] = 0.0
    norms[steps] = 2.0 ** ((steps - _ABSOLUTE_FIRST) / _ABSOLUTE_PER_OCTAVE + _ABSOLUTE_LOWEST_LOG2)
    bits = np.zeros(256, np.uint8)
    bits[1 : _ABSOLUTE_LAST + 1] = HAS_FINITE
    bits[_ABSOLUTE_NEG_INF] = HAS_NEG_INF
    bits[_ABSOLUTE_POS_INF] = HAS_POS_INF
    bits[_ABSOLUTE_NAN] = HAS_NAN
    return norms, bits


_CODE_OF_ABSOLUTE = _absolute_codes()
_NORM_OF_ABSOLUTE, _BITS_OF_ABSOLUTE = _absolute_norms()


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
        self._first_bad = np.full(layers, NEVER, np.int64)
        self._away: Floats = np.full(layers, np.nan, np.float32)
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
        ranks, absolute, log2, self._away = _judge(norms, bits, self._median)
        self._note_bad(step, ranks)
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
        ranks, absolute, log2, away = _judge(norms, flags, self._median)
        place = min(step, self._last_step)
        if place == self._last_step:
            self._away = np.where(np.isnan(log2), self._away, away)
        self._note_bad(place, ranks)
        self._median.amend(log2)
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
        self._whole.begin_with(first_step, width, len(norms))
        for index, (row, bits) in enumerate(zip(norms, flags, strict=True)):
            known = ~np.isnan(row)
            empty = ~known & ((bits & (NON_FINITE | NORM_OVERFLOW)) == 0)
            cleared = np.where(known, bits & ~np.uint8(_MISSING), bits)
            cleared[empty] |= UNMEASURED
            ranks, absolute, log2, _ = _judge(row, cleared, self._median)
            if empty.all():
                continue
            step = first_step + index * width
            self._note_bad(step, ranks)
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
        away, first_bad = self._away, self._first_bad
        self._away = np.full(len(source), np.nan, np.float32)
        self._first_bad = np.full(len(source), NEVER, np.int64)
        self._away[known], self._first_bad[known] = away[source[known]], first_bad[source[known]]
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
        self._fill(cells, groups, edges, 1 if absolute else 0)
        table = _CODE_OF_ABSOLUTE if absolute else _CODE_OF_RANK
        return table[cells]

    def ever_bad(self) -> npt.NDArray[np.bool_]:
        """bool[layers]: the layer had a NaN or an infinity at any step."""
        return self._ever_bad

    def first_bad(self) -> Steps:
        """int64[layers]: first step with a NaN or an infinity; `NEVER` where there was none."""
        return self._first_bad

    def latest_away(self) -> Floats:
        """float32[layers]: octaves between the newest norm and the layer's own median."""
        return self._away

    def norms(
        self, group: Sequence[int], first_step: int, end_step: int, columns: int
    ) -> tuple[Floats, Codes]:
        """Largest norm of a group in each column, to half an octave, and its `HAS_*` bits."""
        found = np.zeros((1, max(columns, 0)), np.uint8)
        if len(group) and columns > 0 and end_step > first_step:
            self._fill(found, [group], column_edges(first_step, end_step, columns), 1)
        return _NORM_OF_ABSOLUTE[found[0]], _BITS_OF_ABSOLUTE[found[0]]

    def span_at(self, step: int) -> tuple[int, int]:
        """The steps, from and before, that the norms of `step` are the largest of."""
        is_old = not self._recent.count or step < self._recent.first_step
        return self._whole.span_at(step) if is_old and self._whole.count else (step, step + 1)

    def latest_norm(self) -> Floats:
        """float32[layers]; NaN where there is none."""
        return self._norm

    def latest_flags(self) -> Codes:
        """uint8[layers], record flag bits of the newest step."""
        return self._flags

    def _fill(
        self, cells: Codes, groups: Sequence[Sequence[int]], edges: Edges, plane: int
    ) -> None:
        """Bytes of a plane: of single steps where they are kept, else of folded ones."""
        columns = cells.shape[1]
        split = 0
        if self._recent.count and self._whole.count:
            split = int(np.searchsorted(edges[:-1], self._recent.first_step))
        elif self._whole.count:
            split = columns
        if split:
            self._whole.fill(cells[:, :split], groups, edges[: split + 1], plane)
        if split < columns:
            self._recent.fill(cells[:, split:], groups, edges[split:], plane)

    def _note_bad(self, step: int, ranks: Codes) -> None:
        """Remember where the layers that have just gone bad did so."""
        bad = ranks >= _RANK_OF_CODE[CELL_NEG_INF]
        if bad.any():
            self._ever_bad |= bad
            self._first_bad[bad & (self._first_bad == NEVER)] = step


def _judge(
    norms: Floats, flags: Codes, median: RunningMedian
) -> tuple[Codes, Codes, Floats, Floats]:
    """Ranks, absolute bytes, log2 norms with NaN where a norm says nothing, and how many
    octaves those lie above the median.

    A seek does this for every step on its way: in place, and with no more than what nearly
    every step needs, where all norms are ordinary.
    """
    known = median.value
    is_special = not (norms.min(initial=1) > 0 and norms.max(initial=1) < np.inf)
    is_special = is_special or bool(flags.any())
    if is_special:
        usable = np.isfinite(norms) & (norms > 0)
        usable &= (flags & (NON_FINITE | NORM_OVERFLOW | _MISSING)) == 0
        norms_or_one = np.where(usable, norms, np.float32(1))
    else:
        usable, norms_or_one = None, norms
    log2: Floats = np.log2(norms_or_one)
    away: Floats = log2 - known
    level = np.rint(away)
    if median.is_partial:
        level[np.isnan(known)] = 0
    level += LEVEL_USUAL
    ranks = _RANK_OF_CODE[_bytes_within(level, LEVEL_FIRST, LEVEL_LAST)]
    place = log2 - _ABSOLUTE_LOWEST_LOG2
    place *= _ABSOLUTE_PER_OCTAVE
    np.rint(place, out=place)
    place += _ABSOLUTE_FIRST
    absolute = _bytes_within(place, _ABSOLUTE_FIRST, _ABSOLUTE_LAST)
    if usable is not None:
        _mark(norms, flags, ranks, absolute)
        log2[~usable] = away[~usable] = np.nan
    return ranks, absolute, log2, away


def _mark(norms: Floats, flags: Codes, ranks: Codes, absolute: Codes) -> None:
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


def _bytes_within(values: Floats, low: int, high: int) -> Codes:
    """The values, which are whole and no longer needed, as bytes between two bounds."""
    np.maximum(values, low, out=values)
    np.minimum(values, high, out=values)
    return values.astype(np.uint8)


def _columns(layers: int, most: int) -> int:
    fitting = TIER_BYTES // max(1, 2 * layers)
    return max(MIN_COLUMNS, min(most, fitting)) & ~1
