"""What was lost is counted on the screen, with its reason."""

from __future__ import annotations

from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.device import StepPanel
from tuimon.tui.panels.system import CostPanel
from tuimon.tui.scene import Scene
from tuimon.view.frame import Frame


def shown(**lost: int) -> str:
    rows = StepPanel().draw(Scene(Frame(lost=lost), Look()), 60, 9, False)
    return "\n".join("".join(part.text for part in row) for row in rows)


def test_the_reason_stands_beside_the_count() -> None:
    assert "lost 0 " in shown()
    assert "lost 2 torn " in shown(torn=2)
    assert "lost 39 overrun, …" in shown(overrun=37, torn=2)


def test_what_was_thinned_on_purpose_is_not_lost() -> None:
    thinned = {"thinned out of the recording": 7000, "older events": 354}
    assert "lost 0, thinned 7,354" in shown(**thinned)
    assert "lost 3 torn, thinned 7,354" in shown(torn=3, **thinned)
    rows = CostPanel().draw(Scene(Frame(lost={"torn": 3, **thinned}), Look()), 80, 16, False)
    lines = [" ".join("".join(part.text for part in row).split()) for row in rows]
    at = next(index for index, line in enumerate(lines) if "lost 3 records" in line)
    assert "3 torn" in lines[at + 1] and "thinned 7,354 records, on purpose" in lines[at + 2]
    assert "7,000 thinned out of the recording" in lines[at + 3]
