"""One layer over time: a line about it, and what its histograms were like from sample to sample."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tuimon.model.records import NON_FINITE
from tuimon.model.samples import HISTOGRAM_BINS, HISTOGRAM_LOW, Histogram
from tuimon.model.units import DASH, count, number
from tuimon.tui.draw.rows import Row, centred, data, fit, framed, spread, text
from tuimon.tui.draw.theme import Look
from tuimon.tui.layer_screen import selected_row
from tuimon.tui.panels.detail import elements_of, flag_words
from tuimon.tui.scene import Scene
from tuimon.view.layer_series import module_of

HIST_PREFIX = "hist:"
_TITLES = {"weight": "weights", "gradient": "gradients", "activation": "outputs"}
_LABEL = 8
_WIDEST = 4  # cells of one sample: two samples are no development
_NONE = "no sample so far: histograms are taken now and then, within tuimon's budget"
_OF_A_GROUP = "of single parameters: l unfolds, j k choose another"

Floats = npt.NDArray[np.float64]


class LayerLinePanel:
    """Which layer it is, and how it is now."""

    name = "layerline"
    can_focus = False
    rest_s = 0.5

    def key(self, scene: Scene) -> object:
        """Changes with the layer and its newest figures."""
        row = selected_row(scene)
        heat = scene.frame.heat
        return (None if row is None else row.path, heat.version if heat else -1)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """One row."""
        look, frame = scene.look, scene.frame
        row, table, heat = selected_row(scene), frame.layers, frame.heat
        if row is None or table is None or heat is None:
            return [fit(look, [text(look, " waiting for the layers", "dim")], width)]
        below = [index for index in row.members if index < len(heat.latest_flags())]
        bits = int(np.bitwise_or.reduce(heat.latest_flags()[below])) if below else 0
        first = heat.first_bad()[below]
        bad = first[first >= 0]
        shape = DASH
        if row.is_open is not None:
            shape = f"{len(row.members):,} parameters"
        elif table.shapes:
            shape = "×".join(map(str, table.shapes[row.members[0]])) or "scalar"
        dtype = table.dtypes[row.members[0]].removeprefix("torch.") if table.dtypes else ""
        left: list[Row] = [
            [data(look, f" {row.path}", "strong", bold=True)],
            [data(look, f"{shape} {dtype}", "dim")],
            [text(look, f"{count(elements_of(table, row.members))} elements", "dim")],
        ]
        words = "never NaN or Inf" if not len(bad) else f"first bad at step {bad.min():,}"
        right: list[Row] = [
            [text(look, words, "warn" if len(bad) else "ok")],
            [
                text(look, "now ", "dim"),
                text(look, f"{flag_words(bits)} ", "bad" if bits & NON_FINITE else "ok"),
            ],
        ]
        return [spread(look, left, right, width)]


class HistogramsPanel:
    """Magnitudes of one tensor: a column a sample, a row a power of two, darker where more lie."""

    can_focus = True
    rest_s = 0.5

    def __init__(self, name: str) -> None:
        self.name = name
        self._what = name.removeprefix(HIST_PREFIX)

    def key(self, scene: Scene) -> object:
        """Changes with the layer and with a new histogram."""
        row = selected_row(scene)
        found = self._found(scene)
        newest = found[-1][0] if found else None
        return (None if row is None else row.path, len(found), newest, scene.charts.cross_step)

    def _found(self, scene: Scene) -> Sequence[tuple[int, Histogram]]:
        row, past = selected_row(scene), scene.frame.past
        if row is None or past is None:
            return ()
        is_parameter = row.is_open is None
        name = row.path
        if self._what == "activation":
            name = module_of(row.path, is_parameter=is_parameter)
        return past.histograms(self._what, name)

    def draw(self, scene: Scene, width: int, height: int, focused: bool) -> list[Row]:
        """The panel."""
        look, found = scene.look, self._found(scene)
        room, inner = height - 2, width - 2
        title: Row = [text(look, _TITLES.get(self._what, self._what), "strong", bold=True)]
        columns = inner - _LABEL - 1
        if not found or columns < 2 or room < 2:
            row = selected_row(scene)
            is_group = row is not None and row.is_open is not None and self._what != "activation"
            body = centred(look, _OF_A_GROUP if is_group else _NONE, inner, room)
            return framed(look, body, width, title=title, focused=focused)
        shown = _spread_over(found, columns)
        body = _body(scene, shown, columns, room)
        steps = f"{shown[0][0]:,} … {shown[-1][0]:,}"
        words = f"{len(found):,} sample{'s' if len(found) > 1 else ''}"
        return framed(
            look,
            body,
            width,
            title=title,
            reading=_reading(scene, shown),
            foot=[text(look, words if inner > 34 else "", "dim")] if inner > 34 else (),
            foot_right=[text(look, steps, "dim")],
            focused=focused,
        )


def _spread_over(
    found: Sequence[tuple[int, Histogram]], columns: int
) -> list[tuple[int, Histogram]]:
    """At most so many samples, evenly over the whole time, with the newest one."""
    if len(found) <= columns:
        return list(found)
    places = np.linspace(0, len(found) - 1, columns).round().astype(int)
    return [found[place] for place in places.tolist()]


def _counts(histogram: Histogram) -> Floats:
    """Elements by magnitude, both signs together."""
    if len(histogram.counts) != 2 * HISTOGRAM_BINS * 4:
        return np.zeros(HISTOGRAM_BINS)
    raw = np.frombuffer(histogram.counts, "<u4").astype(np.float64)
    return raw[HISTOGRAM_BINS:] + raw[:HISTOGRAM_BINS][::-1]


def _body(
    scene: Scene, shown: Sequence[tuple[int, Histogram]], columns: int, room: int
) -> list[Row]:
    look = scene.look
    matrix = np.stack([_counts(each) for _, each in shown], axis=1)
    filled = np.flatnonzero(matrix.any(axis=1))
    low, high = (int(filled[0]), int(filled[-1]) + 1) if len(filled) else (0, 1)
    group = max(1, -(-(high - low) // room))
    wide = max(1, min(_WIDEST, columns // len(shown)))
    cross = _crossed(scene, shown)
    bad = [bool(each.nan or each.posinf or each.neginf) for _, each in shown]
    totals = np.maximum(matrix.sum(axis=0), 1.0)
    rows: list[Row] = []
    shades = look.glyphs.shade
    for top in range(high, low, -group):
        part = matrix[max(low, top - group) : top].sum(axis=0) / totals
        # A root keeps the tails in sight, which is where trouble begins.
        levels = np.ceil(np.sqrt(part) * (len(shades) - 1) - 1e-9).astype(int)
        label = number(2.0 ** (HISTOGRAM_LOW + top - group), 2)
        row: Row = [text(look, f"{label:>{_LABEL - 1}} ", "dim"), text(look, _wall(look), "line")]
        for at, level in enumerate(levels.tolist()):
            tone = "bad" if bad[at] else "key"
            back = "selected" if at == cross else ""
            row.append(text(look, shades[min(level, len(shades) - 1)] * wide, tone, back))
        rows.append(row)
    above = max(0, room - len(rows))
    blank: Row = [text(look, " " * _LABEL), text(look, _wall(look), "line")]
    rows += [list(blank) for _ in range(above)]
    inner = _LABEL + 1 + columns
    return [fit(look, row, inner) for row in rows[:room]]


def _wall(look: Look) -> str:
    return look.glyphs.box[5]


def _crossed(scene: Scene, shown: Sequence[tuple[int, Histogram]]) -> int:
    """The sample under the crosshair of the charts: the last one that is not later."""
    cross = scene.charts.cross_step
    if cross is None:
        return -1
    return sum(step <= cross for step, _ in shown) - 1


def _reading(scene: Scene, shown: Sequence[tuple[int, Histogram]]) -> list[Row]:
    look = scene.look
    at = _crossed(scene, shown)
    step, histogram = shown[at]
    groups: list[Row] = [[text(look, f"at {step:,}", "key" if at >= 0 else "dim")]]
    for word, value in (
        ("NaN", histogram.nan), ("+Inf", histogram.posinf), ("-Inf", histogram.neginf)
    ):  # fmt: skip
        if value:
            groups.append([text(look, f"{value:,} {word}", "bad", bold=True)])
    if histogram.zeros:
        groups.append([text(look, f"{histogram.zeros:,} zero", "dim")])
    return groups
