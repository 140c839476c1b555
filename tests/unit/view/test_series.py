"""Series against brute force: nothing lost, nothing poisoned, nothing displaced too far."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.feed.thinning import SeriesFold
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF
from tuimon.view.late_start import seed_series
from tuimon.view.series import FLOAT32_MAX, Series

VALUES = st.one_of(
    st.floats(-(2.0**100), 2.0**100, width=32),
    st.sampled_from([math.nan, math.inf, -math.inf, 1e300, -1e300, 0.0]),
)


def flag(value: float) -> int:
    if math.isnan(value):
        return HAS_NAN
    if math.isinf(value):
        return HAS_POS_INF if value > 0 else HAS_NEG_INF
    return HAS_FINITE


def brute(samples: list[tuple[int, float]], first: int, end: int, columns: int):
    """Low, high and flags of each column, one sample at a time."""
    low = [math.inf] * columns
    high = [-math.inf] * columns
    flags = [0] * columns
    for step, value in samples:
        if not first <= step < end:
            continue
        column = (step - first) * columns // (end - first)
        flags[column] |= flag(value)
        if math.isfinite(value):
            value = min(max(value, -FLOAT32_MAX), FLOAT32_MAX)
            low[column] = min(low[column], value)
            high[column] = max(high[column], value)
    return low, high, flags


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, float]]:
    stride = draw(st.sampled_from([0, 1, 1, 1, 3, 40, 1000]))
    size = draw(st.integers(1, 400))
    gaps = draw(st.lists(st.integers(0, max(1, 2 * stride)), min_size=size, max_size=size))
    values = draw(st.lists(VALUES, min_size=size, max_size=size))
    step = draw(st.integers(0, 50))
    samples = []
    for gap, value in zip(gaps, values, strict=True):
        step += stride if stride == 1 else gap
        samples.append((step, value))
    return samples


@given(histories(), st.integers(1, 40), st.data())
@settings(max_examples=60, deadline=None)
def test_pyramid_agrees_with_brute_force_within_a_quarter_column(samples, columns, data):
    series = Series("loss")
    looks = data.draw(st.sets(st.integers(0, len(samples)), max_size=4))
    for index, (step, value) in enumerate(samples):
        if index in looks:
            series.envelope(0, step + 1, columns)  # folds here, unevenly
        assert series.append(step, value)
    first = data.draw(st.integers(0, samples[-1][0]))
    end = data.draw(st.integers(first + 1, samples[-1][0] + 5))
    envelope = series.envelope(first, end, columns)
    width = (end - first) / columns
    seen = 0
    for column in range(columns):
        inner = first + column * width, first + (column + 1) * width
        near = [
            (step, value)
            for step, value in samples
            if inner[0] - width / 4 <= step < inner[1] + width / 4
        ]
        flags = int(envelope.flags[column])
        allowed = 0
        for _, value in near:
            allowed |= flag(value)
        assert flags & ~allowed == 0
        seen |= flags
        finite = [min(max(v, -FLOAT32_MAX), FLOAT32_MAX) for _, v in near if math.isfinite(v)]
        if flags & HAS_FINITE:
            assert np.float32(min(finite)) <= envelope.low[column] <= envelope.high[column]
            assert envelope.high[column] <= np.float32(max(finite))
        else:
            assert math.isnan(envelope.low[column]) and math.isnan(envelope.high[column])
    low, high, flags = brute(samples, first, end, 1)
    assert seen & flags[0] == flags[0], "something in the window is not shown"
    if flags[0] & HAS_FINITE:
        assert np.nanmin(envelope.low) <= np.float32(low[0])
        assert np.nanmax(envelope.high) >= np.float32(high[0])


@given(histories(), st.integers(1, 12))
@settings(max_examples=30, deadline=None)
def test_columns_no_wider_than_their_samples_are_exact(samples, columns):
    series = Series("loss")
    for step, value in samples:
        series.append(step, value)
    first = samples[0][0]
    end = first + columns * 15  # 15 steps a column: below the first level's quarter
    envelope = series.envelope(first, end, columns)
    low, high, flags = brute(samples, first, end, columns)
    assert envelope.flags.tolist() == flags
    for column in range(columns):
        if flags[column] & HAS_FINITE:
            assert envelope.low[column] == np.float32(low[column])
            assert envelope.high[column] == np.float32(high[column])


@pytest.mark.parametrize("length", [1, 15, 16, 17, 256, 4097, 70_001])
@pytest.mark.parametrize("value", [1e6, math.nan, math.inf, -math.inf])
def test_one_sample_is_never_lost(length, value):
    for place in {0, length // 3, length - 1}:
        values = np.ones(length, np.float32)
        values[place] = value
        series = Series("grad_norm")
        series.extend(np.arange(length), values)
        columns = 100
        envelope = series.envelope(0, length, columns)
        mark = 0 if math.isfinite(value) else flag(value)
        hit = (envelope.high == value) | ((envelope.flags & mark) != 0)
        assert hit.sum() == 1
        exact = place * columns / length
        assert abs(np.flatnonzero(hit)[0] + 0.5 - (exact + 0.5)) <= 1.25


def test_bounds_mean_and_average_ignore_what_is_not_finite():
    series = Series("loss")
    for step, value in enumerate([2.0, math.nan, math.inf, 4.0, -math.inf]):
        series.append(step, value)
    assert (series.minimum, series.maximum) == (2.0, 4.0)
    assert series.ema == pytest.approx((0.98 * 2 + 4) / 1.98), "young averages have no favourite"
    assert series.last == -math.inf
    envelope = series.envelope(0, 5, 1)
    assert envelope.mean[0] == 3.0
    assert envelope.flags[0] == HAS_NAN | HAS_POS_INF | HAS_NEG_INF | HAS_FINITE


def test_only_non_finite_has_no_bounds():
    series = Series("loss")
    series.append(0, math.nan)
    assert (series.minimum, series.maximum, series.ema) == (None, None, None)
    assert math.isnan(series.last)
    assert math.isnan(series.envelope(0, 1, 1).low[0])


def test_empty_series_answers():
    series = Series("loss")
    assert series.count == 0 and series.first_step is None and series.last is None
    assert series.envelope(0, 10, 3).flags.tolist() == [0, 0, 0]


def test_values_beyond_float32_stay_finite():
    series = Series("loss")
    series.append(0, 1e300)
    series.append(1, -1e300)
    envelope = series.envelope(0, 2, 2)
    assert np.isfinite(envelope.high).all() and np.isfinite(envelope.mean).all()
    assert envelope.flags.tolist() == [HAS_FINITE, HAS_FINITE]
    assert series.maximum == FLOAT32_MAX


@given(st.integers(1, 3000), st.integers(0, 3000), st.booleans())
@settings(max_examples=40, deadline=None)
def test_cut_equals_a_series_that_never_went_further(length, keep, look):
    steps = np.arange(length) * 2
    values = np.sin(np.arange(length)).astype(np.float32)
    values[length // 2] = np.nan
    cut, plain = Series("loss"), Series("loss")
    cut.extend(steps, values)
    if look:
        cut.envelope(0, 2 * length, 7)
    cut.cut(2 * keep)
    keep = min(keep, length)
    plain.extend(steps[:keep], values[:keep])
    for series in (cut, plain):
        series.append(2 * keep, 9.0)
    for columns in (1, 3, 50):
        left = cut.envelope(0, 2 * keep + 2, columns)
        right = plain.envelope(0, 2 * keep + 2, columns)
        for name in ("low", "high", "mean", "flags"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
    assert (cut.minimum, cut.maximum, cut.count) == (plain.minimum, plain.maximum, plain.count)
    assert cut.ema == pytest.approx(plain.ema, rel=1e-6)


def test_a_late_sample_is_sorted_in():
    series = Series("loss")
    for step in (0, 1, 3, 4):
        series.append(step, float(step))
    series.envelope(0, 5, 5)
    assert series.append(2, math.nan)
    assert series.envelope(0, 5, 5).flags.tolist() == [8, 8, HAS_NAN, 8, 8]
    assert series.last_step == 4 and series.last == 4.0 and series.count == 5


def test_a_hopelessly_late_sample_is_refused():
    series = Series("loss")
    series.extend(np.arange(1000, 9000), np.zeros(8000))
    assert not series.append(0, 1.0)
    assert series.count == 8000


def test_seeded_buckets_come_first():
    series = Series("loss")
    series.seed(
        [0, 100, 200],
        [1.0, 2.0, 0.0],
        [5.0, 3.0, 0.0],
        mean=[2.0, 2.5, math.nan],
        last=[2.0, 3.0, math.nan],
        flags=[HAS_FINITE, HAS_FINITE | HAS_POS_INF, HAS_NAN],
        counts=[100, 99, 0],
        newest_step=299,
    )
    assert series.last_step == 299 and math.isnan(series.last)
    assert series.envelope(0, 300, 3).mean[:2].tolist() == [2.0, 2.5]
    for step in range(300, 400):
        series.append(step, 0.5)
    envelope = series.envelope(0, 400, 4)
    assert envelope.low[[0, 1, 3]].tolist() == [1.0, 2.0, 0.5]
    assert envelope.high[[0, 1, 3]].tolist() == [5.0, 3.0, 0.5]
    assert envelope.flags.tolist() == [8, 8 | HAS_POS_INF, HAS_NAN, 8]
    assert (series.minimum, series.maximum) == (0.5, 5.0)
    assert (series.first_step, series.count) == (0, 300)


def test_a_seeded_bucket_is_seen_from_wherever_it_reaches():
    fold = SeriesFold(max_buckets=4)
    for step in range(21):
        fold.add(step, {9: math.nan, 13: 70.0}.get(step, 1.0))
    series = Series("loss")
    seed_series(series, fold.snapshot())  # buckets of eight steps
    inside = series.envelope(10, 14, 4)
    assert inside.high.tolist() == [70.0] * 4 and inside.low.tolist() == [1.0] * 4
    assert (inside.flags == HAS_FINITE | HAS_NAN).all()
    across = series.envelope(13, 19, 2)  # one column begins in the bucket and holds the next one
    assert across.high.tolist() == [70.0, 1.0]
    ends = series.envelope(16, 32, 16).flags > 0
    assert ends.tolist() == [True] * 5 + [False] * 11, "nothing is known of what comes after 20"
    series.cut(12)
    assert (series.envelope(8, 16, 8).flags > 0).tolist() == [True] * 4 + [False] * 4


def test_many_samples_of_one_step_are_kept():
    series = Series("loss")
    series.extend(np.zeros(200_000), np.arange(200_000))
    series.append(1, 7.0)
    envelope = series.envelope(0, 2, 2)
    assert envelope.high.tolist() == [199_999.0, 7.0]


def test_next_and_last_non_finite():
    series = Series("grad_norm")
    values = np.ones(5000)
    values[[10, 11, 4000]] = [np.nan, np.inf, -np.inf]
    series.extend(np.arange(5000), values)
    assert series.non_finite_near(0, forward=True) == 10
    assert series.non_finite_near(10, forward=True) == 4000, "what goes on does not begin"
    assert series.non_finite_near(4000, forward=True) is None
    assert series.non_finite_near(4999, forward=False) == 4000
    assert series.non_finite_near(11, forward=False) == 10
    assert series.non_finite_near(10, forward=False) is None
    assert series.value_at(10_000) == (4999, 1.0)
    for step in range(5000, 9000):
        series.append(step, math.nan if step >= 5003 else 1.0)
    for step in (4000, 5002):
        assert series.non_finite_near(step, forward=True) == 5003
    assert series.non_finite_near(5003, forward=True) is None
    assert series.non_finite_near(8000, forward=False) == 5003


def test_version_grows_with_content():
    series = Series("loss")
    seen = [series.version]
    series.append(0, 1.0)
    seen.append(series.version)
    series.append(0, math.nan)
    seen.append(series.version)
    series.cut(0)
    seen.append(series.version)
    assert seen == sorted(set(seen))
