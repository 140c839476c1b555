"""A chart: envelopes of series turned into rows of styled text. No widget, no clock."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from rich.segment import Segment

from tuimon.tui.draw import braille
from tuimon.tui.draw.axis import Scale, labelled_ticks, log_ticks, nice_ticks, short
from tuimon.tui.draw.curves import (
    BADGE,
    BLANK,
    CLIP,
    CROSS,
    EDGE,
    FAINT_BAD,
    FIRST_CURVE,
    INF,
    NAN,
    Curve,
    Plot,
    curve_of,
    flags_by_cell,
    raster,
    scale_of,
    series_shown,
)
from tuimon.tui.draw.marking import columns_of, on_ruler
from tuimon.tui.draw.reading import colours_of, reading_of, tag_of
from tuimon.tui.draw.rows import Row, centred, data, framed, text
from tuimon.tui.draw.theme import NONE, Look
from tuimon.tui.layer_screen import missing_words
from tuimon.tui.scene import Scene
from tuimon.view.frame import (
    HAS_FINITE,
    HAS_NAN,
    HAS_NEG_INF,
    HAS_POS_INF,
    SeriesView,
)
from tuimon.view.owners import owner_of

LABEL_WIDTH = 7
_UNITS = {"memory": "memory, GiB"}


def label_of(name: str) -> str:
    """The name of a series as a title; a unit at its end stands apart."""
    base, at, optimizer = name.partition("@")
    words = base.removesuffix("_s").replace("_", " ") + at + optimizer
    return f"{words} time, s" if base.endswith("_s") else _UNITS.get(name, words)


def draw_chart(scene: Scene, name: str, width: int, height: int, *, focused: bool) -> list[Row]:
    """The whole panel of one series and what stands beside it, frame included."""
    look = scene.look
    shown = [each for each in series_shown(scene, name) if each[1].last_step is not None]
    choice = scene.charts.of(name)
    title: Row = [data(look, label_of(name), "strong", bold=True)]
    if owner := _owner(scene, name):
        title.append(data(look, f" {owner}", "dim"))
    if choice.log:
        title.append(text(look, " log", "dim"))
    rows, columns = height - 2, width - 2 - LABEL_WIDTH - 1
    if not shown or rows < 1 or columns < 4:
        words = missing_words(scene, name) if not shown else ""
        body = centred(look, words, width - 2, max(0, rows))
        return framed(look, body, width, title=title, focused=focused)
    if focused or scene.charts.columns <= 1:
        scene.charts.columns = columns
    window = scene.charts.window.steps(*history_of(scene, shown[0][1]))
    mode = look.glyphs.name
    dots = columns * braille.RESOLUTION[mode][0]
    last = scene.frame.step if scene.frozen else None
    curves = [curve_of(each, window, dots, keep=choice.keep, last=last) for each in shown]
    is_scale = choice.log and name.startswith("loss_scale")
    plot = Plot(columns, rows, *window, scale_of(choice, curves, rows), is_scale)
    codes, colours = raster(plot, curves, mode)
    chars = braille.points(codes, mode)
    _draw_clip(scene, name, plot, chars, colours)
    _draw_skips(scene, name, plot, chars, colours)
    _draw_marks(look, curves, plot, chars, colours)
    _draw_tags(look, curves, plot, chars, colours)
    _draw_cross(look, scene.charts.cross_step, plot, chars, colours)
    body = _body(look, plot, chars, colours, _styles(look, curves))
    ruler = _ruler(look, plot, focused=focused)
    if "@" not in name:  # another optimizer counts steps of its own
        found = columns_of(scene.frame, *window, columns)
        ruler = on_ruler(look, ruler, {LABEL_WIDTH + 1 + at: each for at, each in found.items()})
    reading = reading_of(scene, curves, plot, choice)
    return framed(look, body, width, title=title, reading=reading, ruler=ruler, focused=focused)


def _owner(scene: Scene, name: str) -> str:
    """Whose values these are, where several optimizers have a series of that name."""
    if "@" not in name and f"{name}@1" not in scene.frame.series:
        return ""
    return owner_of(name, scene.frame.series, scene.frame.layers)


def history_of(scene: Scene, series: SeriesView) -> tuple[int, int]:
    """First and last step of the history that all charts share, so that their axes agree.

    A window that follows has the newest step of the run itself, however far another one reaches.
    """
    first, last = series.first_step or 0, series.last_step or 0
    if scene.frame.history_first_step is not None:
        first = min(first, scene.frame.history_first_step)
    if scene.frame.step is not None:
        last = scene.frame.step if scene.frozen else max(last, scene.frame.step)
    other = scene.other
    if other is not None and other.step is not None:
        window = scene.charts.window
        follows = window.span is not None and window.end is None
        first = min(first, other.history_first_step or 0)
        last = last if follows else max(last, other.step)
    return first, last


def _draw_clip(
    scene: Scene, name: str, plot: Plot, chars: braille.Points, colours: braille.Codes
) -> None:
    clip = scene.frame.clip
    if clip.max_norm is None or clip.mode == "off" or not name.endswith("grad_norm"):
        return
    row = plot.scale.row(clip.max_norm, plot.rows)
    if row is not None:
        free = colours[row] == BLANK
        chars[row][free] = ord(scene.look.glyphs.dash)
        colours[row][free] = CLIP


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
    colours[plot.rows - 1][columns] = EDGE


def _draw_marks(
    look: Look,
    curves: Sequence[Curve],
    plot: Plot,
    chars: braille.Points,
    colours: braille.Codes,
) -> None:
    """Off-axis and NaN, Inf marks at the edges; a non-finite mark wins over everything.

    Where several non-finite ones meet they stand one behind the other, those of the run that is
    laid over last and as small letters.
    """
    across = braille.RESOLUTION[look.glyphs.name][0]
    bottom = plot.rows - 1
    for curve in curves:
        for where, row, glyph in zip(
            _off_axis(curve, plot, across),
            (0, bottom),
            (look.glyphs.above, look.glyphs.below),
            strict=True,
        ):
            chars[row][where], colours[row][where] = ord(glyph), EDGE
    behind = {1: np.zeros(plot.columns, np.intp), -1: np.zeros(plot.columns, np.intp)}
    for is_other in (False, True):
        side = [flags_by_cell(each, plot, across) for each in curves if each.is_other == is_other]
        if not side:
            continue
        flags = np.bitwise_or.reduce(side)
        for bit, letter, colour, inward in (
            (HAS_POS_INF, "I", INF, 1),
            (HAS_NAN, "N", NAN, -1),
            (HAS_NEG_INF, "J", INF, -1),
        ):
            at = np.flatnonzero(flags & bit)
            rows = np.minimum(behind[inward][at], bottom)
            rows = rows if inward > 0 else bottom - rows
            chars[rows, at] = ord(letter.lower() if is_other else letter)
            colours[rows, at] = FAINT_BAD if is_other else colour
            behind[inward][at] += 1


def _off_axis(curve: Curve, plot: Plot, across: int) -> tuple[braille.Bools, braille.Bools]:
    """Cell columns with a finite value above, and below, the axis."""
    envelope = curve.envelope
    finite = (envelope.flags & HAS_FINITE) > 0
    high = plot.scale.heights(np.where(finite, envelope.high, np.nan).astype(np.float64))
    low = plot.scale.heights(np.where(finite, envelope.low, np.nan).astype(np.float64))
    with np.errstate(invalid="ignore"):
        above = np.asarray((high > 1 + 1e-9).reshape(plot.columns, across).any(axis=1), np.bool_)
        below = np.asarray((low < -1e-9).reshape(plot.columns, across).any(axis=1), np.bool_)
    return above, below


def _draw_tags(
    look: Look,
    curves: Sequence[Curve],
    plot: Plot,
    chars: braille.Points,
    colours: braille.Codes,
) -> None:
    """Where colour cannot tell the curves apart, the newest point of each carries its number."""
    if look.colours != NONE or len(curves) < 2:
        return
    across = braille.RESOLUTION[look.glyphs.name][0]
    for index, curve in enumerate(curves):
        known = np.flatnonzero(np.isfinite(curve.line))
        back = 2 * across * (len(curves) - 1 - index)  # side by side, however close they end
        if len(known) <= back:
            continue
        place = int(known[-1 - back])
        height = float(plot.scale.heights(curve.line[place : place + 1])[0])
        row = plot.rows - 1 - min(plot.rows - 1, int(min(max(height, 0.0), 1.0) * plot.rows))
        column = place // across
        if colours[row, column] not in (NAN, INF):
            chars[row, column] = ord(tag_of(index))
            colours[row, column] = BADGE


def _draw_cross(
    look: Look, cross: int | None, plot: Plot, chars: braille.Points, colours: braille.Codes
) -> None:
    if cross is None or not plot.start <= cross < plot.end:
        return
    column = plot.column_of(cross)
    free = (colours[:, column] == BLANK) | (colours[:, column] == CLIP)
    chars[free, column] = ord(look.glyphs.box[5])
    keep = (colours[:, column] == NAN) | (colours[:, column] == INF)
    colours[:, column] = np.where(keep, colours[:, column], CROSS)


def _styles(look: Look, curves: Sequence[Curve]) -> list[Segment]:
    """Segments by colour code."""
    found = {
        BLANK: look.style("text"),
        CLIP: look.style("faint"),
        NAN: look.style("on_badge", "nan", bold=True),
        INF: look.style("on_badge", "inf", bold=True),
        EDGE: look.style("warn", bold=True),
        CROSS: look.style("key"),
        FAINT_BAD: look.style("bad"),
        BADGE: look.style("strong", bold=True),
    }
    for index, curve in enumerate(curves):
        envelope, mean = colours_of(look, curve)
        found[FIRST_CURVE + 2 * index] = look.style(envelope)
        found[FIRST_CURVE + 2 * index + 1] = look.style(mean)
    return [Segment("", found[code]) for code in range(len(found))]


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
    if scale.log:
        ticks = [(value, short(value)) for value in log_ticks(scale.low, scale.high, count)]
    else:
        ticks = labelled_ticks(scale.low, scale.high, count, LABEL_WIDTH)
    labels: dict[int, str] = {}
    for value, label in ticks:
        row = scale.row(value, plot.rows)
        if row is not None:
            labels.setdefault(row, label[:LABEL_WIDTH])
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


class ChartPanel:
    """The series of a chart in their frame."""

    can_focus = True
    rest_s = 0.2

    def __init__(self, name: str, series: str) -> None:
        self.name = name
        self.series = series

    def key(self, scene: Scene) -> object:
        """Changes with the series, the window and the choices."""
        frame, other, charts = scene.frame, scene.other, scene.charts
        shown = [(each[0], each[1].version) for each in series_shown(scene, self.series)]
        choice, window = charts.of(self.series), charts.window
        reach = window.steps(frame.history_first_step or 0, frame.step or 0)
        theirs = other.step if other is not None else None
        chosen = (choice.log, choice.keep, choice.cap, charts.cross_step, theirs)
        told = (frame.clip, frame.commands, len(frame.events), len(frame.milestones))
        words = missing_words(scene, self.series) if not shown else ""
        return (shown, reach, window.span, window.end, chosen, told, scene.screen, words)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        return draw_chart(scene, self.series, width, height, focused=focused)
