"""What a frame costs does not grow with the run: counted in elements touched, not in time."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from tuimon.model.records import LayerTable
from tuimon.tui.draw.chart import draw_chart
from tuimon.tui.draw.heatmap import HeatPanel
from tuimon.tui.draw.theme import Look
from tuimon.tui.scene import LAYERS, Scene
from tuimon.view.blocks import Block
from tuimon.view.frame import Frame
from tuimon.view.heat import Heat
from tuimon.view.pyramid import Level, RawColumn
from tuimon.view.series import Series
from tuimon.view.tiers import Tier

SHORT, LONG = 10**4, 10**7


class Counted:
    """Elements that the pyramid handed out, and those a map looked through."""

    elements = 0


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()

    def counting(kind: type) -> None:
        part = kind.part

        def counts(self: object, start: int, end: int) -> Block:
            found.elements += end - start
            return part(self, start, end)

        monkeypatch.setattr(kind, "part", counts)

    for kind in (RawColumn, Level):
        counting(kind)
    worst = Tier._worst

    def looks(self: Tier, group: tuple[int, ...], plane: int) -> np.ndarray:
        row = self._rows.get((id(group), plane))
        found.elements += (self.count - (row.known if row else 0)) * len(group)
        return worst(self, group, plane)

    monkeypatch.setattr(Tier, "_worst", looks)
    return found


@functools.cache  # a long one takes a second to make
def of_length(length: int) -> Series:
    series = Series("loss")
    values = np.random.default_rng(0).normal(size=length).astype(np.float32)
    values[:: length // 7] = np.nan
    series.extend(np.arange(length), values)
    return series


def live_frame(series: Series, *, keep: float, zoomed: bool) -> Scene:
    step = (series.last_step or 0) + 1
    series.append(step, 1.0)
    scene = Scene(Frame(series={"loss": series}, step=step), Look())
    scene.charts.of("loss").keep = keep
    scene.charts.cross_step = step // 2
    if zoomed:
        scene.charts.window.span, scene.charts.window.end = step // 3, step // 2
    draw_chart(scene, "loss", 200, 20, focused=True)
    return scene


@pytest.mark.parametrize("keep", [0.0, 0.99])
@pytest.mark.parametrize("zoomed", [False, True])
def test_a_chart_of_ten_million_steps_touches_no_more_than_one_of_ten_thousand(
    counted: Counted, keep: float, zoomed: bool
) -> None:
    work = []
    for length in (SHORT, LONG):
        series = of_length(length)
        live_frame(series, keep=keep, zoomed=zoomed)  # the first look folds the history
        counted.elements = 0
        live_frame(series, keep=keep, zoomed=zoomed)
        work.append(counted.elements)
    # At any zoom a column takes between 4 and 64 buckets.
    assert work[1] <= 64 * 2 * 200 and work[1] <= 16 * work[0]


def test_a_map_of_ten_thousand_layers_looks_through_new_columns_only(counted: Counted) -> None:
    layers = 10_000
    names = [f"layers.{i // 10}.part{i % 10}.weight" for i in range(layers)]
    heat = Heat(layers)
    norms = np.exp2(np.random.default_rng(0).normal(size=layers)).astype(np.float32)
    for step in range(300):
        heat.append(step, norms)
    table = LayerTable(1, names, shapes=[[1]] * layers, dtypes=["float32"] * layers)
    scene = Scene(Frame(heat=heat, layers=table, step=299), Look(), screen=LAYERS, focus="layers")
    panel = HeatPanel()
    panel.draw(scene, 120, 38, True)
    rows = panel.visible_rows
    work = []
    for step in range(300, 303):
        heat.append(step, norms)
        counted.elements = 0
        panel.draw(scene, 120, 38, True)
        work.append(counted.elements)
    # Each visible row looks at its own layers, in the newest column only.
    assert max(work) <= 4 * layers and rows > 30
