"""The runs of this host, each with a small chart of its loss: one is picked."""

from __future__ import annotations

import math

import numpy as np

from tuimon.model.records import HELD, PAUSED, RUNNING, STATE_NAMES, UNWATCHED
from tuimon.model.units import count, duration_s, number
from tuimon.tui.draw import braille
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, spread, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.scene import Scene
from tuimon.view.frame import HAS_FINITE, HAS_NAN, HAS_NEG_INF, HAS_POS_INF, SeriesView
from tuimon.view.headers import GONE
from tuimon.view.runs import RunGlance

_NONE = (
    "no run on this host yet\n\nstart one with `tuimon run script.py`: it appears here by itself"
)
_FAR = "this run is on another host: the list of runs there is `tuimon ls` on that host"
_CHART_ROWS = 2
_GAP = 6  # columns of dots that a line may cross
_TONES = {
    STATE_NAMES[RUNNING]: "ok",
    STATE_NAMES[PAUSED]: "warn",
    STATE_NAMES[HELD]: "bad",
    STATE_NAMES[UNWATCHED]: "bad",
    "silent": "warn",
    GONE: "dim",
}


class RunsPanel:
    """A card for each live run, a line for each that has ended."""

    name = "runs"
    can_focus = True
    rest_s = 0.2

    def key(self, scene: Scene) -> object:
        """Changes with every run and the cursor."""
        place = scene.scroll(self.name)
        told = tuple(
            (each.info.id, each.state, each.step, int(each.age_s), each.loss and each.loss.version)
            for each in scene.runs or ()
        )
        return (told, scene.runs is None, place.cursor, place.top, scene.frame.run_id)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, place = scene.look, scene.scroll(self.name)
        room, inner = height - 2, width - 2
        title: Row = [text(look, "runs", "strong", bold=True)]
        runs = scene.runs
        if not runs:
            words = _FAR if runs is None else _NONE
            body = centred(look, words, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        settle(scene, runs)
        blocks = [
            _block(scene, each, inner, selected=at == place.cursor) for at, each in enumerate(runs)
        ]
        place.top = _top(place.top, place.cursor, blocks, room)
        body = [row for block in blocks[place.top :] for row in block][:room]
        body += [fit(look, [], inner) for _ in range(room - len(body))]
        live = sum(each.state != GONE for each in runs)
        visible = max(1, room * len(runs) // max(1, sum(map(len, blocks))))
        return framed(
            look,
            body,
            width,
            title=title,
            reading=[[text(look, f"{live:,} live, {len(runs) - live:,} ended", "dim")]],
            foot=[text(look, "j k choose  enter shows it", "dim")],
            focused=focused,
            thumb=thumb_of(place.top, visible, len(runs)),
        )


def settle(scene: Scene, runs: tuple[RunGlance, ...]) -> None:
    """Let the same run stay selected while others come and go."""
    place = scene.scroll(RunsPanel.name)
    for at, each in enumerate(runs):
        if each.info.id == place.anchor:
            place.cursor = at
            break
    place.cursor = max(0, min(place.cursor, len(runs) - 1))
    place.anchor = runs[place.cursor].info.id


def selected_run(scene: Scene) -> RunGlance | None:
    """The run under the cursor."""
    runs = scene.runs
    if not runs:
        return None
    settle(scene, runs)
    return runs[scene.scroll(RunsPanel.name).cursor]


def _top(top: int, cursor: int, blocks: list[list[Row]], room: int) -> int:
    """The first block to show, so that the selected one is whole."""
    top = max(0, min(top, cursor))
    while top < cursor and sum(map(len, blocks[top : cursor + 1])) > room:
        top += 1
    return top


def _block(scene: Scene, run: RunGlance, width: int, *, selected: bool) -> list[Row]:
    look = scene.look
    head = _head(scene, run, width, selected=selected)
    if run.state == GONE:
        return [head]
    blank = fit(look, [], width)
    if run.loss is None or not run.loss.count:
        return [head, fit(look, [text(look, "   no loss so far", "dim")], width), blank]
    return [head, *_chart(look, run.loss, width), blank]


def _head(scene: Scene, run: RunGlance, width: int, *, selected: bool) -> Row:
    look, info = scene.look, run.info
    mark = ">" if selected else " "
    is_shown = info.id == scene.frame.run_id
    left: list[Row] = [
        [
            text(look, f" {mark} ", "key", bold=True),
            data(look, info.name[:40], "strong" if run.state != GONE else "dim", bold=selected),
        ],
        [data(look, info.id, "key" if is_shown else "dim")],
    ]
    if run.ended:
        left.append([data(look, run.ended[:80], "dim")])
    elif info.main_pid is not None:
        left.append([data(look, f"{info.host}:{info.main_pid}", "dim")])
    right: list[Row] = [[text(look, _times(run), "dim")]]
    if info.world_size > 1:
        right.append([text(look, f"{info.world_size} ranks", "dim")])
    if run.steps_per_s is not None and run.state == STATE_NAMES[RUNNING]:
        right.append([text(look, f"{number(run.steps_per_s, 3)} it/s", "text")])
    right.append([text(look, "step ", "dim"), text(look, count(run.step), "text", bold=True)])
    right.append([text(look, f"{run.state:<8}", _TONES.get(run.state, "warn"), bold=True)])
    return fit(look, spread(look, left, right, width), width)


def _times(run: RunGlance) -> str:
    """How long it has trained, and apart from that how long ago it ended."""
    lasted = duration_s(float(int(run.age_s)))
    if run.state != GONE:
        return lasted
    if run.ended_s is None:
        return f"began {lasted} ago"
    return f"ran {lasted}, ended {duration_s(float(int(run.ended_s)))} ago"


def _chart(look: Look, loss: SeriesView, width: int) -> list[Row]:
    """Two rows of the whole history; the newest value beside them."""
    columns = max(8, width - 22)
    across, down = braille.RESOLUTION[look.glyphs.name]
    first, last = loss.first_step or 0, loss.last_step or 0
    envelope = loss.envelope(first, max(last + 1, first + columns), columns * across)
    finite = (envelope.flags & HAS_FINITE) > 0
    lows = np.where(finite, envelope.low, np.nan).astype(np.float64)
    highs = np.where(finite, envelope.high, np.nan).astype(np.float64)
    rows: list[Row] = []
    if finite.any():
        low, high = float(np.nanmin(lows)), float(np.nanpercentile(highs[finite], 98))
        span = (high - low) or 1.0
        empty = envelope.flags == 0
        below, above = (
            braille.bridged(np.clip((each - low) / span, 0.0, 1.0), empty, _GAP)
            for each in (lows, highs)
        )
        drawn = braille.cells(braille.dots(below, above, _CHART_ROWS * down), look.glyphs.name)
        lines = [braille.line(row) for row in braille.points(drawn, look.glyphs.name)[:_CHART_ROWS]]
    else:
        lines = [" " * columns] * _CHART_ROWS
    bits = np.bitwise_or.reduce(envelope.flags.reshape(columns, across), axis=1)
    bad = (bits & (HAS_NAN | HAS_POS_INF | HAS_NEG_INF)) > 0
    colour = look.series("loss")[1]
    for at, line in enumerate(lines):
        row: Row = [text(look, "   ")]
        if at == _CHART_ROWS - 1 and bad.any():
            for place, char in enumerate(line):
                row.append(
                    text(look, "N", "on_badge", "nan") if bad[place] else text(look, char, colour)
                )
        else:
            row.append(text(look, line, colour))
        rows.append(row)
    value = loss.last
    tone = "bad" if value is not None and not math.isfinite(value) else "strong"
    rows[0] += [text(look, "  loss ", "dim"), text(look, number(value), tone, bold=True)]
    rows[1] += [text(look, "  min  ", "dim"), text(look, number(loss.minimum), "dim")]
    return [fit(look, row, width) for row in rows]
