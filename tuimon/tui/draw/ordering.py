"""In which order the layers stand: as the modules do, or sorted by what is known of them."""

from __future__ import annotations

import numpy as np

from tuimon.model.records import NON_FINITE
from tuimon.tui.draw.onset import by_examination, first_onset
from tuimon.tui.draw.tree import ORDERS, Indices
from tuimon.tui.scene import Scene

TREE, WORST, FIRST_BAD, NORM, NAME = ORDERS
WORDS = {
    TREE: "modules",
    WORST: "worst first",
    FIRST_BAD: "first bad first",
    NORM: "largest norm first",
    NAME: "by name",
}
_LAST = np.iinfo(np.int64).max


def next_order(scene: Scene) -> str:
    """Sort by the next order, and let the same layer stay selected; says which."""
    tree = scene.heat.tree
    order = ORDERS[(ORDERS.index(tree.order) + 1) % len(ORDERS)]
    scene.heat.ranked = None
    _keeping_place(scene, order, stays_on_top=not scene.heat.touched)
    scene.heat.touched = True
    if order == FIRST_BAD:
        scene.heat.wanted = first_onset(scene)
    elif scene.heat.is_led and scene.charts.cross_step is None:
        scene.heat.end, scene.heat.is_led = None, False
    return f"layers: {WORDS[order]}{_ties(scene) if order == FIRST_BAD else ''}"


def _ties(scene: Scene) -> str:
    """At which step the first were bad, and how many at once: their order then says nothing."""
    heat = scene.frame.heat
    if heat is None:
        return ""
    first = heat.first_bad()
    bad = first[first >= 0]
    if not len(bad):
        return ": none was ever bad"
    at, at_once = bad.min(), int((bad == bad.min()).sum())
    if at_once == 1:
        return f": step {at:,}"
    if at_once == len(first):
        return f": all {at_once:,} at step {at:,}, they tie"
    return f": {at_once:,} of {len(bad):,} tie at step {at:,}"


def settle_order(scene: Scene) -> None:
    """Sort anew, once a reading of the system at most: rows that never rest cannot be read."""
    order = scene.heat.tree.order
    if order == TREE:
        return
    frame = scene.frame
    now = frame.system.time_s if frame.system else frame.step
    state = (now if order in (WORST, NORM, FIRST_BAD) else None, len(scene.heat.tree.names))
    if state != scene.heat.ranked:
        scene.heat.ranked = state
        _keeping_place(scene, order, stays_on_top=scene.heat.cursor == 0)


def ranking(scene: Scene, order: str) -> Indices | None:
    """Indices of the layers in an order; None where nothing is known to sort by."""
    heat, names = scene.frame.heat, scene.heat.tree.names
    if order == NAME:
        return np.array(sorted(range(len(names)), key=names.__getitem__), np.intp)
    if order == TREE or heat is None or len(heat.ever_bad()) != len(names):
        return None
    norms = heat.latest_norm().astype(np.float64)
    bad_now = (heat.latest_flags() & NON_FINITE) > 0
    if order == NORM:
        size = np.where(bad_now, np.inf, np.where(np.isfinite(norms), norms, -1.0))
        return np.argsort(-size, kind="stable")
    first = heat.first_bad()
    first = np.where(first < 0, _LAST, first)
    away = np.nan_to_num(np.abs(heat.latest_away()), nan=-1.0)
    if order == FIRST_BAD:
        named = by_examination(scene)  # which of several came first, where anybody knows
        return np.lexsort((-away, first) if named is None else (-away, named, first))
    # What is bad now, then what was, the first of them first, then what is far from its usual.
    return np.lexsort((-away, first, ~heat.ever_bad(), ~bad_now))


def _keeping_place(scene: Scene, order: str, *, stays_on_top: bool) -> None:
    """Sort; the same layer stays selected, or one watches who comes to the top."""
    desk = scene.heat
    rows = desk.tree.rows()
    row = rows[min(desk.cursor, len(rows) - 1)] if rows else None
    desk.tree.set_order(order, ranking(scene, order))
    if stays_on_top:
        desk.cursor = 0
    elif row is not None and row.is_open is None:
        desk.cursor = desk.tree.reveal(row.members[0])
    elif row is not None:
        desk.cursor = desk.tree.place_of(row.path) or 0
