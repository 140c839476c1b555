"""A chart: an envelope of a series turned into rows of styled text. No widget, no clock."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from rich.segment import Segment

from tuimon.model.units import DASH, number
from tuimon.tui import braille
from tuimon.tui.axis import Scale, log_ticks, nice_ticks, short
from tuimon.tui.marking import columns_of, on_ruler
from tuimon.tui.rows import Row, centred, data, framed, text
from tuimon.tui.scene import ChartChoice, Scene
from tuimon.tui.theme import Look
from tuimon.view.frame import (
    HAS_FINITE,
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    Envelope,
    SeriesView,
)

LABEL_WIDTH = 7
# Outlier cap of a linear axis: the 97th percentile of column maxima plus 1.2 times the spread.
_CAP_PERCENTILE = 97.0
_CAP_SPREAD = 1.2
_CAP_MIN_COLUMNS = 20
_SMOOTHING = 0.1  # weight of a new column in the smoothed mean

# Colour codes of a cell.
_BLANK, _ENVELOPE, _MEAN, _CLIP, _NAN, _INF, _EDGE, _CROSS = range(8)


@dataclass(frozen=True)
class Plot:
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


def label_of(name: str) -> str:
    """The name of a series as a title; a unit at its end stands apart."""
    words = name.removesuffix("_s").replace("_", " ")
    return f"{words} time, s" if name.endswith("_s") else words


def draw_chart(scene: Scene, name: str, width: int, height: int, *, focused: bool) -> list[Row]:
    """The whole panel of one series, frame included."""
    look = scene.look
    series = scene.frame.series.get(name)
    choice = scene.charts.of(name)
    title: Row = [data(look, label_of(name), "strong", bold=True)]
    if choice.log:
        title.append(text(look, " log", "dim"))
    rows, columns = height - 2, width - 2 - LABEL_WIDTH - 1
    if series is None or series.last_step is None or rows < 1 or columns < 4:
        words = "waiting for the first step" if series is None or not series.count else ""
        body = centred(look, words, width - 2, max(0, rows))
        return framed(look, body, width, title=title, focused=focused)
    scene.charts.columns = columns
    start, end = scene.charts.window.steps(*history_of(scene, series))
    mode = look.glyphs.name
    across = braille.RESOLUTION[mode][0]
    envelope = series.envelope(start, end, columns * across)
    if scene.frozen and scene.frame.step is not None:
        envelope = _until(envelope, start, end, scene.frame.step)
    scale = _scale(choice, envelope, rows)
    is_scale = choice.log and name.startswith("loss_scale")
    plot = Plot(columns, rows, start, end, scale, is_scale)
    codes, colours = _raster(plot, envelope, _longest_gap(series, plot, across), mode, choice)
    chars = braille.points(codes, mode)
    _draw_clip(scene, name, plot, chars, colours)
    _draw_skips(scene, name, plot, chars, colours)
    _draw_marks(look, envelope, plot, chars, colours)
    cross = scene.charts.cross_step if focused or scene.screen == "charts" else None
    _draw_cross(look, cross, plot, chars, colours)
    body = _body(look, plot, chars, colours, _styles(look, name))
    reading = _reading(scene, series, plot, envelope, name=name, cross=cross)
    ruler = _ruler(look, plot, focused=focused)
    if "@" not in name:  # another optimizer counts steps of its own
        found = columns_of(scene.frame, start, end, columns)
        ruler = on_ruler(look, ruler, (LABEL_WIDTH + 1 + each for each in found))
    return framed(look, body, width, title=title, reading=reading, ruler=ruler, focused=focused)


def history_of(scene: Scene, series: SeriesView) -> tuple[int, int]:
    """First and last step of the history that all charts share, so that their axes agree."""
    first, last = series.first_step or 0, series.last_step or 0
    if scene.frame.history_first_step is not None:
        first = min(first, scene.frame.history_first_step)
    if scene.frame.step is not None:
        last = scene.frame.step if scene.frozen else max(last, scene.frame.step)
    return first, last


def _until(envelope: Envelope, start: int, end: int, last: int) -> Envelope:
    """The envelope without what came after `last`: a frozen picture does not grow."""
    flags = envelope.flags.copy()
    columns = len(flags)
    flags[start + np.arange(columns) * (end - start) / columns > last] = 0
    return Envelope(envelope.low, envelope.high, envelope.mean, flags)


def _longest_gap(series: SeriesView, plot: Plot, across: int) -> int:
    """Columns a line may cross: a bit more than the usual distance of two samples."""
    if series.count < 2 or series.first_step is None or series.last_step is None:
        return 0
    stride = (series.last_step - series.first_step) / (series.count - 1)
    per_step = plot.columns * across / max(1, plot.end - plot.start)
    return int(1.5 * max(1.0, stride) * per_step)


def _scale(choice: ChartChoice, envelope: Envelope, rows: int) -> Scale:
    """The value axis of what is visible; never touched by a non-finite value."""
    finite = (envelope.flags & HAS_FINITE) > 0
    lows = envelope.low[finite].astype(np.float64)
    highs = envelope.high[finite].astype(np.float64)
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


def _smoothed(mean: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Exponential mean over the columns; a gap keeps its place and does not reset it."""
    out = mean.copy()
    state = None
    for index, value in enumerate(mean.tolist()):
        if value == value:
            state = value if state is None else state + _SMOOTHING * (value - state)
            out[index] = state
    return out


def _raster(
    plot: Plot, envelope: Envelope, gap: int, mode: str, choice: ChartChoice
) -> tuple[braille.Codes, braille.Codes]:
    """Cell codes and colour codes of the curve."""
    down = braille.RESOLUTION[mode][1]
    finite = (envelope.flags & HAS_FINITE) > 0
    empty = envelope.flags == 0
    mean = envelope.mean.astype(np.float64)
    if choice.smooth:
        mean = _smoothed(mean)
    curves = []
    for values in (envelope.low.astype(np.float64), envelope.high.astype(np.float64), mean):
        heights = plot.scale.heights(np.where(finite, values, np.nan))
        curves.append(braille.bridged(heights, empty, gap))
    low, high, middle = curves
    spans = braille.cells(braille.dots(low, high, plot.rows * down), mode)
    means = braille.cells(braille.dots(middle, middle, plot.rows * down), mode)
    colours = np.where(means > 0, _MEAN, np.where(spans > 0, _ENVELOPE, _BLANK))
    return spans | means, colours.astype(np.uint8)


def _draw_clip(
    scene: Scene, name: str, plot: Plot, chars: braille.Points, colours: braille.Codes
) -> None:
    clip = scene.frame.clip
    if clip.max_norm is None or clip.mode == "off" or not name.endswith("grad_norm"):
        return
    row = plot.scale.row(clip.max_norm, plot.rows)
    if row is not None:
        free = colours[row] == _BLANK
        chars[row][free] = ord(scene.look.glyphs.dash)
        colours[row][free] = _CLIP


def _draw_skips(
    scene: Scene, name: str, plot: Plot, chars: braille.Points, colours: braille.Codes
) -> None:
    """Marks below the loss scale where the GradScaler left an update out."""
    head, _, optimizer = name.partition("@")
    skipped = scene.frame.series.get("skipped" + (f"@{optimizer}" if optimizer else ""))
    if head != "loss_scale" or skipped is None:
        return
    columns = skipped.envelope(plot.start, plot.end, plot.columns).flags > 0
    chars[plot.rows - 1][columns] = ord(scene.look.glyphs.skip)
    colours[plot.rows - 1][columns] = _EDGE


def _draw_marks(
    look: Look, envelope: Envelope, plot: Plot, chars: braille.Points, colours: braille.Codes
) -> None:
    """NaN, Inf and off-axis marks at the edges; a non-finite mark wins over everything."""
    across = braille.RESOLUTION[look.glyphs.name][0]
    flags = np.bitwise_or.reduce(envelope.flags.reshape(plot.columns, across), axis=1)
    finite = (envelope.flags & HAS_FINITE) > 0
    high = plot.scale.heights(np.where(finite, envelope.high, np.nan).astype(np.float64))
    low = plot.scale.heights(np.where(finite, envelope.low, np.nan).astype(np.float64))
    with np.errstate(invalid="ignore"):
        above = (high > 1 + 1e-9).reshape(plot.columns, across).any(axis=1)
        below = (low < -1e-9).reshape(plot.columns, across).any(axis=1)
    bottom = plot.rows - 1
    for where, row, glyph, colour in (
        (above, 0, look.glyphs.above, _EDGE),
        (below, bottom, look.glyphs.below, _EDGE),
        ((flags & HAS_POS_INF) > 0, 0, "I", _INF),
        ((flags & HAS_NEG_INF) > 0, bottom, "J", _INF),
        ((flags & HAS_NAN) > 0, bottom if plot.rows > 1 else 0, "N", _NAN),
    ):
        chars[row][where] = ord(glyph)
        colours[row][where] = colour


def _draw_cross(
    look: Look, cross: int | None, plot: Plot, chars: braille.Points, colours: braille.Codes
) -> None:
    if cross is None or not plot.start <= cross < plot.end:
        return
    column = plot.column_of(cross)
    free = (colours[:, column] == _BLANK) | (colours[:, column] == _CLIP)
    chars[free, column] = ord(look.glyphs.box[5])
    keep = (colours[:, column] == _NAN) | (colours[:, column] == _INF)
    colours[:, column] = np.where(keep, colours[:, column], _CROSS)


def _styles(look: Look, name: str) -> list[Segment]:
    envelope, mean = look.series(name)
    pairs = (("text", ""), (envelope, ""), (mean, ""), ("faint", ""))
    badges = (("on_badge", "nan"), ("on_badge", "inf"))
    plain_styles = [Segment("", look.style(fg)) for fg, _ in pairs]
    badge_styles = [Segment("", look.style(fg, bg, bold=True)) for fg, bg in badges]
    rest = [Segment("", look.style("warn", bold=True)), Segment("", look.style("key"))]
    return [*plain_styles, *badge_styles, *rest]


def _body(
    look: Look,
    plot: Plot,
    chars: braille.Points,
    colours: braille.Codes,
    styles: list[Segment],
) -> list[Row]:
    labels = _value_labels(plot)
    wall, tick = look.glyphs.box[5], look.glyphs.tick
    rows: list[Row] = []
    for index in range(plot.rows):
        label = labels.get(index, "")
        row: Row = [
            text(look, f"{label:>{LABEL_WIDTH}}", "dim"),
            text(look, tick if label else wall, "line"),
        ]
        line, colour = braille.line(chars[index]), colours[index]
        cuts = (np.flatnonzero(colour[1:] != colour[:-1]) + 1).tolist()
        at = 0
        for cut in [*cuts, plot.columns]:
            row.append(Segment(line[at:cut], styles[int(colour[at])].style))
            at = cut
        rows.append(row)
    return rows


def _value_labels(plot: Plot) -> dict[int, str]:
    scale, count = plot.scale, max(2, plot.rows // 2)
    if plot.powers_of_two:
        return _power_labels(scale, plot.rows, count)
    ticks = (
        log_ticks(scale.low, scale.high, count)
        if scale.log
        else nice_ticks(scale.low, scale.high, count)
    )
    labels: dict[int, str] = {}
    for value in ticks:
        row = scale.row(value, plot.rows)
        if row is not None:
            labels.setdefault(row, short(value)[:LABEL_WIDTH])
    return labels


def _power_labels(scale: Scale, rows: int, count: int) -> dict[int, str]:
    """ "2^16" at whole powers, every second or third where there are many."""
    low, high = math.ceil(math.log2(scale.low)), math.floor(math.log2(scale.high))
    labels: dict[int, str] = {}
    for power in range(high, low - 1, -max(1, (high - low) // count)):
        row = scale.row(2.0**power, rows)
        if row is not None:
            labels.setdefault(row, f"2^{power}")
    return labels


def _ruler(look: Look, plot: Plot, *, focused: bool) -> Row:
    """The bottom edge with step labels under their columns."""
    rail, colour = look.glyphs.box[4], "focus" if focused else "line"
    width = LABEL_WIDTH + 1 + plot.columns
    row: Row = []
    at = 0
    for tick in nice_ticks(plot.start, plot.end - 1, max(2, plot.columns // 16)):
        label = f" {short(tick)} "
        place = LABEL_WIDTH + 1 + plot.column_of(tick) - len(label) // 2
        if tick != int(tick) or place <= at or place + len(label) >= width:
            continue
        row += [text(look, rail * (place - at), colour), text(look, label, "dim")]
        at = place + len(label)
    row.append(text(look, rail * (width - at), colour))
    return row


def _reading(
    scene: Scene,
    series: SeriesView,
    plot: Plot,
    envelope: Envelope,
    *,
    name: str,
    cross: int | None,
) -> list[Row]:
    """What the title line says: the column under the crosshair, or now, ema, min and max."""
    look = scene.look
    window = scene.charts.window
    extra: list[Row] = []
    if window.span is not None:
        words = "tail " if window.end is None else "steps "
        shown = f"{plot.start:,}–{plot.end - 1:,}" if window.end is not None else f"{window.span:,}"
        extra.append([text(look, words + shown, "key")])
    if cross is not None and plot.start <= cross < plot.end:
        return [_at_cross(look, plot, envelope, cross), *extra]
    last = series.last
    bad = last is not None and not np.isfinite(last)
    now = text(look, number(last), "on_badge" if bad else "strong", "nan" if bad else "", bold=True)
    groups: list[Row] = [[now]]
    groups.append([text(look, f"ema {number(series.ema)}", look.series(name)[1])])
    groups.append([text(look, f"min {number(series.minimum)}", "dim")])
    groups.append([text(look, f"max {number(series.maximum)}", "dim")])
    return [*groups[:1], *extra, *groups[1:]]


def _at_cross(look: Look, plot: Plot, envelope: Envelope, cross: int) -> Row:
    """The steps and values of the cell column under the crosshair."""
    across = braille.RESOLUTION[look.glyphs.name][0]
    column = plot.column_of(cross)
    part = slice(column * across, (column + 1) * across)
    flags = int(np.bitwise_or.reduce(envelope.flags[part]))
    wide = (plot.end - plot.start) / plot.columns
    first = plot.start + int(np.ceil(column * wide))
    last = max(first, plot.start + int(np.ceil((column + 1) * wide)) - 1)
    steps = f"step {first:,}" if first == last else f"step {first:,}–{last:,}"
    row: Row = [text(look, steps + "  ", "key")]
    if flags & HAS_FINITE:
        low = float(np.nanmin(envelope.low[part]))
        high = float(np.nanmax(envelope.high[part]))
        words = number(low) if low == high else f"{number(low)} … {number(high)}"
    else:
        words = "no finite value" if flags else DASH
    row.append(text(look, words, "strong", bold=True))
    for bit, word in ((HAS_NAN, "NaN"), (HAS_POS_INF, "+Inf"), (HAS_NEG_INF, "-Inf")):
        if flags & bit:
            row.append(text(look, f" {word}", "bad", bold=True))
    return row


class ChartPanel:
    """A series in its frame."""

    can_focus = True
    rest_s = 0.2

    def __init__(self, name: str, series: str) -> None:
        self.name = name
        self.series = series

    def key(self, scene: Scene) -> object:
        """Changes with the series, the window and the choices."""
        series = scene.frame.series.get(self.series)
        choice = scene.charts.of(self.series)
        window = scene.charts.window
        version = series.version if series is not None else -1
        reach = window.steps(scene.frame.history_first_step or 0, scene.frame.step or 0)
        chosen = (choice.log, choice.smooth, choice.cap, scene.charts.cross_step)
        told = (scene.frame.clip, scene.frame.commands, len(scene.frame.events))
        return (version, reach, window.span, window.end, chosen, told, scene.screen)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        return draw_chart(scene, self.series, width, height, focused=focused)
