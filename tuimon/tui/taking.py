"""What a new frame changes of a scene beside itself. No Textual here."""

from __future__ import annotations

from tuimon.model.commands import AnyCommand, Inspect, SetClip, SetMaxNorm
from tuimon.tui.keys.choices import follow, open_look
from tuimon.tui.layer_screen import with_layer
from tuimon.tui.scene import Scene
from tuimon.view.frame import Frame


def take(scene: Scene, frame: Frame, *, is_free: bool) -> None:
    """Show a frame from now on; a dialog (`is_free` False) keeps what it is about."""
    if scene.frozen:
        return
    if frame.state != scene.frame.state or frame.alert is not scene.frame.alert:
        scene.revision += 1
    newest = frame.commands[-1] if frame.commands else None
    if frame.clip != scene.frame.clip or (newest is not None and newest.state == "refused"):
        scene.asked_max_norm = None
    scene.frame = with_layer(scene, frame)
    if frame.clip.mode == "on" and frame.clip.max_norm is not None:
        scene.max_norm_known = True
    follow(scene, is_free=is_free)


def sent(scene: Scene, command: AnyCommand) -> None:
    """A command goes out: what the next key or picture has to know of it."""
    if isinstance(command, SetClip | SetMaxNorm) and command.max_norm is not None:
        scene.max_norm_known = True
        scene.asked_max_norm = command.max_norm
    elif isinstance(command, Inspect):
        open_look(scene, command.layer)
