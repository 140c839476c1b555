"""The crosshair of the charts in the heat map: its column, and each layer's value there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from rich.segment import Segment
from rich.style import Style

from tuimon.model.units import DASH, number
from tuimon.tui.draw.rows import Row, fit, text
from tuimon.tui.draw.theme import Look
from tuimon.tui.draw.tree import TreeRow
from tuimon.tui.scene import HeatDesk, Scene
from tuimon.view.frame import HAS_NAN, HAS_NEG_INF, HAS_POS_INF

VALUE_CELLS = 9  # of a layer's value beside the map
_MAP_CELLS = 40  # a narrower map gives nothing away
_WORDS = ((HAS_NAN, "NaN"), (HAS_POS_INF, "+Inf"), (HAS_NEG_INF, "-Inf"))


def value_cells(scene: Scene, columns: int) -> int:
    """Cells beside a map of so many columns that the values take."""
    has_room = scene.charts.cross_step is not None and columns >= _MAP_CELLS
    return VALUE_CELLS if has_room else 0


def lead(desk: HeatDesk, cross: int | None, shown: tuple[int, int]) -> None:
    """Bring a crosshair that has moved into sight; one that is gone lets the map follow again."""
    if cross == desk.crossed:
        return
    desk.crossed = cross
    start, end = shown
    if cross is None:
        if desk.is_led:
            desk.end, desk.is_led = None, False
    elif not start <= cross < end:
        span = end - start
        desk.end, desk.is_led = max(span, cross + span // 2), True


def crossed_row(look: Look, row: Row, column: int) -> Row:
    """A row of cells with its crossed one marked; a letter stays what it is."""
    out: Row = []
    at = 0
    for part in row:
        size = len(part.text)
        if at <= column < at + size:
            place = column - at
            glyph = part.text[place]
            shown = look.glyphs.box[5] if glyph == " " else glyph
            style = part.style or look.style()
            if glyph == " ":
                style += Style(color=look.colour("key"), bold=True)
            out += [
                Segment(part.text[:place], part.style),
                Segment(shown, style),
                Segment(part.text[place + 1 :], part.style),
            ]
        else:
            out.append(part)
        at += size
    return [part for part in out if part.text]


def values(scene: Scene, shown: Sequence[TreeRow]) -> list[Row]:
    """Each row's largest gradient norm at the step of the crosshair.

    As it was at the newest step; of older ones only half an octave is kept, which ≈ says.
    """
    look, heat, cross = scene.look, scene.frame.heat, scene.charts.cross_step
    if heat is None or cross is None:
        return []
    newest = heat.latest_norm() if cross == heat.last_step else None
    rows: list[Row] = []
    for row in shown:
        norms, bits = heat.norms(row.members, cross, cross + 1, 1)
        bad = " ".join(word for bit, word in _WORDS if int(bits[0]) & bit)
        norm = float(norms[0])
        if newest is not None and norm > 0:
            known = newest[list(row.members)]
            words = number(float(known[np.isfinite(known)].max(initial=0.0)), 3)
        else:
            words = f"≈{number(norm, 2)}" if norm > 0 else number(norm, 2) if norm == 0 else DASH
        colour = "bad" if bad else "text" if norm == norm else "faint"
        part = text(look, f" {bad or words:>{VALUE_CELLS - 1}}", colour, bold=bool(bad))
        rows.append(fit(look, [part], VALUE_CELLS))
    return rows
