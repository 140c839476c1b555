"""The raster: spans land on their dots, gaps stay gaps, a spike is never lost."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuimon.tui.draw.braille import RESOLUTION, bridged, cells, dots, line, points, spark

NAN = np.nan


def drawn(low: list[float], high: list[float], rows: int, mode: str) -> list[str]:
    """Cell rows of a curve as text."""
    down = RESOLUTION[mode][1]
    matrix = dots(np.array(low), np.array(high), rows * down)
    return [line(row) for row in points(cells(matrix, mode), mode)]


@pytest.mark.parametrize(
    ("heights", "mode", "expected"),
    [
        ([0.0, 0.0], "braille", [" ", "⣀"]),
        ([1.0, 1.0], "braille", ["⠉", " "]),
        ([0.0, NAN], "braille", [" ", "⡀"]),
        ([NAN, NAN], "braille", [" ", " "]),
        ([0.0], "block", [" ", "▄"]),
        ([1.0], "block", ["▀", " "]),
        ([0.3], "ascii", [" ", "'"]),
    ],
)
def test_a_flat_line_lies_on_its_dots(heights: list[float], mode: str, expected: list[str]) -> None:
    assert drawn(heights, heights, 2, mode) == expected


def test_a_span_fills_its_column_and_only_that() -> None:
    assert drawn([0.0, NAN], [1.0, NAN], 2, "braille") == ["⡇", "⡇"]


def test_neighbours_are_joined_so_that_a_jump_has_no_hole() -> None:
    matrix = dots(np.array([0.0, 1.0]), np.array([0.0, 1.0]), 8)
    assert matrix[:, 1].tolist() == [True] * 7 + [False]
    assert matrix[:, 0].tolist() == [False] * 7 + [True]
    falling = dots(np.array([1.0, 0.0]), np.array([1.0, 0.0]), 8)
    assert falling[:, 1].tolist() == [False] + [True] * 7


def test_a_gap_is_never_joined() -> None:
    matrix = dots(np.array([0.0, NAN, 1.0]), np.array([0.0, NAN, 1.0]), 8)
    assert matrix.sum() == 2


def test_values_off_the_plot_stay_at_its_edge() -> None:
    matrix = dots(np.array([-3.0, 5.0, -np.inf]), np.array([-2.0, 7.0, np.inf]), 4)
    assert matrix[:, 0].tolist() == [False, False, False, True]
    assert matrix[0, 1] and matrix[:, 2].all()


@given(st.integers(2, 60), st.integers(0, 59), st.sampled_from(sorted(RESOLUTION)))
def test_a_spike_of_one_column_reaches_the_top_row(count: int, where: int, mode: str) -> None:
    across, down = RESOLUTION[mode]
    count *= across
    where %= count
    heights = np.zeros(count)
    heights[where] = 1.0
    top = drawn(heights.tolist(), heights.tolist(), 5, mode)[0]
    assert top[where // across] != " "
    assert np.flatnonzero(dots(heights, heights, 5 * down)[0]).tolist() == [where]


def test_only_short_runs_of_empty_columns_between_finite_ones_are_bridged() -> None:
    values = np.array([0.0, NAN, 1.0, NAN, NAN, NAN, 1.0, NAN])
    empty = np.isnan(values)
    filled = bridged(values, empty, 1)
    assert filled[1] == 0.5
    assert np.isnan(filled[3:6]).all() and np.isnan(filled[7])
    assert (bridged(values, empty, 3)[3:6] == 1.0).all()


def test_a_column_that_holds_only_nan_is_not_bridged() -> None:
    values = np.array([0.0, NAN, 1.0])
    assert np.isnan(bridged(values, np.array([False, False, False]), 5)[1])


def test_spark_shows_missing_as_blank_and_keeps_its_width() -> None:
    assert spark([0, 1, NAN, 2], 6, "_-=") == "  _- ="
    assert spark([3, 3], 2, "_-=") == "__"
    assert spark([NAN], 3, "_-=") == "   "
