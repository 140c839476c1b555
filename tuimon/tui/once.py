"""One frame as plain text, made by the same panels as the live view; needs no terminal."""

from __future__ import annotations

from collections.abc import Sequence

from rich.segment import Segment

from tuimon.model.text import plain
from tuimon.model.verdict import verdict_lines
from tuimon.tui.draw.glyphs import BRAILLE, GlyphSet, spelt
from tuimon.tui.draw.rows import Row, fit, in_alphabet
from tuimon.tui.draw.svg import BACKGROUND, from_rows
from tuimon.tui.draw.theme import FULL, NONE, ORDER, Look
from tuimon.tui.keys.row_choices import show_first_bad
from tuimon.tui.panels.registry import make_panel
from tuimon.tui.scene import OVERVIEW, Scene
from tuimon.tui.screens import arrange
from tuimon.view.frame import Frame
from tuimon.view.incidents import newest


def render_once(
    frame: Frame,
    width: int = 120,
    height: int = 40,
    *,
    glyphs: GlyphSet = BRAILLE,
    colour: bool = False,
    other: Frame | None = None,
    screen: str = OVERVIEW,
) -> str:
    """A screen of a frame as `height` lines of text.

    Args:
        frame: what to draw.
        width, height: cells; below 60×20 it is one sentence.
        glyphs: the alphabet.
        colour: whether to add colour codes (24-bit SGR).
        other: of a run that is laid over the charts of this one.
        screen: one of `actions.SCREENS`.
    """
    look = Look(colours=FULL if colour else NONE, glyphs=glyphs)
    rows = paint(_scene(frame, look, screen, other), width, height)
    if colour:
        return "\n".join("".join(_coloured(part) for part in row).rstrip() for row in rows)
    return "\n".join("".join(part.text for part in row).rstrip() for row in rows)


def svg_once(
    frame: Frame,
    width: int = 120,
    height: int = 40,
    *,
    glyphs: GlyphSet = BRAILLE,
    theme: str = ORDER[0],
    other: Frame | None = None,
    screen: str = OVERVIEW,
) -> str:
    """A screen of a frame as a picture in the colours of a theme."""
    look = Look(theme=theme, glyphs=glyphs)
    rows = paint(_scene(frame, look, screen, other), width, height)
    return from_rows(rows, look.colour("bg") or BACKGROUND)


def _scene(frame: Frame, look: Look, screen: str, other: Frame | None) -> Scene:
    scene = Scene(frame, look, screen=screen, focus="", other=other)
    scene.other_name = other.name if other is not None else ""
    show_first_bad(scene)
    return scene


def verdict_of(frame: Frame, glyphs: GlyphSet = BRAILLE) -> list[str]:
    """The newest incident in lines that are not cut: what happened where, and what it was given."""
    incident = newest(frame)
    if incident is None:
        return []
    autopsy = incident.autopsy
    if autopsy is not None:
        lines = verdict_lines(autopsy)
    else:
        where = "" if incident.step is None else f"step {incident.step:,}: "
        lines = [f"{where}{incident.text}", *incident.detail.splitlines()]
    return [spelt(glyphs, plain(line)) for line in lines]


def paint(scene: Scene, width: int, height: int) -> list[Row]:
    """All panels of the scene's screen, put together into rows of the full width."""
    boxes = arrange(scene, width, height)
    lines: list[list[tuple[int, Row]]] = [[] for _ in range(height)]
    for box in boxes:
        panel = make_panel(box.panel)
        drawn = panel.draw(scene, box.width, box.height, box.panel == scene.focus)
        for offset, row in enumerate(in_alphabet(scene.look, drawn[: box.height])):
            lines[box.y + offset].append((box.x, row))
    return [_joined(scene.look, parts, width) for parts in lines]


def _joined(look: Look, parts: Sequence[tuple[int, Row]], width: int) -> Row:
    ordered = sorted(parts, key=lambda part: part[0])
    return fit(look, [segment for _, row in ordered for segment in row], width)


def _coloured(part: Segment) -> str:
    return part.style.render(part.text) if part.style else part.text
