"""Marks of commands stand at the step at which they took effect, and hide nothing."""

from __future__ import annotations

import pytest

from tests.tui.fake import FakeRun
from tuimon.model.records import CommandState, Event
from tuimon.tui.draw.chart import draw_chart
from tuimon.tui.draw.glyphs import ASCII, BLOCK, BRAILLE, GlyphSet
from tuimon.tui.draw.heatmap import HeatPanel
from tuimon.tui.draw.marking import at_cross, columns_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.header import FooterPanel
from tuimon.tui.scene import LAYERS, Scene
from tuimon.view.frame import Frame
from tuimon.view.marks import marks

COMMANDS = (
    CommandState("1", "SetClip", "applied", step=100, old="user", new="on 1", words="clip on 1.0"),
    CommandState("2", "Pause", "applied", step=110, old="running", new="paused"),
    CommandState("3", "ScaleLr", "refused", reason="no"),
    CommandState("4", "SkipUpdate", "accepted", step=120),
    CommandState("5", "ScaleLr", "applied", step=300, words="learning rate × 0.5"),
)
HIT = Event(301, 1.0, "warning", "breakpoint", "breakpoint 1: lr > 1 (lr = 2) at step 301")


def marked(steps: int = 400) -> Frame:
    run = FakeRun(steps=steps)
    return run.frame(commands=COMMANDS, events=(*run.frame().events, HIT))


def texts(rows: list) -> list[str]:
    return ["".join(part.text for part in row) for row in rows]


def test_what_took_effect_is_marked() -> None:
    assert [(each.step, each.words[:9]) for each in marks(marked())] == [
        (100, "clip on 1"),
        (300, "learning "),
        (301, "breakpoin"),
    ]
    assert marks(marked())[0].words == "clip on 1.0 (user → on 1)"
    assert sorted(columns_of(marked(), 100, 301, 201)) == [0, 200]


@pytest.mark.parametrize("glyphs", [BRAILLE, BLOCK, ASCII])
def test_a_chart_shows_them_on_its_edge(glyphs: GlyphSet) -> None:
    scene = Scene(marked(), Look(glyphs=glyphs))
    rows = texts(draw_chart(scene, "loss", 108, 12, focused=True))
    assert {len(row) for row in rows} == {108}
    edge = rows[-1]
    assert edge.count(glyphs.mark) == 1 and edge.count("!") == 1 and "100" in edge
    free = texts(draw_chart(Scene(FakeRun(steps=400).frame(), Look()), "loss", 108, 12, focused=1))
    plain = [char for char in edge if char.isdigit()]
    assert plain == [char for char in free[-1] if char.isdigit()]


def test_the_footer_tells_what_the_crosshair_meets() -> None:
    scene = Scene(marked(), Look())
    scene.charts.columns = 400
    assert at_cross(scene) == ""
    scene.charts.cross_step = 99
    assert at_cross(scene) == ""
    scene.charts.cross_step = 100
    (footer,) = texts(FooterPanel().draw(scene, 120, 1, focused=False))
    assert footer.startswith(" ◆ clip on 1.0 (user → on 1) at step 100")
    scene.charts.columns = 40
    scene.charts.cross_step = 302
    assert at_cross(scene).endswith("(lr = 2) at step 301  and 1 more")


def test_the_map_has_a_row_for_them_while_there_are_any() -> None:
    scene = Scene(marked(), Look(), screen=LAYERS, focus="layers")
    scene.heat.bucket = 8
    rows = texts(HeatPanel().draw(scene, 120, 20, focused=True))
    assert {len(row) for row in rows} == {120} and len(rows) == 20
    last = rows[-2]
    assert "marks" in last and last.count("◆") == 1 and last.count("!") == 1
    free = Scene(FakeRun(steps=400).frame(), Look(), screen=LAYERS, focus="layers")
    assert "marks" not in "".join(texts(HeatPanel().draw(free, 120, 20, focused=True)))
