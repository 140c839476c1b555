"""What the keys for rows do: in the tree of layers, in lists, in texts. No Textual here."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tuimon.tui.event_log import select
from tuimon.tui.keys.actions import (
    ON_BATCHES,
    ON_CHART,
    ON_EVENTS,
    ON_INCIDENT,
    ON_LAYERS,
    ON_LOOK,
    ON_RANKS,
    ON_SKIPS,
    kind_of,
)
from tuimon.tui.layer_screen import with_layer
from tuimon.tui.panels.batches import batches_of
from tuimon.tui.scene import CHARTS, LAYER, OVERVIEW, Scene
from tuimon.tui.screens import Box, chart_names
from tuimon.tui.stories.batch_story import is_suspicious
from tuimon.view.frame import CELL_NEG_INF

# Where the layer that went bad first is looked for, so that an incident costs milliseconds.
_SEARCHED_LAYERS, _SEARCHED_STEPS = 2000, 256

Choice = Callable[[Scene, list[Box]], str | None]  # words where there is nothing to do


def fold(scene: Scene, *, open_it: bool) -> None:
    """Fold or unfold the selected row; a folded one goes to the row above it."""
    desk = scene.heat
    rows = desk.tree.rows()
    if not rows:
        return
    desk.touched = True
    row = rows[min(desk.cursor, len(rows) - 1)]
    if open_it and row.is_open is False:
        desk.tree.fold(row.path, open_it=True)
    elif not open_it and row.is_open:
        desk.tree.fold(row.path, open_it=False)
    elif not open_it:
        desk.cursor = desk.tree.parent_of(desk.cursor)


def move(rows: int) -> Choice:
    """So many rows down, or up."""

    def choose(scene: Scene, boxes: list[Box]) -> None:
        kind = kind_of(scene.focus)
        if kind == ON_LAYERS or scene.screen == LAYER:
            scene.heat.touched = True
            total = len(scene.heat.tree.rows())
            scene.heat.cursor = max(0, min(scene.heat.cursor + rows, total - 1))
            scene.frame = with_layer(scene, scene.frame)
        elif kind == ON_EVENTS:
            select(scene, scene.log.cursor + rows)
        elif kind == ON_INCIDENT:
            scene.log.top = max(0, scene.log.top + rows)
        elif kind == ON_LOOK:
            scene.look_desk.top = max(0, scene.look_desk.top + rows)
        elif kind == ON_RANKS:
            scene.ranks.cursor = max(0, scene.ranks.cursor + rows)
        elif kind == ON_SKIPS:
            scene.skips_top = max(0, scene.skips_top + rows)
        elif kind == ON_CHART and scene.screen == CHARTS:
            _next_line(scene, boxes, rows)
        elif kind != ON_CHART:
            scene.scroll(scene.focus).move(rows)

    return choose


def _next_line(scene: Scene, boxes: list[Box], rows: int) -> None:
    """To the chart so many lines of charts below, or above."""
    names = chart_names(scene)
    columns = max(1, len({box.x for box in boxes if box.panel in names}))
    if scene.focus in names:
        at = names.index(scene.focus) + rows * columns
        scene.focus = names[max(0, min(at, len(names) - 1))]


def bad_row(scene: Scene, direction: int) -> str | None:
    """To the next row that ever was NaN or Inf; words where there is none."""
    heat, desk = scene.frame.heat, scene.heat
    if heat is None:
        return "no layers yet"
    ever = heat.ever_bad()
    rows = desk.tree.rows()
    bad = [index for index, row in enumerate(rows) if ever[list(row.members)].any()]
    if not bad:
        return f"no layer {'in this filter ' if desk.tree.filter else ''}was NaN or Inf so far"
    desk.touched = True
    if direction > 0:
        desk.cursor = next((index for index in bad if index > desk.cursor), bad[0])
    else:
        desk.cursor = next((index for index in reversed(bad) if index < desk.cursor), bad[-1])
    return None


def bad_batch(scene: Scene, direction: int) -> str | None:
    """To the next batch that something is wrong with; words where there is none."""
    found, place = batches_of(scene), scene.scroll(ON_BATCHES)
    bad = [index for index, batch in enumerate(found) if is_suspicious(batch)]
    if not bad:
        return "no batch was suspicious so far"
    if direction > 0:
        at = next((index for index in bad if index > place.cursor), bad[0])
    else:
        at = next((index for index in reversed(bad) if index < place.cursor), bad[-1])
    place.cursor, place.anchor = at, found[at].step
    return None


def only_bad(scene: Scene, boxes: list[Box]) -> None:
    """Only rows that ever were NaN or Inf, or all."""
    tree = scene.heat.tree
    if scene.frame.heat is not None:
        tree.set_bad(scene.frame.heat.ever_bad())
    tree.set_only_bad(not tree.only_bad)
    scene.heat.cursor = scene.heat.top = 0
    if kind_of(scene.focus) != ON_LAYERS and scene.screen == OVERVIEW:
        scene.focus = "layers"


def absolute(scene: Scene, boxes: list[Box]) -> None:
    """Norms against each layer's own median, or themselves."""
    scene.heat.absolute = not scene.heat.absolute


def show_first_bad(scene: Scene) -> bool:
    """Unfold the layer that was non-finite first, unless the person is looking at something.

    False while the heat map does not know of any.
    """
    heat, desk = scene.frame.heat, scene.heat
    if desk.touched:
        return True
    if heat is None or heat.last_step is None or scene.frame.layers is None:
        return False
    desk.tree.set_names(scene.frame.layers.names)
    bad = np.flatnonzero(heat.ever_bad())[:_SEARCHED_LAYERS]
    if not len(bad):
        return False
    end = heat.last_step + 1
    start = max(heat.first_step or 0, end - _SEARCHED_STEPS)
    codes = heat.cells([(int(index),) for index in bad], start, end, end - start)
    is_bad = codes >= CELL_NEG_INF
    first = np.where(is_bad.any(axis=1), is_bad.argmax(axis=1), end)
    desk.cursor = desk.tree.reveal(int(bad[first.argmin()]))
    return True
