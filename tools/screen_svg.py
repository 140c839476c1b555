"""A pyte screen as a self-contained SVG: text as text, braille, blocks and lines as shapes.

Shapes are drawn because fonts differ in how they place those glyphs; the text stays selectable
and a reader without the font still sees the same picture.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from xml.sax.saxutils import escape

import pyte
from pyte.screens import Char

CELL_W, CELL_H, FONT_PX, BASELINE = 9, 19, 15, 14.3
FONTS = "'JetBrains Mono','DejaVu Sans Mono',Menlo,Consolas,monospace"
BACKGROUND, FOREGROUND = "#121212", "#d0d0d0"
NAMED = {
    "black": "#121212",
    "red": "#d75f5f",
    "green": "#87af5f",
    "brown": "#d7af5f",
    "blue": "#5f87d7",
    "magenta": "#af87d7",
    "cyan": "#5fafaf",
    "white": "#d0d0d0",
}
# The eight dots of U+2800 + bits, as (column, row) of a 2 x 4 grid.
DOTS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
# Box drawing by the arms it has: up, right, down, left.
ARMS = {
    "─": "0101", "│": "1010", "┤": "1011", "├": "1110", "┬": "0111", "┴": "1101", "┼": "1111",
    "╭": "0110", "╮": "0011", "╰": "1100", "╯": "1001", "┌": "0110", "┐": "0011", "└": "1100",
    "┘": "1001", "╴": "0001", "╶": "0100", "╷": "0010", "╵": "1000", "━": "0101", "┃": "1010",
}  # fmt: skip
HEAVY = {"━", "┃"}


def render(screen: pyte.Screen) -> str:
    """The whole screen as one SVG document."""
    width, height = screen.columns * CELL_W, screen.lines * CELL_H
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{FONTS}" font-size="{FONT_PX}">',
        f'<rect width="{width}" height="{height}" fill="{BACKGROUND}"/>',
    ]
    for y in range(screen.lines):
        row = [screen.buffer[y][x] for x in range(screen.columns)]
        parts += _backgrounds(row, y)
        parts += _glyphs(row, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def text(screen: pyte.Screen) -> str:
    """The text layer of the screen, without trailing blanks."""
    return "\n".join(line.rstrip() for line in screen.display).rstrip() + "\n"


def _colours(cell: Char) -> tuple[str, str]:
    """(foreground, background) with reverse video applied."""
    pair = (_hex(cell.fg, FOREGROUND), _hex(cell.bg, BACKGROUND))
    return pair[::-1] if cell.reverse else pair


def _hex(name: str, default: str) -> str:
    if name == "default":
        return default
    return NAMED.get(name.removeprefix("bright"), f"#{name}")


def _backgrounds(row: list[Char], y: int) -> Iterator[str]:
    x = 0
    for colour, run in groupby(row, key=lambda cell: _colours(cell)[1]):
        length = len(list(run))
        if colour != BACKGROUND:
            yield (
                f'<rect x="{x * CELL_W}" y="{y * CELL_H}" width="{length * CELL_W}" '
                f'height="{CELL_H}" fill="{colour}"/>'
            )
        x += length


def _glyphs(row: list[Char], y: int) -> Iterator[str]:
    x = 0
    for key, run in groupby(row, key=lambda c: (_colours(c)[0], c.bold, _shape(c.data))):
        cells = list(run)
        colour, bold, shape = key
        letters = "".join(cell.data for cell in cells)
        if shape == "text" and letters.strip():
            yield from _words(letters, x, y, f'fill="{colour}"' + ' font-weight="bold"' * bold)
        elif shape != "text":
            drawing = {"braille": _braille, "box": _box, "block": _block}[shape]
            marks = "".join(drawing(cell.data, x + i, y) for i, cell in enumerate(cells))
            if shape == "box":
                yield f'<path d="{marks}" stroke="{colour}" fill="none"/>'
            else:
                yield f'<path d="{marks}" fill="{colour}"/>'
        x += len(cells)


def _shape(glyph: str) -> str:
    if len(glyph) == 1 and 0x2800 < ord(glyph) <= 0x28FF:
        return "braille"
    if glyph in ARMS:
        return "box"
    if len(glyph) == 1 and 0x2581 <= ord(glyph) <= 0x2588:
        return "block"
    return "text"


def _words(letters: str, x: int, y: int, style: str) -> Iterator[str]:
    """Each word placed on its own column, so that a font of another width cannot shift the rest."""
    start = 0
    for blank, run in groupby(letters, key=lambda char: char in " ⠀"):
        word = "".join(run)
        if not blank:
            yield (
                f'<text x="{(x + start) * CELL_W}" y="{y * CELL_H + BASELINE:g}" {style} '
                f'textLength="{len(word) * CELL_W}">{escape(word)}</text>'
            )
        start += len(word)


def _braille(glyph: str, x: int, y: int) -> str:
    bits = ord(glyph) - 0x2800
    marks = []
    for bit, (column, line) in enumerate(DOTS):
        if bits >> bit & 1:
            left = x * CELL_W + CELL_W * (column + 0.5) / 2 - 1.1
            top = y * CELL_H + CELL_H * (line + 0.5) / 4 - 1.1
            marks.append(f"M{left:g} {top:g}h2.2v2.2h-2.2z")
    return "".join(marks)


def _block(glyph: str, x: int, y: int) -> str:
    height = CELL_H * (ord(glyph) - 0x2580) / 8
    return f"M{x * CELL_W} {(y + 1) * CELL_H}v{-height:g}h{CELL_W}v{height:g}z"


def _box(glyph: str, x: int, y: int) -> str:
    """Arms from the middle of the cell to its edges; heavy lines are drawn twice."""
    middle_x, middle_y = (x + 0.5) * CELL_W, (y + 0.5) * CELL_H
    ends = [
        (middle_x, y * CELL_H),
        ((x + 1) * CELL_W, middle_y),
        (middle_x, (y + 1) * CELL_H),
        (x * CELL_W, middle_y),
    ]
    shifts = (-0.7, 0.7) if glyph in HEAVY else (0.0,)
    marks = []
    for (end_x, end_y), there in zip(ends, ARMS[glyph], strict=True):
        if there == "1":
            marks += [
                f"M{middle_x + s:g} {middle_y + s:g}L{end_x + (s if end_x == middle_x else 0):g} "
                f"{end_y + (s if end_y == middle_y else 0):g}"
                for s in shifts
            ]
    return "".join(marks)
