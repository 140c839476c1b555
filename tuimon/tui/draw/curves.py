"""The curves of one chart: which series stand in it, reduced to columns, and their raster."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from tuimon.tui.draw import braille
from tuimon.tui.draw.axis import Scale
from tuimon.tui.scene import ChartChoice, Scene
from tuimon.view.frame import HAS_FINITE, Envelope, SeriesView

MAX_CURVES = 8  # no eye tells more lines apart
MEMORY = "memory"
NORM, LEFT = "grad_norm", "grad_norm_clipped"
# Outlier cap of a linear axis: the 97th percentile of column maxima plus 1.2 times the spread.
_CAP_PERCENTILE = 97.0
_CAP_SPREAD = 1.2
_CAP_MIN_COLUMNS = 20
_RATE_OF_A_GROUP = re.compile(r"lr/\d+(@\d+)?")

# Colour codes of a cell; every curve has two more, for its envelope and for its mean.
BLANK, CLIP, NAN, INF, EDGE, CROSS, FAINT_BAD, BADGE, FIRST_CURVE = range(9)


class Plot(msgspec.Struct, frozen=True):
    """Where the dots lie: cells, the steps [start, end) they cover, and the value axis."""

    columns: int
    rows: int
    start: int
    end: int
    scale: Scale
    powers_of_two: bool = False  # ticks of the value axis: a loss scale knows no other values

    def column_of(self, step: float) -> int:
        """The cell column of a step; may lie outside."""
        return int((step - self.start) * self.columns // max(1, self.end - self.start))


class Curve(msgspec.Struct, frozen=True):
    """One line of a chart.

    Attributes:
        is_other: it belongs to the run that is laid over this one.
        line: what is drawn bright: the mean of each column, or its moving average.
    """

    name: str
    series: SeriesView
    is_other: bool
    envelope: Envelope
    line: npt.NDArray[np.float64]


def pane_of(name: str) -> str:
    """The chart that a series stands in: rates of all groups share one, memories, both norms."""
    if name.partition("@")[0] == LEFT:
        return name.replace(LEFT, NORM)
    if _RATE_OF_A_GROUP.fullmatch(name):
        return "lr" + name[name.index("@") :] if "@" in name else "lr"
    return MEMORY if name.startswith(MEMORY + "/") else name


def members_of(pane: str, names: Iterable[str]) -> list[str]:
    """The series of a chart, its own first."""
    found = sorted((name for name in names if pane_of(name) == pane), key=_natural)
    return found[:MAX_CURVES]


def _natural(name: str) -> tuple[str, int, str]:
    head, _, tail = name.partition("/")
    digits = tail.partition("@")[0]
    return (head.partition("@")[0], int(digits) if digits.isdigit() else -1, tail)


def series_shown(scene: Scene, pane: str) -> list[tuple[str, SeriesView, bool]]:
    """(name, series, whether it is the other run's) of all that a chart draws, its own first."""
    own = scene.frame.series
    found = [(name, own[name], False) for name in members_of(pane, own)]
    if scene.other is not None:
        theirs = scene.other.series
        found += [(name, theirs[name], True) for name in members_of(pane, theirs)]
    return found


def first_of(scene: Scene, pane: str) -> SeriesView | None:
    """The series that a chart is named after; None while it has no value."""
    return next((series for _, series, _ in series_shown(scene, pane) if series.count), None)


def curve_of(
    shown: tuple[str, SeriesView, bool],
    window: tuple[int, int],
    dots: int,
    *,
    keep: float,
    last: int | None,
) -> Curve:
    """Reduce a series to so many dot columns.

    Args:
        keep: factor of the moving average for each step; 0 draws the means themselves.
        last: newest step that may be shown; None shows all.
    """
    name, series, is_other = shown
    start, end = window
    envelope = series.envelope(start, end, dots)
    if last is not None:
        envelope = _until(envelope, start, end, last)
    line = envelope.mean.astype(np.float64)
    if keep:
        line = _smoothed(series, envelope, window, keep)
    return Curve(name, series, is_other, envelope, line)


def _until(envelope: Envelope, start: int, end: int, last: int) -> Envelope:
    """The envelope without what came after `last`: a frozen picture does not grow."""
    flags = envelope.flags.copy()
    columns = len(flags)
    flags[start + np.arange(columns) * (end - start) / columns > last] = 0
    return Envelope(envelope.low, envelope.high, envelope.mean, flags)


def _smoothed(
    series: SeriesView, envelope: Envelope, window: tuple[int, int], keep: float
) -> npt.NDArray[np.float64]:
    """Exponential mean that forgets by steps, so that every zoom tells the same value.

    It begins ahead of the window by the steps it remembers. A gap keeps the state.
    """
    start, end = window
    columns = len(envelope.mean)
    wide = max(1, end - start) / columns
    ahead = min(columns, int(np.ceil(5 / (1 - keep) / wide)))
    before = series.envelope(start - round(ahead * wide), start, ahead) if ahead else None
    stride = _stride(series)
    factor = keep ** max(1.0, wide / stride)
    total = weight = 0.0
    if before is not None:
        for value in before.mean.tolist():
            if value == value:
                total = factor * total + (1 - factor) * value
                weight = factor * weight + (1 - factor)
    out = envelope.mean.astype(np.float64)
    for index, value in enumerate(envelope.mean.tolist()):
        if value == value:
            total = factor * total + (1 - factor) * value
            weight = factor * weight + (1 - factor)
            out[index] = total / weight
    return out


def _stride(series: SeriesView) -> float:
    """Steps between two samples, on average."""
    if series.count < 2 or series.first_step is None or series.last_step is None:
        return 1.0
    return max(1.0, (series.last_step - series.first_step) / (series.count - 1))


def _longest_gap(series: SeriesView, plot: Plot, across: int) -> int:
    """Dot columns a line may cross: a bit more than the usual distance of two samples."""
    if series.count < 2:
        return 0
    per_step = plot.columns * across / max(1, plot.end - plot.start)
    return int(1.5 * _stride(series) * per_step)


def scale_of(choice: ChartChoice, curves: Sequence[Curve], rows: int) -> Scale:
    """The value axis of what is visible; never touched by a non-finite value."""
    finite = [(curve.envelope.flags & HAS_FINITE) > 0 for curve in curves]
    pairs = list(zip(curves, finite, strict=True))
    lows = np.concatenate([curve.envelope.low[where] for curve, where in pairs]).astype(float)
    highs = np.concatenate([curve.envelope.high[where] for curve, where in pairs]).astype(float)
    if choice.log:
        highs = highs[highs > 0]
        lows = lows[lows > 0] if (lows > 0).any() else highs
    ticks = max(2, rows // 2)
    if not len(lows) or not len(highs):
        return Scale(0.1, 1.0, log=True) if choice.log else Scale(0.0, 1.0)
    low, high = float(lows.min()), float(highs.max())
    if choice.cap and not choice.log and len(highs) >= _CAP_MIN_COLUMNS:
        usual = float(np.percentile(highs, _CAP_PERCENTILE))
        cap = usual + _CAP_SPREAD * max(usual - low, 1e-12)
        if high > cap:
            high = float(highs[highs <= cap].max())
    return choice.bounds.around(low, high, log=choice.log, ticks=ticks)


def raster(plot: Plot, curves: Sequence[Curve], mode: str) -> tuple[braille.Codes, braille.Codes]:
    """Cell codes and colour codes of all curves; dots merge, the colour is that of the first."""
    across, down = braille.RESOLUTION[mode]
    dots = np.zeros((plot.rows, plot.columns), np.uint8)
    colours = np.full((plot.rows, plot.columns), BLANK, np.uint8)
    for index, curve in reversed(list(enumerate(curves))):
        finite = (curve.envelope.flags & HAS_FINITE) > 0
        empty = curve.envelope.flags == 0
        gap = _longest_gap(curve.series, plot, across)
        low, high, middle = (
            braille.bridged(plot.scale.heights(np.where(finite, values, np.nan)), empty, gap)
            for values in (
                curve.envelope.low.astype(np.float64),
                curve.envelope.high.astype(np.float64),
                curve.line,
            )
        )
        spans = braille.cells(braille.dots(low, high, plot.rows * down), mode)
        means = braille.cells(braille.dots(middle, middle, plot.rows * down), mode)
        own = FIRST_CURVE + 2 * index
        colours[(spans > 0) & ((colours == BLANK) | (index == 0))] = own
        colours[means > 0] = own + 1
        dots |= spans | means
    return dots, colours


def flags_by_cell(curve: Curve, plot: Plot, across: int) -> braille.Codes:
    """What lies in each cell column of a curve, as `HAS_*` bits."""
    parts = curve.envelope.flags.reshape(plot.columns, across)
    return np.asarray(np.bitwise_or.reduce(parts, axis=1), np.uint8)
