"""What the panel of a step says while the crosshair is on another step."""

from __future__ import annotations

from tests.tui.fake import FakeSeries
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.device import CompactPanel, StepPanel
from tuimon.tui.scene import Panel, Scene
from tuimon.view.frame import Frame


def shown(panel: Panel, scene: Scene) -> str:
    rows = panel.draw(scene, 80, 9, False)
    return "\n".join(" ".join("".join(part.text for part in row).split()) for row in rows)


def test_a_rate_of_now_is_called_so_beside_the_one_under_the_crosshair() -> None:
    series = FakeSeries("lr", [0.1 * (step + 1) for step in range(50)])
    scene = Scene(Frame(step=49, series={"lr": series}, lrs=(5.0,)), Look())
    assert "lr 5 │" in shown(StepPanel(), scene)
    scene.charts.cross_step = 9
    assert "lr 5 now 1 at 9 │" in shown(StepPanel(), scene)
    assert "lr 5 now" in shown(CompactPanel(), scene)
    scene.charts.cross_step = 49
    assert " now" not in shown(StepPanel(), scene)
