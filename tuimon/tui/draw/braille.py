"""From spans to characters: the raster of a curve, with whole-array operations and no widget.

Rows and columns are numpy's: row 0 is the top, column 0 the left.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Reals = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Codes = npt.NDArray[np.uint8]
Points = npt.NDArray[np.uint32]

# Dots per cell: (across, down).
RESOLUTION = {"braille": (2, 4), "block": (1, 2), "ascii": (1, 2)}

_WEIGHTS = {
    "braille": np.array([[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]], np.uint16),
    "block": np.array([[1], [2]], np.uint16),
    "ascii": np.array([[1], [2]], np.uint16),
}
_ALPHABET = {
    "braille": np.array([0x20] + [0x2800 + code for code in range(1, 256)], np.uint32),
    "block": np.array([ord(char) for char in " ▀▄█"], np.uint32),
    "ascii": np.array([ord(char) for char in " '.|"], np.uint32),
}


def bridged(values: Reals, empty: Bools, longest: int) -> Reals:
    """Fill runs of at most `longest` empty columns between two finite ones by a straight line.

    Args:
        values: heights per column, NaN where there is nothing finite.
        empty: columns without any sample. A column that holds only NaN or Inf is not empty and
            is never bridged.
    """
    finite = np.isfinite(values)
    known = np.flatnonzero(finite | ~empty)
    if longest < 1 or len(known) < 2:
        return values
    out = values.copy()
    left, right = known[:-1], known[1:]
    gap = right - left - 1
    wanted = (gap > 0) & (gap <= longest) & finite[left] & finite[right]
    for start, end in zip(left[wanted].tolist(), right[wanted].tolist(), strict=True):
        out[start : end + 1] = np.linspace(values[start], values[end], end - start + 1)
    return out


def dots(low: Reals, high: Reals, rows: int) -> Bools:
    """Dot matrix [rows, columns] of spans; neighbours are joined so that the curve has no holes.

    Args:
        low, high: heights as fractions of the plot, 0 the bottom and 1 the top; NaN is a gap.
            Values outside are drawn at the edge.
    """
    finite = ~(np.isnan(low) | np.isnan(high))
    top, bottom = _dot_rows(high, rows), _dot_rows(low, rows)
    joined = finite[1:] & finite[:-1]
    rising = joined & (bottom[1:] > top[:-1] + 1)
    falling = joined & (top[1:] < bottom[:-1] - 1)
    new_bottom, new_top = bottom.copy(), top.copy()
    new_bottom[1:][rising] = top[:-1][rising] + 1
    new_top[1:][falling] = bottom[:-1][falling] - 1
    height = np.arange(rows - 1, -1, -1, dtype=np.int32)[:, None]
    inside = (height >= new_bottom[None, :]) & (height <= new_top[None, :])
    return np.asarray(finite[None, :] & inside, np.bool_)


def _dot_rows(heights: Reals, rows: int) -> npt.NDArray[np.int32]:
    """Heights as dot rows counted from the bottom, held inside the plot; NaN becomes 0."""
    held = np.clip(np.where(np.isnan(heights), 0.0, heights), 0.0, 1.0)
    return np.asarray(np.minimum(np.floor(held * rows), rows - 1), np.int32)


def cells(matrix: Bools, mode: str) -> Codes:
    """Pack a dot matrix into one code per cell."""
    across, down = RESOLUTION[mode]
    rows, columns = matrix.shape[0] // down, matrix.shape[1] // across
    shaped = matrix[: rows * down, : columns * across].reshape(rows, down, columns, across)
    packed = (shaped * _WEIGHTS[mode][None, :, None, :]).sum(axis=(1, 3))
    return np.asarray(packed, np.uint8)


def points(codes: Codes, mode: str) -> Points:
    """Unicode code points of cell codes."""
    return _ALPHABET[mode][codes]


def line(row: Points) -> str:
    """One row of code points as text."""
    return row.astype("<u4").tobytes().decode("utf-32-le")


def spark(values: npt.ArrayLike, width: int, ramp: str) -> str:
    """The newest `width` values as bars; a non-finite value is a blank, all equal is the lowest."""
    array = np.asarray(values, np.float64)[-width:]
    finite = np.isfinite(array)
    if not finite.any():
        return " " * width
    low, high = float(array[finite].min()), float(array[finite].max())
    scale = (len(ramp) - 1) / (high - low) if high > low else 0.0
    level = np.where(finite, (np.where(finite, array, low) - low) * scale, 0).astype(int)
    drawn = [
        ramp[step] if ok else " " for step, ok in zip(level.tolist(), finite.tolist(), strict=True)
    ]
    return "".join(drawn).rjust(width)
