"""The mouse: focus, selection, folding, the crosshair, the wheel, and edges that are pulled."""

from __future__ import annotations

from tests.tui.driving import Driven, driven
from tests.tui.full import full_frame
from tuimon.tui.panes import Box


def _box(viewer: Driven, panel: str) -> Box:
    return next(box for box in viewer.app.boxes if box.panel == panel)


async def _click(viewer: Driven, panel: str, x: int, y: int) -> str:
    box = _box(viewer, panel)
    await viewer.pilot.click(offset=(box.x + x, box.y + y))
    await viewer.pilot.pause()
    return viewer.text


async def test_the_mouse_selects_folds_crosses_and_pulls() -> None:
    async with driven(full_frame()) as viewer:
        scene = viewer.app.scene
        await _click(viewer, "events", 5, 1)
        assert scene.focus == "events"

        await _click(viewer, "grad", 40, 4)
        crossed = scene.charts.cross_step
        assert scene.focus == "grad" and crossed is not None and 0 < crossed < 400

        await viewer.press("3")
        rows = scene.heat.tree.rows()
        parent = next(at for at, row in enumerate(rows) if row.is_open)
        await _click(viewer, "layers", 12, 1 + parent)
        assert scene.heat.cursor == parent and scene.heat.tree.rows()[parent].is_open
        await _click(viewer, "layers", 12, 1 + parent)
        assert scene.heat.tree.rows()[parent].is_open is False, "a second click does not fold"
        await _click(viewer, "layers", 40, 2)
        assert scene.heat.cursor == 1 and scene.charts.cross_step != crossed

        await viewer.press("5")
        lines = viewer.text.splitlines()
        second = next(at for at, line in enumerate(lines) if "grad norm 14.2" in line)
        await _click(viewer, "events", 8, second - _box(viewer, "events").y)
        assert scene.log.cursor == 1

        await viewer.press("7")
        await _click(viewer, "batches", 8, 3)
        assert "step 280" in viewer.text

        await viewer.press("1")
        before = _box(viewer, "loss")
        edge = before.bottom - 1
        await viewer.pilot.mouse_down(offset=(before.x + 5, edge))
        await viewer.pilot.mouse_up(offset=(before.x + 5, edge + 3))
        await viewer.pilot.pause()
        assert _box(viewer, "loss").height == before.height + 3
        await viewer.press("vertical_line")
        assert _box(viewer, "loss") == before
        await viewer.press("right_curly_bracket", "right_parenthesis")
        after = _box(viewer, scene.focus)
        assert scene.focus == "loss"
        assert (after.width, after.height) == (before.width + 4, before.height + 1)
