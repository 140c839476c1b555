"""What a click inside a panel means: a row is selected, a column gets the crosshair."""

from __future__ import annotations

from tuimon.tui.draw.chart import LABEL_WIDTH, history_of
from tuimon.tui.draw.heatmap import heat_window, label_cells
from tuimon.tui.event_log import select
from tuimon.tui.keys.actions import ON_BATCHES, ON_CHART, ON_EVENTS, ON_LAYERS, ON_RANKS, kind_of
from tuimon.tui.keys.row_choices import fold
from tuimon.tui.panes import Box, neighbour_before
from tuimon.tui.scene import Panel, Scene


def point(scene: Scene, panel: Panel, box: Box, x: int, y: int, *, had_focus: bool) -> None:
    """Take a click on a cell of a panel; edges mean nothing more.

    The click that gives the focus selects, but folds nothing.
    """
    if not (0 < x < box.width - 1 and 0 < y < box.height - 1):
        return
    kind = kind_of(panel.name)
    if kind == ON_LAYERS:
        _layer(scene, box, x, y - 1, had_focus=had_focus)
    elif kind == ON_CHART:
        _column(scene, panel, box, x - 1 - LABEL_WIDTH - 1)
    elif kind == ON_EVENTS:
        found = getattr(panel, "entry_of_row", [])
        if y - 1 < len(found):
            select(scene, found[y - 1])
    elif kind in (ON_BATCHES, ON_RANKS):
        place = scene.scroll(ON_BATCHES) if kind == ON_BATCHES else scene.ranks
        place.cursor = place.top + y - (1 if kind == ON_BATCHES else 2)
        if kind == ON_BATCHES:
            scene.scroll(ON_BATCHES).anchor = None


def _layer(scene: Scene, box: Box, x: int, row: int, *, had_focus: bool) -> None:
    """Select the row; again, or on its mark, folds it. In the map the crosshair goes there."""
    desk = scene.heat
    rows = desk.tree.rows()
    at = desk.top + row
    if at >= len(rows):
        return
    labels = label_cells(desk.tree, box.width)
    if x <= labels:
        mark = 2 + 2 * rows[at].depth
        again = had_focus and at == desk.cursor
        if rows[at].is_open is not None and (again or x == mark):
            desk.cursor = at
            fold(scene, open_it=not rows[at].is_open)
    else:
        _heat_column(scene, x - 1 - labels - 1)
    desk.cursor, desk.touched = at, True


def _heat_column(scene: Scene, column: int) -> None:
    heat, desk = scene.frame.heat, scene.heat
    if heat is None or heat.last_step is None or column < 0:
        return
    first = heat.first_step or 0
    window = heat_window(desk, first, heat.last_step, desk.columns)
    step = window.start + column * window.bucket
    if first <= step <= heat.last_step:
        scene.charts.cross_step = step


def _column(scene: Scene, panel: Panel, box: Box, column: int) -> None:
    series = scene.frame.series.get(getattr(panel, "series", ""))
    columns = box.width - 2 - LABEL_WIDTH - 1
    if series is None or series.last_step is None or not 0 <= column < columns:
        return
    reach = history_of(scene, series)
    start, end = scene.charts.window.steps(*reach)
    step = start + -(-column * (end - start) // columns)
    scene.charts.cross_step = max(start, min(step, end - 1, max(reach[1], start)))


def pull(scene: Scene, boxes: list[Box], panel: str, edge: str, cells: int) -> None:
    """Move an edge of a panel; the one at its beginning belongs to the panel before it."""
    vertical = edge in ("top", "bottom")
    wanted: str | None = panel
    if edge in ("top", "left"):
        wanted = neighbour_before(boxes, panel, vertical=vertical)
    if wanted is not None and not scene.zoomed:
        columns, rows = (0, cells) if vertical else (cells, 0)
        scene.sizes.change(scene.screen, wanted, columns, rows)
