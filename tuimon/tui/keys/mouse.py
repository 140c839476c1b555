"""What the mouse does: a click focuses and selects, the wheel moves, a pulled edge resizes."""

from __future__ import annotations

from collections.abc import Mapping

from tuimon.tui.keys.actions import LISTS, kind_of
from tuimon.tui.keys.choices import CHOICES, focusable
from tuimon.tui.keys.pointing import point, pull
from tuimon.tui.pane import Pane
from tuimon.tui.panes import Box
from tuimon.tui.scene import Scene


def pointed(
    scene: Scene, boxes: list[Box], panes: Mapping[str, Pane], message: Pane.Pointed
) -> None:
    """A click or a turn of the wheel over a panel."""
    scene.revision += 1
    had_focus = scene.focus == message.panel
    if message.panel in focusable(boxes):
        scene.focus = message.panel
    if message.turn:
        kind = kind_of(scene.focus)
        names = ("up", "down") if kind in LISTS else ("closer", "wider")
        CHOICES[names[message.turn > 0]](scene, boxes)
        return
    pane = panes.get(message.panel)
    if pane is not None and pane.box is not None and pane.panel.can_focus:
        point(scene, pane.panel, pane.box, message.x, message.y, had_focus=had_focus)


def pulled(scene: Scene, boxes: list[Box], message: Pane.Pulled) -> None:
    """An edge was let go somewhere else."""
    scene.revision += 1
    pull(scene, boxes, message.panel, message.edge, message.cells)
