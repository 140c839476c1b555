"""Charts as SVG: a line with its envelope, what is not finite as letters, and what happened.

Pure: columns in, elements out. Bounds come from finite values alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple
from xml.etree.ElementTree import Element

import numpy as np

from tuimon.export.elements import group, tag
from tuimon.model.units import count, number
from tuimon.view.frame import HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Envelope, Floats
from tuimon.view.marks import COMMAND, EVENT, Mark

WIDTH, HEIGHT = 960.0, 220.0
# Of charts and of the layers below them, so that a step stands under the same step.
LEFT, RIGHT, TOP, BOTTOM = 180.0, 84.0, 24.0, 24.0
COLUMNS = 480
LETTERS = ((HAS_NAN, "N", "nan"), (HAS_POS_INF, "I", "inf"), (HAS_NEG_INF, "J", "inf"))
_DECADES_FOR_LOG = 2.0  # a span beyond two powers of ten is unreadable on a linear axis
_TICKS = 4
_STEP_TICKS = 6
_MARKS = 60


class Line(NamedTuple):
    """One series over the window of a chart."""

    name: str
    envelope: Envelope


class Window(NamedTuple):
    """Steps of a chart, the end excluded."""

    first: int
    end: int

    def x(self, step: float) -> float:
        """Where the middle of a step stands."""
        return LEFT + (WIDTH - LEFT - RIGHT) * (step + 0.5 - self.first) / (self.end - self.first)


def chart(title: str, lines: Sequence[Line], window: Window, marks: Sequence[Mark] = ()) -> Element:
    """A chart of some series; an empty one says that nothing finite is there."""
    finite = _finite(lines)
    parts: list[Element | None] = [tag("title", title)]
    parts += [
        tag("text", title, x=LEFT, y=14.0, class_="name"),
        _legend(lines) if len(lines) > 1 else None,
        *step_axis(window, TOP, HEIGHT - BOTTOM),
    ]
    parts += _mark_lines(marks, window)
    if len(finite):
        y, ticks, is_log = _scale(float(finite.min()), float(finite.max()))
        parts += [_tick(value, y) for value in ticks]
        for place, line in enumerate(lines):
            parts += _drawn(line.envelope, y, window, place)
        if is_log:
            parts.append(tag("text", "log", x=LEFT - 8, y=14.0, class_="tick end"))
    else:
        parts.append(tag("text", "no finite value", x=LEFT + 8, y=HEIGHT / 2, class_="tick"))
    for line in lines:
        parts += _letters(line.envelope, window)
    return group("svg", parts, viewBox=f"0 0 {WIDTH:g} {HEIGHT:g}", class_="chart", role="img")


def step_axis(window: Window, top: float, bottom: float) -> list[Element]:
    """Round steps with a line each, and the last step beside them."""
    drawn = []
    for step in round_steps(window.first, window.end - 1):
        at = window.x(step)
        drawn.append(tag("line", x1=at, x2=at, y1=top, y2=bottom, class_="grid"))
        drawn.append(tag("text", count(step), x=at, y=bottom + 16, class_="tick middle"))
    last = f"to {count(window.end - 1)}"
    return [*drawn, tag("text", last, x=WIDTH, y=bottom + 16, class_="tick end")]


def round_steps(first: int, last: int) -> list[int]:
    """The multiples of 1, 2, 2.5 or 5 times a power of ten from first to last, at most six."""
    power, found = 1, list(range(first, last + 1)) if last - first < _STEP_TICKS else []
    while not found:
        for every in (power, 2 * power, 5 * power // 2, 5 * power):
            multiples = range(-(-first // every) * every, last + 1, every)
            if len(multiples) <= _STEP_TICKS:
                found = list(multiples)
                break
        power *= 10
    return found


def bars(title: str, counts: Sequence[int], labels: Sequence[str], note: str = "") -> Element:
    """A histogram: a bar a bin, a label below each that has one."""
    width, height, base = 300.0, 96.0, 76.0
    most = max([1, *counts])
    step = width / max(1, len(counts))
    parts: list[Element | None] = [
        tag("title", title),
        tag("text", title, x=0, y=11, class_="name"),
    ]
    for place, each in enumerate(counts):
        tall = (base - 18) * each / most
        if each:
            tall = max(tall, 1.0)
            parts.append(tag("rect", x=place * step, y=base - tall, width=step * 0.9, height=tall))
        if labels[place]:
            at, end = (width, " end") if place == len(counts) - 1 else (place * step, "")
            parts.append(tag("text", labels[place], x=at, y=base + 11, class_=f"tick{end}"))
    parts.append(tag("text", note, x=width, y=11, class_="tick end") if note else None)
    return group("svg", parts, viewBox=f"0 0 {width:g} {height:g}", class_="bars", role="img")


def _finite(lines: Sequence[Line]) -> Floats:
    found = [each for line in lines for each in (line.envelope.low, line.envelope.high)]
    joined = np.concatenate(found) if found else np.empty(0, np.float32)
    return joined[np.isfinite(joined)]


def _scale(low: float, high: float) -> tuple[Callable[[float], float], list[float], bool]:
    """Where a value stands, the values that get a line, and whether the axis is logarithmic."""
    is_log = low > 0 and math.log10(high / low) > _DECADES_FOR_LOG
    if is_log:
        first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
        every = max(1, math.ceil((last - first) / _TICKS))
        ticks = [10.0**power for power in range(first, last + 1, every)]
        bottom, top = float(first), float(last)
    else:
        pad = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
        bottom, top = low - pad, high + pad
        ticks = _round_ticks(bottom, top)
    span = top - bottom

    def y(value: float) -> float:
        shown = math.log10(value) if is_log else value
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * (shown - bottom) / span

    return y, ticks, is_log


def _round_ticks(low: float, high: float) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten inside of the bounds, about `_TICKS` of them."""
    rough = (high - low) / _TICKS
    power = 10.0 ** math.floor(math.log10(rough))
    every = next(power * each for each in (1, 2, 5, 10) if power * each >= rough * (1 - 1e-9))
    return [every * each for each in range(math.ceil(low / every), math.floor(high / every) + 1)]


def _tick(value: float, y: Callable[[float], float]) -> Element:
    at = y(value)
    line = tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid")
    return tag("g", line, tag("text", number(value, 3), x=LEFT - 6, y=at + 4, class_="tick end"))


def _drawn(
    envelope: Envelope, y: Callable[[float], float], window: Window, place: int
) -> list[Element]:
    """The band from the smallest to the largest, and the mean as a line that breaks at gaps."""
    columns = len(envelope.mean)
    width = (window.end - window.first) / columns
    drawn: list[Element] = []
    for start, end in _stretches(np.isfinite(envelope.mean)):
        x = [window.x(window.first + (at + 0.5) * width - 0.5) for at in range(start, end)]
        low = [y(float(value)) for value in envelope.low[start:end]]
        high = [y(float(value)) for value in envelope.high[start:end]]
        mean = [y(float(value)) for value in envelope.mean[start:end]]
        band = list(zip(x, high, strict=True)) + list(zip(x, low, strict=True))[::-1]
        drawn.append(tag("polygon", points=_points(band), class_=f"band s{place}"))
        if len(x) == 1:
            drawn.append(tag("circle", cx=x[0], cy=mean[0], r=2.2, class_=f"dot s{place}"))
        else:
            line = _points(list(zip(x, mean, strict=True)))
            drawn.append(tag("polyline", points=line, class_=f"line s{place}"))
    return drawn


def _stretches(there: np.ndarray[tuple[int], np.dtype[np.bool_]]) -> list[tuple[int, int]]:
    edges = np.flatnonzero(np.diff(np.concatenate(([0], there.astype(np.int8), [0]))))
    return [(int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]


def _points(places: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _letters(envelope: Envelope, window: Window) -> list[Element]:
    """A letter for each kind of value that is not finite, where it begins and where it ends."""
    columns = len(envelope.flags)
    width = (window.end - window.first) / columns
    drawn = []
    for row, (bit, letter, name) in enumerate(LETTERS):
        for start, end in _stretches((envelope.flags & bit) != 0):
            x0 = window.x(window.first + start * width - 0.5)
            x1 = window.x(window.first + end * width - 0.5)
            top = TOP + 2 + row * 13
            drawn.append(tag("rect", x=x0, y=top, width=max(9.0, x1 - x0), height=11, class_=name))
            drawn.append(tag("text", letter, x=x0 + 1, y=top + 9.5, class_="letter"))
    return drawn


def _mark_lines(marks: Sequence[Mark], window: Window) -> list[Element | None]:
    shown = [each for each in marks if window.first <= each.step < window.end]
    telling = [each for each in shown if each.kind in (COMMAND, EVENT)]
    drawn: list[Element | None] = []
    for mark in telling[:_MARKS]:
        at = window.x(mark.step)
        what = tag("title", f"{mark.words} at step {mark.step:,}")
        line = tag("line", what, x1=at, x2=at, y1=TOP, y2=HEIGHT - BOTTOM, class_=mark.kind)
        drawn.append(line)
    return drawn


def _legend(lines: Sequence[Line]) -> Element:
    parts = []
    x = WIDTH - RIGHT
    for place, line in reversed(list(enumerate(lines))):
        x -= 7.0 * len(line.name) + 22
        parts.append(tag("rect", x=x, y=7, width=10, height=8, class_=f"key s{place}"))
        parts.append(tag("text", line.name, x=x + 13, y=15, class_="tick"))
    return group("g", parts)
