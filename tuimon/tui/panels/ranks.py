"""The ranks of a run on its host, a row each: loss, norm, step, times, state and what is wrong."""

from __future__ import annotations

import math

from tuimon.model.ranks import RankRow, RankRows
from tuimon.model.records import ENDED, HELD, PAUSED, RUNNING, STATE_NAMES
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, duration_s, number
from tuimon.tui.rows import Row, centred, data, fit, framed, text
from tuimon.tui.scene import Scene
from tuimon.tui.theme import Look

_ALONE = "this run is a single process; of a training with several ranks each has a row here"
_SOON = "the scribe tells how the ranks stand once a second"
SILENT_AFTER_S, SILENT_FACTOR = 10.0, 20.0  # times the usual step, as for a whole run
_TONES = {
    STATE_NAMES[RUNNING]: "ok",
    STATE_NAMES[PAUSED]: "warn",
    STATE_NAMES[HELD]: "warn",
    STATE_NAMES[ENDED]: "bad",
    "silent": "bad",
}
# Heading, cells.
_COLUMNS = (
    ("rank", 5),
    ("pid", 8),
    ("step", 10),
    ("loss", 11),
    ("grad norm", 11),
    ("step time", 10),
    ("own part", 10),
)


class RanksPanel:
    """A table with a cursor; the marked row is the rank that the other screens show."""

    name = "ranks"
    can_focus = True
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with every row, the cursor and the rank that is shown."""
        frame, desk = scene.frame, scene.ranks
        return (frame.ranks, frame.rank, frame.world_size, desk.cursor, desk.top)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, ranks, desk = scene.look, scene.frame.ranks, scene.ranks
        room, inner = height - 3, width - 2
        title = [text(look, "ranks", "strong", bold=True)]
        if ranks is None or not ranks.rows:
            words = _ALONE if scene.frame.world_size < 2 else _SOON
            body = centred(look, words, inner, height - 2)
            return framed(look, body, width, title=title, focused=focused)
        total = len(ranks.rows)
        desk.cursor = max(0, min(desk.cursor, total - 1))
        desk.top = max(0, min(desk.top, desk.cursor, total - room))
        desk.top = max(desk.top, desk.cursor - room + 1)
        rows = [fit(look, _head(look), inner)]
        for index in range(desk.top, min(total, desk.top + room)):
            is_selected = focused and index == desk.cursor
            row = _row(look, ranks, index, is_shown=ranks.rows[index].rank == scene.frame.rank)
            mark = text(look, ">" if is_selected else " ", "key", bold=True)
            rows.append(fit(look, [mark, *row], inner))
        rows += [fit(look, [], inner) for _ in range(room + 1 - len(rows))]
        return framed(
            look,
            rows,
            width,
            title=title,
            reading=[[text(look, _summary(ranks), "dim")]],
            foot=[text(look, "j k select  r look at it", "dim")],
            focused=focused,
        )


def rank_wanted(scene: Scene) -> int | None:
    """The selected rank on this screen, the next one elsewhere; None where there is no other."""
    rows = scene.frame.ranks.rows if scene.frame.ranks is not None else []
    if scene.focus == RanksPanel.name and rows:
        return rows[max(0, min(scene.ranks.cursor, len(rows) - 1))].rank
    known = [row.rank for row in rows]
    if len(known) < 2:
        return None
    return next((rank for rank in known if rank > scene.frame.rank), known[0])


def _summary(ranks: RankRows) -> str:
    here = len(ranks.rows)
    if ranks.world_size > here:
        return f"{here} of {ranks.world_size} ranks are on this host"
    return f"{here} ranks"


def _head(look: Look) -> Row:
    cells = "".join(f"{words:>{size}}" for words, size in _COLUMNS)
    return [text(look, f" {cells}  state", "dim")]


def _row(look: Look, ranks: RankRows, index: int, *, is_shown: bool) -> Row:
    row = ranks.rows[index]
    cells = (
        (str(row.rank), "key" if is_shown else "text"),
        (str(row.pid), "dim"),
        (count(row.step), "text"),
        (_figure(row.loss), _tone(row.loss)),
        (_figure(row.grad_norm), _tone(row.grad_norm)),
        (_seconds(row.step_s), "text"),
        (_seconds(row.own_s), "warn" if row.straggles else "text"),
    )
    shown: Row = [
        text(look, f"{words:>{size}}", tone, bold=column == 0 and is_shown)
        for column, ((words, tone), (_, size)) in enumerate(zip(cells, _COLUMNS, strict=True))
    ]
    state = _state(ranks, row)
    shown += [text(look, "  "), text(look, state, _TONES.get(state, "dim"))]
    for words, tone in _marks(ranks, row):
        shown += [text(look, "  "), data(look, plain(words, 200), tone)]
    return shown


def _state(ranks: RankRows, row: RankRow) -> str:
    """The word of the row; a rank that runs and has made no update for long is silent."""
    if row.state != STATE_NAMES[RUNNING] or row.updated_s is None:
        return row.state
    silent_s = ranks.time_s - row.updated_s
    return (
        "silent"
        if silent_s > max(SILENT_AFTER_S, SILENT_FACTOR * (row.step_s or 0.0))
        else (row.state)
    )


def _marks(ranks: RankRows, row: RankRow) -> list[tuple[str, str]]:
    """What is wrong with a rank, the worst first."""
    marks = []
    if row.exit:
        marks.append((row.exit, "dim" if row.exit.startswith("ended normally") else "bad"))
    if row.bad_step is not None:
        first = "the first: " if row.rank == ranks.first_bad else ""
        tone = "nan" if row.rank == ranks.first_bad else "warn"
        marks.append((f"{first}{row.bad} not finite at step {row.bad_step:,}", tone))
    if row.differs:
        marks.append((f"weights differ from rank {', '.join(map(str, row.differs))}", "bad"))
    if row.straggles:
        marks.append(("straggles: the others wait for it", "warn"))
    return marks


def _figure(value: float | None) -> str:
    return DASH if value is None else number(value, 4)


def _tone(value: float | None) -> str:
    return "text" if value is None or math.isfinite(value) else "nan"


def _seconds(value: float | None) -> str:
    return DASH if value is None else duration_s(value)
