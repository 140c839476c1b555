"""What one picture is made of: a frame, a look, and what the person at the keys has chosen.

Panels read it; only the keys write it. No Textual here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec

from tuimon.tui.draw.axis import Bounds, TimeWindow
from tuimon.tui.draw.rows import Row
from tuimon.tui.draw.theme import Look
from tuimon.tui.draw.tree import LayerTree
from tuimon.tui.panes import Sizes
from tuimon.tui.scrolling import Scroll
from tuimon.view.frame import Frame
from tuimon.view.incidents import Incident
from tuimon.view.layer_series import LayerSeries
from tuimon.view.runs import RunGlance

OVERVIEW = "overview"
CHARTS = "charts"
LAYERS = "layers"
EVENTS = "events"
AMP = "amp"
RANKS = "ranks"
SYSTEM = "system"
DATA = "data"
OUTPUT = "output"
RUNS = "runs"
LAYER = "layer"  # one layer over time; opened by enter
LOOK = "look"  # at one layer; opened by asking for it


class ChartChoice(msgspec.Struct):
    """How one series is drawn."""

    log: bool = False
    keep: float = 0.0  # factor of the moving average for each step; 0 draws no average
    cap: bool = True
    bounds: Bounds = msgspec.field(default_factory=Bounds)


class ChartDesk(msgspec.Struct):
    """Choices of all charts: one window of time and one crosshair for all of them."""

    window: TimeWindow = msgspec.field(default_factory=TimeWindow)
    cross_step: int | None = None
    top: int = 0  # first row of charts shown on the charts screen
    unseen: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())  # charts above and below those
    columns: int = 1  # cells across the plot, as last drawn
    choices: dict[str, ChartChoice] = msgspec.field(default_factory=dict)

    def of(self, name: str) -> ChartChoice:
        """The choice for a series; gradient norms and loss scales start on a log axis."""
        found = self.choices.get(name)
        if found is None:
            last = name.rsplit("/", 1)[-1]
            found = self.choices[name] = ChartChoice(
                log=last.startswith(("grad_norm", "loss_scale"))
            )
        return found


class HeatDesk(msgspec.Struct):
    """Choices of the heat map."""

    tree: LayerTree = msgspec.field(default_factory=LayerTree)
    cursor: int = 0
    top: int = 0
    alerted: object = None  # the incident whose first bad layer was brought into sight
    touched: bool = False  # the person has moved the cursor: do not move it for them
    bucket: int = 1  # steps per column
    end: int | None = None  # None follows the newest step, in jumps
    columns: int = 1  # cells across the map, as last drawn
    crossed: int | None = None  # the crosshair that was last brought into sight
    is_led: bool = False  # `end` is where the crosshair led, not where a person went
    wanted: int | None = None  # a step to bring into sight with the next picture
    absolute: bool = False  # norms themselves, not against each layer's own median
    ranked: object = None  # of what the layers were sorted
    series: LayerSeries = msgspec.field(default_factory=LayerSeries)  # of the layer looked at


class EventDesk(msgspec.Struct):
    """Choices of the event log, and the list as it was last made."""

    cursor: int = 0  # counted from the newest
    anchor: object = None  # identity of the selected entry; None stays where the cursor is
    filter: str = ""
    top: int = 0  # first line shown of the selected entry
    is_standing: bool = False  # the incident of the present hold was opened by itself
    stays_away: bool = False  # the person left it: nothing opens by itself any more
    entries: list[Incident] = msgspec.field(default_factory=list)
    seen: tuple[object, ...] | None = None  # what `entries` was made of
    seen_filter: str = ""
    headline: Incident | None = None
    told: tuple[object, ...] | None = None  # what `headline` was made of


class LookDesk(msgspec.Struct):
    """Which layer was looked at, and how far the answer is scrolled."""

    layer: str = ""
    top: int = 0


class RankDesk(msgspec.Struct):
    """Where a person is in the table of ranks."""

    cursor: int = 0
    top: int = 0


@dataclass
class Scene:
    """One picture."""

    frame: Frame
    look: Look
    other: Frame | None = None  # of the run that is laid over this one
    other_name: str = ""
    screen: str = OVERVIEW
    focus: str = "loss"
    zoomed: bool = False
    frozen: bool = False
    readonly: bool = False
    replays: bool = False  # a recording, in place of a run
    max_norm_known: bool = False  # a bound for tuimon's own clipping was given before
    asked_max_norm: float | None = None  # sent, but not yet seen in a step
    alert_hidden: object = None  # identity of the incident whose line was dismissed
    price_per_hour: float | None = None  # of the training, for what a wait costs
    hint: tuple[tuple[str, str], ...] = ()  # (key, word) for the footer
    runs: tuple[RunGlance, ...] | None = None  # of this host; None where they are not known
    revision: int = 0  # grows with every key and incident: what follows is drawn at once
    notice: tuple[str, str] = ("", "dim")  # words and colour of the footer's left end
    skips_top: int = 0  # first line shown of the updates that a GradScaler left out
    charts: ChartDesk = field(default_factory=ChartDesk)
    heat: HeatDesk = field(default_factory=HeatDesk)
    log: EventDesk = field(default_factory=EventDesk)
    ranks: RankDesk = field(default_factory=RankDesk)
    look_desk: LookDesk = field(default_factory=LookDesk)
    sizes: Sizes = field(default_factory=Sizes)  # of panes, where the person changed them
    scrolls: dict[str, Scroll] = field(default_factory=dict)  # by panel

    def scroll(self, panel: str) -> Scroll:
        """Where the person is in a panel of rows."""
        return self.scrolls.setdefault(panel, Scroll())

    def with_frame(self, frame: Frame) -> Scene:
        """The same choices on another frame; desks are shared."""
        return replace(self, frame=frame)


class Panel(Protocol):
    """A part of the picture. It holds no data of its own but what it drew last."""

    name: str
    can_focus: bool
    rest_s: float
    """Seconds between two pictures that only newer data asks for: no faster than one can read."""

    def key(self, scene: Scene) -> object:
        """What the picture depends on; an equal key means an equal picture of that size."""
        ...

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The picture: `height` rows of `width` cells."""
        ...


PanelFactory = Callable[[], Panel]
