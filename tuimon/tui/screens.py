"""Which panels each screen shows, and where: a scene and a size in, boxes out."""

from __future__ import annotations

from tuimon.tui.draw.curves import pane_of
from tuimon.tui.layer_screen import is_of_a_layer
from tuimon.tui.panels.header import alert_rows
from tuimon.tui.panes import Box as Box
from tuimon.tui.panes import resized
from tuimon.tui.scene import (
    AMP,
    CHARTS,
    DATA,
    EVENTS,
    LAYER,
    LAYERS,
    LOOK,
    OUTPUT,
    RANKS,
    RUNS,
    SYSTEM,
    Scene,
)
from tuimon.view.layer_series import NAMES

WIDE_COLUMNS = 100
MIN_COLUMNS, MIN_ROWS = 60, 20
RIGHT_COLUMNS = 40
LIST_COLUMNS = 42
CHART_MIN_ROWS = 7
CHART_PREFIX = "chart:"
_ONE_LINE = 3  # rows of a panel with its frame
_FIRST_CHARTS = ("loss", "grad_norm", "lr", "loss_scale", "step_s", "memory")
_DRAWN_ELSEWHERE = ("skipped",)  # as marks of another chart
_ALONE = {LOOK: "look", RANKS: "ranks", OUTPUT: "output", RUNS: "runs"}  # screens of one panel


def has_room(width: int, height: int) -> bool:
    """Whether a picture fits a terminal of that size."""
    return width >= MIN_COLUMNS and height >= MIN_ROWS


def arrange(scene: Scene, width: int, height: int) -> list[Box]:
    """The boxes of the panels to show; only `tiny` when there is no room for a picture."""
    if not has_room(width, height):
        return [Box("tiny", 0, 0, width, height)]
    boxes = [Box("header", 0, 0, width, 1)]
    top = 1
    if above := alert_rows(scene, width):
        boxes.append(Box("alert", 0, top, width, above))
        top += above
    footer = 1 if scene.hint or scene.notice[0] else 0  # a printed frame has no keys
    body = height - top - footer
    if scene.zoomed:
        boxes += [Box(scene.focus, 0, top, width, body)]
    elif scene.screen == CHARTS:
        boxes += _charts(scene, width, body, top)
    elif scene.screen == LAYERS:
        boxes += _layers(width, body, top)
    elif scene.screen == EVENTS:
        boxes += _events(scene, width, body, top)
    elif scene.screen in _ALONE:
        boxes += [Box(_ALONE[scene.screen], 0, top, width, body)]
    elif scene.screen == LAYER:
        boxes += _layer(width, body, top)
    elif scene.screen == SYSTEM:
        boxes += _system(scene, width, body, top)
    elif scene.screen == DATA:
        boxes += _data(width, body, top)
    elif scene.screen == AMP:
        boxes += _amp(width, body, top)
    elif width >= WIDE_COLUMNS:
        boxes += _wide(scene, width, body, top)
    else:
        boxes += _narrow(width, body, top)
    if not scene.zoomed:
        boxes = resized(boxes, scene.sizes.changes.get(scene.screen, {}))
    if footer:
        boxes.append(Box("footer", 0, height - 1, width, 1))
    return boxes


def _split(total: int, parts: tuple[int, ...]) -> list[int]:
    """Whole rows in proportion; the last part takes the rest."""
    sizes = [total * part // sum(parts) for part in parts]
    sizes[-1] += total - sum(sizes)
    return sizes


def _stack(names: list[str], sizes: list[int], *, x: int, y: int, width: int) -> list[Box]:
    boxes = []
    for name, size in zip(names, sizes, strict=True):
        boxes.append(Box(name, x, y, width, size))
        y += size
    return boxes


def _wide(scene: Scene, width: int, body: int, top: int) -> list[Box]:
    left = width - RIGHT_COLUMNS
    main = _stack(["loss", "grad", "layers"], _split(body, (11, 9, 16)), x=0, y=top, width=left)
    devices = len(scene.frame.system.devices) if scene.frame.system else 0
    memory = 3 + min(4, max(1, devices)) + min(2, len(scene.frame.memory))
    sizes = {"memory": memory, "amp": 3 if scene.frame.amp is None else 6}
    sizes["step"] = 8 if scene.frame.snapshots is None else 9
    names = ["memory", "amp", "step"]
    while names and sum(sizes[name] for name in names) + 6 > body:
        names.pop(1 if len(names) > 2 and scene.frame.amp is None else -1)
    used = [sizes[name] for name in names]
    side = _stack([*names, "events"], [*used, body - sum(used)], x=left, y=top, width=RIGHT_COLUMNS)
    return main + side


def _narrow(width: int, body: int, top: int) -> list[Box]:
    sizes = _split(body - 2, (7, 5, 7))
    boxes = _stack(["loss", "grad", "layers"], sizes, x=0, y=top, width=width)
    return [*boxes, Box("compact", 0, top + body - 2, width, 2)]


def chart_names(scene: Scene) -> list[str]:
    """Panels of all series: those that tell most come first, the rest by name."""
    series = scene.frame.series
    panes = {pane_of(name) for name in series if not is_of_a_layer(name)}
    panes = {pane for pane in panes if pane.partition("@")[0] not in _DRAWN_ELSEWHERE}
    first = [pane for pane in _FIRST_CHARTS if pane in panes]
    return [CHART_PREFIX + pane for pane in (*first, *sorted(panes.difference(first)))]


def _charts(scene: Scene, width: int, body: int, top: int) -> list[Box]:
    names = chart_names(scene)
    if not names:
        return [Box("loss", 0, top, width, body)]
    columns = 2 if width >= WIDE_COLUMNS and len(names) > 3 else 1
    lines = -(-len(names) // columns)
    rows = max(1, min(body // CHART_MIN_ROWS, lines))
    body -= rows < lines
    first = columns * _first_line(scene, names, columns, rows)
    shown = names[first : first + rows * columns]
    scene.charts.unseen = tuple(names[:first]), tuple(names[first + rows * columns :])
    boxes = [Box("more", 0, top + body, width, 1)] if rows < lines else []
    heights = _split(body, (1,) * rows)
    y = top
    for row, size in enumerate(heights):
        part = shown[row * columns : (row + 1) * columns]
        for column, name in enumerate(part):
            x = column * (width // columns)
            wide = width - x if column == len(part) - 1 else width // columns
            boxes.append(Box(name, x, y, wide, size))
        y += size
    return boxes


def _first_line(scene: Scene, names: list[str], columns: int, rows: int) -> int:
    """The first line of charts to show, so that the focused one is in sight."""
    desk = scene.charts
    desk.top = max(0, min(desk.top, -(-len(names) // columns) - rows))
    if scene.focus in names:
        line = names.index(scene.focus) // columns
        desk.top = max(line - rows + 1, min(desk.top, line))
    return desk.top


def _layers(width: int, body: int, top: int) -> list[Box]:
    if width < WIDE_COLUMNS:
        return [Box("layers", 0, top, width, body - 2), Box("compact", 0, top + body - 2, width, 2)]
    left = width - RIGHT_COLUMNS
    return [Box("layers", 0, top, left, body), Box("detail", left, top, RIGHT_COLUMNS, body)]


def _events(scene: Scene, width: int, body: int, top: int) -> list[Box]:
    if width < WIDE_COLUMNS:
        above = min(8, max(5, body // 3))
        ledger = min(body // 5, 2 + len(scene.frame.commands)) if scene.frame.commands else 0
        names = ["events", "incident", "ledger"][: 3 if ledger else 2]
        sizes = [above, body - above - ledger, ledger][: len(names)]
        return _stack(names, sizes, x=0, y=top, width=width)
    left = max(LIST_COLUMNS, width // 3)
    ledger = max(3, min(body // 4, 2 + len(scene.frame.commands)))
    boxes = _stack(["events", "ledger"], [body - ledger, ledger], x=0, y=top, width=left)
    return [boxes[0], Box("incident", left, top, width - left, body), boxes[1]]


def _amp(width: int, body: int, top: int) -> list[Box]:
    chart = CHART_PREFIX + "loss_scale"
    if width < WIDE_COLUMNS:
        sizes = _split(body, (5, 10, 6))
        return _stack([chart, "account", "skips"], sizes, x=0, y=top, width=width)
    left = width - RIGHT_COLUMNS
    boxes = _stack([chart, "skips"], _split(body, (3, 2)), x=0, y=top, width=left)
    return [*boxes, Box("account", left, top, RIGHT_COLUMNS, body)]


def _system(scene: Scene, width: int, body: int, top: int) -> list[Box]:
    devices = len(scene.frame.system.devices) if scene.frame.system else 0
    if width < WIDE_COLUMNS:
        needs = {"devices": 2 + max(1, 6 * devices), "split": 7, "host": 6, "cost": 7}
        sizes = _by_need(needs, scene.focus, body)
        return _stack([*needs], sizes, x=0, y=top, width=width)
    above = max(5, min(2 + 5 * devices, body - 18)) if devices else 5
    chart = CHART_PREFIX + "step_s"
    left = width - RIGHT_COLUMNS - 4
    main = _stack(["devices", chart, "split"], _around(body, above, 9), x=0, y=top, width=left)
    side = _stack(["host", "cost"], _split(body, (3, 2)), x=left, y=top, width=width - left)
    return main + side


def _by_need(needs: dict[str, int], focus: str, total: int) -> list[int]:
    """Rows of stacked panels: where they do not fit, the focused one opens before the others."""
    least = _ONE_LINE + (total >= 5 * len(needs))
    sizes = dict.fromkeys(needs, least)
    left = total - sum(sizes.values())
    for name in sorted(needs, key=lambda each: each != focus):
        more = max(0, min(left, needs[name] - least))
        sizes[name] += more
        left -= more
    sizes[next(reversed(needs))] += left
    return [*sizes.values()]


def _around(total: int, first: int, last: int) -> list[int]:
    """Sizes of three panels: the one in the middle takes the rest."""
    return [first, total - first - last, last]


def _data(width: int, body: int, top: int) -> list[Box]:
    if width < WIDE_COLUMNS:
        above = min(7, max(4, body // 4))
        return _stack(["batches", "batch"], [above, body - above], x=0, y=top, width=width)
    left = LIST_COLUMNS
    return [Box("batches", 0, top, left, body), Box("batch", left, top, width - left, body)]


def _layer(width: int, body: int, top: int) -> list[Box]:
    """A line about the layer, its series in two columns, its histograms below."""
    boxes = [Box("layerline", 0, top, width, 1)]
    wide = width >= WIDE_COLUMNS and body >= 30
    names = NAMES if wide else (NAMES[0], NAMES[1], NAMES[3], NAMES[-1])
    rows = len(names) // 2
    histograms = max(6, (body - 1) * 2 // 5)
    heights = _split(body - 1 - histograms, (1,) * rows)
    y, half = top + 1, width // 2
    for row, height in enumerate(heights):
        pair = names[2 * row : 2 * row + 2]
        for x, size, name in ((0, half, pair[0]), (half, width - half, pair[1])):
            boxes.append(Box(CHART_PREFIX + name, x, y, size, height))
        y += height
    third = width // 3
    for at, what in enumerate(("weight", "gradient", "activation")):
        size = third if at < 2 else width - 2 * third
        boxes.append(Box(f"hist:{what}", at * third, y, size, top + body - y))
    return boxes
