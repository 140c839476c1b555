"""Panels by name, made when a screen first shows them."""

from __future__ import annotations

from tuimon.tui.draw.chart import ChartPanel
from tuimon.tui.draw.heatmap import HeatPanel
from tuimon.tui.draw.rows import Row, centred
from tuimon.tui.panels.amp import AccountPanel, SkipsPanel
from tuimon.tui.panels.batches import BatchesPanel, BatchPanel
from tuimon.tui.panels.detail import DetailPanel
from tuimon.tui.panels.device import AmpPanel, CompactPanel, MemoryPanel, StepPanel
from tuimon.tui.panels.events import EventsPanel, LedgerPanel
from tuimon.tui.panels.header import AlertPanel, FooterPanel, HeaderPanel
from tuimon.tui.panels.incident import IncidentPanel
from tuimon.tui.panels.layer import HIST_PREFIX, HistogramsPanel, LayerLinePanel
from tuimon.tui.panels.look import LookPanel
from tuimon.tui.panels.more import MorePanel
from tuimon.tui.panels.output import OutputPanel
from tuimon.tui.panels.ranks import RanksPanel
from tuimon.tui.panels.runs import RunsPanel
from tuimon.tui.panels.system import CostPanel, DevicesPanel, HostPanel, SplitPanel
from tuimon.tui.scene import Panel, PanelFactory, Scene
from tuimon.tui.screens import CHART_PREFIX, MIN_COLUMNS, MIN_ROWS


class TinyPanel:
    """The one sentence of a terminal that is too small."""

    name = "tiny"
    can_focus = False
    rest_s = 0.0

    def key(self, scene: Scene) -> object:
        """Never changes."""
        return None

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """A sentence in the middle."""
        words = f"terminal too small: {width}×{height}, needs {MIN_COLUMNS}×{MIN_ROWS}"
        return centred(scene.look, words, width, height, fg="warn")


_FACTORIES: dict[str, PanelFactory] = {
    "header": HeaderPanel,
    "alert": AlertPanel,
    "footer": FooterPanel,
    "loss": lambda: ChartPanel("loss", "loss"),
    "grad": lambda: ChartPanel("grad", "grad_norm"),
    "layers": HeatPanel,
    "detail": DetailPanel,
    "memory": MemoryPanel,
    "amp": AmpPanel,
    "step": StepPanel,
    "events": EventsPanel,
    "ledger": LedgerPanel,
    "incident": IncidentPanel,
    "look": LookPanel,
    "ranks": RanksPanel,
    "account": AccountPanel,
    "skips": SkipsPanel,
    "compact": CompactPanel,
    "devices": DevicesPanel,
    "host": HostPanel,
    "split": SplitPanel,
    "cost": CostPanel,
    "batches": BatchesPanel,
    "batch": BatchPanel,
    "output": OutputPanel,
    "layerline": LayerLinePanel,
    "runs": RunsPanel,
    "more": MorePanel,
    "tiny": TinyPanel,
}


def make_panel(name: str) -> Panel:
    """A new panel of that name."""
    if name.startswith(CHART_PREFIX):
        return ChartPanel(name, name.removeprefix(CHART_PREFIX))
    if name.startswith(HIST_PREFIX):
        return HistogramsPanel(name)
    return _FACTORIES[name]()
