"""Axes: nice ticks, bounds that stay still, and the window of time that charts share."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from tuimon.tui.draw.braille import Reals

MIN_SPAN = 8  # steps: the closest zoom
_GROWTH = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.25, 2.5, 2.75, 3, 3.5, 4, 4.5, 5, 5.5, 6, 7, 8, 9, 10)
# Bounds are kept while they are at most this many times as wide as needed, so that a new
# extreme does not redraw the whole panel.
_SLACK_LINEAR = 1.8
_SLACK_LOG = 1.6
_SUFFIXES = ((1e12, 1e12, "T"), (1e9, 1e9, "G"), (1e6, 1e6, "M"), (1e4, 1e3, "k"))
_FEWEST_DIGITS, _MOST_DIGITS = 4, 9
_OFF = 0.02  # steps between ticks that a label may be away from its own
_TINY = 1e-45  # the smallest float32 above 0


class Scale(msgspec.Struct, frozen=True):
    """Maps values to heights: 0 the bottom, 1 the top."""

    low: float
    high: float
    log: bool = False

    def heights(self, values: Reals) -> Reals:
        """Fractions of the plot height; outside 0…1 when off the axis, NaN stays NaN.

        On a log axis a value of 0 or below is -inf: below the axis.
        """
        if not self.log:
            return (values - self.low) / ((self.high - self.low) or 1.0)
        low, high = math.log10(self.low), math.log10(self.high)
        with np.errstate(divide="ignore", invalid="ignore"):
            logs = np.where(values > 0, np.log10(np.maximum(values, _TINY)), -np.inf)
            logs = np.where(np.isnan(values), np.nan, logs)
            return (logs - low) / ((high - low) or 1.0)

    def row(self, value: float, rows: int) -> int | None:
        """The cell row of a value, None when it is off the axis."""
        height = float(self.heights(np.array([value]))[0])
        if not 0 <= height <= 1:
            return None
        return rows - 1 - min(rows - 1, int(height * rows))


def nice_ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` multiples of 1, 2, 2.5 or 5 times a power of ten inside [low, high]."""
    span = high - low
    if not (math.isfinite(span) and span > 0) or count < 1:
        return [low] if math.isfinite(low) else []
    raw = span / count
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(m * power for m in (1, 2, 2.5, 5, 10) if m * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    return [index * step for index in range(first, min(last, first + 4 * count) + 1)]


def log_ticks(low: float, high: float, count: int) -> list[float]:
    """Powers of ten inside [low, high], thinned to `count`; 1-2-5 when there are too few."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    powers = [power for power in range(first, last + 1) if low <= 10.0**power <= high]
    every = max(1, -(-len(powers) // max(count, 1)))
    ticks = [10.0**power for power in powers[::every]]
    if len(ticks) >= 2:
        return ticks
    fine = [m * 10.0**power for power in range(first, last + 1) for m in (1, 2, 5)]
    inside = [tick for tick in fine if low <= tick <= high]
    return inside or ticks


def short(value: float, digits: int = 4) -> str:
    """A label of few characters: 18.2k, 1.31M, 0.05, 4.1e-7; more digits on demand."""
    size = abs(value)
    if value == 0:
        return "0"
    if size < 1e-3 or size >= 1e15:
        mantissa, power = f"{value:.{digits - 3}e}".split("e")
        return f"{mantissa.rstrip('0').removesuffix('.')}e{int(power)}"
    for limit, unit, suffix in _SUFFIXES:
        if size >= limit:
            return f"{value / unit:.{digits}g}{suffix}"
    return f"{value:.{digits}g}"


def labelled_ticks(low: float, high: float, count: int, width: int) -> list[tuple[float, str]]:
    """Ticks of a linear axis with labels of at most `width` cells that say each one apart.

    Fewer ticks where the digits that tell more of them apart would not fit.
    """
    for fewer in range(max(count, 1), 0, -1):
        ticks = nice_ticks(low, high, fewer)
        step = ticks[1] - ticks[0] if len(ticks) > 1 else math.inf
        for digits in range(_FEWEST_DIGITS, _MOST_DIGITS + 1):
            for form in (short, _plain):
                labels = [_without_zero(form(tick, digits), width) for tick in ticks]
                if all(
                    len(label) <= width and abs(_value_of(label) - tick) <= _OFF * step
                    for label, tick in zip(labels, ticks, strict=True)
                ):
                    return list(zip(ticks, labels, strict=True))
    return []


def _plain(value: float, digits: int) -> str:
    return f"{value:.{digits}g}" if 1 <= abs(value) < 10.0**digits else short(value, digits)


def _without_zero(label: str, width: int) -> str:
    """ ".00299" where "0.00299" is too wide."""
    if len(label) <= width or not label.lstrip("-").startswith("0."):
        return label
    return label.replace("0.", ".", 1)


def _value_of(label: str) -> float:
    unit = next((unit for _, unit, suffix in _SUFFIXES if label.endswith(suffix)), 1.0)
    return float(label.rstrip("TGMk")) * unit


class Bounds:
    """The range of a value axis, with hysteresis: it moves rarely and in clear steps."""

    def __init__(self) -> None:
        self._kept: Scale | None = None

    def forget(self) -> None:
        """Fit again at the next call."""
        self._kept = None

    def around(self, low: float, high: float, *, log: bool, ticks: int) -> Scale:
        """A scale that holds [low, high]; the previous one when it still fits well enough."""
        kept = self._kept
        if kept is not None and kept.log != log:
            kept = None
        fresh = _log_scale(low, high) if log else _linear_scale(low, high, ticks)
        if kept is not None and kept.low <= low and high <= kept.high:
            if log:
                wide = math.log10(kept.high / kept.low) > _SLACK_LOG * math.log10(
                    fresh.high / fresh.low
                )
            else:
                wide = kept.high - kept.low > _SLACK_LINEAR * (fresh.high - fresh.low)
            if not wide:
                return kept
        self._kept = fresh
        return fresh


def _log_scale(low: float, high: float) -> Scale:
    low = max(low, 1e-38)
    high = max(high, low)
    return Scale(low / 1.25, high * 1.25, log=True)


def _linear_scale(low: float, high: float, ticks: int) -> Scale:
    if high <= low:
        pad = abs(high) * 0.1 or 1.0
        return Scale(low - pad, high + pad)
    marks = nice_ticks(low, high, ticks)
    step = (marks[1] - marks[0]) / 4 if len(marks) > 1 else (high - low) / 4
    return Scale(math.floor(low / step) * step, math.ceil(high / step) * step)


class TimeWindow(msgspec.Struct):
    """Which steps the charts show. One window for all of them; written by the keys only.

    Attributes:
        span: number of steps shown; None is the whole history.
        end: first step after the window; None follows the newest step, in jumps.
    """

    span: int | None = None
    end: int | None = None

    def steps(self, first: int, last: int) -> tuple[int, int]:
        """The steps [start, end) to draw for a history of first…last."""
        if self.span is None:
            return first, first + _grown(last - first + 1)
        if self.end is not None:
            return self.end - self.span, self.end
        jump = max(1, self.span // 8)
        end = (last // jump + 1) * jump
        return end - self.span, end

    def zoom(self, factor: float, first: int, last: int, around: int | None = None) -> None:
        """Show `factor` times as many steps, keeping `around` (or the newest step) in place."""
        start, end = self.steps(first, last)
        span = max(MIN_SPAN, round((end - start) * factor))
        if span >= last - first + 1 and factor > 1:
            self.whole()
            return
        follows = self.end is None and around is None
        if around is None:
            around = last if self.end is None else (start + end) // 2
        share = (around - start) / max(1, end - start)
        self.span = span
        self.end = None if follows else max(first + span, round(around - share * span) + span)
        if self.end is not None and self.end > last and around >= last:
            self.end = None

    def pan(self, screens: float, first: int, last: int) -> None:
        """Move by a fraction of the window; at the newest step it follows again."""
        if self.span is None:
            start, end = self.steps(first, last)
            self.span = max(MIN_SPAN, (end - start) // 2)
        _, end = self.steps(first, last)
        moved = end + round(screens * self.span)
        self.end = None if moved > last else max(moved, first + self.span)

    def whole(self) -> None:
        """The whole history, growing."""
        self.span = self.end = None


def _grown(needed: int) -> int:
    """The next size of a growing axis: 1, 1.2, 1.4 … 10 times a power of ten."""
    needed = max(needed, 10)
    power = 10.0 ** math.floor(math.log10(needed))
    return next(int(m * power) for m in _GROWTH if int(m * power) >= needed)
