"""The selected row of the heat map in words, and the layers that are most unusual now."""

from __future__ import annotations

import math

import numpy as np

from tuimon.model.records import (
    NAN,
    NEG_INF,
    NO_GRAD,
    NON_FINITE,
    NORM_OVERFLOW,
    POS_INF,
    UNMEASURED,
    LayerTable,
)
from tuimon.model.text import plain
from tuimon.model.units import DASH, count, number, size_bytes
from tuimon.tui.draw.heatmap import CellTable, heat_window, visible_codes
from tuimon.tui.draw.naming import brief
from tuimon.tui.draw.rows import Row, data, fit, framed, text
from tuimon.tui.draw.tree import TreeRow
from tuimon.tui.panels.sampled import sample_rows
from tuimon.tui.scene import Scene
from tuimon.view.frame import HeatView

_FLAG_WORDS = (
    (NAN, "NaN"),
    (POS_INF, "+Inf"),
    (NEG_INF, "-Inf"),
    (NORM_OVERFLOW, "norm overflows"),
    (NO_GRAD, "no gradient"),
    (UNMEASURED, "not measured"),
)
_ITEM_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "complex64": 8}


def flag_words(flags: int) -> str:
    """The record flags of a parameter as words."""
    return ", ".join(word for bit, word in _FLAG_WORDS if flags & bit) or "finite"


def elements_of(table: LayerTable, members: tuple[int, ...]) -> int | None:
    """Number of elements below a row, None when the table has no shapes."""
    if not table.shapes:
        return None
    return sum(math.prod(table.shapes[index]) for index in members)


def bytes_of(table: LayerTable, members: tuple[int, ...]) -> int | None:
    """Bytes of the parameters below a row; unknown element types count as 4 bytes."""
    if not table.shapes or not table.dtypes:
        return None
    return sum(
        math.prod(table.shapes[index])
        * _ITEM_BYTES.get(table.dtypes[index].removeprefix("torch."), 4)
        for index in members
    )


class DetailPanel:
    """One row in words, then "largest now"."""

    name = "detail"
    can_focus = False
    rest_s = 1.0

    def __init__(self) -> None:
        self._cells: CellTable | None = None

    def key(self, scene: Scene) -> object:
        """Changes with the cursor, and with the data about as fast as a person reads."""
        frame, desk = scene.frame, scene.heat
        second = None if frame.system is None else frame.system.time_s
        newest = frame.heat.last_step if frame.heat else None
        slow = second if frame.state == "live" else newest
        sampled = frame.samples.version if frame.samples and slow is None else None
        crossed = scene.charts.cross_step is not None
        return (slow, newest is None, desk.cursor, desk.tree.version, frame.alert, sampled, crossed)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, frame = scene.look, scene.frame
        title = [text(look, "selected", "strong", bold=True)]
        rows = scene.heat.tree.rows()
        inner, room = width - 2, height - 2
        body: list[Row] = []
        if rows and frame.heat is not None and frame.layers is not None:
            row = rows[min(scene.heat.cursor, len(rows) - 1)]
            body = self._row(scene, frame.heat, row, inner)
            body += self._largest(scene, frame.heat, frame.layers, (width - 2, room - len(body)))
        body = [fit(look, line, inner) for line in body[:room]]
        body += [fit(look, [], inner) for _ in range(room - len(body))]
        kind = (
            "" if not rows else "parameter" if rows[scene.heat.cursor].is_open is None else "group"
        )
        return framed(look, body, width, title=title, reading=[[text(look, kind, "dim")]])

    def _row(self, scene: Scene, heat: HeatView, row: TreeRow, width: int) -> list[Row]:
        look, table = scene.look, scene.frame.layers
        assert table is not None
        members = list(row.members)
        norms, flags = heat.latest_norm(), heat.latest_flags()
        below = [index for index in members if index < len(norms)]
        bits = int(np.bitwise_or.reduce(flags[below])) if below and len(flags) else 0
        finite = norms[below][np.isfinite(norms[below])] if below else norms[:0]
        norm = float(np.sqrt((finite.astype(np.float64) ** 2).sum())) if len(finite) else None
        ever = heat.ever_bad()
        bad_members = int(ever[below].sum()) if len(ever) else 0
        bad = f"{bad_members:,} of {len(members):,}"
        if bad_members:
            bad += f", first at {heat.first_bad()[below][ever[below]].min():,}"
        dtype = table.dtypes[members[0]].removeprefix("torch.") if table.dtypes else DASH
        pairs = [
            _extent(table, row),
            ("elements", f"{count(elements_of(table, row.members))} {dtype}", "text"),
            ("size", size_bytes(bytes_of(table, row.members)), "text"),
            ("norm now", number(norm) + _when(scene, heat), "strong"),
            ("gradient", flag_words(bits), "bad" if bits & NON_FINITE else "ok"),
            ("ever bad", bad, "warn" if bad_members else "text"),
        ]
        path = brief(look, plain(row.path), width - 1)
        lines: list[Row] = [[text(look, f" {path}", "strong", bold=True)], []]
        lines += [
            [text(look, f" {word:<10}", "dim"), data(look, value, colour)]
            for word, value, colour in pairs
        ]
        lines += sample_rows(look, scene.frame, row.path, width, parameter=row.is_open is None)
        return [*lines, [], *self._strip(scene, heat, row, width), []]

    def _strip(self, scene: Scene, heat: HeatView, row: TreeRow, width: int) -> list[Row]:
        """The whole recorded history of the row in one line of cells."""
        look = scene.look
        if heat.first_step is None or heat.last_step is None:
            return []
        if self._cells is None or self._cells.stamp != look.stamp:
            self._cells = CellTable(look)
        columns = width - 2
        steps = heat.last_step - heat.first_step + 1
        bucket = max(1, -(-steps // columns))
        window = heat_window(
            type(scene.heat)(bucket=bucket), heat.first_step, heat.last_step, columns
        )
        codes = visible_codes(scene, [row], window, columns)
        words = f" all steps, {bucket:,} a cell" if bucket > 1 else " all steps"
        return [[text(look, words, "dim")], [text(look, " "), *self._cells.row(codes[0])]]

    def _largest(
        self, scene: Scene, heat: HeatView, table: LayerTable, cells: tuple[int, int]
    ) -> list[Row]:
        look, (width, room) = scene.look, cells
        norms = heat.latest_norm()
        flags = heat.latest_flags()
        if room < 3 or not len(norms):
            return []
        bad = (flags & NON_FINITE) > 0 if len(flags) else np.zeros(len(norms), bool)
        size = np.where(bad, np.inf, np.where(np.isfinite(norms), norms, -1.0))
        order = np.argsort(-size, kind="stable")[: room - 1]
        lines: list[Row] = [[text(look, f" largest now{_when(scene, heat)}", "strong", bold=True)]]
        for index in order.tolist():
            if size[index] < 0 or index >= len(table.names):
                continue
            words = flag_words(int(flags[index])) if bad[index] else number(float(norms[index]), 3)
            colour = "bad" if bad[index] else "text"
            name = brief(look, plain(table.names[index]), width - 12)
            lines.append([text(look, f" {words:>9}  ", colour), text(look, name, "dim")])
        return lines


def _when(scene: Scene, heat: HeatView) -> str:
    """Which step "now" is, while the crosshair shows another one beside it."""
    if scene.charts.cross_step in (None, heat.last_step):
        return ""
    return f", at {heat.last_step:,}"


def _kind(row: TreeRow) -> str:
    return "parameter" if row.is_open is None else "group"


def _extent(table: LayerTable, row: TreeRow) -> tuple[str, str, str]:
    """(word, value, colour): the shape of a parameter, or how many a group holds."""
    if row.is_open is not None:
        return ("holds", f"{len(row.members):,} parameters", "text")
    if not table.shapes:
        return ("shape", DASH, "text")
    sizes = " × ".join(str(size) for size in table.shapes[row.members[0]])
    return ("shape", sizes or "scalar", "text")
