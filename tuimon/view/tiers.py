"""Byte columns by step with bounded room, and the worst byte of groups of rows over spans of steps.

Owns the memory behind `heat`; what a byte means is its caller's business, except that the greater
one wins. Planes: 0 is the relative byte, 1 the absolute one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tuimon.view.frame import Codes

Edges = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]
Members = slice | Indices

LATE_COLUMNS = 64  # statistics of a device arrive a few steps late, not more
CACHED_GROUPS = 1024  # several screens of rows


def column_edges(first_step: int, end_step: int, columns: int) -> Edges:
    """First steps of `columns` equal columns, and the end of the last one."""
    span = end_step - first_step
    return first_step - (np.arange(columns + 1, dtype=np.int64) * -span) // columns


class _GroupRow(msgspec.Struct):
    """The worst byte of one group at each column, up to date before `known`."""

    group: Sequence[int]  # held, so that its identity stays its own
    members: Members
    worst: Codes
    known: int = 0


class Tier:
    """Columns in step order. A full tier drops its older half, or (`folds`) doubles its stride."""

    def __init__(self, layers: int, capacity: int, *, folds: bool) -> None:
        self.count = 0
        self.shift = 0  # a column covers 2**shift steps
        self._seed = (0, 1, 0)  # first step, width and end of the buckets that it began with
        self._folds = folds
        self._capacity = capacity
        self._keys = np.zeros(capacity, np.int64)
        self._planes: Codes = np.zeros((2, capacity, layers), np.uint8)
        self._rows: OrderedDict[tuple[int, int], _GroupRow] = OrderedDict()

    @property
    def first_step(self) -> int:
        """First step that is covered; only meaningful with columns."""
        return int(self._keys[0]) << self.shift

    @property
    def last_step(self) -> int:
        """First step of the newest column; -1 without columns."""
        return int(self._keys[self.count - 1]) << self.shift if self.count else -1

    def append(self, step: int, relative: Codes, absolute: Codes) -> None:
        """Add a step newer than all others."""
        key = step >> self.shift
        if self.count and self._keys[self.count - 1] == key:
            self._join(self.count - 1, relative, absolute)
            return
        if self.count == self._capacity:
            self._make_room()
            return self.append(step, relative, absolute)
        self._keys[self.count] = key
        self._planes[0, self.count] = relative
        self._planes[1, self.count] = absolute
        self.count += 1

    def merge(self, step: int, relative: Codes, absolute: Codes) -> None:
        """Join the column of `step`, or put one in its place among the newest ones."""
        key = step >> self.shift
        index = int(np.searchsorted(self._keys[: self.count], np.int64(key)))
        if index < self.count and self._keys[index] == key:
            self._join(index, relative, absolute)
        elif index == self.count:
            self.append(step, relative, absolute)
        elif self.count - index <= LATE_COLUMNS and self.count < self._capacity:
            old, new = slice(index, self.count), slice(index + 1, self.count + 1)
            self._keys[new] = self._keys[old].copy()
            self._planes[:, new] = self._planes[:, old].copy()
            self._keys[index] = key
            self._planes[0, index], self._planes[1, index] = relative, absolute
            self.count += 1
            self._forget(index)

    def begin_with(self, first_step: int, width: int, count: int) -> None:
        """Let columns be as wide as these buckets, a power of two of steps each, or wider."""
        self._seed = (first_step, width, first_step + width * count)
        while self.shift < width.bit_length() - 1:
            self._fold()

    def span_at(self, step: int) -> tuple[int, int]:
        """The steps, from and before, whose worst byte the column of `step` holds."""
        start = step >> self.shift << self.shift
        end = start + (1 << self.shift)
        first, width, seeded = self._seed
        if start >= seeded:
            return start, end
        # A bucket lies in the column of its first step, wherever that is in the column.
        begins, ends = (first - (first - edge) // width * width for edge in (start, end))
        return begins, end if end > seeded else ends

    def cut(self, step: int) -> None:
        """Forget the columns that begin at `step` or later."""
        key = -(-step >> self.shift)
        self.count = int(np.searchsorted(self._keys[: self.count], np.int64(key)))
        self._forget(self.count)

    def remap(self, source: Indices) -> None:
        """Reorder the rows; -1 is a new one without data."""
        known = source >= 0
        planes = np.zeros((2, self._capacity, len(source)), np.uint8)
        planes[:, : self.count, known] = self._planes[:, : self.count][:, :, source[known]]
        self._planes = planes
        self._rows.clear()

    def fill(self, cells: Codes, groups: Sequence[Sequence[int]], edges: Edges, plane: int) -> None:
        """Write the worst byte of each group in each column of the window.

        A column narrower than the stride shows the bucket that it lies in.
        """
        keys = self._keys[: self.count]
        wanted = edges >> self.shift
        wanted[-1] = -(-int(edges[-1]) >> self.shift)
        starts = np.searchsorted(keys, wanted[:-1])
        ends = np.maximum(starts, np.searchsorted(keys, wanted[1:]))
        inside = starts < self.count
        inside[inside] = keys[starts[inside]] == wanted[:-1][inside]
        ends = np.maximum(ends, starts + inside)
        filled = np.flatnonzero(ends > starts)
        if not len(filled):
            return
        first, end = int(starts[filled[0]]), int(ends[filled].max())
        block = np.zeros((len(groups), end - first + 1), np.uint8)  # one spare for reduceat
        for row, group in enumerate(groups):
            block[row, :-1] = self._worst(group, plane)[first:end]
        pairs = np.stack((starts[filled], ends[filled]), axis=1).ravel() - first
        cells[:, filled] = np.maximum.reduceat(block, pairs, axis=1)[:, ::2]

    def _worst(self, group: Sequence[int], plane: int) -> Codes:
        key = (id(group), plane)
        row = self._rows.get(key)
        if row is None:
            row = _GroupRow(group, _members(group), np.zeros(self._capacity, np.uint8))
            self._rows[key] = row
            if len(self._rows) > CACHED_GROUPS:
                self._rows.popitem(last=False)
        else:
            self._rows.move_to_end(key)
        if row.known < self.count and len(group):
            columns = slice(row.known, self.count)
            # A fold may grow its newest column without a new one, so `_join` lowers `known`.
            row.worst[columns] = self._planes[plane][columns][:, row.members].max(axis=1)
            row.known = self.count
        return row.worst

    def _join(self, index: int, relative: Codes, absolute: Codes) -> None:
        for plane, values in enumerate((relative, absolute)):
            column = self._planes[plane, index]
            np.maximum(column, values, out=column)
        self._forget(index)

    def _forget(self, index: int) -> None:
        for row in self._rows.values():
            if row.known > index:
                row.known = index

    def _make_room(self) -> None:
        if self._folds:
            self._fold()
            return
        kept = self._capacity // 2
        self._keys[:kept] = self._keys[self.count - kept : self.count]
        self._planes[:, :kept] = self._planes[:, self.count - kept : self.count]
        self.count = kept
        self._forget(0)

    def _fold(self) -> None:
        self.shift += 1
        keys = self._keys[: self.count] >> 1
        starts = np.flatnonzero(np.diff(keys, prepend=-1))
        ends = np.append(starts[1:], self.count)
        # At most two columns share a key. Row by row, because a reduction over the first axis of
        # a large array takes a hundred times as long.
        for target, (start, end) in enumerate(zip(starts.tolist(), ends.tolist(), strict=False)):
            self._planes[:, target] = self._planes[:, start]
            if end - start > 1:
                column = self._planes[:, target]
                np.maximum(column, self._planes[:, start + 1], out=column)
        self._keys[: len(starts)] = keys[starts]
        self.count = len(starts)
        self._forget(0)


def _members(group: Sequence[int]) -> Members:
    """A slice where the indices are neighbours, which saves gathering them."""
    indices = np.asarray(group, np.intp)
    if len(indices) and np.array_equal(indices, np.arange(indices[0], indices[0] + len(indices))):
        return slice(int(indices[0]), int(indices[0]) + len(indices))
    return indices
