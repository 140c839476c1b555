"""What is said of one tensor: counts of NaN and Inf, magnitudes, zeros, rows that are constant.

A tensor is read in pieces that fit the processor's cache and is never whole in memory. numpy only.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from tuimon.inspect.dtypes import DTYPES, SERVING_MAX, DType, values

PIECE_BYTES = 1 << 19  # stays in the cache over the few passes that look at it
# Sums of squares in float32 are taken as they are between these; beyond, a square may have become
# 0 or infinite, and the piece is summed in float64.
_SAFE_SQUARES = (1e-20, 1e30)

_BFLOAT16 = DTYPES["bfloat16"]

Raw = NDArray[np.uint8]
Read = Callable[[int], Raw]
"""Gives the next so many bytes of a tensor; valid until the next call."""


class Measured(msgspec.Struct, omit_defaults=False):
    """One tensor.

    Attributes:
        absmax, rms: of the finite elements; None where there are none.
        zero_frac: share of zeros; None without elements.
        constant_rows: rows along the first dimension that hold a single value; None for tensors
            without rows.
        headroom: by how much the largest magnitude could grow in each dtype that weights are
            served in; below 1 it does not fit. Empty for what is no float.
    """

    name: str
    dtype: str
    shape: list[int]
    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    absmax: float | None = None
    rms: float | None = None
    zero_frac: float | None = None
    constant_rows: int | None = None
    headroom: dict[str, float] = {}

    @property
    def non_finite(self) -> int:
        """How many elements are no finite number."""
        return self.nan + self.posinf + self.neginf

    @property
    def is_mask(self) -> bool:
        """Whether it is an attention mask: zeros and -Inf, which are meant so."""
        return bool(self.neginf and not self.nan and not self.posinf and not self.absmax)

    @property
    def is_finite(self) -> bool:
        """Whether nothing in it is NaN or Inf that is not meant so."""
        return not self.non_finite or self.is_mask


class _Sums:
    """What adds up over the pieces of a tensor."""

    def __init__(self) -> None:
        self.nan = self.posinf = self.neginf = self.zeros = self.finite = 0
        self.squares = 0.0  # of value / unit
        self.unit = 0.0  # nothing has been added
        self.absmax = 0.0

    def add_squares(self, squares: float, unit: float = 1.0) -> None:
        """Add squares that were taken of values over `unit`, so that they neither vanish nor
        overflow."""
        if unit > self.unit:
            self.squares *= (self.unit / unit) ** 2
            self.unit = unit
        self.squares += squares * (unit / self.unit) ** 2

    @property
    def rms(self) -> float | None:
        if not self.finite:
            return None
        return self.unit * math.sqrt(self.squares / self.finite)


def measure(name: str, dtype: DType, shape: list[int], read: Read) -> Measured:
    """Measure one tensor whose bytes `read` gives in order.

    Raises:
        OSError: they cannot be read, or there are fewer.
    """
    measured = Measured(name, dtype.name, shape)
    numel = math.prod(shape)
    if not dtype.numpy or not numel:
        return measured
    row = numel // shape[0] if len(shape) > 1 else 1
    rows = _Rows(row) if row > 1 else None
    pieces = _pieces(dtype, numel, row, read, rows)
    if dtype is _BFLOAT16:
        sums = _summed(map(_widened, pieces))
    else:
        sums = _counted(dtype, pieces) if dtype.is_counted else _summed(pieces)
    parts = 2 if dtype.name.startswith("complex") else 1
    measured.nan, measured.posinf, measured.neginf = sums.nan, sums.posinf, sums.neginf
    measured.zero_frac = sums.zeros / (numel * parts)
    measured.rms = sums.rms
    measured.absmax = sums.absmax if sums.finite else None
    measured.constant_rows = rows.constant if rows else None
    if dtype.is_float and measured.absmax:
        measured.headroom = {
            served: largest / measured.absmax for served, largest in SERVING_MAX.items()
        }
    return measured


def _pieces(
    dtype: DType, numel: int, row: int, read: Read, rows: _Rows | None
) -> Iterator[NDArray[Any]]:
    """The tensor as bit patterns: whole rows, or parts of one row, at a time."""
    size = dtype.bits // 8
    most = max(1, PIECE_BYTES // size)
    step = most // row * row or most
    pattern = f"V{size}" if size > 8 else f"<u{size}"
    done = 0
    while done < numel:
        length = min(step, numel - done, row - done % row if step % row else numel)
        raw = read(length * size)
        if rows:
            rows.look(raw.view(pattern))
        yield raw.view(dtype.numpy)
        done += length


class _Rows:
    """Counts rows that hold one bit pattern only."""

    def __init__(self, length: int) -> None:
        self.constant = 0
        self._length = length
        self._seen = 0  # elements of the row that is being read in parts
        self._first: NDArray[Any] | None = None
        self._same = True

    def look(self, piece: NDArray[Any]) -> None:
        if len(piece) % self._length == 0 and not self._seen:
            self._whole(piece.reshape(-1, self._length))
        else:
            self._part(piece)

    def _whole(self, block: NDArray[Any]) -> None:
        # Few rows pass the first look, so that nearly no element is compared.
        first = block[:, 0]
        likely = np.flatnonzero((first == block[:, -1]) & (first == block[:, self._length // 2]))
        for index in likely:
            self.constant += bool((block[index] == first[index]).all())

    def _part(self, piece: NDArray[Any]) -> None:
        if not self._seen:
            self._first, self._same = piece[:1].copy(), True
        if self._same:
            first = self._first
            self._same = bool((piece[-1:] == first).all()) and bool((piece == first).all())
        self._seen += len(piece)
        if self._seen == self._length:
            self.constant += self._same
            self._seen = 0


def _counted(dtype: DType, pieces: Iterator[NDArray[Any]]) -> _Sums:
    """Of a dtype of 8 or 16 bits: count patterns, then look their values up."""
    counts = _patterns(dtype.bits, pieces)
    every = values(dtype)
    sums = _Sums()
    sums.nan = int(counts[np.isnan(every)].sum())
    sums.posinf = int(counts[every == np.inf].sum())
    sums.neginf = int(counts[every == -np.inf].sum())
    sums.zeros = int(counts[every == 0].sum())
    kept = np.isfinite(every) & (counts > 0)
    found, times = every[kept], counts[kept]
    sums.finite = int(times.sum())
    if sums.finite:
        sums.absmax = float(np.abs(found).max())
        unit = sums.absmax or 1.0
        sums.unit = unit
        sums.squares = float(np.dot((found / unit) ** 2, times))
    return sums


def _patterns(bits: int, pieces: Iterator[NDArray[Any]]) -> NDArray[np.int64]:
    """How often each bit pattern occurs. Bytes are counted in pairs, which takes half the time."""
    pairs = np.zeros(1 << 16, np.int64)
    left_over = np.zeros(1 << 8, np.int64)
    for piece in pieces:
        raw = piece.view(np.uint8)
        even = len(raw) & ~1
        pairs += np.bincount(raw[:even].view("<u2"), minlength=len(pairs))
        if even < len(raw):
            left_over[raw[even]] += 1
    if bits == 16:
        return pairs
    both = pairs.reshape(256, 256)
    counts: NDArray[np.int64] = both.sum(axis=0) + both.sum(axis=1) + left_over
    return counts


def _widened(piece: NDArray[Any]) -> NDArray[np.float32]:
    """bfloat16 as float32, of which it is the upper half."""
    wide: NDArray[np.uint32] = np.left_shift(piece, 16, dtype=np.uint32)
    return wide.view(np.float32)


def _summed(pieces: Iterator[NDArray[Any]]) -> _Sums:
    sums = _Sums()
    with np.errstate(all="ignore"):
        for piece in pieces:
            if piece.dtype.kind != "f":
                _whole_numbers(piece, sums)
            else:
                _floats(piece, sums)
    return sums


def _whole_numbers(piece: NDArray[Any], sums: _Sums) -> None:
    exact = piece.astype(np.float64)
    sums.finite += len(piece)
    sums.zeros += len(piece) - int(np.count_nonzero(piece))
    sums.absmax = max(sums.absmax, float(exact.max()), -float(exact.min()))
    sums.add_squares(float(np.dot(exact, exact)))


def _floats(piece: NDArray[Any], sums: _Sums) -> None:
    squares = float(np.dot(piece, piece))
    if _SAFE_SQUARES[0] < squares < _SAFE_SQUARES[1]:  # which also says that all are finite
        sums.finite += len(piece)
        sums.zeros += int(np.count_nonzero(piece == 0))
        sums.absmax = max(sums.absmax, float(piece.max()), -float(piece.min()))
        sums.add_squares(squares)
        return
    sums.nan += int(np.count_nonzero(np.isnan(piece)))
    sums.posinf += int(np.count_nonzero(np.isposinf(piece)))
    sums.neginf += int(np.count_nonzero(np.isneginf(piece)))
    exact = piece[np.isfinite(piece)].astype(np.float64)
    sums.finite += len(exact)
    sums.zeros += int(np.count_nonzero(exact == 0))
    if not len(exact):
        return
    absmax = float(np.abs(exact).max())
    sums.absmax = max(sums.absmax, absmax)
    if absmax:
        scaled = exact / absmax
        sums.add_squares(float(np.dot(scaled, scaled)), absmax)


def dtype_named(name: str) -> DType | None:
    """The dtype of this name of torch's."""
    return DTYPES.get(name.removeprefix("torch."))
