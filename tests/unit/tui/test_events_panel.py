"""The list of events uses the room that it has."""

from __future__ import annotations

from tuimon.model.records import Event
from tuimon.tui.draw.theme import Look
from tuimon.tui.panels.events import EventsPanel
from tuimon.tui.scene import EVENTS, Scene
from tuimon.view.frame import Frame

SAID = "lr-too-high no-difference: the learning rate of this run was lowered to a tenth for nothing"


def shown(count: int, height: int) -> str:
    events = tuple(Event(step, 1000.0 + step, "warning", "trial", SAID) for step in range(count))
    scene = Scene(Frame(events=events), Look(), screen=EVENTS)
    rows = EventsPanel().draw(scene, 42, height, False)
    lines = ["".join(part.text for part in row).strip("│ ") for row in rows]
    return " ".join(" ".join(lines).split())


def test_a_sentence_is_whole_where_nothing_stands_below_it() -> None:
    assert "for nothing" in shown(2, 30)
    assert "for nothing" not in shown(40, 30) and "…" in shown(40, 30)
