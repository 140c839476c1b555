"""A pyte screen as a self-contained SVG, drawn as the program draws its own pictures."""

from __future__ import annotations

from xml.etree import ElementTree

import pyte
from pyte.screens import Char

from tuimon.tui.draw.svg import BACKGROUND, BASELINE, CELL_H, CELL_W, FOREGROUND, Cell, document

_NAMED = {
    "black": "#121212",
    "red": "#d75f5f",
    "green": "#87af5f",
    "brown": "#d7af5f",
    "blue": "#5f87d7",
    "magenta": "#af87d7",
    "cyan": "#5fafaf",
    "white": "#d0d0d0",
}


def render(screen: pyte.Screen) -> str:
    """The whole screen as one SVG document."""
    rows = [[screen.buffer[y][x] for x in range(screen.columns)] for y in range(screen.lines)]
    return document([[_cell(each) for each in row] for row in rows])


def text(screen: pyte.Screen) -> str:
    """The text layer of the screen, without trailing blanks."""
    return "\n".join(line.rstrip() for line in screen.display).rstrip() + "\n"


def _cell(char: Char) -> Cell:
    pair = (_hex(char.fg, FOREGROUND), _hex(char.bg, BACKGROUND))
    colour, back = pair[::-1] if char.reverse else pair
    return Cell(char.data, colour, back, char.bold)


def _hex(name: str, default: str) -> str:
    if name == "default":
        return default
    return _NAMED.get(name.removeprefix("bright"), f"#{name}")


def text_layer(picture: str) -> list[str]:
    """The text of a picture, each character in the column where it stands; shapes are blanks."""
    root = ElementTree.fromstring(picture)
    width, height = (int(size) for size in root.attrib["viewBox"].split()[2:])
    grid = [[" "] * (width // CELL_W) for _ in range(height // CELL_H)]
    for element in root.iter("{http://www.w3.org/2000/svg}text"):
        row = round((float(element.attrib["y"]) - BASELINE) / CELL_H)
        column = int(element.attrib["x"]) // CELL_W
        for offset, char in enumerate(element.text or ""):
            grid[row][column + offset] = char
    return ["".join(row).rstrip() for row in grid]
