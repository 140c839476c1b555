"""Charts: NaN and Inf at their step, a spike in its column, values that are off the axis."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.tui.fake import FakeSeries
from tuimon.model.records import Event, LayerTable
from tuimon.tui.draw.chart import LABEL_WIDTH, ChartPanel, draw_chart, history_of, label_of
from tuimon.tui.draw.glyphs import SETS
from tuimon.tui.draw.rows import width_of
from tuimon.tui.draw.theme import FULL, NONE, Look
from tuimon.tui.keys.time_choices import bad_step, pan, scale_time
from tuimon.tui.scene import Scene
from tuimon.tui.screens import chart_names
from tuimon.view.frame import LIVE, Clip, Frame

WIDTH, HEIGHT = 60, 12
COLUMNS = WIDTH - 2 - LABEL_WIDTH - 1


def scene_of(
    values: np.ndarray | list[float], *, glyphs: str = "braille", name: str = "loss"
) -> Scene:
    """A scene with one series."""
    series = FakeSeries(name, values)
    frame = Frame(series={name: series}, step=series.last_step)
    return Scene(frame, Look(colours=FULL, glyphs=SETS[glyphs]))


def plot_of(scene: Scene, name: str = "loss") -> list[str]:
    """The rows inside the frame, without labels."""
    rows = draw_chart(scene, name, WIDTH, HEIGHT, focused=False)
    assert [width_of(row) for row in rows] == [WIDTH] * HEIGHT
    lines = ["".join(part.text for part in row) for row in rows]
    return [line[LABEL_WIDTH + 2 : -1] for line in lines[1:-1]]


def labels_of(scene: Scene) -> list[str]:
    """The value labels at the left edge."""
    rows = draw_chart(scene, "loss", WIDTH, HEIGHT, focused=False)
    return ["".join(part.text for part in row)[1 : LABEL_WIDTH + 2] for row in rows[1:-1]]


def column_of(step: int, steps: int) -> int:
    """The cell column of a step in the whole-history view of so many steps."""
    from tuimon.tui.draw.axis import TimeWindow

    start, end = TimeWindow().steps(0, steps - 1)
    return (step - start) * COLUMNS // (end - start)


@pytest.mark.parametrize("glyphs", sorted(SETS))
@pytest.mark.parametrize("where", [0, 1, 499, 500, 998, 999])
def test_a_nan_stands_at_the_bottom_in_its_column(glyphs: str, where: int) -> None:
    values = np.ones(1000)
    values[where] = np.nan
    bottom = plot_of(scene_of(values, glyphs=glyphs))[-1]
    assert bottom.index("N") == column_of(where, 1000) and bottom.count("N") == 1


@pytest.mark.parametrize(("value", "mark", "row"), [(np.inf, "I", 0), (-np.inf, "J", -1)])
def test_infinities_stand_at_their_edge(value: float, mark: str, row: int) -> None:
    values = np.ones(1000)
    values[700] = value
    plot = plot_of(scene_of(values))
    assert plot[row].index(mark) == column_of(700, 1000)
    assert sum(line.count(mark) for line in plot) == 1


def test_bounds_are_never_poisoned_by_what_is_not_finite() -> None:
    calm = np.linspace(1, 2, 1000)
    bad = calm.copy()
    bad[[3, 500, 900]] = [np.nan, np.inf, -np.inf]
    assert labels_of(scene_of(calm)) == labels_of(scene_of(bad))


def test_a_spike_of_one_step_is_visible_without_flattening_the_rest() -> None:
    values = 1 + 0.1 * np.sin(np.arange(1000))
    values[400] = 500.0
    scene = scene_of(values)
    plot = plot_of(scene)
    column = column_of(400, 1000)
    assert plot[0][column] == "▲"
    assert sum(line[10] != " " for line in plot) > 2  # the rest keeps its shape
    scene.charts.of("loss").cap = False
    scene.charts.of("loss").bounds.forget()
    uncapped = plot_of(scene)
    assert "▲" not in uncapped[0]
    assert sum(line[column] != " " for line in uncapped) >= HEIGHT - 3


def test_a_log_axis_marks_zero_below_the_axis() -> None:
    values = np.full(1000, 10.0)
    values[500] = 0.0
    scene = scene_of(values, name="grad_norm")
    assert plot_of(scene, "grad_norm")[-1][column_of(500, 1000)] == "▼"


def test_a_gap_of_missing_steps_stays_a_gap() -> None:
    series = FakeSeries("loss", np.ones(100))
    sparse = FakeSeries("loss", np.ones(100))

    def envelope(first: int, end: int, columns: int):  # type: ignore[no-untyped-def]
        full = series.envelope(first, end, columns)
        steps = first + np.arange(columns) * (end - first) / columns
        hole = (steps >= 40) & (steps < 60)
        return replace(full, flags=np.where(hole, 0, full.flags).astype(np.uint8))

    sparse.envelope = envelope  # type: ignore[method-assign]
    scene = Scene(Frame(series={"loss": sparse}, step=99), Look())
    middle = column_of(50, 100)
    assert all(line[middle] == " " for line in plot_of(scene))


def test_a_column_with_zero_and_more_keeps_its_span_on_a_log_axis() -> None:
    values = np.tile([0.0, 5.0, 9.0], 700)
    plot = plot_of(scene_of(values, name="grad_norm"), "grad_norm")
    assert plot[-1][3] == "▼" and plot[-2][3] != " " and plot[-3][3] != " "


@pytest.mark.parametrize("colours", [FULL, NONE])
def test_a_mark_of_the_run_that_is_laid_over_is_a_small_letter_and_hides_none(colours: str) -> None:
    own, theirs = np.ones(1000), np.ones(1000)
    own[[500, 700]] = np.nan, np.inf
    theirs[[200, 500, 700]] = np.nan, np.nan, -np.inf
    scene = scene_of(own)
    scene.look = Look(colours=colours)
    scene.other, scene.other_name = scene_of(theirs).frame, "theirs"
    plot = plot_of(scene)
    shared, alone, infinite = (column_of(step, 1000) for step in (500, 200, 700))
    assert (plot[-1][shared], plot[-2][shared], plot[-1][alone]) == ("N", "n", "n")
    assert (plot[0][infinite], plot[-1][infinite]) == ("I", "j")


def title_with(theirs: np.ndarray) -> str:
    scene = scene_of(np.linspace(1.0, 1.1, 101))
    scene.other, scene.other_name = scene_of(theirs).frame, "theirs"
    return "".join(part.text for part in draw_chart(scene, "loss", 90, HEIGHT, focused=False)[0])


def test_another_run_is_compared_at_the_same_step_or_says_where_its_value_is() -> None:
    longer, shorter = np.linspace(5.0, 1.0, 401), np.linspace(5.0, 4.0, 51)
    assert "1.1  theirs 4 " in title_with(longer), "at step 100 of both, not its last of 1"
    assert "1.1  theirs 4 at 50 " in title_with(shorter)


def test_zoomed_without_a_crosshair_the_run_itself_stays_in_sight() -> None:
    scene = scene_of(np.linspace(1.0, 1.1, 101))
    scene.other, scene.other_name = scene_of(np.linspace(5.0, 1.0, 4001)).frame, "theirs"
    scene.focus = "loss"
    window = scene.charts.window
    for _ in range(2):
        scale_time(0.5)(scene, [])
        start, end = window.steps(*history_of(scene, scene.frame.series["loss"]))
        assert start <= 100 < end and window.end is None
    pan(-0.5)(scene, [])
    pan(999.0)(scene, [])
    assert window.end is None, "it follows again"
    scale_time(200.0)(scene, [])
    assert history_of(scene, scene.frame.series["loss"]) == (0, 4000)


def test_a_norm_of_which_nothing_was_clipped_is_told_once() -> None:
    norm = np.linspace(0.5, 20, 500)
    scene = scene_of(norm, name="grad_norm")
    left = FakeSeries("grad_norm_clipped", norm, first=0)
    scene.frame = replace(scene.frame, series=scene.frame.series | {"grad_norm_clipped": left})
    rows = draw_chart(scene, "grad_norm", 90, HEIGHT, focused=False)
    title = "".join(part.text for part in rows[0])
    assert " 20  ema " in title and "clipped" not in title


def test_a_norm_and_what_clipping_left_of_it_share_one_chart() -> None:
    norm = np.linspace(0.5, 20, 500)
    scene = scene_of(norm, name="grad_norm")
    left = FakeSeries("grad_norm_clipped", np.minimum(norm, 1.0)[100:], first=100)
    series = scene.frame.series | {"grad_norm_clipped": left}
    scene.frame = replace(scene.frame, series=series, clip=Clip("on", 1.0))
    assert chart_names(scene) == ["chart:grad_norm"]
    rows = draw_chart(scene, "grad_norm", 90, HEIGHT, focused=False)
    title = "".join(part.text for part in rows[0])
    assert "20  clipped 1  " in title and title.index("clipped") < title.index("min 0.5")
    styles = {part.style for row in rows[1:-1] for part in row}
    assert {scene.look.style(scene.look.series(name)[1]) for name in series} <= styles
    scene.look = Look(colours=NONE)
    title = "".join(part.text for part in draw_chart(scene, "grad_norm", 90, 9, focused=False)[0])
    assert "1: 20  2:clipped 1  " in title


def test_few_steps_are_joined_by_a_line() -> None:
    plot = plot_of(scene_of(np.linspace(0, 1, 10)))
    filled = [any(line[c] != " " for line in plot) for c in range(column_of(9, 10))]
    assert all(filled)


def test_the_clip_norm_is_a_thin_dashed_line() -> None:
    scene = scene_of(np.linspace(0.1, 10, 500), name="grad_norm")
    assert not any("┄" in line for line in plot_of(scene, "grad_norm"))
    scene.frame = replace(scene.frame, clip=Clip("on", 1.0))
    assert any("┄┄" in line for line in plot_of(scene, "grad_norm"))


@pytest.mark.parametrize(
    ("low", "high"), [(0.00299, 0.003), (0.0029912, 0.0029931), (12340.1, 12341.9), (-1.0002, -1.0)]
)
def test_labels_of_a_narrow_range_differ_and_are_whole(low: float, high: float) -> None:
    scene = scene_of(np.linspace(low, high, 200))
    labels = [label.strip("│┤ ") for label in labels_of(scene)]
    labels = [label for label in labels if label]
    assert len(labels) >= 2 and len(set(labels)) == len(labels)
    values = [float(label.removesuffix("k")) * (1e3 if "k" in label else 1) for label in labels]
    gaps = -np.diff(values)
    assert gaps.min() > 0 and gaps.max() < 1.01 * gaps.min(), "digits are left out of no label"


def test_two_ends_under_the_crosshair_have_the_digits_that_tell_them_apart() -> None:
    scene = scene_of(np.linspace(0.0030, 0.00299, 3000))
    scene.charts.cross_step = 600
    title = "".join(part.text for part in draw_chart(scene, "loss", 90, 12, focused=True)[0])
    low, high = title.partition(": ")[2].split("─")[0].split(" … ")
    assert float(low) < float(high) <= 0.003


def test_a_run_that_has_no_step_yet_is_no_missing_run() -> None:
    panel = ChartPanel("loss", "loss")
    waiting, begun = Scene(Frame(), Look()), Scene(Frame(state=LIVE, run_id="a", pid=3), Look())
    assert panel.key(waiting) != panel.key(begun), "it must be drawn again"


def test_an_empty_or_unknown_series_waits() -> None:
    begun = Scene(Frame(state=LIVE), Look())
    waits = {"waiting for the first step": begun, "waiting for a run": Scene(Frame(), Look())}
    for words, scene in waits.items():
        rows = draw_chart(scene, "loss", WIDTH, HEIGHT, focused=False)
        assert any(words in part.text for row in rows for part in row)


@pytest.mark.parametrize("width", [12, 20, 60, 200])
@pytest.mark.parametrize("height", [3, 4, 20])
def test_every_size_is_exact(width: int, height: int) -> None:
    scene = scene_of(np.array([np.nan, 1, np.inf, 3e38, -3e38] * 30))
    rows = draw_chart(scene, "loss", width, height, focused=True)
    assert [width_of(row) for row in rows] == [width] * height


def test_hostile_names_do_not_reach_the_terminal() -> None:
    name = "lo\x1b[31mss\u202e"
    scene = scene_of(np.ones(10), name=name)
    rows = draw_chart(scene, name, WIDTH, HEIGHT, focused=False)
    assert not any("\x1b" in part.text or "\u202e" in part.text for row in rows for part in row)


def test_what_n_finds_nothing_of_is_not_what_the_list_of_events_holds() -> None:
    scene = scene_of(np.ones(100))
    told = Event(0, 1.0, "info", "labels", "labels 0 … 9")
    scene.frame = replace(scene.frame, events=(told,))
    words = bad_step(scene, 1)
    assert words is not None and "no warning and no command" in words and "no event" not in words


def test_of_several_optimizers_each_chart_says_whose_it_is() -> None:
    scene = scene_of(np.ones(100))
    series = scene.frame.series | {"loss@1": FakeSeries("loss@1", np.ones(100))}
    table = LayerTable(0, ["D.w", "G.w"], optimizer_index=[0, 1])
    scene.frame = replace(scene.frame, series=series, layers=table)
    titles = [
        "".join(part.text for part in draw_chart(scene, name, 90, 9, focused=False)[0])
        for name in ("loss", "loss@1")
    ]
    assert "loss D ─" in titles[0] and "loss@1 G ─" in titles[1]
    assert label_of("step_s@1") == "step@1 time, s"
