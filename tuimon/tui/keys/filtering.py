"""What the filter line is about: the layers, or the list of what happened."""

from __future__ import annotations

from collections.abc import Callable

from tuimon.tui.keys.actions import ON_EVENTS, ON_INCIDENT, ON_LAYERS, ON_OUTPUT, kind_of
from tuimon.tui.scene import CHARTS, LAYERS, Scene


def filter_line(scene: Scene) -> tuple[str, Callable[[str], None]]:
    """(the present filter, what to do with another one), after going where there is a list."""
    if kind_of(scene.focus) == ON_INCIDENT:
        scene.focus = "events"
    if kind_of(scene.focus) == ON_OUTPUT:
        return scene.scroll(ON_OUTPUT).filter, lambda words: _filter_output(scene, words)
    if kind_of(scene.focus) not in (ON_LAYERS, ON_EVENTS):
        if scene.screen == CHARTS:
            scene.screen = LAYERS
        scene.focus = "layers"
    if kind_of(scene.focus) == ON_LAYERS:
        return scene.heat.tree.filter, lambda words: _filter_layers(scene, words)
    return scene.log.filter, lambda words: _filter_log(scene, words)


def _filter_layers(scene: Scene, words: str) -> None:
    scene.heat.tree.set_filter(words)
    scene.heat.cursor = scene.heat.top = 0
    scene.revision += 1


def _filter_log(scene: Scene, words: str) -> None:
    scene.log.filter = words
    scene.log.top = 0
    scene.revision += 1


def _filter_output(scene: Scene, words: str) -> None:
    place = scene.scroll(ON_OUTPUT)
    place.filter, place.is_at_end = words, True
    scene.revision += 1
