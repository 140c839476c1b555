"""Layouts: no gaps, no overlaps, nothing outside, at any size and on any screen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tui.fake import FakeHeat, FakeRun, FakeSeries
from tuimon.model.records import CommandState, LayerTable
from tuimon.tui.draw.rows import width_of
from tuimon.tui.draw.theme import NONE, Look
from tuimon.tui.once import paint, render_once
from tuimon.tui.scene import CHARTS, EVENTS, LAYERS, OVERVIEW, Scene
from tuimon.tui.screens import MIN_COLUMNS, MIN_ROWS, arrange
from tuimon.view.frame import CELL_NAN, GONE, LEVEL_USUAL, PAUSED, WAITING, DataPlace, Exit, Frame

BUSY = FakeRun(steps=60, incident=True).frame()


@given(
    st.integers(MIN_COLUMNS, 260),
    st.integers(MIN_ROWS, 90),
    st.sampled_from([OVERVIEW, CHARTS, LAYERS, EVENTS]),
    st.booleans(),
    st.sampled_from([BUSY, Frame(), replace(BUSY, alert=None)]),
)
def test_boxes_cover_the_screen_once(
    width: int, height: int, screen: str, zoomed: bool, frame: Frame
) -> None:
    scene = Scene(frame, Look(), screen=screen, zoomed=zoomed)
    cover = np.zeros((height, width), int)
    for box in arrange(scene, width, height):
        assert box.width > 0 and box.height > 0
        cover[box.y : box.y + box.height, box.x : box.x + box.width] += 1
        assert box.x + box.width <= width and box.y + box.height <= height
    assert (cover == 1).all()


@pytest.mark.parametrize("size", [(59, 40), (80, 19), (1, 1), (20, 4)])
def test_too_small_is_one_sentence(size: tuple[int, int]) -> None:
    boxes = arrange(Scene(BUSY, Look()), *size)
    assert [box.panel for box in boxes] == ["tiny"]
    assert "needs 60×20" in render_once(BUSY, 59, 40)


@pytest.mark.parametrize("screen", [OVERVIEW, CHARTS, LAYERS, EVENTS])
@pytest.mark.parametrize("size", [(60, 20), (80, 24), (99, 30), (100, 24), (120, 40), (200, 50)])
def test_every_screen_draws_exactly_its_size(screen: str, size: tuple[int, int]) -> None:
    extra = {f"eval/metric{i}": FakeSeries(f"eval/metric{i}", [1.0, 2.0]) for i in range(9)}
    frame = replace(BUSY, series={**BUSY.series, **extra})
    rows = paint(Scene(frame, Look(), screen=screen), *size)
    assert [width_of(row) for row in rows] == [size[0]] * size[1]


def test_place_in_the_data_where_there_is_room() -> None:
    place = DataPlace(2, 120, 5000, 40.4)
    frame = replace(BUSY, data=place, total_steps=None, eta_s=None)
    assert "epoch ends in 40 s  epoch 2 batch 120/5000  10" in render_once(frame, 200, 50)
    assert "epoch 2 batch 120/5000" in render_once(frame, 100, 24)
    stopped = render_once(replace(frame, state=PAUSED), 200, 50)
    assert "epoch 2 batch 120/5000" in stopped and "ends in" not in stopped
    unknown = render_once(replace(frame, data=DataPlace(None, 120, 5000, 40.4)), 200, 50)
    assert "ends in 40 s  batch 120/5000" in unknown and "epoch 0" not in unknown
    assert "epoch" not in render_once(frame, 60, 20).splitlines()[0]
    assert "epoch" not in render_once(BUSY, 200, 50).splitlines()[0]


def test_80x24_loses_no_meaning() -> None:
    text = render_once(BUSY, 80, 24)
    for words in (
        "loss",
        "grad norm",
        "layers",
        "NaN gradients",
        "amp 8,192",
        "gpu",
        "clip",
        "LIVE",
    ):
        assert words in text, words


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (Frame(state=WAITING), "appears here by itself"),
        (replace(BUSY, state=PAUSED, alert=None), "space resumes"),
        (replace(BUSY, state=GONE, exit=Exit("ok", 0, "")), "DONE"),
        (replace(BUSY, state=GONE, exit=Exit("killed", 137, "SIGKILL")), "KILLED 137"),
        (replace(BUSY, state="silent", silent_for_s=75.0), "SILENT 1m15s"),
        (replace(BUSY, state="other version"), "OTHER VERSION"),
        (replace(BUSY, state="loading"), "reading the history"),
    ],
)
def test_every_state_says_what_it_is(frame: Frame, words: str) -> None:
    assert words in render_once(frame)


def test_once_is_plain_text_and_colour_is_asked_for() -> None:
    assert "\x1b" not in render_once(BUSY)
    assert "\x1b[" in render_once(BUSY, colour=True)
    assert len(render_once(BUSY).splitlines()) == 40


def test_missing_is_a_dash_and_never_zero() -> None:
    scene = Scene(Frame(state="live"), Look(colours=NONE))
    text = "\n".join("".join(part.text for part in row) for row in paint(scene, 120, 40))
    assert "step –" in text and "cost  –" in text and "no reading yet" in text


def test_hostile_text_never_reaches_the_terminal() -> None:
    evil = "a\x1b]52;c;AAAA\x07b\u202ec\x9b31m"
    run = FakeRun(steps=60, incident=True)
    event = run.frame().events[-1]
    from msgspec import structs

    bad = structs.replace(event, text=evil, detail=evil)
    assert run.frame().layers is not None
    layers = structs.replace(run.frame().layers, names=[evil + str(i) for i in range(171)])
    frame = run.frame(name=evil, host=evil, alert=bad, events=(bad,), layers=layers)
    for screen in (OVERVIEW, CHARTS, LAYERS, EVENTS):
        rows = paint(Scene(frame, Look(), screen=screen), 120, 40)
        shown = "".join(part.text for row in rows for part in row)
        assert not set(shown) & {"\x1b", "\x07", "\u202e", "\x9b"}, screen


def test_a_hold_that_lets_a_row_of_bad_updates_pass_says_so() -> None:
    armed = CommandState("1", "ArmHold", "applied")
    for code, words in ((CELL_NAN, "HOLD ARMS WHEN FINITE"), (LEVEL_USUAL, "HOLD ARMED")):
        heat = FakeHeat(np.array([[LEVEL_USUAL, code]]))
        frame = replace(BUSY, heat=heat, layers=LayerTable(1, ["a"]), commands=(armed,))
        assert words in render_once(frame, 120, 40).splitlines()[0]
