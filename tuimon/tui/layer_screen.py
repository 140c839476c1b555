"""The screen of one layer: which row of the tree it is about, and its series in the frame."""

from __future__ import annotations

from dataclasses import replace

from tuimon.tui.draw.tree import TreeRow
from tuimon.tui.scene import LAYER, ChartChoice, Scene
from tuimon.view.frame import OTHER_VERSION, WAITING, Frame
from tuimon.view.layer_series import BAD, NAMES, OUTPUT

NO_SCALER = "no GradScaler is in use: bfloat16 and float32 need none, float16 does"

_LINEAR = (BAD,)


def selected_row(scene: Scene) -> TreeRow | None:
    """The row of the layer tree under the cursor."""
    rows = scene.heat.tree.rows() if scene.frame.layers is not None else []
    return rows[max(0, min(scene.heat.cursor, len(rows) - 1))] if rows else None


def open_layer(scene: Scene) -> str | None:
    """Show everything about the selected layer over time; words where there is none."""
    if scene.frame.layers is not None:
        scene.heat.tree.set_names(scene.frame.layers.names)
    row = selected_row(scene)
    if row is None:
        return "no layer is known yet"
    scene.heat.touched = True
    scene.screen, scene.zoomed, scene.focus = LAYER, False, f"chart:{NAMES[0]}"
    for name in NAMES:
        if name not in scene.charts.choices:
            scene.charts.choices[name] = ChartChoice(log=name not in _LINEAR)
    scene.frame = with_layer(scene, scene.frame)
    return None


def with_layer(scene: Scene, frame: Frame) -> Frame:
    """The frame with the series of the selected layer, where its screen is open."""
    if scene.screen != LAYER:
        return frame
    row = selected_row(scene)
    if row is None:
        return frame
    series = scene.heat.series.of(
        row.path,
        row.members,
        is_parameter=row.is_open is None,
        heat=frame.heat,
        past=frame.past,
    )
    kept = {name: each for name, each in frame.series.items() if name not in NAMES}
    return replace(frame, series=kept | series)


def is_of_a_layer(name: str) -> bool:
    """Whether a series belongs to the layer that is looked at, not to the run."""
    return name in NAMES


def missing_words(scene: Scene, name: str) -> str:
    """What stands in a chart without a value: what would bring the first one."""
    frame = scene.frame
    if frame.state == WAITING:
        return "waiting for a run"
    if frame.state == OTHER_VERSION:
        return "nothing can be read of this run"
    if name not in NAMES:
        if frame.step is None:
            return "waiting for the first step"
        return NO_SCALER if name == "loss_scale" and frame.amp is None else "no value so far"
    row = selected_row(scene)
    if name == BAD and row is not None and frame.heat is not None:
        ever = frame.heat.ever_bad()
        if any(ever[index] for index in row.members if index < len(ever)):
            return "NaN or Inf, but not counted: too many tensors at once, or long ago"
        return "no NaN or Inf so far"
    if row is not None and row.is_open is not None and name != OUTPUT:
        return "of single parameters: l unfolds a module"
    return "not sampled so far: layers have their turns, within tuimon's budget"
