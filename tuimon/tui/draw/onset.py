"""Where trouble began, in the heat map: each layer's first bad step, and the steps around it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tuimon.tui.draw.rows import Row, text
from tuimon.tui.draw.tree import FIRST_BAD, Indices, TreeRow
from tuimon.tui.scene import HeatDesk, Scene

CELLS = 11  # of a step beside the map
_MAP_CELLS = 30  # a narrower map gives nothing away
_UNNAMED = 1 << 20


def onset_cells(scene: Scene, columns: int) -> int:
    """Cells beside a map of so many columns that the steps take, where the rows stand by them."""
    return CELLS if scene.heat.tree.order == FIRST_BAD and columns >= _MAP_CELLS + CELLS else 0


def onsets(scene: Scene, shown: Sequence[TreeRow]) -> list[Row]:
    """The step at which each row was bad for the first time."""
    look, heat = scene.look, scene.frame.heat
    if heat is None:
        return []
    first = heat.first_bad()
    steps = [int(first[row.members[0]]) for row in shown]
    return [[text(look, f"{step:>{CELLS},}" if step >= 0 else " " * CELLS)] for step in steps]


def bring_wanted(desk: HeatDesk, span: int) -> None:
    """Show the steps around one that was asked for."""
    if desk.wanted is None:
        return
    desk.end, desk.is_led = max(span, desk.wanted + span // 2), True
    desk.wanted = None


def first_onset(scene: Scene) -> int | None:
    """The first step at which any layer was bad."""
    heat = scene.frame.heat
    bad = heat.first_bad() if heat is not None else np.zeros(0, np.int64)
    bad = bad[bad >= 0]
    return int(bad.min()) if len(bad) else None


def by_examination(scene: Scene) -> Indices | None:
    """A place for each layer along the path that an examination of the first bad step found.

    The layer of its first operation has the first place; None where nothing was examined.
    """
    onset, names = first_onset(scene), scene.heat.tree.names
    found = next((each for each in scene.frame.autopsies if each.step == onset), None)
    if onset is None or found is None or found.first is None:
        return None
    places = np.full(len(names), _UNNAMED, np.intp)
    modules = dict.fromkeys(site.module for site in (found.first, *found.path) if site.module)
    for place, module in enumerate(modules):
        for at, name in enumerate(names):
            if places[at] == _UNNAMED and name.startswith(f"{module}."):
                places[at] = place
    return places
