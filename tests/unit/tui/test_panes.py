"""Sizes of panes: edges move as far as the neighbours allow, and the screen stays covered."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tui.full import full_frame
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.actions import SCREENS
from tuimon.tui.keys.choices import CHOICES, focusable
from tuimon.tui.keys.pointing import pull
from tuimon.tui.scene import Scene
from tuimon.tui.screens import arrange

FRAME = full_frame()


@settings(max_examples=60)
@given(
    st.sampled_from(sorted(SCREENS)),
    st.sampled_from([(60, 20), (80, 24), (120, 40), (200, 50)]),
    st.lists(st.tuples(st.integers(0, 9), st.integers(-60, 60), st.integers(-60, 60)), max_size=6),
)
def test_whatever_is_pulled_the_screen_is_covered_once(
    screen: str, size: tuple[int, int], pulls: list[tuple[int, int, int]]
) -> None:
    scene = Scene(FRAME, Look())
    CHOICES[screen](scene, [])
    panels = focusable(arrange(scene, *size))
    for at, columns, rows in pulls:
        scene.sizes.change(scene.screen, panels[at % len(panels)], columns, rows)
    cover = np.zeros((size[1], size[0]), int)
    for box in arrange(scene, *size):
        cover[box.y : box.y + box.height, box.x : box.x + box.width] += 1
        assert box.width > 0 and box.height > 0
    assert (cover == 1).sum() + (cover == 0).sum() == cover.size
    assert (cover[: size[1] - 1] == 1).all()


@pytest.mark.parametrize(
    ("panel", "edge", "cells", "taller"),
    [("loss", "bottom", 3, "loss"), ("grad", "top", 3, "loss"), ("grad", "bottom", 2, "grad")],
)
def test_an_edge_belongs_to_both_its_panels(panel: str, edge: str, cells: int, taller: str) -> None:
    scene = Scene(FRAME, Look())
    before = {box.panel: box for box in arrange(scene, 120, 40)}
    pull(scene, list(before.values()), panel, edge, cells)
    after = {box.panel: box for box in arrange(scene, 120, 40)}
    assert after[taller].height == before[taller].height + cells
    assert sum(b.height for b in after.values()) == sum(b.height for b in before.values())


def test_the_column_between_moves_for_all_panels_beside_it() -> None:
    scene = Scene(FRAME, Look())
    before = {box.panel: box for box in arrange(scene, 120, 40)}
    scene.focus = "memory"
    CHOICES["broader"](scene, list(before.values()))
    after = {box.panel: box for box in arrange(scene, 120, 40)}
    for panel in ("memory", "events"):
        assert after[panel].width == before[panel].width + 4
    assert after["loss"].width == after["layers"].width == before["loss"].width - 4
    scene.focus = "layers"  # the lowest: it grows upwards
    CHOICES["taller"](scene, list(after.values()))
    taller = {box.panel: box for box in arrange(scene, 120, 40)}
    assert taller["layers"].height == before["layers"].height + 1
    assert taller["grad"].height == before["grad"].height - 1
    CHOICES["as_laid_out"](scene, [])
    assert arrange(scene, 120, 40) == list(before.values())
