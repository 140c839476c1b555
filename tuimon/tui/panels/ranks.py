"""The ranks of a run on its host, a row each: loss, norm, step, times and state.

What is wrong with any of them stands below the table in full, that of the selected one first.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence

import msgspec

from tuimon.model.ranks import RankRow, RankRows
from tuimon.model.records import ENDED, HELD, PAUSED, RUNNING, STATE_NAMES, UNWATCHED
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, duration_s, number
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.scene import Scene

_ALONE = "this run is a single process; of a training with several ranks each has a row here"
_SOON = "the scribe tells how the ranks stand once a second"
_APART = "loss and norm are those of the step in the same row"
SILENT_AFTER_S, SILENT_FACTOR = 10.0, 20.0  # times the usual step, as for a whole run
_TONES = {
    STATE_NAMES[RUNNING]: "ok",
    STATE_NAMES[PAUSED]: "warn",
    STATE_NAMES[HELD]: "warn",
    STATE_NAMES[ENDED]: "bad",
    STATE_NAMES[UNWATCHED]: "bad",
    "silent": "bad",
}
# Heading, and its cells by how much room there is; 0 leaves it out there.
_COLUMNS = (
    ("rank", (5, 5, 5)),
    ("pid", (9, 0, 0)),
    ("step", (11, 9, 9)),
    ("loss", (11, 10, 10)),
    ("grad norm", (12, 11, 11)),
    ("step time", (12, 11, 11)),
    ("own part", (11, 10, 0)),
)
WIDE, NARROW = 100, 70
INDENT = 10
LEAST_ROWS = 3  # of the table, whatever there is to be said below it


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
        said = _sentences(look, ranks, desk.cursor, inner)
        lines = max(min(total, room - len(said)), min(total, LEAST_ROWS))
        desk.top = max(0, min(desk.top, desk.cursor, total - lines))
        desk.top = max(desk.top, desk.cursor - lines + 1)
        thumb = thumb_of(desk.top, lines, total)
        rows = [fit(look, _head(look, inner), inner)]
        for index in range(desk.top, min(total, desk.top + lines)):
            is_selected = focused and index == desk.cursor
            row = _row(
                look, ranks, index, inner, is_shown=ranks.rows[index].rank == scene.frame.rank
            )
            mark = text(look, ">" if is_selected else " ", "key", bold=True)
            rows.append(fit(look, [mark, *row], inner))
        rows += [fit(look, each, inner) for each in said[: max(0, room + 1 - len(rows))]]
        rows += [fit(look, [], inner) for _ in range(room + 1 - len(rows))]
        return framed(
            look,
            rows,
            width,
            title=title,
            reading=[[text(look, _summary(ranks), "dim")]],
            foot=[text(look, "j k select  r look at it", "dim")],
            focused=focused,
            thumb=thumb and (thumb[0] + 1, thumb[1] + 1),  # below the head
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
    apart = max(_behind(ranks, row) for row in ranks.rows)
    words = f", up to {count(apart)} {'step' if apart == 1 else 'steps'} apart" if apart else ""
    if ranks.world_size > here:
        return f"{here} of {ranks.world_size} ranks are on this host{words}"
    return f"{here} ranks{words}"


def _behind(ranks: RankRows, row: RankRow) -> int:
    """By how many steps the figures of a rank are older than those of the foremost."""
    known = [each.at for each in ranks.rows if each.at is not None]
    return 0 if row.at is None else max(known) - row.at


def _columns(inner: int) -> list[tuple[str, int]]:
    tier = 0 if inner >= WIDE else 1 if inner >= NARROW else 2
    return [(words, sizes[tier]) for words, sizes in _COLUMNS]


def _head(look: Look, inner: int) -> Row:
    cells = "".join(f"{words:>{size}}" for words, size in _columns(inner) if size)
    return [text(look, f" {cells}  state", "dim")]


def _row(look: Look, ranks: RankRows, index: int, inner: int, *, is_shown: bool) -> Row:
    row = ranks.rows[index]
    cells = (
        (str(row.rank), "key" if is_shown else "text"),
        (str(row.pid), "dim"),
        (count(row.at), "text"),
        (_figure(row.loss), _tone(row.loss)),
        (_figure(row.grad_norm), _tone(row.grad_norm)),
        (_seconds(row.step_s), "text"),
        (_seconds(row.own_s), "warn" if row.straggles else "text"),
    )
    shown: Row = [
        text(look, f"{words:>{size}}", tone, bold=column == 0 and is_shown)
        for column, ((words, tone), (_, size)) in enumerate(
            zip(cells, _columns(inner), strict=True)
        )
        if size
    ]
    state = _state(ranks, row)
    shown += [text(look, "  "), text(look, f"{state:<8}", _TONES.get(state, "dim"))]
    for mark in _marks(ranks, row):
        if mark.short:
            shown += [text(look, "  "), text(look, mark.short, mark.tone)]
    if behind := _behind(ranks, row):
        shown.append(text(look, f"  {count(behind)} behind", "dim"))
    return shown


def _sentences(look: Look, ranks: RankRows, cursor: int, inner: int) -> list[Row]:
    """What is wrong with each rank, after an empty row; nothing where all is well."""
    order = [cursor, *(index for index in range(len(ranks.rows)) if index != cursor)]
    found: list[Row] = []
    for row in (ranks.rows[index] for index in order):
        for place, mark in enumerate(_marks(ranks, row)):
            label = "" if place else f"rank {row.rank}"
            wrapped = textwrap.wrap(plain(mark.words, 600), max(20, inner - INDENT - 1)) or [""]
            for line, words in enumerate(wrapped):
                head = text(look, f" {'' if line else label:<{INDENT}}", "dim")
                found.append([head, data(look, words, mark.tone)])
    if any(_behind(ranks, row) for row in ranks.rows):
        found.append([text(look, f" {_APART}", "dim")])
    return [[], *found] if found else []


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


class _Mark(msgspec.Struct, frozen=True):
    """Something that is wrong with a rank: beside its row, and below the table."""

    short: str
    words: str
    tone: str


def _marks(ranks: RankRows, row: RankRow) -> Sequence[_Mark]:
    """What is wrong with a rank, the worst first."""
    marks = []
    if row.exit:
        tone = "dim" if row.exit.startswith("ended normally") else "bad"
        marks.append(_Mark("", row.exit, tone))
    if row.bad_step is not None:
        is_first = row.rank == ranks.first_bad
        words = f"{row.bad} not finite at step {row.bad_step:,}"
        if is_first:
            marks.append(_Mark("first bad", f"the first that was bad: {words}", "nan"))
        else:
            marks.append(_Mark("bad", words, "warn"))
    if row.differs:
        others = (
            f"{'rank' if len(row.differs) == 1 else 'ranks'} {', '.join(map(str, row.differs))}"
        )
        marks.append(_Mark("differs", f"its weights differ from those of {others}", "bad"))
    if row.straggles:
        marks.append(_Mark("straggles", "straggles: the others wait for it", "warn"))
    return marks


def _figure(value: float | None) -> str:
    return DASH if value is None else number(value, 4)


def _tone(value: float | None) -> str:
    return "text" if value is None or math.isfinite(value) else "nan"


def _seconds(value: float | None) -> str:
    return DASH if value is None else duration_s(value)
