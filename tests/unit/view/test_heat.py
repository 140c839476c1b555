"""The heat map's bytes: every state distinct, the worst always wins, memory bounded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tuimon.model.records import NAN, NEG_INF, NO_GRAD, NORM_OVERFLOW, POS_INF, UNMEASURED
from tuimon.view import heat as heat_module
from tuimon.view.frame import (
    ALL_ZERO,
    CELL_NAN,
    CELL_NEG_INF,
    CELL_POS_INF,
    HAS_FINITE,
    HAS_NAN,
    LEVEL_LAST,
    LEVEL_USUAL,
    NO_DATA,
)
from tuimon.view.heat import Heat

SEVERITY = [NO_DATA, 4, 3, 5, 2, 6, 1, ALL_ZERO, 7, 8, CELL_NEG_INF, CELL_POS_INF, CELL_NAN]


def floats(*values: float) -> np.ndarray:
    return np.array(values, np.float32)


def bits(*values: int) -> np.ndarray:
    return np.array(values, np.uint8)


def one_by_one(heat: Heat, steps: int, **options: bool) -> np.ndarray:
    return heat.cells([(i,) for i in range(heat.layers)], 0, steps, steps, **options)


def settled(layers: int, steps: int = 20) -> Heat:
    heat = Heat(layers)
    for step in range(steps):
        heat.append(step, np.full(layers, 0.5, np.float32))
    return heat


@pytest.mark.parametrize(
    ("norm", "flag", "code"),
    [
        (0.5, 0, LEVEL_USUAL),
        (0.0, 0, ALL_ZERO),
        (math.nan, NAN, CELL_NAN),
        (math.nan, 0, CELL_NAN),
        (math.inf, POS_INF, CELL_POS_INF),
        (math.inf, 0, CELL_POS_INF),
        (math.inf, NEG_INF, CELL_NEG_INF),
        (math.nan, NAN | POS_INF | NEG_INF, CELL_NAN),
        (math.inf, POS_INF | NEG_INF, CELL_POS_INF),
        (math.inf, NORM_OVERFLOW, LEVEL_LAST),
        (math.nan, NO_GRAD, NO_DATA),
        (0.0, NO_GRAD, NO_DATA),
        (math.nan, UNMEASURED, NO_DATA),
        (1.0, 0, 5),
        (2.0, 0, 6),
        (4.0, 0, 7),
        (8.0, 0, 8),
        (1e30, 0, 8),
        (0.25, 0, 3),
        (0.125, 0, 2),
        (0.0625, 0, 1),
        (1e-40, 0, 1),
    ],
)
def test_each_state_has_its_code(norm, flag, code):
    heat = settled(1)
    heat.append(20, floats(norm), bits(flag))
    assert heat.cells([(0,)], 20, 21, 1)[0, 0] == code
    assert bool(heat.ever_bad()[0]) == (code in (CELL_NAN, CELL_POS_INF, CELL_NEG_INF))
    absolute = heat.cells([(0,)], 20, 21, 1, absolute=True)[0, 0]
    if code in (ALL_ZERO, NO_DATA, CELL_NAN, CELL_POS_INF, CELL_NEG_INF):
        assert absolute == code
    else:
        assert 1 <= absolute <= 8


def test_missing_is_not_zero_in_the_readings():
    heat = Heat(3)
    heat.append(0, floats(0.0, 7.0, 2.0), bits(NO_GRAD, 0, UNMEASURED))
    norm = heat.latest_norm()
    assert math.isnan(norm[0]) and norm[1] == 7.0 and math.isnan(norm[2])
    assert heat.latest_flags().tolist() == [NO_GRAD, 0, UNMEASURED]


def test_steps_without_statistics_are_no_data():
    heat = Heat(1)
    heat.append(0, floats(1.0))
    heat.append(4, floats(1.0))
    assert heat.cells([(0,)], 0, 6, 6)[0].tolist() == [4, 0, 0, 0, 4, 0]


def test_absolute_levels_begin_at_their_bounds():
    values = [1e-9, 2e-6, 2e-4, 2e-3, 2e-2, 0.2, 2.0, 20.0]
    heat = Heat(8)
    heat.append(0, floats(*values))
    assert one_by_one(heat, 1, absolute=True)[:, 0].tolist() == [1, 2, 3, 4, 5, 6, 7, 8]


def test_a_sample_is_judged_against_its_own_past_only():
    heat = settled(2)
    heat.append(20, floats(8.0, 0.5))
    before = one_by_one(heat, 21).copy()
    for step in range(21, 700):
        heat.append(step, floats(8.0, 0.5))
    assert (one_by_one(heat, 21) == before).all()
    assert heat.cells([(0,)], 699, 700, 1)[0, 0] == LEVEL_USUAL  # the layer got used to it


def test_a_slow_climb_is_seen():
    heat = Heat(1)
    for step in range(900):
        heat.append(step, floats(0.1 * 1.012**step))  # doubles every 58 steps
    assert heat.cells([(0,)], 890, 900, 1)[0, 0] >= 7


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_groups_and_buckets_show_their_worst_member(data):
    layers = data.draw(st.integers(1, 9))
    steps = data.draw(st.integers(1, 60))
    rng = np.random.default_rng(data.draw(st.integers(0, 10**6)))
    heat = Heat(layers)
    for step in range(steps):
        norms = np.exp2(rng.normal(0, 2, layers)).astype(np.float32)
        flag = rng.choice(bits(0, 0, 0, 0, NAN, POS_INF, NEG_INF, NO_GRAD), layers)
        norms[rng.random(layers) < 0.1] = 0
        heat.append(step, norms, flag)
        if step % 7 == 3:
            one_by_one(heat, step + 1)
    plain = one_by_one(heat, steps)
    members = [tuple(rng.permutation(layers)[: rng.integers(1, layers + 1)]) for _ in range(4)]
    columns = data.draw(st.integers(1, steps))
    cells = heat.cells(members, 0, steps, columns)
    for row, group in enumerate(members):
        for column in range(columns):
            first = math.ceil(column * steps / columns)
            end = math.ceil((column + 1) * steps / columns)
            seen = plain[list(group), first:end].ravel().tolist()
            assert cells[row, column] == max(seen, key=SEVERITY.index)


def test_a_long_run_stays_visible_and_bounded(monkeypatch):
    monkeypatch.setattr(heat_module, "RECENT_COLUMNS", 256)
    monkeypatch.setattr(heat_module, "WHOLE_COLUMNS", 256)
    heat = Heat(2)
    group = [(0,), (1,)]
    for step in range(8000):
        flag = bits(NAN if step == 137 else 0, 0)
        heat.append(step, floats(1.0, 1.0), flag)
        if step % 3000 == 0:
            heat.cells(group, 0, step + 1, 80)
    whole = heat.cells(group, 0, 8000, 100)
    assert (whole != NO_DATA).all()
    assert (whole[0] == CELL_NAN).sum() == 1 and (whole[1] == LEVEL_USUAL).all()
    assert CELL_NAN in whole[0, :2]  # step 137; a bucket covers 32 steps, a column 80
    recent = heat.cells(group, 7900, 8000, 100)
    assert (recent == LEVEL_USUAL).all()
    old = heat.cells(group, 100, 200, 100)  # narrower than the stride: coarse, but there
    assert (old != NO_DATA).all() and CELL_NAN in old[0]


def test_late_statistics_join_their_step():
    heat = Heat(2)
    group = [(0,), (1,)]
    for step in (0, 1, 3):
        heat.append(step, floats(1.0, math.nan), bits(0, NO_GRAD))
        heat.cells(group, 0, 4, 4)
    heat.append(2, floats(1.0, math.nan), bits(0, NAN))
    heat.append(1, floats(math.nan, 4.0), bits(NO_GRAD, 0))
    cells = heat.cells(group, 0, 4, 4)
    assert cells[0].tolist() == [4, 4, 4, 4]
    assert cells[1].tolist() == [0, 4, CELL_NAN, 0]
    assert heat.last_step == 3


def test_layers_of_two_optimizers_have_their_own_median():
    heat = Heat(2)
    for step in range(100):
        heat.append(step, floats(1.0, math.nan), bits(0, NO_GRAD))
        heat.merge(step, floats(math.nan, 64.0), bits(NO_GRAD, 0))
    cells = one_by_one(heat, 100)
    assert (cells == LEVEL_USUAL).all()
    assert heat.latest_norm().tolist() == [1.0, 64.0]
    heat.append(100, floats(1.0, math.nan), bits(0, NO_GRAD))
    heat.merge(100, floats(math.nan, 2048.0), bits(NO_GRAD, 0))
    assert heat.cells([(0,), (1,)], 100, 101, 1)[:, 0].tolist() == [LEVEL_USUAL, LEVEL_LAST]


def test_another_layer_table_keeps_rows_by_name():
    heat = settled(3)
    heat.append(20, floats(0.5, 0.5, math.nan), bits(0, 0, NAN))
    heat.cells([(0,)], 0, 21, 21)
    heat.remap(np.array([2, -1, 0, 1]))
    assert heat.layers == 4
    assert heat.ever_bad().tolist() == [True, False, False, False]
    heat.append(21, floats(0.5, 0.5, 8.0, 0.5))
    cells = one_by_one(heat, 22)
    assert cells[0, 20] == CELL_NAN and cells[0, 21] == LEVEL_USUAL
    assert (cells[1, :21] == NO_DATA).all() and cells[1, 21] == LEVEL_USUAL
    assert cells[2, 21] == LEVEL_LAST


def test_cut_forgets_what_came_after():
    heat = settled(1)
    heat.cells([(0,)], 0, 20, 20)
    heat.cut(10)
    assert heat.last_step == 9
    heat.append(10, floats(math.nan), bits(NAN))
    cells = heat.cells([(0,)], 0, 20, 20)[0]
    assert cells[10] == CELL_NAN and (cells[11:] == NO_DATA).all()
    heat.cut(0)
    assert heat.last_step is None and heat.first_step is None


def test_seeded_history_is_continued():
    heat = Heat(2)
    norms = np.full((3, 2), 0.5, np.float32)
    norms[1, 1] = np.nan
    flags = np.zeros((3, 2), np.uint8)
    flags[1, 1] = NO_GRAD
    flags[2, 0] = NAN | NO_GRAD
    heat.seed(0, 8, norms, flags)
    for step in range(24, 32):
        heat.append(step, floats(0.5, 8.0))
    cells = one_by_one(heat, 32)
    assert cells[0].tolist() == [4] * 16 + [CELL_NAN] * 8 + [4] * 8
    assert cells[1, :16].tolist() == [4] * 8 + [NO_DATA] * 8
    assert cells[1, 24] == LEVEL_LAST
    assert heat.ever_bad().tolist() == [True, False]


def test_an_empty_heat_answers():
    heat = Heat(2)
    assert (heat.cells([(0,), (1,), ()], 0, 10, 5) == NO_DATA).all()
    assert heat.first_step is None and not heat.ever_bad().any()


def test_first_bad_away_and_norms() -> None:
    heat = Heat(3)
    for step in range(20):
        heat.append(step, np.array([1.0, 2.0, 0.0], np.float32), None)
    heat.append(20, floats(8.0, math.nan, 0.0), bits(0, NAN, 0))
    heat.append(21, floats(8.0, 2.0, math.inf), bits(0, 0, POS_INF))
    assert heat.first_bad().tolist() == [-1, 20, 21]
    away = heat.latest_away()
    assert away[0] == pytest.approx(3.0) and away[1] == pytest.approx(0.0) and np.isnan(away[2])
    norms, kinds = heat.norms((0, 1), 0, 22, 22)
    assert norms[5] == pytest.approx(2.0, rel=0.2) and kinds[5] == HAS_FINITE
    assert kinds[20] == HAS_NAN and np.isnan(norms[20]) and norms[21] == pytest.approx(8.0, rel=0.2)
    heat.remap(np.array([2, -1, 1]))
    assert heat.first_bad().tolist() == [21, -1, 20] and np.isnan(heat.latest_away()[1])


def test_a_value_says_which_steps_it_stands_for() -> None:
    assert Heat(1).span_at(7) == (7, 8)
    heat = Heat(1)
    norms = np.ones((10, 1), np.float32)
    norms[8] = np.nan
    seen = np.zeros((10, 1), np.uint8)
    seen[8] = NAN
    heat.seed(16, 64, norms, seen)
    heat.append(656, floats(1.0), bits(0))
    assert heat.norms((0,), 540, 541, 1)[1][0] == HAS_NAN
    assert heat.span_at(540) == (528, 592), "the bucket as it was counted"
    assert heat.span_at(656) == (656, 657)
