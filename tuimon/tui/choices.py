"""What each key that only changes the picture does to a scene. No Textual, no training."""

from __future__ import annotations

from tuimon.tui import glyphs as glyph_sets
from tuimon.tui import theme
from tuimon.tui.actions import (
    ON_CHART,
    ON_EVENTS,
    ON_INCIDENT,
    ON_LAYERS,
    ON_LOOK,
    ON_OUTPUT,
    SCREENS,
    kind_of,
)
from tuimon.tui.chart import history_of
from tuimon.tui.event_log import open_newest, select_bad, stand_on_hold
from tuimon.tui.layer_screen import open_layer
from tuimon.tui.ordering import next_order
from tuimon.tui.panels.header import visible_alert
from tuimon.tui.panels.output import next_trouble, sideways
from tuimon.tui.panes import STEP_COLUMNS, STEP_ROWS, grows_into
from tuimon.tui.row_choices import (
    Choice,
    absolute,
    bad_row,
    fold,
    move,
    only_bad,
    show_first_bad,
)
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
    SYSTEM,
    Scene,
)
from tuimon.tui.screens import CHART_PREFIX, Box, chart_names
from tuimon.tui.scrolling import FAR

_SERIES = {"loss": "loss", "grad": "grad_norm"}
_UNFOCUSABLE = ("header", "alert", "footer", "detail", "ledger", "compact", "tiny")
_FIRST_PANEL = {
    OVERVIEW: "loss",
    LAYERS: "layers",
    EVENTS: "events",
    RANKS: "ranks",
    SYSTEM: "devices",
    DATA: "batches",
    OUTPUT: "output",
    AMP: CHART_PREFIX + "loss_scale",
}


def series_of(panel: str) -> str | None:
    """The series a chart panel shows."""
    if panel.startswith(CHART_PREFIX):
        return panel.removeprefix(CHART_PREFIX)
    return _SERIES.get(panel)


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
        order = focusable(boxes)
        if scene.zoomed or not order:
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
    elif kind == ON_CHART and scene.charts.cross_step is not None:
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
            _move_cross(scene, direction)
        elif kind == ON_OUTPUT:
            sideways(scene, direction)

    return choose


def _move_cross(scene: Scene, direction: int) -> None:
    """One cell column left or right; from the newest step when there is no crosshair yet."""
    reach = _reach(scene)
    if reach is None:
        return
    desk = scene.charts
    start, end = desk.window.steps(*reach)
    per_cell = max(1, round((end - start) / max(1, desk.columns)))
    now = desk.cross_step
    if now is None or not start <= now < end:
        moved = min(reach[1], end - 1)
    else:
        moved = now + direction * per_cell
    desk.cross_step = max(start, min(moved, end - 1, max(reach[1], start)))


def _reach(scene: Scene) -> tuple[int, int] | None:
    name = series_of(scene.focus)
    series = scene.frame.series.get(name) if name else None
    if series is None or series.first_step is None or series.last_step is None:
        return None
    return history_of(scene, series)


def _scale_time(factor: float) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> None:
        if kind_of(scene.focus) == ON_LAYERS:
            desk = scene.heat
            desk.bucket = max(1, min(1 << 20, desk.bucket * 2 if factor > 1 else desk.bucket // 2))
            return
        reach = _reach(scene)
        if reach is not None:
            scene.charts.window.zoom(factor, *reach, around=scene.charts.cross_step)

    return choose


def _whole(scene: Scene, boxes: list[Box]) -> None:
    if kind_of(scene.focus) == ON_LAYERS:
        scene.heat.bucket, scene.heat.end = 1, None
        return
    scene.charts.window.whole()
    scene.charts.cross_step = None


def _pan(screens: float) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> None:
        if kind_of(scene.focus) == ON_LAYERS:
            _pan_heat(scene, screens, boxes)
            return
        reach = _reach(scene)
        if reach is not None:
            scene.charts.window.pan(screens, *reach)

    return choose


def _pan_heat(scene: Scene, screens: float, boxes: list[Box]) -> None:
    heat, desk = scene.frame.heat, scene.heat
    if heat is None or heat.first_step is None or heat.last_step is None:
        return
    span = desk.columns * desk.bucket
    end = desk.end if desk.end is not None else heat.last_step + 1
    moved = end + round(screens * span)
    desk.end = None if moved > heat.last_step else max(moved, heat.first_step + span)


def _chart_choice(field: str) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> None:
        name = series_of(scene.focus)
        if name is None:
            return
        choice = scene.charts.of(name)
        setattr(choice, field, not getattr(choice, field))
        choice.bounds.forget()

    return choose


def _bad(direction: int) -> Choice:
    def choose(scene: Scene, boxes: list[Box]) -> str | None:
        kind = kind_of(scene.focus)
        if kind == ON_LAYERS:
            return bad_row(scene, direction)
        if kind in (ON_EVENTS, ON_INCIDENT):
            return select_bad(scene, direction)
        if kind == ON_CHART:
            return _bad_step(scene, direction)
        if kind == ON_OUTPUT:
            return next_trouble(scene, direction)
        return None

    return choose


def _bad_step(scene: Scene, direction: int) -> str | None:
    """Put the crosshair on the next NaN or Inf of the focused series, and bring it into sight."""
    name = series_of(scene.focus)
    series = scene.frame.series.get(name) if name else None
    reach = _reach(scene)
    if series is None or reach is None:
        return "no values yet"
    desk = scene.charts
    start = desk.cross_step
    if start is None:
        start = -1 if direction > 0 else FAR
    found = series.non_finite_near(start, forward=direction > 0)
    if found is None:
        found = series.non_finite_near(-1 if direction > 0 else FAR, forward=direction > 0)
    if found is None:
        return f"no NaN or Inf in {(name or '').replace('_', ' ')} so far"
    desk.cross_step = found
    shown = desk.window.steps(*reach)
    if desk.window.span is not None and not shown[0] <= found < shown[1]:
        desk.window.end = max(reach[0] + desk.window.span, found + desk.window.span // 2)
    return None


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
    "closer": _scale_time(0.5),
    "wider": _scale_time(2.0),
    "whole": _whole,
    "earlier": _pan(-0.5),
    "later": _pan(0.5),
    "log": _chart_choice("log"),
    "smooth": _chart_choice("smooth"),
    "cap": _chart_choice("cap"),
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
