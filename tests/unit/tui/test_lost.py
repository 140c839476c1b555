"""What was lost is counted on the screen, with its reason."""

from __future__ import annotations

from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.device import StepPanel
from tuimon.tui.scene import Scene
from tuimon.view.frame import Frame


def shown(**lost: int) -> str:
    rows = StepPanel().draw(Scene(Frame(lost=lost), Look()), 60, 9, False)
    return "\n".join("".join(part.text for part in row) for row in rows)


def test_the_reason_stands_beside_the_count() -> None:
    assert "lost 0 " in shown()
    assert "lost 2 torn " in shown(torn=2)
    assert "lost 39 overrun, …" in shown(overrun=37, torn=2)
