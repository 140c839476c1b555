"""What each key that only changes the picture does to a scene. No Textual, no training."""

from __future__ import annotations

from tuimon.tui.draw import glyphs as glyph_sets
from tuimon.tui.draw import theme
from tuimon.tui.draw.ordering import next_order
from tuimon.tui.event_log import open_newest, select_bad, stand_on_hold
from tuimon.tui.keys import time_choices
from tuimon.tui.keys.actions import (
    ON_CHART,
    ON_EVENTS,
    ON_INCIDENT,
    ON_LAYERS,
    ON_LOOK,
    ON_OUTPUT,
    SCREENS,
    kind_of,
)
from tuimon.tui.keys.row_choices import (
    Choice,
    absolute,
    bad_batch,
    bad_row,
    fold,
    move,
    only_bad,
    show_first_bad,
)
from tuimon.tui.layer_screen import open_layer
from tuimon.tui.panels.header import visible_alert
from tuimon.tui.panels.output import next_trouble, sideways
from tuimon.tui.panes import STEP_COLUMNS, STEP_ROWS, grows_into
from tuimon.tui.scene import (
    AMP,
    CHARTS,
    DATA,
    EVENTS,
    LAYER,
    LAYERS,
    LOOK,
    OUTPUT,
    OVERVIEW,
    RANKS,
    RUNS,
    SYSTEM,
    Scene,
)
from tuimon.tui.screens import CHART_PREFIX, Box, chart_names
from tuimon.tui.scrolling import FAR

_UNFOCUSABLE = ("header", "alert", "footer", "detail", "compact", "more", "tiny")
_TIMED = (OVERVIEW, CHARTS, LAYER, AMP, SYSTEM)  # screens with a chart
_FIRST_PANEL = {
    OVERVIEW: "loss",
    LAYERS: "layers",
    EVENTS: "events",
    RANKS: "ranks",
    SYSTEM: "devices",
    DATA: "batches",
    OUTPUT: "output",
    RUNS: "runs",
    AMP: CHART_PREFIX + "loss_scale",
}


def focusable(boxes: list[Box]) -> list[str]:
    """Panels that tab visits, in reading order."""
    return [box.panel for box in boxes if box.panel not in _UNFOCUSABLE]


def settle_focus(scene: Scene, boxes: list[Box]) -> None:
    """Give the focus to the first panel when its own is not on the screen."""
    order = focusable(boxes)
    if order and scene.focus not in order:
        scene.focus = order[0]


def _screen(name: str) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> None:
        scene.screen, scene.zoomed = SCREENS[name], False
        names = chart_names(scene)
        first = names[0] if names else "loss"
        scene.focus = {CHARTS: first, **_FIRST_PANEL}[scene.screen]

    return choose


def _panel(step: int) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> None:
        # All charts, also those out of sight or behind a zoomed one.
        order = chart_names(scene) if scene.screen == CHARTS else focusable(boxes)
        if not order:
            return
        at = order.index(scene.focus) if scene.focus in order else 0
        scene.focus = order[(at + step) % len(order)]

    return choose


def _zoom(scene: Scene, boxes: list[Box]) -> None:
    scene.zoomed = not scene.zoomed


def back(scene: Scene, boxes: list[Box]) -> None:
    """Undo one thing at a time: zoom, filter, crosshair, the incident line, the screen."""
    kind = kind_of(scene.focus)
    alert = visible_alert(scene)
    if scene.zoomed:
        scene.zoomed = False
    elif scene.screen in (LOOK, LAYER):
        _screen("layers")(scene, boxes)
    elif kind == ON_LAYERS and (scene.heat.tree.filter or scene.heat.tree.only_bad):
        scene.heat.tree.set_filter("")
        scene.heat.tree.set_only_bad(False)
    elif kind == ON_EVENTS and scene.log.filter:
        scene.log.filter = ""
    elif kind == ON_OUTPUT and scene.scroll(ON_OUTPUT).filter:
        scene.scroll(ON_OUTPUT).filter = ""
    elif kind in (ON_CHART, ON_LAYERS) and scene.charts.cross_step is not None:
        scene.charts.cross_step = None
    elif alert is not None:
        scene.alert_hidden = alert.identity
    elif scene.screen != OVERVIEW:
        _screen("overview")(scene, boxes)


def _freeze(scene: Scene, boxes: list[Box]) -> None:
    scene.frozen = not scene.frozen


def _glyphs(scene: Scene, boxes: list[Box]) -> None:
    order = glyph_sets.ORDER
    following = order[(order.index(scene.look.glyphs.name) + 1) % len(order)]
    scene.look.glyphs = glyph_sets.SETS[following]


def _theme(scene: Scene, boxes: list[Box]) -> None:
    order = theme.ORDER
    scene.look.set_theme(order[(order.index(scene.look.theme) + 1) % len(order)])


def _sideways(direction: int) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> None:
        kind = kind_of(scene.focus)
        if kind == ON_LAYERS:
            fold(scene, open_it=direction > 0)
        elif kind == ON_CHART:
            time_choices.cross(direction)(scene, boxes)
        elif kind == ON_OUTPUT:
            sideways(scene, direction)

    return choose


def _bad(direction: int) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> str | None:
        kind = kind_of(scene.focus)
        if kind == ON_LAYERS:
            return bad_row(scene, direction)
        if kind in (ON_EVENTS, ON_INCIDENT):
            return select_bad(scene, direction)
        if kind == ON_OUTPUT:
            return next_trouble(scene, direction)
        if scene.screen == DATA:
            return bad_batch(scene, direction)
        if scene.screen in _TIMED:
            return time_choices.bad_step(scene, direction)
        return "nothing here has a time: n and N are for charts, layers, events, data and output"

    return choose


def open_look(scene: Scene, layer: str) -> None:
    """Show the answer about a layer, once it is there."""
    scene.screen, scene.zoomed, scene.focus = LOOK, False, ON_LOOK
    scene.look_desk.layer, scene.look_desk.top = layer, 0


def follow(scene: Scene, *, is_free: bool) -> None:
    """What a new incident brings into sight by itself; a hold only where nothing is open."""
    alert = scene.frame.alert
    if alert is not None and alert != scene.heat.alerted and show_first_bad(scene):
        scene.heat.alerted = alert
    if is_free:
        stand_on_hold(scene)


def _look(scene: Scene, boxes: list[Box]) -> str | None:
    return open_newest(scene)


def _open(scene: Scene, boxes: list[Box]) -> str | None:
    if kind_of(scene.focus) == ON_LAYERS:
        return open_layer(scene)
    if kind_of(scene.focus) == ON_EVENTS:
        scene.screen, scene.zoomed, scene.focus = EVENTS, False, "incident"
    return None


def _size(columns: int, rows: int) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> str | None:
        if scene.zoomed:
            return "the panel has the whole screen: z or esc, then its size can change"
        beside, stacked = grows_into(boxes, scene.focus)
        if not (beside if columns else stacked):
            return "no panel " + ("beside it" if columns else "above or below it")
        scene.sizes.change(scene.screen, scene.focus, columns, rows)
        return None

    return choose


def _as_laid_out(scene: Scene, boxes: list[Box]) -> None:
    scene.sizes.forget(scene.screen)


CHOICES: dict[str, Choice] = {
    **{name: _screen(name) for name in SCREENS},
    "next_panel": _panel(1),
    "previous_panel": _panel(-1),
    "zoom": _zoom,
    "back": back,
    "look": _look,
    "freeze": _freeze,
    "glyphs": _glyphs,
    "theme": _theme,
    "left": _sideways(-1),
    "right": _sideways(1),
    "closer": time_choices.scale_time(0.5),
    "wider": time_choices.scale_time(2.0),
    "whole": time_choices.whole,
    "earlier": time_choices.pan(-0.5),
    "later": time_choices.pan(0.5),
    "log": time_choices.toggle("log"),
    "smooth": time_choices.smooth,
    "cap": time_choices.toggle("cap"),
    "cross_left": time_choices.cross(-1),
    "cross_right": time_choices.cross(1),
    "spike": time_choices.spike,
    "down": move(1),
    "up": move(-1),
    "top": move(-FAR),
    "bottom": move(FAR),
    "next_bad": _bad(1),
    "last_bad": _bad(-1),
    "only_bad": only_bad,
    "absolute": absolute,
    "open": _open,
    "narrower": _size(-STEP_COLUMNS, 0),
    "broader": _size(STEP_COLUMNS, 0),
    "shorter": _size(0, -STEP_ROWS),
    "taller": _size(0, STEP_ROWS),
    "as_laid_out": _as_laid_out,
    "sort": lambda scene, boxes: next_order(scene),
}
