"""Marks of what somebody did to the training, along an axis of steps. Pure: rows in, rows out."""

from __future__ import annotations

from collections.abc import Iterable

from rich.segment import Segment

from tuimon.tui.rows import Row, text
from tuimon.tui.scene import Scene
from tuimon.tui.theme import Look
from tuimon.view.frame import Frame
from tuimon.view.marks import Mark, marks, told

_COLOUR = "warn"


def columns_of(frame: Frame, start: int, end: int, columns: int) -> dict[int, list[Mark]]:
    """The marks by the cell column that the steps [start, end) put them in."""
    found: dict[int, list[Mark]] = {}
    for mark in marks(frame):
        if start <= mark.step < end:
            found.setdefault((mark.step - start) * columns // max(1, end - start), []).append(mark)
    return found


def on_ruler(look: Look, ruler: Row, places: Iterable[int]) -> Row:
    """The edge below a chart with a glyph at these cells; a label keeps its digits."""
    wanted = _beside_labels("".join(part.text for part in ruler), places, look.glyphs.box[4])
    if not wanted:
        return ruler
    out: Row = []
    at = 0
    for part in ruler:
        begun = 0
        for offset in range(len(part.text)):
            if at + offset in wanted:
                out.append(Segment(part.text[begun:offset], part.style))
                out.append(text(look, look.glyphs.mark, _COLOUR, bold=True))
                begun = offset + 1
        out.append(Segment(part.text[begun:], part.style))
        at += len(part.text)
    return [part for part in out if part.text]


def _beside_labels(edge: str, places: Iterable[int], rail: str) -> set[int]:
    """The cells themselves, or the nearest that hold no digit of a label."""
    free = [at for at, char in enumerate(edge) if char in (rail, " ")]
    return {min(free, key=lambda at: abs(at - place)) for place in places} if free else set()


def mark_row(look: Look, found: Iterable[int], label_width: int, columns: int) -> Row:
    """A row below a map: its columns with a glyph where there is a mark."""
    cells = [" "] * columns
    for column in found:
        cells[column] = look.glyphs.mark
    label = f"{'commands':>{label_width}}"[:label_width]
    return [
        text(look, label, "dim"),
        text(look, look.glyphs.box[5], "line"),
        text(look, "".join(cells), _COLOUR, bold=True),
    ]


def at_cross(scene: Scene) -> str:
    """What was done at the steps under the crosshair; "" where nothing was, or there is none."""
    cross, frame = scene.charts.cross_step, scene.frame
    if cross is None:
        return ""
    first = frame.history_first_step or 0
    start, end = scene.charts.window.steps(first, frame.step or first)
    columns = max(1, scene.charts.columns)
    if not start <= cross < end:
        return ""
    column = (cross - start) * columns // max(1, end - start)
    return told(columns_of(frame, start, end, columns).get(column, []))
