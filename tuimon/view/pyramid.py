"""Buckets of minimum, maximum, mean and flags over an append-only column of (step, value).

Owns the arithmetic of `series`: widths are powers of 16 in *steps*, so that a bucket of any level
has a known width on the screen however uneven the samples are. Knows nothing of names or records.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from tuimon.view.blocks import Block, Positions, Steps, block_of
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Envelope, Floats

LEVEL_SHIFT = 4  # a level's bucket is 16 buckets of the level below
CHUNK = 1 << 16  # elements folded in one pass: temporaries stay in the cache
ENTRIES_BEFORE_NEXT_LEVEL = 64  # below this a coarser level saves nothing
BUCKETS_PER_COLUMN = 4  # a value is displaced by less than a quarter of a column


class RawColumn:
    """Samples as they came, after an optional prefix of buckets from a thinned history.

    Steps without a gap are implied by the first one and cost no memory.
    """

    def __init__(self) -> None:
        self.prefix = Block.empty(0)
        self.prefix_width = 1  # steps of each bucket in it
        self.prefix_end = 0  # the step before which its last bucket ends
        self.count = 0
        self._values = np.empty(256, np.float32)
        self._start = 0
        self._steps: Steps | None = None

    @property
    def total(self) -> int:
        """Elements: buckets of the prefix and samples."""
        return len(self.prefix.keys) + self.count

    def append(self, step: int, value: float) -> None:
        count = self.count
        if count == len(self._values):
            self._grow(count + 1)
        if self._steps is None:
            if count == 0:
                self._start = step
            elif step != self._start + count:
                self._name_steps()
        if self._steps is not None:
            self._steps[count] = step
        self._values[count] = value
        self.count = count + 1

    def extend(self, steps: Steps, values: Floats) -> None:
        end = self.count + len(steps)
        self._grow(end)
        if self._steps is None:
            if self.count == 0:
                self._start = int(steps[0])
            expected = self._start + self.count + np.arange(len(steps))
            if not np.array_equal(steps, expected):
                self._name_steps()
        if self._steps is not None:
            self._steps[self.count : end] = steps
        self._values[self.count : end] = values
        self.count = end

    def part(self, start: int, end: int) -> Block:
        """Elements `start` to `end` as buckets."""
        ahead = len(self.prefix.keys)
        if end <= ahead:
            return self.prefix.part(start, end)
        samples = self._samples(max(start - ahead, 0), end - ahead)
        if start >= ahead:
            return samples
        return self.prefix.part(start, ahead).followed_by(samples)

    def find(self, steps: Steps) -> Positions:
        """How many elements lie before each step. The keys must be integers to stay cheap."""
        if self._steps is None:
            found = np.clip(steps - self._start, 0, self.count).astype(np.intp)
        else:
            found = np.searchsorted(self._steps[: self.count], steps)
        if len(self.prefix.keys):
            found = found + np.searchsorted(self.prefix.keys, steps)
        return found

    def begun_before(self, steps: Steps) -> Positions:
        """The bucket of the prefix that reaches each step from an earlier one, or -1."""
        index = np.searchsorted(self.prefix.keys, steps) - 1
        reach = self.prefix.keys[index] + self.prefix_width
        return np.where((steps < reach) & (steps < self.prefix_end), index, -1)

    def step_at(self, index: int) -> int:
        ahead = len(self.prefix.keys)
        if index < ahead:
            return int(self.prefix.keys[index])
        if self._steps is None:
            return self._start + index - ahead
        return int(self._steps[index - ahead])

    def tail(self, index: int) -> tuple[list[int], list[float]]:
        """Samples from element `index` on; the prefix must lie before it."""
        block = self.part(index, self.total)
        start = index - len(self.prefix.keys)
        return block.keys.tolist(), self._values[start : self.count].tolist()

    def values(self, newest: int) -> Floats:
        """The newest samples, at most `newest`."""
        return self._values[max(0, self.count - newest) : self.count]

    def truncate(self, total: int) -> None:
        """Keep the first `total` elements."""
        if total < len(self.prefix.keys):
            self.prefix = self.prefix.part(0, total)
        self.count = max(0, total - len(self.prefix.keys))
        if self.count == 0:
            self._steps = None

    def _samples(self, start: int, end: int) -> Block:
        if self._steps is None:
            keys = np.arange(self._start + start, self._start + end, dtype=np.int64)
        else:
            keys = self._steps[start:end]
        return block_of(keys, self._values[start:end])

    def _grow(self, capacity: int) -> None:
        if capacity > len(self._values):
            capacity = max(capacity, 2 * len(self._values))
            self._values = np.resize(self._values, capacity)
            if self._steps is not None:
                self._steps = np.resize(self._steps, capacity)

    def _name_steps(self) -> None:
        self._steps = np.empty(len(self._values), np.int64)
        self._steps[: self.count] = np.arange(self._start, self._start + self.count)


class Level:
    """Buckets of one width: the closed ones, then at most one that may still grow."""

    def __init__(self, shift: int) -> None:
        self.shift = shift
        self.block = Block.empty(64)
        self.count = 0
        self.closed = 0
        self.done = 0  # elements of the level below that lie in closed buckets
        self.as_of = 0  # samples of the raw column that are taken in

    def fold(self, below: RawColumn | Level, total: int, as_of: int) -> None:
        """Take in the `total` elements of the level below, which stands at `as_of` samples."""
        if self.as_of == as_of:
            return
        self.as_of = as_of
        chunk = CHUNK
        while self.done < total:
            end = min(total, self.done + chunk)
            source = below.part(self.done, end)
            keys = source.keys >> LEVEL_SHIFT
            starts = np.concatenate(([0], np.flatnonzero(keys[1:] != keys[:-1]) + 1))
            self.block.reserve(self.closed + len(starts))
            self.block.write(self.closed, source.grouped(starts, keys[starts]))
            self.count = self.closed + len(starts)
            if len(starts) == 1 and end < total:
                chunk *= 2  # one bucket is longer than a chunk: many samples of one step
                continue
            self.closed = self.count - 1
            self.done += int(starts[-1])
            if end == total:
                return

    def part(self, start: int, end: int) -> Block:
        return self.block.part(start, end)

    def find(self, keys: Steps) -> Positions:
        return np.searchsorted(self.block.keys[: self.count], keys)

    def truncate(self, last_step: int, below: RawColumn | Level) -> None:
        """Forget buckets that reach beyond `last_step`; the next fold rebuilds the last one."""
        key = np.array([last_step >> self.shift], np.int64)
        kept = int(np.searchsorted(self.block.keys[: self.closed], key)[0])
        self.closed = self.count = kept
        self.as_of = 0
        self.done = int(below.find(key << LEVEL_SHIFT)[0])


class Pyramid:
    """A raw column with its levels, each brought up to date when somebody looks at it."""

    def __init__(self) -> None:
        self.raw = RawColumn()
        self._levels: list[Level] = []

    def truncate(self, total: int) -> None:
        """Keep the first `total` elements of the raw column."""
        self.raw.truncate(total)
        if total == 0:
            self._levels.clear()
            return
        last_step = self.raw.step_at(total - 1)
        below: RawColumn | Level = self.raw
        for level in self._levels:
            level.truncate(last_step, below)
            below = level

    def bounds(self) -> tuple[float, float]:
        """Smallest and largest finite value; (inf, -inf) when there is none."""
        _, source, total = self._coarsest(1)
        if not total:
            return float("inf"), float("-inf")
        block = source.part(0, total)
        return float(block.low.min()), float(block.high.max())

    def envelope(self, first_step: int, end_step: int, columns: int) -> Envelope:
        """Reduce the steps in [first_step, end_step) to columns of equal width."""
        low, high, mean = (np.full(columns, np.nan, np.float32) for _ in range(3))
        result = Envelope(low, high, mean, np.zeros(columns, np.uint8))
        span = end_step - first_step
        if span <= 0 or columns <= 0 or self.raw.total == 0:
            return result
        edges = first_step - (np.arange(columns + 1, dtype=np.int64) * -span) // columns
        finest = columns * BUCKETS_PER_COLUMN
        limit = 0
        while finest << LEVEL_SHIFT * (limit + 1) <= span:
            limit += 1
        depth, source, _ = self._coarsest(limit)
        keys = edges >> LEVEL_SHIFT * depth
        keys[-1] = -(-end_step >> LEVEL_SHIFT * depth)  # the bucket that holds the last step
        ends = source.find(keys)
        start, end = int(ends[0]), int(ends[-1])
        filled = np.flatnonzero(ends[1:] > ends[:-1])
        if len(filled):
            starts = (ends[:-1] - start)[filled]
            reduced = source.part(start, end).grouped(starts, starts)
            result.flags[filled] = reduced.flags
            finite = (reduced.flags & HAS_FINITE) != 0
            low[filled[finite]] = reduced.low[finite]
            high[filled[finite]] = reduced.high[finite]
            mean[filled[finite]] = reduced.mean[finite]
        if len(self.raw.prefix.keys) and first_step < self.raw.prefix_end:
            _reach_in(result, self.raw, edges[:-1])
        return result

    def non_finite_near(self, step: int, *, forward: bool) -> int | None:
        """The nearest step after (or before) `step` from which on samples are NaN or Inf."""
        depth, source, total = self._coarsest(1)
        suspects = source.part(0, total)
        # Where nothing is finite, in a bucket and the one before it, nothing begins.
        amid = _bad(suspects) & ((suspects.flags & HAS_FINITE) == 0)
        amid[1:] &= amid[:-1].copy()
        amid[:1] = False
        keys = suspects.keys[_bad(suspects) & ~amid]
        shift = LEVEL_SHIFT * depth
        keys = keys[keys >= step >> shift] if forward else keys[keys <= step >> shift][::-1]
        for key in keys.tolist():
            span = self.raw.find(np.array([key << shift, (key + 1) << shift], np.int64))
            before = max(0, int(span[0]) - 1)
            block = self.raw.part(before, int(span[1]))
            begins = _bad(block)
            begins[1:] &= ~begins[:-1].copy()
            begins[: int(span[0]) - before] = False
            steps = block.keys[begins]
            steps = steps[steps > step] if forward else steps[steps < step]
            if len(steps):
                return int(steps[0] if forward else steps[-1])
        return None

    def _coarsest(self, limit: int) -> tuple[int, RawColumn | Level, int]:
        """The coarsest useful level up to `limit`, brought up to date: depth, level, entries."""
        source: RawColumn | Level = self.raw
        total = self.raw.total
        depth = 0
        while depth < limit and total > ENTRIES_BEFORE_NEXT_LEVEL:
            if depth == len(self._levels):
                self._levels.append(Level(LEVEL_SHIFT * (depth + 1)))
            level = self._levels[depth]
            level.fold(source, total, self.raw.total)
            source, total = level, level.count
            depth += 1
        return depth, source, total


def _bad(block: Block) -> npt.NDArray[np.bool_]:
    """Which entries hold a NaN or an infinity."""
    found: npt.NDArray[np.bool_] = (block.flags & (HAS_NAN | HAS_POS_INF | HAS_NEG_INF)) != 0
    return found


def _reach_in(result: Envelope, raw: RawColumn, edges: Steps) -> None:
    """Show a bucket of the prefix also in the columns after the one in which it begins.

    Those are the columns without anything of their own, and the first one of the window.
    """
    begun = raw.begun_before(edges)
    at = np.flatnonzero((begun >= 0) & ((result.flags == 0) | (edges == edges[0])))
    known, index = raw.prefix, begun[at]
    result.flags[at] |= known.flags[index]
    finite = (known.flags[index] & HAS_FINITE) != 0
    at, index = at[finite], index[finite]
    result.low[at] = np.fmin(result.low[at], known.low[index])
    result.high[at] = np.fmax(result.high[at], known.high[index])
    own = result.mean[at]
    result.mean[at] = np.where(np.isnan(own), known.mean[index], own)
