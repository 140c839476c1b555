"""Codes become cells that can be read with and without colour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tui.fake import FakeHeat, FakeRun
from tuimon.model.autopsy import Autopsy, OpSite
from tuimon.model.records import LayerTable
from tuimon.tui.draw.glyphs import ASCII, BRAILLE
from tuimon.tui.draw.heatmap import CellTable, HeatPanel, cell_glyphs, heat_window
from tuimon.tui.draw.ordering import next_order
from tuimon.tui.draw.rows import in_alphabet, width_of
from tuimon.tui.draw.theme import FULL, NONE, ORDER, PALETTES, SIXTEEN, Look
from tuimon.tui.panels.detail import DetailPanel
from tuimon.tui.scene import HeatDesk, Scene
from tuimon.view.frame import (
    ALL_ZERO,
    CELL_NAN,
    CELL_NEG_INF,
    CELL_POS_INF,
    HELD,
    LEVEL_FIRST,
    LEVEL_LAST,
    LEVEL_USUAL,
    NO_DATA,
    Frame,
)


def cells(codes: list[int], colours: str = FULL) -> str:
    """A row of cells as text."""
    row = CellTable(Look(colours=colours)).row(np.array(codes, np.uint8))
    return "".join(part.text for part in row)


def test_letters_stand_with_and_without_colour() -> None:
    codes = [CELL_NAN, CELL_POS_INF, CELL_NEG_INF, ALL_ZERO, NO_DATA, LEVEL_FIRST, LEVEL_LAST]
    for colours in (FULL, SIXTEEN, NONE):
        assert cells(codes, colours) == "NIJ0·v^"


def test_levels_are_told_apart_by_colour_or_by_glyph() -> None:
    levels = range(LEVEL_FIRST, LEVEL_LAST + 1)
    full = cell_glyphs(Look(colours=FULL))
    assert len({full[level][2] for level in levels}) == 8
    for colours in (SIXTEEN, NONE):
        ramp = cell_glyphs(Look(colours=colours))
        assert len({ramp[level][0] for level in levels}) == 8
        assert ramp[LEVEL_USUAL][0] == " "


def test_equal_neighbours_are_one_segment() -> None:
    row = CellTable(Look()).row(np.array([4, 4, 4, 5, 5, 4], np.uint8))
    assert [len(part.text) for part in row] == [3, 2, 1]


@pytest.mark.parametrize("last", [0, 30, 59, 60, 61, 200, 1999])
def test_the_window_holds_the_newest_step_and_jumps_by_a_quarter(last: int) -> None:
    window = heat_window(HeatDesk(), 0, last, 60)
    assert window.start <= last < window.end and window.end - window.start == 60
    starts = {heat_window(HeatDesk(), 0, at, 60).start for at in range(200, 260)}
    assert len(starts) <= 5


def scene_of(codes: np.ndarray, names: list[str], look: Look | None = None) -> Scene:
    """A scene with a heat map alone."""
    frame = Frame(heat=FakeHeat(codes), layers=LayerTable(1, names))
    return Scene(frame, look or Look(), focus="layers")


def drawn(scene: Scene, width: int = 80, height: int = 8) -> list[str]:
    """The panel as text."""
    rows = HeatPanel().draw(scene, width, height, focused=True)
    assert [width_of(row) for row in rows] == [width] * height
    return ["".join(part.text for part in row) for row in in_alphabet(scene.look, rows)]


def test_a_row_that_ever_went_bad_keeps_its_mark() -> None:
    codes = np.full((2, 30), LEVEL_USUAL)
    codes[1, 3] = CELL_NAN
    lines = drawn(scene_of(codes, ["a", "b"]))
    assert lines[1][1] == " " and lines[2][1] == "!"
    assert "N" in lines[2] and "all finite now" in lines[0]
    codes[0, -1] = CELL_NAN
    assert "1 non-finite now" in drawn(scene_of(codes, ["a", "b"]))[0]


def test_a_folded_row_shows_its_worst_child() -> None:
    codes = np.full((3, 10), LEVEL_USUAL)
    codes[2, 5] = CELL_POS_INF
    scene = scene_of(codes, ["m.a", "m.b", "m.c"])
    drawn(scene)
    scene.heat.tree.fold("m", open_it=False)
    assert drawn(scene)[1].split("│")[2][5] == "I"


def test_columns_beyond_the_history_are_empty_and_missing_data_is_a_dot() -> None:
    codes = np.full((1, 10), LEVEL_USUAL)
    codes[0, 4] = NO_DATA
    row = drawn(scene_of(codes, ["a"]))[1].split("│")[2]
    assert row[:10] == "    ·     " and row[10:].strip() == ""


def test_waiting_says_how_many_layers_are_known() -> None:
    frame = Frame(layers=LayerTable(1, ["a"] * 218))
    assert any("218 layers registered" in line for line in drawn(Scene(frame, Look())))


def test_nothing_but_ascii_in_ascii() -> None:
    frame = FakeRun(steps=400, incident=True).frame()
    scene = Scene(frame, Look(colours=NONE, glyphs=ASCII), focus="layers")
    assert all(line.isascii() for line in drawn(scene, 120, 20))
    assert BRAILLE.name != ASCII.name


def test_ten_thousand_layers_cost_what_is_visible() -> None:
    asked: list[int] = []

    class Counting(FakeHeat):
        def cells(self, groups, *where, **how):  # type: ignore[no-untyped-def]
            asked.append(len(groups))
            return super().cells(groups, *where, **how)

    names = [f"layers.{i // 10}.{i % 10}.weight" for i in range(10_000)]
    frame = Frame(heat=Counting(np.full((10_000, 4), 4)), layers=LayerTable(1, names))
    drawn(Scene(frame, Look(), focus="layers"), 80, 12)
    assert asked == [10] or max(asked) <= 10


def test_a_norm_that_stands_for_many_steps_says_so() -> None:
    codes = np.full((1, 100), LEVEL_FIRST, np.uint8)
    scene = scene_of(codes, ["w"])
    scene.charts.cross_step = 70
    assert "norms at step 70 " in drawn(scene)[-1]
    assert isinstance(scene.frame.heat, FakeHeat)
    scene.frame.heat.bucket = 64
    assert "max of steps 64–99" in drawn(scene)[-1]


def test_filtered_names_are_told_apart_beside_the_map() -> None:
    names = [f"blocks.{block}.attn.in_proj_weight" for block in range(4)]
    for width, shown in ((80, "blocks.3.attn.in_proj_weight"), (60, "b.3.a.in_proj_weight")):
        scene = scene_of(np.full((4, 40), LEVEL_USUAL), names)
        scene.heat.tree.set_filter("attn")
        assert shown in drawn(scene, width)[4]


def test_while_an_update_is_held_the_one_before_is_not_called_now() -> None:
    scene = scene_of(np.full((2, 30), LEVEL_USUAL), ["a", "b"])
    scene.frame = replace(scene.frame, state=HELD)
    assert "finite at 29" in drawn(scene)[0]


def test_first_bad_first_shows_each_step_and_where_it_began() -> None:
    codes = np.full((3, 900), LEVEL_USUAL)
    codes[:, 400:] = CELL_NAN
    codes[1, 398:] = CELL_NAN
    names = ["pos", "blocks.0.ln1.weight", "blocks.1.ln1.weight"]
    scene = scene_of(codes, names)
    first = OpSite("aten::native_layer_norm", module="blocks.1.ln1")
    scene.frame = replace(scene.frame, autopsies=(Autopsy(398, 0, first=first),))
    drawn(scene)
    next_order(scene)
    next_order(scene)
    lines = drawn(scene)
    assert "first bad at step" in lines[0]
    assert [line[-5:-1].strip() for line in lines[1:4]] == ["398", "400", "400"]
    assert lines[1].split("│")[2].lstrip(" ").startswith("NN")  # healthy steps come before
    assert " " in lines[1].split("│")[2][:5]
    scene.frame = replace(scene.frame, autopsies=(Autopsy(400, 0, first=first),))
    scene.frame.heat.codes[1, 398:400] = LEVEL_USUAL  # type: ignore[union-attr]
    scene.heat.ranked = None
    assert "blocks.1.ln1" in drawn(scene)[1]  # the layer of the first operation
    next_order(scene)
    assert "N" * 40 in drawn(scene)[1]


def test_norms_that_are_kept_roughly_are_not_given_as_exact() -> None:
    class Rough(FakeHeat):
        def latest_norm(self) -> np.ndarray:
            return np.array([223.4], np.float32)

    frame = Frame(heat=Rough(np.full((1, 30), LEVEL_LAST)), layers=LayerTable(1, ["a"]))
    scene = Scene(frame, Look(), focus="layers")
    scene.charts.cross_step = 28
    assert drawn(scene)[1].endswith("≈16│")
    assert "≈" not in "".join(drawn(replace(scene, look=Look(glyphs=ASCII))))
    words = ["".join(part.text for part in row) for row in DetailPanel().draw(scene, 40, 30, False)]
    assert any("norm now  223.4, at 29" in line for line in words)
    assert any("largest now, at 29" in line for line in words)
    scene.charts.cross_step = 29
    assert drawn(scene)[1].endswith(" 223│")


@pytest.mark.parametrize("theme", ORDER)
def test_gradients_that_fall_are_quieter_than_those_that_rise(theme: str) -> None:
    def light(name: str) -> float:
        parts = [int(PALETTES[theme][name][at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (part**2.2 for part in parts)
        return 0.05 + 0.2126 * red + 0.7152 * green + 0.0722 * blue

    def loud(level: int) -> float:
        pair = light(f"level{level}"), light(f"level{LEVEL_USUAL}")
        return max(pair) / min(pair)

    assert loud(3) < loud(2) < loud(1) < loud(7) and loud(1) < loud(8)
    pair = light("level1"), light("on_level")
    assert max(pair) / min(pair) > 3  # its letter can be read
