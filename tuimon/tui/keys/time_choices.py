"""What the keys for time do: the crosshair of all panels, the window of charts and of the map."""

from __future__ import annotations

import re

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from tuimon.tui.draw.chart import history_of
from tuimon.tui.draw.curves import first_of, members_of
from tuimon.tui.keys.actions import ON_CHART, ON_LAYERS, kind_of
from tuimon.tui.keys.row_choices import Choice
from tuimon.tui.scene import Scene
from tuimon.tui.screens import CHART_PREFIX, Box
from tuimon.tui.scrolling import FAR
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, SeriesView
from tuimon.view.marks import COMMAND, EVENT, marks
from tuimon.view.pyramid import BUCKETS_PER_COLUMN
from tuimon.view.stops import OF_AN_INCIDENT

_SERIES = {"loss": "loss", "grad": "grad_norm"}
_KEEPS = (0.0, 0.9, 0.99, 0.999)  # of the moving average, as the key goes through them
_SCANNED = 512  # columns in which a spike is looked for
_AROUND = 4  # columns on either side that a spike stands out of
_STEP = re.compile(r"([-+]?)\s*([\d,_' ]*\.?\d+)\s*([kKmM%]?)")
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000}


def series_of(panel: str) -> str | None:
    """The series a chart panel shows."""
    if panel.startswith(CHART_PREFIX):
        return panel.removeprefix(CHART_PREFIX)
    return _SERIES.get(panel)


def reach_of(scene: Scene) -> tuple[int, int] | None:
    """First and last step that the focused chart can show; those of the run elsewhere."""
    name = series_of(scene.focus)
    if name is None:
        frame = scene.frame
        return None if frame.step is None else (frame.history_first_step or 0, frame.step)
    series = first_of(scene, name)
    if series is None or series.first_step is None or series.last_step is None:
        return None
    return history_of(scene, series)


def put_cross(scene: Scene, step: int, reach: tuple[int, int]) -> None:
    """The crosshair to a step of the history, and the charts to where it is in sight.

    The heat map follows by itself when it is drawn.
    """
    desk = scene.charts
    desk.cross_step = max(reach[0], min(step, reach[1]))
    start, end = desk.window.steps(*reach)
    if desk.window.span is not None and not start <= desk.cross_step < end:
        middle = desk.cross_step + desk.window.span // 2
        desk.window.end = max(reach[0] + desk.window.span, middle)


def cross(direction: int) -> Choice:
    """One cell column left or right of the focused panel; begins at the newest step."""

    def choose(scene: Scene, boxes: list[Box]) -> str | None:
        reach = reach_of(scene)
        if reach is None:
            return "no steps yet"
        desk = scene.charts
        if desk.cross_step is None:
            put_cross(scene, min(reach[1], desk.window.steps(*reach)[1] - 1), reach)
            return None
        if kind_of(scene.focus) == ON_LAYERS:
            per_cell = scene.heat.bucket
        else:
            start, end = desk.window.steps(*reach)
            per_cell = max(1, round((end - start) / max(1, desk.columns)))
        put_cross(scene, desk.cross_step + direction * per_cell, reach)
        return None

    return choose


def scale_time(factor: float) -> Choice:
    """Show so many times as many steps."""

    def choose(scene: Scene, boxes: list[Box]) -> None:
        if kind_of(scene.focus) == ON_LAYERS:
            heat = scene.heat
            heat.bucket = max(1, min(1 << 20, heat.bucket * 2 if factor > 1 else heat.bucket // 2))
            heat.crossed = None
            return
        reach = reach_of(scene)
        if reach is not None:
            desk, newest = scene.charts, scene.frame.step
            if desk.cross_step is None and desk.window.end is None and newest is not None:
                reach = reach[0], min(reach[1], newest)  # another run may reach farther
            desk.window.zoom(factor, *reach, around=desk.cross_step)

    return choose


def whole(scene: Scene, boxes: list[Box]) -> None:
    """The whole history, following; no crosshair."""
    scene.charts.cross_step = None
    if kind_of(scene.focus) == ON_LAYERS:
        scene.heat.bucket, scene.heat.end = 1, None
        return
    scene.charts.window.whole()


def pan(screens: float) -> Choice:
    """Move by a part of the window, back or forward in time."""

    def choose(scene: Scene, boxes: list[Box]) -> None:
        if kind_of(scene.focus) == ON_LAYERS:
            _pan_heat(scene, screens)
            return
        reach = reach_of(scene)
        if reach is not None:
            scene.charts.window.pan(screens, *reach)

    return choose


def _pan_heat(scene: Scene, screens: float) -> None:
    heat, desk = scene.frame.heat, scene.heat
    if heat is None or heat.first_step is None or heat.last_step is None:
        return
    span = desk.columns * desk.bucket
    end = desk.end if desk.end is not None else heat.last_step + 1
    moved = end + round(screens * span)
    desk.end = None if moved > heat.last_step else max(moved, heat.first_step + span)


def toggle(field: str) -> Choice:
    """Switch a choice of the focused chart."""

    def choose(scene: Scene, boxes: list[Box]) -> None:
        name = series_of(scene.focus)
        if name is not None:
            choice = scene.charts.of(name)
            setattr(choice, field, not getattr(choice, field))
            choice.bounds.forget()

    return choose


def smooth(scene: Scene, boxes: list[Box]) -> str | None:
    """The next of the moving averages, then none."""
    name = series_of(scene.focus)
    if name is None:
        return None
    choice = scene.charts.of(name)
    choice.keep = _KEEPS[(_KEEPS.index(choice.keep) + 1) % len(_KEEPS)]
    return f"moving average: {f'{choice.keep:g} of it kept each step' if choice.keep else 'none'}"


def bad_step(scene: Scene, direction: int) -> str | None:
    """The crosshair to the next NaN, Inf or event of the focused chart; words without one.

    Of loss and norm, where no chart has the focus.
    """
    panes = (series_of(scene.focus),) if series_of(scene.focus) else _SERIES.values()
    reach = reach_of(scene)
    if reach is None:
        return "no values yet"
    own = scene.frame.series
    places = [own[each] for pane in panes for each in members_of(pane or "", own)]
    happened = _happened(scene, places)
    start = scene.charts.cross_step
    limit = -1 if direction > 0 else FAR
    for begin in (limit if start is None else start, limit):
        found = [each.non_finite_near(begin, forward=direction > 0) for each in places]
        found += [step for step in happened if (step - begin) * direction > 0]
        known = [step for step in found if step is not None and reach[0] <= step <= reach[1]]
        if known:
            put_cross(scene, min(known) if direction > 0 else max(known), reach)
            return None
    names = " or ".join(str(pane).replace("_", " ") for pane in panes)
    return f"no NaN or Inf in {names}, no warning and no command so far"


def _happened(scene: Scene, places: list[SeriesView]) -> list[int]:
    """Steps of commands and events, but of those that tell of a NaN that goes on there."""
    others = {each.step for each in scene.frame.events if not each.kind.startswith(OF_AN_INCIDENT)}
    return [
        mark.step
        for mark in marks(scene.frame)
        if mark.kind == COMMAND
        or (mark.kind == EVENT and (mark.step in others or not _is_amid(mark.step, places)))
    ]


def _is_amid(step: int, places: list[SeriesView]) -> bool:
    bad = HAS_NAN | HAS_POS_INF | HAS_NEG_INF
    return any(each.envelope(step, step + 1, 1).flags[0] & bad for each in places)


def spike(scene: Scene, boxes: list[Box]) -> str | None:
    """The crosshair to the sharpest spike in sight, of the focused chart or of the loss."""
    name = series_of(scene.focus) or "loss"
    series = first_of(scene, name)
    if series is None or series.first_step is None or series.last_step is None:
        return f"no {name.replace('_', ' ')} yet"
    reach = history_of(scene, series)
    found = spike_step(series, *scene.charts.window.steps(*reach))
    if found is None:
        return f"no spike of {name.replace('_', ' ')} in sight"
    put_cross(scene, found, reach)
    return None


def spike_step(series: SeriesView, start: int, end: int) -> int | None:
    """The step whose value stands out most above what is usual on both sides of it.

    Its cost depends on the columns that are looked at, not on the length of the history.
    """
    start, end = max(start, series.first_step or 0), min(end, (series.last_step or 0) + 1)
    columns = min(_SCANNED, end - start)
    if columns < 2 * _AROUND:
        return None
    envelope = series.envelope(start, end, columns)
    finite = (envelope.flags & HAS_FINITE) > 0
    high = np.where(finite, envelope.high, -np.inf).astype(np.float64)
    low = np.where(finite, envelope.mean, np.inf).astype(np.float64)
    padded = np.pad(low, _AROUND, constant_values=np.inf)
    usual = np.median(sliding_window_view(padded, _AROUND), axis=1)
    before, after = usual[:columns], usual[_AROUND + 1 :]
    excess = high - np.maximum(before, np.where(np.isfinite(after), after, before))
    best = int(np.argmax(excess))
    if not excess[best] > 0:
        return None
    return _highest(series, *_column(start, end, columns, best))


def _column(start: int, end: int, columns: int, at: int) -> tuple[int, int]:
    """The steps of a column, with what a reduced window may have moved into it."""
    span = end - start
    moved = -(-span // columns) // BUCKETS_PER_COLUMN + 1 if span > columns else 0
    first, last = start + at * span // columns, start - (-(at + 1) * span // columns)
    return max(start, first - moved), min(end, last + moved)


def _highest(series: SeriesView, start: int, end: int) -> int:
    """The first step of the largest value in [start, end)."""
    while end - start > 1:
        columns = min(_SCANNED, end - start)
        high = series.envelope(start, end, columns).high
        best = int(np.argmax(np.where(np.isnan(high), -np.inf, high)))
        start, end = _column(start, end, columns, best)
    return start


def step_typed(words: str, reach: tuple[int, int]) -> int | None:
    """The step that "1000", "1,000", "1k", "2.5M", "50%" or "-100" (from the newest) names."""
    found = _STEP.fullmatch(words.strip())
    if found is None:
        return None
    sign, digits, unit = found.groups()
    value = float(re.sub(r"[,_' ]", "", digits))
    if unit == "%":
        return round(reach[0] + (reach[1] - reach[0]) * min(value, 100.0) / 100)
    step = round(value * _UNITS[unit.lower()])
    return reach[1] - step if sign == "-" else step


def go_to(scene: Scene, words: str, before: int | None) -> str | None:
    """Follow what is typed; nothing typed returns to where the crosshair was."""
    reach = reach_of(scene)
    scene.revision += 1
    if not words.strip() or reach is None:
        scene.charts.cross_step = before
        return None if reach is not None else "no steps yet"
    step = step_typed(words, reach)
    if step is None:
        return f"{words} is no step: 1000, 1k, 2.5M, 50%, -100 from the newest"
    put_cross(scene, step, reach)
    return None if reach[0] <= step <= reach[1] else f"steps {reach[0]:,} to {reach[1]:,} are known"


def is_timed(scene: Scene) -> bool:
    """Whether the focused panel has an axis of steps."""
    return kind_of(scene.focus) in (ON_CHART, ON_LAYERS)
