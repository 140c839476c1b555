"""At every zoom and place a NaN, an Inf and a spike of one step are seen; bounds stay honest."""

from __future__ import annotations

import functools

import numpy as np
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tuimon.feed.thinning import SeriesFold
from tuimon.tui.draw import braille
from tuimon.tui.draw.axis import TimeWindow
from tuimon.tui.draw.chart import LABEL_WIDTH, draw_chart
from tuimon.tui.draw.glyphs import ASCII, BRAILLE, GlyphSet
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.time_choices import spike_step
from tuimon.tui.scene import Scene
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, Frame
from tuimon.view.late_start import seed_series
from tuimon.view.series import Series

WIDTH, HEIGHT = 60, 14
COLUMNS = WIDTH - 2 - LABEL_WIDTH - 1
BITS = {np.nan: HAS_NAN, np.inf: HAS_POS_INF, -np.inf: HAS_NEG_INF}
# In a bucket that reaches beyond the window.
LAST_IN_SIGHT = (300_000, 299_990, 100_001, 299_991)
LATE_LENGTH, LATE_SPIKE = 100_000, 61_803
LETTERS = {HAS_NAN: "N", HAS_POS_INF: "I", HAS_NEG_INF: "J"}


def series_of(length: int, first: int = 0) -> tuple[Series, np.ndarray]:
    """A calm series, and its values to be changed before they are given to it."""
    return Series("loss"), 1 + 0.1 * np.sin(np.arange(first, first + length))


@st.composite
def zooms(draw: st.DrawFn) -> tuple[int, int, int, int]:
    """(length of the history, a step of it, window start, window end) with the step inside."""
    length = draw(st.integers(10, 100_000))
    step = draw(st.integers(0, length - 1))
    span = draw(st.integers(8, 2 * length + 8))
    earliest = max(0, step - span + 1)  # at which the step is the last one in sight
    start = draw(st.integers(earliest, step) | st.sampled_from([earliest, step]))
    return length, step, start, start + span


def assert_spike(
    series: Series,
    step: int,
    window: tuple[int, int],
    glyphs: GlyphSet,
    *,
    is_log: bool = False,
    cap: bool = False,
    is_alone: bool = False,
) -> None:
    """On an axis that holds it there are dots in the upper half, else its mark is at the top.

    Where no other value is in sight it may stand in the middle.
    """
    start, end = window
    scene = Scene(Frame(series={"loss": series}, step=series.last_step), Look(glyphs=glyphs))
    scene.charts.window = TimeWindow(end - start, end)
    choice = scene.charts.of("loss")
    choice.log, choice.cap = is_log, cap
    rows = draw_chart(scene, "loss", WIDTH, HEIGHT, focused=False)
    lines = ["".join(part.text for part in row) for row in rows][1:-1]
    plot = [line[LABEL_WIDTH + 2 : -1] for line in lines]
    column = (step - start) * COLUMNS // (end - start)
    near = range(max(0, column - 1), min(COLUMNS, column + 2))
    rows_down = (HEIGHT - 2) // (1 if is_alone else 2)
    upper = "".join(plot[row][at] for row in range(rows_down) for at in near)
    assert upper.strip(), "\n".join(plot)


@settings(deadline=None, max_examples=25)
@example(LAST_IN_SIGHT, np.nan)
@given(zooms(), st.sampled_from(list(BITS)))
def test_what_is_not_finite_lies_in_its_column_or_the_next(
    zoom: tuple[int, int, int, int], value: float
) -> None:
    length, step, start, end = zoom
    series, values = series_of(length)
    values[step] = value
    series.extend(np.arange(length), values)
    flags = series.envelope(start, end, COLUMNS).flags
    found = np.flatnonzero(flags & BITS[value])
    column = (step - start) * COLUMNS // (end - start)
    assert len(found) == 1 and abs(found[0] - column) <= 1
    calm = series.envelope(start, end, COLUMNS)
    assert not len(calm.low[np.isinf(calm.low) | np.isinf(calm.high)])
    assert series.maximum is not None and series.maximum < 1.2


@settings(deadline=None, max_examples=25)
@example(LAST_IN_SIGHT, BRAILLE, False, True)
@example((10, 9, 9, 17), BRAILLE, True, False)
@given(zooms(), st.sampled_from([BRAILLE, ASCII]), st.booleans(), st.booleans())
def test_a_spike_of_one_step_is_seen_in_every_window(
    zoom: tuple[int, int, int, int], glyphs: GlyphSet, is_log: bool, cap: bool
) -> None:
    length, step, start, end = zoom
    series, values = series_of(length)
    values[step] = 900.0
    series.extend(np.arange(length), values)
    is_alone = min(end, length) - max(start, 0) == 1
    assert_spike(series, step, (start, end), glyphs, is_log=is_log, cap=cap, is_alone=is_alone)


@functools.cache
def thinned_series() -> Series:
    """What a viewer that comes after 100,000 steps knows: 3,125 buckets, a spike in one of them."""
    fold = SeriesFold()
    for step in range(LATE_LENGTH):
        fold.add(step, 900.0 if step == LATE_SPIKE else 1 + step % 7 / 70)
    series = Series("loss")
    seed_series(series, fold.snapshot())
    return series


@settings(deadline=None, max_examples=40)
@example(8, 0, BRAILLE)
@example(30, 3, ASCII)
@given(
    st.integers(8, 40) | st.integers(8, LATE_LENGTH),
    st.integers(0, LATE_LENGTH),
    st.sampled_from([BRAILLE, ASCII]),
)
def test_who_comes_late_sees_a_spike_of_one_step_in_every_window_too(
    span: int, ahead: int, glyphs: GlyphSet
) -> None:
    start = max(0, LATE_SPIKE - ahead % span)
    assert_spike(thinned_series(), LATE_SPIKE, (start, start + span), glyphs)


@settings(deadline=None, max_examples=25)
@given(zooms(), st.sampled_from([BRAILLE, ASCII]), st.sampled_from(list(BITS)))
def test_a_letter_is_drawn_where_it_happened(
    zoom: tuple[int, int, int, int], glyphs: GlyphSet, value: float
) -> None:
    length, step, start, end = zoom
    series, values = series_of(length)
    values[step] = value
    series.extend(np.arange(length), values)
    scene = Scene(Frame(series={"loss": series}, step=length - 1), Look(glyphs=glyphs))
    scene.charts.window = TimeWindow(end - start, end)
    rows = draw_chart(scene, "loss", WIDTH, HEIGHT, focused=False)
    lines = ["".join(part.text for part in row)[LABEL_WIDTH + 2 : -1] for row in rows[1:-1]]
    letter = LETTERS[BITS[value]]
    line = lines[0] if letter == "I" else lines[-1]
    column = (step - start) * COLUMNS // (end - start)
    assert line.count(letter) == 1 and abs(line.index(letter) - column) <= 1


def test_nan_and_minus_inf_of_one_column_both_show() -> None:
    series = Series("loss")
    series.extend(np.arange(1000), np.where(np.arange(1000) % 2, np.nan, -np.inf))
    scene = Scene(Frame(series={"loss": series}, step=999), Look())
    rows = draw_chart(scene, "loss", WIDTH, HEIGHT, focused=False)
    lines = ["".join(part.text for part in row) for row in rows]
    assert lines[-2].count("N") == lines[-3].count("J") >= COLUMNS - 1


@settings(deadline=None, max_examples=25)
@given(st.integers(2_000, 100_000), st.data())
def test_the_sharpest_spike_is_found_to_the_step(length: int, data: st.DataObject) -> None:
    step = data.draw(st.integers(length // 20, length - 1))
    steps = np.arange(length)
    values = 2 + 6 * np.exp(-steps / (length / 6)) + 0.05 * np.sin(steps)
    values[step] += 4.0
    series = Series("loss")
    series.extend(steps, values)
    assert spike_step(series, 0, length) == step


def test_a_calm_series_has_no_spike_to_go_to() -> None:
    series = Series("loss")
    series.extend(np.arange(5000), np.linspace(9, 2, 5000))
    assert spike_step(series, 0, 5000) is None
    assert spike_step(Series("loss"), 0, 10) is None


@settings(deadline=None, max_examples=20)
@given(st.integers(500, 50_000), st.integers(3, 60), st.sampled_from([0.9, 0.99]))
def test_the_moving_average_tells_the_same_at_every_zoom(
    length: int, share: int, keep: float
) -> None:
    from tuimon.tui.draw.curves import curve_of

    steps = np.arange(length)
    values = 3 + np.sin(steps / length * 9)
    series = Series("loss")
    series.extend(steps, values)
    wide = curve_of(("loss", series, False), (0, length), 200, keep=keep, last=None)
    span = max(8, length // share)
    close = curve_of(("loss", series, False), (length - span, length), 200, keep=keep, last=None)
    last_of_each = [curve.line[np.isfinite(curve.line)][-1] for curve in (wide, close)]
    # A wide column forgets all at once what a close one forgets step by step.
    tolerance = 9 / 200 + 9 / length / (1 - keep)
    assert abs(last_of_each[0] - last_of_each[1]) < tolerance


def test_columns_without_a_finite_value_have_no_bounds() -> None:
    series = Series("loss")
    series.extend(np.arange(100), np.full(100, np.nan))
    found = series.envelope(0, 100, 2 * braille.RESOLUTION["braille"][0])
    assert not (found.flags & HAS_FINITE).any() and np.isnan(found.high).all()
