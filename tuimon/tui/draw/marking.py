"""Marks of what somebody did to the training, along an axis of steps. Pure: rows in, rows out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich.segment import Segment

from tuimon.tui.draw.rows import Row, text
from tuimon.tui.draw.theme import Look
from tuimon.tui.scene import Scene
from tuimon.view.frame import Frame
from tuimon.view.marks import EPOCH, EVENT, RATE, Mark, Marks, told, worst

_COLOURS = {EVENT: "bad", EPOCH: "dim", RATE: "key"}
_LETTERS = {EVENT: "!", EPOCH: "e", RATE: "r"}  # a command has the glyph of the look
_CROWDED = 6  # where epochs are closer than this many columns they tell nothing
_MARKS = Marks()  # charts of one picture ask for the same


def columns_of(frame: Frame, start: int, end: int, columns: int) -> dict[int, list[Mark]]:
    """The marks by the cell column that the steps [start, end) put them in."""
    inside = [mark for mark in _MARKS.of(frame) if start <= mark.step < end]
    if sum(mark.kind == EPOCH for mark in inside) * _CROWDED > columns:
        inside = [mark for mark in inside if mark.kind != EPOCH]
    found: dict[int, list[Mark]] = {}
    for mark in inside:
        found.setdefault((mark.step - start) * columns // max(1, end - start), []).append(mark)
    return found


def _glyph(look: Look, found: Sequence[Mark]) -> tuple[str, str]:
    """What stands for the marks of one column, and its colour."""
    kind = worst(found).kind
    return _LETTERS.get(kind, look.glyphs.mark), _COLOURS.get(kind, "warn")


def on_ruler(look: Look, ruler: Row, places: Mapping[int, Sequence[Mark]]) -> Row:
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
                glyph, colour = _glyph(look, wanted[at + offset])
                out.append(text(look, glyph, colour, bold=True))
                begun = offset + 1
        out.append(Segment(part.text[begun:], part.style))
        at += len(part.text)
    return [part for part in out if part.text]


def _beside_labels(
    edge: str, places: Mapping[int, Sequence[Mark]], rail: str
) -> dict[int, list[Mark]]:
    """The cells themselves, or the nearest that hold no digit of a label."""
    free = [at for at, char in enumerate(edge) if char in (rail, " ")]
    wanted: dict[int, list[Mark]] = {}
    for place, found in places.items():
        if free:
            nearest = min(free, key=lambda at: abs(at - place))
            wanted.setdefault(nearest, []).extend(found)
    return wanted


def mark_row(
    look: Look, found: Mapping[int, Sequence[Mark]], label_width: int, columns: int
) -> Row:
    """A row below a map: its columns with a glyph where there is a mark."""
    label = f"{'marks':>{label_width}}"[:label_width]
    row = [text(look, label, "dim"), text(look, look.glyphs.box[5], "line")]
    at = 0
    for column in sorted(found):
        glyph, colour = _glyph(look, found[column])
        row += [text(look, " " * (column - at)), text(look, glyph, colour, bold=True)]
        at = column + 1
    return [*row, text(look, " " * (columns - at))]


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
