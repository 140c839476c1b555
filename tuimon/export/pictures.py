"""The pictures of a report: charts of the run, its layers over time, histograms of some."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from tuimon.export.drawing import COLUMNS, Line, Window, bars, chart
from tuimon.export.elements import tag
from tuimon.export.heatpicture import MAX_ROWS, heat_picture, legend
from tuimon.feed.past import Past
from tuimon.model.samples import HISTOGRAM_BINS, HISTOGRAM_LOW, Histogram
from tuimon.model.units import count, number
from tuimon.view.frame import Frame, SeriesView
from tuimon.view.marks import marks

_HEAT_COLUMNS = 600
_FEW_VALUES = 3  # that are told rather than drawn
_MOST_CHARTS = 24
_LAYERS_SHOWN = 3
_HISTOGRAM_BARS = 33
_FIRST = ("loss", "grad_norm", "loss_scale", "step_s")
_TOGETHER = ("loss", "grad_norm", "loss_scale")
_UNITS = {"step_s": "seconds a step", "grad_norm": "gradient norm, before clipping"}


def charts(frame: Frame) -> list[Element]:
    """Every series, the telling ones first, over the whole run."""
    window = _window(frame)
    if window is None:
        return []
    groups = _groups(frame.series)
    found, told = [], marks(frame)
    for title, members in groups[:_MOST_CHARTS]:
        if all(each.count <= _FEW_VALUES for each in members):
            found.append(_figures(title, members))
            continue
        columns = max(1, min(COLUMNS, window.end - window.first))
        lines = [
            Line(each.name, each.envelope(window.first, window.end, columns)) for each in members
        ]
        found.append(chart(title, lines, window, told))
    return found


def _figures(title: str, members: Sequence[SeriesView]) -> Element:
    """Series of a few values, as words: dots in a chart say less."""
    told = []
    for each in members:
        values = [f"{number(value)} at step {count(step)}" for step, value in _values(each)]
        told.append(("" if len(members) == 1 else f"{each.name} ") + ", ".join(values))
    return tag("p", tag("b", title), f": {'; '.join(told)}; no more were taken", class_="only")


def _values(series: SeriesView) -> list[tuple[int, float]]:
    first, last = series.first_step, series.last_step
    if first is None or last is None:
        return []
    found = series.envelope(first, last + 1, last + 1 - first)
    return [(first + int(at), float(found.mean[at])) for at in np.flatnonzero(found.flags)]


def together(frames: Sequence[Frame], names: Sequence[str]) -> list[Element]:
    """What two runs have in common, one over the other; each has its name."""
    windows = [window for each in frames if (window := _window(each)) is not None]
    if len(windows) < len(frames):
        return []
    window = Window(min(each.first for each in windows), max(each.end for each in windows))
    columns = max(1, min(COLUMNS, window.end - window.first))
    found = []
    for title, members in _groups(frames[0].series)[:_MOST_CHARTS]:
        for name in [each.name for each in members]:
            both = [each.series[name] for each in frames if name in each.series]
            if len(both) < len(frames) or (len(members) == 1 and name not in _TOGETHER):
                continue
            lines = [
                Line(called, each.envelope(window.first, window.end, columns))
                for called, each in zip(names, both, strict=True)
            ]
            found.append(chart(title if len(members) == 1 else name, lines, window))
    return found


def layers(frame: Frame) -> list[Element]:
    """The heat map with its legend; rows that ever went bad come first where not all have room."""
    heat, table = frame.heat, frame.layers
    if heat is None or table is None or heat.first_step is None or heat.last_step is None:
        return []
    first, end = heat.first_step, heat.last_step + 1
    first_bad = heat.first_bad()
    order = list(range(len(table.names)))
    if len(order) > MAX_ROWS:
        order.sort(key=lambda row: (first_bad[row] < 0, first_bad[row], row))
        order = sorted(order[:MAX_ROWS])
    columns = max(1, min(_HEAT_COLUMNS, end - first))
    codes = heat.cells([[row] for row in order], first, end, columns)
    notes = [f"! from {count(int(first_bad[row]))}" if first_bad[row] >= 0 else "" for row in order]
    names = [table.names[row] for row in order]
    found = [legend(), heat_picture(names, notes, codes, first, end)]
    left_out = len(table.names) - len(order)
    if left_out:
        words = f"{count(left_out)} layers that never went bad have no room here."
        found.append(tag("p", words, class_="note"))
    return found


def histograms(frame: Frame, wanted: Sequence[str], failed: int | None = None) -> list[Element]:
    """First and newest histogram of the wanted parameters, or of those that went bad first, and
    the newest before a failure: of these, and of the one that has the newest of all.
    """
    past = frame.past
    if past is None or frame.layers is None:
        return []
    found = []
    named = [*wanted, *_bad_first(frame)]
    newest = _newest_before(past, frame.layers.names, failed)
    names = dict.fromkeys(
        [*named[: _LAYERS_SHOWN - 1], *newest, *named[_LAYERS_SHOWN - 1 :], *frame.layers.names]
    )
    shown = 0
    for name in names:
        rows = []
        for what in ("weight", "gradient", "activation"):
            seen = past.histograms(what, name)
            before = _before(seen, failed)
            shown_steps = sorted({step for step, _ in (*seen[:1], *seen[-1:])} | {*before})
            rows += [
                _histogram(each, f" (newest before {count(failed)})" if step in before else "")
                for step, each in seen
                if step in shown_steps
            ]
        if rows:
            found.append(tag("div", tag("h3", name), *rows, class_="histograms"))
            shown += 1
        if shown == _LAYERS_SHOWN:
            break
    return found


def _before(seen: Sequence[tuple[int, Histogram]], failed: int | None) -> list[int]:
    """The step of the newest one before a failure; none without one."""
    return [step for step, _ in seen if failed is not None and step < failed][-1:]


def _newest_before(past: Past, names: Sequence[str], failed: int | None) -> list[str]:
    """The parameter that was looked at last before a failure."""
    found = [
        (step, name) for name in names for step in _before(past.histograms("weight", name), failed)
    ]
    return [max(found)[1]] if found else []


def _window(frame: Frame) -> Window | None:
    firsts = [each.first_step for each in frame.series.values() if each.first_step is not None]
    lasts = [each.last_step for each in frame.series.values() if each.last_step is not None]
    return Window(min(firsts), max(lasts) + 1) if firsts and lasts else None


def _groups(series: dict[str, SeriesView]) -> list[tuple[str, list[SeriesView]]]:
    """(title, series that share a chart): learning rates together, everything else alone."""
    rates = [each for name, each in sorted(series.items()) if name.split("[")[0].startswith("lr")]
    alone = [each for name, each in series.items() if each not in rates and each.count]
    order = {name: place for place, name in enumerate(_FIRST)}
    alone.sort(key=lambda each: (order.get(each.name, len(order)), each.name))
    groups = [(_title(each.name), [each]) for each in alone]
    if rates:
        groups.insert(min(2, len(groups)), ("learning rate", rates[:8]))
    return groups


def _title(name: str) -> str:
    return f"{name}, GiB" if name.startswith("memory/") else _UNITS.get(name, name)


def _bad_first(frame: Frame) -> list[str]:
    if frame.heat is None or frame.layers is None:
        return []
    first_bad = frame.heat.first_bad()
    bad = [int(row) for row in np.flatnonzero(first_bad >= 0)]
    return [frame.layers.names[row] for row in sorted(bad, key=lambda row: (first_bad[row], row))]


def _histogram(record: Histogram, words: str = "") -> Element:
    counts = np.frombuffer(record.counts, "<u4").astype(np.int64)
    bins = HISTOGRAM_BINS
    negative, positive = counts[:bins][::-1], counts[bins : 2 * bins]
    used = np.flatnonzero(negative + positive)
    low, high = (int(used[0]), int(used[-1]) + 1) if len(used) else (bins // 2, bins // 2 + 1)
    every = max(1, -(-2 * (high - low) // (_HISTOGRAM_BARS - 1)))
    sides = [
        [int(side[at : at + every].sum()) for at in range(low, high, every)]
        for side in (negative, positive)
    ]
    heights = [*sides[0][::-1], record.zeros, *sides[1]]
    labels = [""] * len(heights)
    labels[0] = f"−2^{HISTOGRAM_LOW + high}"
    labels[len(sides[0])] = "0"
    labels[-1] = f"2^{HISTOGRAM_LOW + high}"
    bad = [(record.nan, "NaN"), (record.posinf, "+Inf"), (record.neginf, "−Inf")]
    note = " ".join(f"{each:,} {name}" for each, name in bad if each)
    return bars(f"{record.what}, step {record.step:,}{words}", heights, labels, note)
