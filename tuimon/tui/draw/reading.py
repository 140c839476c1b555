"""What the title line of a chart says: the newest values, or those under the crosshair."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.cells import set_cell_size
from rich.segment import Segment

from tuimon.model.units import DASH, apart, number
from tuimon.tui.draw import braille
from tuimon.tui.draw.curves import LEFT, MEMORY, NORM, Curve, Plot
from tuimon.tui.draw.rows import Row, data, text
from tuimon.tui.draw.theme import NONE, Look
from tuimon.tui.scene import ChartChoice, Scene
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Envelope

_OTHER = ("faint", "dim")  # the run that is laid over stands back
_WORDS = ((HAS_NAN, "NaN"), (HAS_POS_INF, "+Inf"), (HAS_NEG_INF, "-Inf"))
_TAGS = "123456789abcdefg"
_OTHER_CELLS = 12  # of the other run's name


def colours_of(look: Look, curve: Curve) -> tuple[str, str]:
    """(envelope, mean) of a curve."""
    return _OTHER if curve.is_other else look.series(curve.name)


def tag_of(index: int) -> str:
    """What stands for a curve where there is no colour."""
    return _TAGS[index % len(_TAGS)]


def reading_of(scene: Scene, curves: Sequence[Curve], plot: Plot, choice: ChartChoice) -> list[Row]:
    """Groups for the end of the title line, the most telling first."""
    look, cross = scene.look, scene.charts.cross_step
    window = scene.charts.window
    extra: list[Row] = []
    if window.span is not None:
        words = "tail " if window.end is None else "steps "
        shown = f"{plot.start:,}–{plot.end - 1:,}" if window.end is not None else f"{window.span:,}"
        extra.append([text(look, words + shown, "key")])
    if cross is not None:
        return _under_cross(scene, curves, plot, choice, cross)
    if len(curves) > 1:
        told = [at for at in range(len(curves)) if not _says_nothing_new(curves, at)]
        groups: list[Row] = [*(_newest(scene, curves, at, plot) for at in told), *extra]
        if any(each.is_other or not each.name.startswith(NORM) for each in curves):
            return groups
    else:
        groups = [[_value(look, curves[0].series.last, "strong")], *extra]
    series, colour = curves[0].series, colours_of(look, curves[0])[1]
    if choice.keep:
        groups.append([text(look, f"ema({choice.keep:g}) {_smooth(curves[0])}", colour)])
    elif series.ema is not None:
        groups.append([text(look, f"ema {number(series.ema)}", colour)])
    for word, value in (("min", series.minimum), ("max", series.maximum)):
        if value is not None:
            groups.append([text(look, f"{word} {number(value)}", "dim")])
    return groups


def _value(look: Look, value: float | None, tone: str) -> Segment:
    bad = value is not None and not np.isfinite(value)
    return text(look, number(value), "on_badge" if bad else tone, "nan" if bad else "", bold=True)


def _smooth(curve: Curve) -> str:
    known = curve.line[np.isfinite(curve.line)]
    return number(float(known[-1])) if len(known) else DASH


def _label(scene: Scene, curves: Sequence[Curve], at: int) -> str:
    """What a curve is called beside the others of its chart."""
    curve = curves[at]
    name = curve.name.removeprefix(f"{MEMORY}/")
    if name.startswith(NORM):  # the title says so
        name = "clipped" if name.startswith(LEFT) else ""
    if sum(each.is_other == curve.is_other for each in curves) < 2:
        name = ""
    if curve.is_other:
        name = f"{set_cell_size(scene.other_name, _OTHER_CELLS).strip()} {name}".strip()
    name = f"{tag_of(at)}:{name}" if scene.look.colours == NONE else name
    return f"{name} " if name else ""


def _says_nothing_new(curves: Sequence[Curve], at: int) -> bool:
    """Whether nothing was clipped: what is left of a norm is all of it."""
    curve = curves[at]
    if not curve.name.startswith(LEFT) or not at:
        return False
    whole = curves[at - 1]
    is_of_it = whole.name.startswith(NORM) and whole.is_other == curve.is_other
    return is_of_it and number(whole.series.last) == number(curve.series.last)


def _newest(scene: Scene, curves: Sequence[Curve], at: int, plot: Plot) -> Row:
    """The newest value; of another run that at the same step, or its last one and where that is."""
    look, curve = scene.look, curves[at]
    tone = colours_of(look, curve)[1]
    label = data(look, _label(scene, curves, at), tone)
    own = next((each.series.last_step for each in curves if not each.is_other), None)
    theirs = curve.series.last_step
    if not curve.is_other or theirs is None or theirs == own:
        return [label, _value(look, curve.series.last, tone)]
    if own is not None and theirs > own:
        return [label, *_at_step(look, curve, plot, own)]
    last = _value(look, curve.series.last, tone)
    return [label, last, text(look, f" at {theirs:,}", "dim")]


def _under_cross(
    scene: Scene, curves: Sequence[Curve], plot: Plot, choice: ChartChoice, cross: int
) -> list[Row]:
    """The step, then each curve's value there; beside a single one what its column spans."""
    look = scene.look
    groups: list[Row] = [[text(look, f"step {cross:,}", "key")]]
    for at, curve in enumerate(curves):
        row: Row = []
        if len(curves) > 1:
            tone = colours_of(look, curve)[1]
            row.append(data(look, _label(scene, curves, at), tone))
        row += _at_step(look, curve, plot, cross)
        groups.append(row)
    if not plot.start <= cross < plot.end:
        return [*groups, [text(look, "out of sight", "dim")]]
    across = braille.RESOLUTION[look.glyphs.name][0]
    if choice.keep:
        column = plot.column_of(cross) * across
        known = curves[0].line[column : column + across]
        known = known[np.isfinite(known)]
        words = number(float(known[-1])) if len(known) else DASH
        groups.append([text(look, f"ema({choice.keep:g}) {words}", colours_of(look, curves[0])[1])])
    if len(curves) == 1 and (span := _span(look, curves[0], plot, cross)):
        groups.append(span)
    return groups


def _at_step(look: Look, curve: Curve, plot: Plot, cross: int) -> Row:
    """The value of one step; of its column where that step has no sample of its own."""
    exact = curve.series.envelope(cross, cross + 1, 1)
    if exact.flags[0]:
        return _told(look, exact, slice(0, 1))
    if not plot.start <= cross < plot.end:
        return [text(look, DASH, "dim")]
    return _told(look, curve.envelope, _dots_of(look, plot, cross))


def _dots_of(look: Look, plot: Plot, cross: int) -> slice:
    across = braille.RESOLUTION[look.glyphs.name][0]
    column = plot.column_of(cross)
    return slice(column * across, (column + 1) * across)


def _told(look: Look, envelope: Envelope, part: slice) -> Row:
    """Finite values of some columns, then what else lies in them."""
    flags = int(np.bitwise_or.reduce(envelope.flags[part]))
    row: Row = []
    if flags & HAS_FINITE:
        low = float(np.nanmin(envelope.low[part]))
        high = float(np.nanmax(envelope.high[part]))
        words = number(low) if low == high else " … ".join(apart(low, high))
        row.append(text(look, words, "strong", bold=True))
    elif not flags:
        row.append(text(look, DASH, "dim"))
    for bit, word in _WORDS:
        if flags & bit:
            row.append(text(look, f"{' ' if row else ''}{word}", "bad", bold=True))
    return row


def _span(look: Look, curve: Curve, plot: Plot, cross: int) -> Row:
    """The steps that share the column of the crosshair, with the range of their values."""
    column = plot.column_of(cross)
    wide = (plot.end - plot.start) / plot.columns
    first = plot.start + int(np.ceil(column * wide))
    last = max(first, plot.start + int(np.ceil((column + 1) * wide)) - 1)
    if first == last:
        return []
    told = _told(look, curve.envelope, _dots_of(look, plot, cross))
    return [text(look, f"{first:,}–{last:,}: ", "dim"), *told]
