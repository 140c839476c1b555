"""The layer × step map: codes turned into coloured, lettered cells beside a foldable tree."""

from __future__ import annotations

import msgspec
import numpy as np
from rich.segment import Segment

from tuimon.model.records import NON_FINITE
from tuimon.model.text import plain
from tuimon.tui.draw import crossing
from tuimon.tui.draw.marking import columns_of, mark_row
from tuimon.tui.draw.naming import brief
from tuimon.tui.draw.onset import bring_wanted, onset_cells, onsets
from tuimon.tui.draw.ordering import FIRST_BAD, TREE, WORDS, settle_order
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.draw.tree import LayerTree, TreeRow
from tuimon.tui.scene import HeatDesk, Scene
from tuimon.view.frame import (
    ALL_ZERO,
    CELL_NAN,
    CELL_NEG_INF,
    CELL_POS_INF,
    HELD,
    LEVEL_FIRST,
    LEVEL_LAST,
    NO_DATA,
    Codes,
)

_RAMP = " v-, .+*^"  # glyphs of levels 1…8 where colour cannot tell them apart
_BEYOND = CELL_NAN + 1  # a column after the newest step or before the first: not drawn at all
_MAX_BUCKET = 1 << 20
_SEGMENT_CACHE = 512
_MARK_CELLS = 3  # before a name: "!" where it ever went bad, and what unfolds it


class HeatWindow(msgspec.Struct, frozen=True):
    """The steps [start, end) of the map and how many fall into one column."""

    start: int
    end: int
    bucket: int


def heat_window(desk: HeatDesk, first: int, last: int, columns: int) -> HeatWindow:
    """The visible steps: fixed, or following the newest step in jumps of a quarter."""
    bucket = desk.bucket
    span = columns * bucket
    if desk.end is not None:
        return HeatWindow(desk.end - span, desk.end, bucket)
    if last - first < span:
        return HeatWindow(first, first + span, bucket)
    jump = max(1, columns // 4) * bucket
    end = first + ((last - first) // jump + 1) * jump
    return HeatWindow(end - span, end, bucket)


def cell_glyphs(look: Look) -> list[tuple[str, str, str]]:
    """(glyph, foreground, background) of each code, in code order."""
    ramp = _RAMP if look.has_ramp else " v      ^"
    table = [(look.glyphs.no_data, "faint", "")]
    for level in range(LEVEL_FIRST, LEVEL_LAST + 1):
        on = "on_level"
        table.append((ramp[level], on if look.colours != "none" else "text", f"level{level}"))
    table.append(("0", "zero", "zero_bg"))
    table.append(("J", "on_badge", "inf"))
    table.append(("I", "on_badge", "inf"))
    table.append(("N", "on_badge", "nan"))
    table.append((" ", "text", ""))
    return table


class CellTable:
    """Ready segments for runs of equal cells; making them for each frame would dominate it."""

    def __init__(self, look: Look) -> None:
        self.stamp = look.stamp
        bold = {CELL_NAN, CELL_POS_INF, CELL_NEG_INF}
        self._cells = [
            (glyph, look.style(fg, bg, bold=code in bold))
            for code, (glyph, fg, bg) in enumerate(cell_glyphs(look))
        ]
        self._runs: dict[tuple[int, int], Segment] = {}

    def row(self, codes: Codes) -> Row:
        """One row of cells with equal neighbours merged."""
        cuts = (np.flatnonzero(codes[1:] != codes[:-1]) + 1).tolist()
        out: Row = []
        at = 0
        for cut in [*cuts, len(codes)]:
            run = (int(codes[at]), cut - at)
            found = self._runs.get(run)
            if found is None:
                glyph, style = self._cells[run[0]]
                found = Segment(glyph * run[1], style)
                if len(self._runs) < _SEGMENT_CACHE:
                    self._runs[run] = found
            out.append(found)
            at = cut
        return out


class HeatPanel:
    """The map in its frame."""

    name = "layers"
    can_focus = True
    rest_s = 0.2

    def __init__(self) -> None:
        self._cells: CellTable | None = None
        self.visible_rows = 1
        self.columns = 1

    def key(self, scene: Scene) -> object:
        """Changes with the data, the tree and the window."""
        heat, desk, frame = scene.frame.heat, scene.heat, scene.frame
        table = (frame.layers.epoch, len(frame.layers.names)) if frame.layers else None
        chosen = (desk.cursor, desk.top, desk.bucket, desk.end, desk.tree.version, desk.absolute)
        told = (frame.commands, len(frame.events), len(frame.milestones))
        order = (desk.tree.order, desk.wanted)
        cross = scene.charts.cross_step
        version = heat.version if heat else -1
        return (version, table, chosen, told, cross, order, frame.state == HELD)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, desk, frame = scene.look, scene.heat, scene.frame
        title: Row = [text(look, "layers", "strong", bold=True)]
        if frame.layers is not None:
            desk.tree.set_names(frame.layers.names)
        if frame.layers is None or frame.heat is None or frame.heat.last_step is None:
            count = len(frame.layers.names) if frame.layers else 0
            words = (
                f"{count:,} layers registered, waiting for the first backward pass"
                if count
                else "waiting for the layers"
            )
            body = centred(look, words, width - 2, max(0, height - 2))
            return framed(look, body, width, title=title, focused=focused)
        ever_bad = frame.heat.ever_bad()
        desk.tree.set_bad(ever_bad)
        settle_order(scene)
        rows = desk.tree.rows()
        label_width = label_cells(desk.tree, width)
        room = max(1, width - 2 - label_width - 1)
        beside = crossing.value_cells(scene, room) or onset_cells(scene, room)
        self.columns = desk.columns = room - beside
        window = self._window(scene, frame.heat.first_step or 0, frame.heat.last_step)
        marked = columns_of(frame, window.start, window.end, self.columns)
        self.visible_rows = max(1, height - 2 - bool(marked))
        clamp(desk, len(rows), self.visible_rows)
        shown = rows[desk.top : desk.top + self.visible_rows]
        codes = visible_codes(scene, shown, window, self.columns)
        body = self._body(scene, shown, codes, ever_bad, label_width=label_width, focused=focused)
        self._cross(scene, body, shown, window, label_width=label_width, beside=beside)
        if not rows:
            body = centred(look, "no layer matches  (esc shows all)", width - 2, height - 2)
        if marked and height > 3:
            body.append(mark_row(look, marked, label_width, self.columns))
        words = " grad norm" if desk.absolute else " grad norm, × own median"
        title.append(text(look, words, "dim"))
        return framed(
            look,
            body,
            width,
            title=title,
            reading=self._reading(scene, len(rows), len(shown)),
            foot=legend(look, width, absolute=desk.absolute),
            foot_right=_steps(scene, window, frame.heat.last_step),
            focused=focused,
            thumb=thumb_of(desk.top, self.visible_rows, len(rows)),
        )

    def _body(
        self,
        scene: Scene,
        shown: list[TreeRow],
        codes: Codes,
        ever_bad: np.ndarray[tuple[int, ...], np.dtype[np.bool_]],
        *,
        label_width: int,
        focused: bool,
    ) -> list[Row]:
        look, desk = scene.look, scene.heat
        if self._cells is None or self._cells.stamp != look.stamp:
            self._cells = CellTable(look)
        wall = text(look, look.glyphs.box[5], "line")
        body: list[Row] = []
        for index, row in enumerate(shown):
            bad = bool(ever_bad[list(row.members)].any()) if len(ever_bad) else False
            selected = focused and desk.top + index == desk.cursor
            label = _label(look, row, label_width, bad=bad, selected=selected)
            body.append([*label, wall, *self._cells.row(codes[index])])
        blank = [text(look, " " * label_width), wall]
        height = self.visible_rows
        body += [
            fit(look, blank, label_width + 1 + self.columns) for _ in range(height - len(body))
        ]
        return body

    def _window(self, scene: Scene, first: int, last: int) -> HeatWindow:
        """The visible steps, with a crosshair that has moved among them, or what was asked for."""
        window = heat_window(scene.heat, first, last, self.columns)
        bring_wanted(scene.heat, window.end - window.start)
        crossing.lead(scene.heat, scene.charts.cross_step, (window.start, window.end))
        return heat_window(scene.heat, first, last, self.columns)

    def _cross(
        self,
        scene: Scene,
        body: list[Row],
        shown: list[TreeRow],
        window: HeatWindow,
        *,
        label_width: int,
        beside: int,
    ) -> None:
        """Mark the column of the crosshair in all rows, with the values there at their ends."""
        cross = scene.charts.cross_step
        if cross is None:
            for index, row in enumerate(onsets(scene, shown) if beside else []):
                body[index] = [*body[index], *row]
            return
        column = (cross - window.start) // window.bucket
        values = crossing.values(scene, shown) if beside else []
        for index, row in enumerate(body):
            if 0 <= column < self.columns:
                row = crossing.crossed_row(scene.look, row, label_width + 1 + column)
            body[index] = [*row, *values[index]] if index < len(values) else row

    def _reading(self, scene: Scene, total: int, shown: int) -> list[Row]:
        look, frame, desk = scene.look, scene.frame, scene.heat
        assert frame.heat is not None
        now_bad = int(((frame.heat.latest_flags() & NON_FINITE) > 0).sum())
        if now_bad:
            state = text(look, f"{now_bad:,} non-finite now", "bad", bold=True)
        elif frame.state == HELD:  # nothing is known of the gradients that wait
            state = text(look, f"finite at {frame.heat.last_step:,}", "dim")
        else:
            state = text(look, "all finite now", "ok")
        last = min(total, desk.top + shown)
        place = [text(look, f"{min(desk.top + 1, total):,}–{last:,}/{total:,}", "dim")]
        chosen = []
        if desk.tree.order == FIRST_BAD and onset_cells(scene, self.columns):
            chosen.append([text(look, "first bad at step", "key")])  # heads the column
            place = []
        elif desk.tree.order != TREE:
            chosen.append([text(look, WORDS[desk.tree.order], "key")])
        if desk.tree.only_bad:
            chosen.append([text(look, "only bad", "key")])
        if desk.tree.filter:
            chosen.append([data(look, f"/{desk.tree.filter}", "key")])
        return [[state], *chosen, *([place] if place else [])]


def label_cells(tree: LayerTree, width: int) -> int:
    """Cells of the names in a panel of that width: the map gives some away for long ones."""
    least = min(max(22, width // 5), max(8, width // 3))
    return max(least, min(_MARK_CELLS + tree.longest, width * 2 // 5))


def clamp(desk: HeatDesk, total: int, visible: int) -> None:
    """Keep the cursor on a row and the row in sight."""
    desk.cursor = max(0, min(desk.cursor, total - 1))
    desk.top = max(0, min(desk.top, max(0, total - visible)))
    if desk.cursor < desk.top:
        desk.top = desk.cursor
    elif desk.cursor >= desk.top + visible:
        desk.top = desk.cursor - visible + 1


def visible_codes(scene: Scene, shown: list[TreeRow], window: HeatWindow, columns: int) -> Codes:
    """Codes of the visible cells; columns outside the history are marked as beyond."""
    heat = scene.frame.heat
    assert heat is not None and heat.last_step is not None
    if not shown:
        return np.zeros((0, columns), np.uint8)
    groups = [row.members for row in shown]
    codes = heat.cells(
        groups, window.start, window.end, columns, absolute=scene.heat.absolute
    ).copy()
    steps = window.start + np.arange(columns) * window.bucket
    outside = (steps > heat.last_step) | (steps + window.bucket <= (heat.first_step or 0))
    codes[:, outside & (codes == NO_DATA).all(axis=0)] = _BEYOND
    return codes


def _label(look: Look, row: TreeRow, width: int, *, bad: bool, selected: bool) -> Row:
    bg = "selected" if selected else ""
    mark = " "
    if row.is_open is not None:
        mark = look.glyphs.unfolded if row.is_open else look.glyphs.folded
    colour = "warn" if bad else "strong" if selected else "text"
    head = ("!" if bad else " ") + "  " * row.depth + mark + " "
    pad = look.style("text", bg)
    label = brief(look, plain(row.label), width - len(head))
    parts = [text(look, head, colour, bg), data(look, label, colour, bg, bold=selected)]
    return fit(look, parts, width, pad=pad)


def _steps(scene: Scene, window: HeatWindow, last: int) -> Row:
    look, cross = scene.look, scene.charts.cross_step
    end = min(window.end - 1, last)
    words = f"{max(0, window.start):,} … {end:,}"
    if window.bucket > 1:
        words += f"  {window.bucket:,} steps a column"
    if cross is not None and scene.frame.heat is not None:
        first, end = scene.frame.heat.span_at(cross)
        words = f"norms at step {cross:,}"
        if end - first > 1:  # older steps are kept by the bucket
            words = f"max of steps {max(0, first):,}–{max(cross, min(end - 1, last)):,}"
        return [text(look, words, "key")]
    return [text(look, words, "dim")]


def legend(look: Look, width: int, *, absolute: bool = False) -> Row:
    """What the cells mean."""
    table = cell_glyphs(look)
    low, high = ("<1e-6 ", " >10") if absolute else ("1/8× ", " 16×")
    row: Row = [text(look, low, "dim")]
    for level in range(LEVEL_FIRST, LEVEL_LAST + 1):
        glyph, fg, bg = table[level]
        row.append(text(look, glyph * 2, fg, bg))
    row.append(text(look, high, "dim"))
    if width < 64:
        return row
    for code, word in ((CELL_NAN, "NaN"), (CELL_POS_INF, "Inf"), (ALL_ZERO, "zero")):
        glyph, fg, bg = table[code]
        row += [
            text(look, "  "),
            text(look, glyph, fg, bg, bold=True),
            text(look, f" {word}", "dim"),
        ]
    return row
