"""Ticks, labels, bounds that stay still, and the window of time."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.tui.draw.axis import Bounds, Scale, TimeWindow, log_ticks, nice_ticks, short


@pytest.mark.parametrize(
    ("low", "high", "count", "expected"),
    [
        (0, 10, 5, [0, 2, 4, 6, 8, 10]),
        (0, 1, 4, [0, 0.25, 0.5, 0.75, 1]),
        (3, 3, 4, [3]),
        (0, math.inf, 4, [0]),
        (-1, 1, 2, [-1, 0, 1]),
    ],
)
def test_nice_ticks(low: float, high: float, count: int, expected: list[float]) -> None:
    assert nice_ticks(low, high, count) == pytest.approx(expected)


def test_log_ticks_are_powers_of_ten_or_finer_when_few() -> None:
    assert log_ticks(0.5, 2000, 4) == [1, 10, 100, 1000]
    assert log_ticks(1.5, 8, 4) == [2, 5]
    assert len(log_ticks(1e-30, 1e30, 5)) <= 7


@pytest.mark.parametrize(
    ("value", "label"),
    [(0, "0"), (15_000, "15k"), (0.05, "0.05"), (5000, "5000"), (1.31e6, "1.31M"),
     (4.1e-7, "4.1e-7"), (1e20, "1e20"), (-2.5, "-2.5")],
)  # fmt: skip
def test_short_labels(value: float, label: str) -> None:
    assert short(value) == label


@given(st.floats(1e-6, 1e6), st.floats(1e-6, 1e6), st.booleans(), st.integers(2, 12))
def test_bounds_hold_what_is_shown(one: float, two: float, log: bool, ticks: int) -> None:
    low, high = sorted((one, two))
    scale = Bounds().around(low, high, log=log, ticks=ticks)
    heights = scale.heights(np.array([low, high]))
    assert (heights >= -1e-6).all() and (heights <= 1 + 1e-6).all()


def test_bounds_stay_while_they_fit_and_move_when_they_do_not() -> None:
    bounds = Bounds()
    first = bounds.around(0, 9.6, log=False, ticks=5)
    assert bounds.around(0.3, 9.1, log=False, ticks=5) is first
    assert bounds.around(0, 14, log=False, ticks=5).high >= 14
    narrow = bounds.around(1, 2, log=False, ticks=5)
    assert narrow.high - narrow.low < 2
    bounds.forget()
    assert bounds.around(1, 2, log=True, ticks=5).log


def test_a_log_axis_puts_zero_and_below_under_the_plot() -> None:
    heights = Scale(0.1, 10, log=True).heights(np.array([0.0, -1.0, 1.0, np.nan]))
    assert heights[0] == heights[1] == -np.inf
    assert heights[2] == pytest.approx(0.5)
    assert np.isnan(heights[3])


def test_rows_of_values() -> None:
    scale = Scale(0, 10)
    assert scale.row(0, 4) == 3 and scale.row(10, 4) == 0 and scale.row(11, 4) is None


def test_the_whole_history_grows_in_steps() -> None:
    window = TimeWindow()
    ends = {window.steps(0, last)[1] for last in range(1000, 1400)}
    assert len(ends) <= 4
    assert all(window.steps(0, last)[1] > last for last in range(0, 5000, 7))


def test_following_jumps_by_an_eighth() -> None:
    window = TimeWindow(span=80)
    starts = [window.steps(0, last)[0] for last in range(200, 400)]
    assert len(set(starts)) == 20
    assert all(window.steps(0, last)[1] > last for last in range(200, 400))


@given(
    st.integers(0, 100), st.integers(200, 100_000), st.lists(st.sampled_from("+-HL0"), max_size=30)
)
def test_no_order_of_keys_breaks_the_window(first: int, last: int, keys: list[str]) -> None:
    window = TimeWindow()
    for key in keys:
        match key:
            case "+":
                window.zoom(0.5, first, last)
            case "-":
                window.zoom(2.0, first, last)
            case "H":
                window.pan(-0.5, first, last)
            case "L":
                window.pan(0.5, first, last)
            case _:
                window.whole()
        start, end = window.steps(first, last)
        assert end - start >= 8
        assert start <= last and end > first


def test_zooming_keeps_the_crosshair_in_sight() -> None:
    window = TimeWindow()
    for _ in range(6):
        window.zoom(0.5, 0, 9999, around=4321)
        start, end = window.steps(0, 9999)
        assert start <= 4321 < end
