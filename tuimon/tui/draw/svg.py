"""A picture of the screen as a self-contained SVG: cells in, a document out. No Textual here.

Braille, blocks and lines are shapes, because fonts differ in how they place those glyphs; the text
stays text: it can be selected, searched and compared.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby

import msgspec
from rich.cells import cell_len
from rich.color import Color
from rich.style import Style
from rich.terminal_theme import TerminalTheme

from tuimon.model.text import plain
from tuimon.tui.draw.rows import Row

CELL_W, CELL_H, FONT_PX, BASELINE = 9, 19, 15, 14.3
FONTS = "'JetBrains Mono','DejaVu Sans Mono',Menlo,Consolas,monospace"
BACKGROUND, FOREGROUND = "#121212", "#d0d0d0"
# What the sixteen colours of a terminal look like where there is none.
_SIXTEEN = TerminalTheme(
    (18, 18, 18),
    (208, 208, 208),
    [(18, 18, 18), (215, 95, 95), (135, 175, 95), (215, 175, 95), (95, 135, 215), (175, 135, 215),
     (95, 175, 175), (208, 208, 208)],
    [(108, 108, 108), (255, 95, 95), (175, 215, 95), (255, 215, 95), (95, 175, 255),
     (215, 175, 255), (135, 215, 215), (255, 255, 255)],
)  # fmt: skip
# The eight dots of U+2800 + bits, as (column, row) of a 2 x 4 grid.
_DOTS = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2), (0, 3), (1, 3)]
# Box drawing by the arms it has: up, right, down, left.
_ARMS = {
    "─": "0101", "│": "1010", "┤": "1011", "├": "1110", "┬": "0111", "┴": "1101", "┼": "1111",
    "╭": "0110", "╮": "0011", "╰": "1100", "╯": "1001", "┌": "0110", "┐": "0011", "└": "1100",
    "┘": "1001", "╴": "0001", "╶": "0100", "╷": "0010", "╵": "1000", "━": "0101", "┃": "1010",
}  # fmt: skip
_HEAVY = {"━", "┃"}


class Cell(msgspec.Struct, frozen=True):
    """One place of the screen; a wide character has an empty cell behind it.

    Attributes:
        data: the character.
        colour, back: "#rrggbb".
    """

    data: str
    colour: str = FOREGROUND
    back: str = BACKGROUND
    bold: bool = False


def from_rows(rows: Sequence[Row], back: str = BACKGROUND) -> str:
    """The picture of rows as panels draw them; `back` is the colour behind all of it."""
    return document([list(_cells(row, back)) for row in rows], back)


def document(rows: Sequence[Sequence[Cell]], back: str = BACKGROUND) -> str:
    """The whole screen as one SVG document."""
    width = max((len(row) for row in rows), default=0) * CELL_W
    height = len(rows) * CELL_H
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        f'width="{width}" height="{height}" font-family="{FONTS}" font-size="{FONT_PX}">',
        f'<rect width="{width}" height="{height}" fill="{back}"/>',
    ]
    for y, row in enumerate(rows):
        parts += _backgrounds(row, y, back)
        parts += _glyphs(row, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _cells(row: Row, back: str) -> Iterator[Cell]:
    for part in row:
        style = part.style or Style.null()
        colours = (_hex(style.color, FOREGROUND), _hex(style.bgcolor, back))
        colour, behind = colours[::-1] if style.reverse else colours
        for char in plain(part.text, len(part.text)):
            yield Cell(char, colour, behind, bool(style.bold))
            if cell_len(char) > 1:
                yield Cell("", colour, behind)


def _hex(colour: Color | None, default: str) -> str:
    if colour is None or colour.is_default:
        return default
    return colour.get_truecolor(_SIXTEEN).hex


def _backgrounds(row: Sequence[Cell], y: int, back: str) -> Iterator[str]:
    x = 0
    for colour, run in groupby(row, key=lambda cell: cell.back):
        length = len(list(run))
        if colour != back:
            yield (
                f'<rect x="{x * CELL_W}" y="{y * CELL_H}" width="{length * CELL_W}" '
                f'height="{CELL_H}" fill="{colour}"/>'
            )
        x += length


def _glyphs(row: Sequence[Cell], y: int) -> Iterator[str]:
    x = 0
    for key, run in groupby(row, key=lambda cell: (cell.colour, cell.bold, _shape(cell.data))):
        cells = list(run)
        colour, bold, shape = key
        if shape == "text":
            style = f'fill="{colour}"' + ' font-weight="bold"' * bold
            yield from _words([cell.data for cell in cells], x, y, style)
        else:
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
    if glyph in _ARMS:
        return "box"
    if len(glyph) == 1 and 0x2581 <= ord(glyph) <= 0x2588:
        return "block"
    return "text"


def _words(letters: Sequence[str], x: int, y: int, style: str) -> Iterator[str]:
    """Each word placed on its own column, so that a font of another width cannot shift the rest."""
    start = 0
    for blank, run in groupby(letters, key=lambda char: char in (" ", "⠀")):
        cells = list(run)
        if not blank and (word := "".join(cells)):
            yield (
                f'<text x="{(x + start) * CELL_W}" y="{y * CELL_H + BASELINE:g}" {style} '
                f'textLength="{len(cells) * CELL_W}">{escape(word, quote=False)}</text>'
            )
        start += len(cells)


def _braille(glyph: str, x: int, y: int) -> str:
    bits = ord(glyph) - 0x2800
    marks = []
    for bit, (column, line) in enumerate(_DOTS):
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
    shifts = (-0.7, 0.7) if glyph in _HEAVY else (0.0,)
    marks = []
    for (end_x, end_y), there in zip(ends, _ARMS[glyph], strict=True):
        if there == "1":
            marks += [
                f"M{middle_x + s:g} {middle_y + s:g}L{end_x + (s if end_x == middle_x else 0):g} "
                f"{end_y + (s if end_y == middle_y else 0):g}"
                for s in shifts
            ]
    return "".join(marks)
