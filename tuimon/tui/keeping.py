"""Which choices of a person outlive the viewer: theme, glyphs and the sizes of panels."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from tuimon.tui.draw.glyphs import SETS, set_for
from tuimon.tui.draw.theme import Look
from tuimon.tui.panes import Sizes
from tuimon.tui.scene import Scene
from tuimon.view.kept import Kept

SIZES = frozenset({"narrower", "broader", "shorter", "taller", "as_laid_out"})
KEEPS = SIZES | {"theme", "glyphs"}

Remember = Callable[..., None]  # the fields of `Kept` to change; may raise OSError


def remembered(scene: Scene, name: str, remember: Remember) -> tuple[str, str]:
    """Keep what this key of `KEEPS` chose; (what to say of it, in which colour)."""
    look, told = scene.look, ""
    fields: dict[str, Any] = {"sizes": scene.sizes.changes}
    if name == "theme":
        fields, told = {"theme": look.theme}, f"theme {look.theme}"
    elif name == "glyphs":
        # Of a terminal that promises the same: another one may not have them.
        promised = set_for(os.environ).name
        fields, told = {"glyphs": {promised: look.glyphs.name}}, f"glyphs {look.glyphs.name}"
    try:
        remember(**fields)
    except OSError as error:
        why = error.strerror or type(error).__name__
        return f"{told or 'sizes'}, until the viewer ends: {why}", "warn"
    return told, "dim"


def recall(scene: Scene, kept: Kept) -> None:
    """Give the panels the sizes that they had."""
    scene.sizes = Sizes({screen: dict(panels) for screen, panels in kept.sizes.items()})


def dressed(look: Look, kept: Kept, *, theme: str | None, has_glyphs: bool) -> Look:
    """The look as it was chosen last, where neither a flag nor the settings say another one."""
    look.theme = theme or kept.theme or look.theme
    if not has_glyphs:
        look.glyphs = SETS.get(kept.glyphs.get(look.glyphs.name, ""), look.glyphs)
    return look
