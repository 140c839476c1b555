"""The layer × step history as a picture: a PNG of one pixel a cell, with names and a legend.

Pure: codes in, elements out.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np

from tuimon.export.drawing import LEFT, RIGHT, WIDTH, Window, step_axis
from tuimon.export.elements import group, tag
from tuimon.view.frame import (
    ALL_ZERO,
    CELL_NAN,
    CELL_NEG_INF,
    CELL_POS_INF,
    LEVEL_FIRST,
    LEVEL_LAST,
    NO_DATA,
    Codes,
)

# Blue below usual, dark as usual, yellow above: told apart by colour-blind people too, and by
# lightness alone. What is not finite has a colour that no level has, and a letter beside the name.
PALETTE: dict[int, tuple[int, int, int]] = {
    NO_DATA: (236, 236, 236),
    1: (33, 102, 172),
    2: (67, 130, 190),
    3: (110, 160, 200),
    4: (70, 78, 90),
    5: (150, 120, 60),
    6: (200, 150, 50),
    7: (240, 190, 60),
    8: (255, 240, 170),
    ALL_ZERO: (0, 0, 0),
    CELL_NEG_INF: (150, 70, 200),
    CELL_POS_INF: (255, 110, 30),
    CELL_NAN: (220, 20, 90),
}
LEVEL_WORDS = ("1/8×", "1/4×", "1/2×", "usual", "2×", "4×", "8×", "16×")
MAX_ROWS = 400
_ROW = 14.0
_NAME_CHARACTERS = 26


def heat_picture(
    names: Sequence[str], notes: Sequence[str], codes: Codes, first_step: int, end_step: int
) -> Element:
    """One row a layer.

    Args:
        names: of the rows.
        notes: a short word at the end of each row; "" for none.
        codes: uint8[rows, columns] of cell codes, as a heat view gives them.
        first_step, end_step: the steps of the columns, the end excluded.
    """
    rows = len(names)
    height = rows * _ROW
    parts: list[Element | None] = [
        tag(
            "image",
            href=data_uri(png(codes)),
            x=LEFT,
            y=0,
            width=WIDTH - LEFT - RIGHT,
            height=height,
            preserveAspectRatio="none",
            style="image-rendering:pixelated",
        )
    ]
    for row, (name, note) in enumerate(zip(names, notes, strict=True)):
        y = row * _ROW + 11
        short = name if len(name) <= _NAME_CHARACTERS else "…" + name[1 - _NAME_CHARACTERS :]
        title = tag("title", name)
        parts.append(tag("text", title, short, x=LEFT - 6, y=y, class_="tick end mono"))
        if note:
            parts.append(tag("text", note, x=WIDTH - RIGHT + 6, y=y, class_="tick bad"))
    parts += step_axis(Window(first_step, end_step), height, height + 3)
    view = f"0 0 {WIDTH:g} {height + 24:g}"
    return group("svg", parts, viewBox=view, class_="heat", role="img")


def legend() -> Element:
    """What the colours mean, in words."""
    told = [(PALETTE[code], LEVEL_WORDS[code - 1]) for code in range(LEVEL_FIRST, LEVEL_LAST + 1)]
    told += [
        (PALETTE[ALL_ZERO], "all zero"),
        (PALETTE[CELL_NAN], "NaN"),
        (PALETTE[CELL_POS_INF], "+Inf"),
        (PALETTE[CELL_NEG_INF], "−Inf"),
        (PALETTE[NO_DATA], "no data"),
    ]
    chips = []
    for colour, words in told:
        chip = tag("span", class_="chip", style=f"background:rgb{colour}")
        chips.append(tag("span", chip, words, class_="key"))
    return group("p", chips, class_="legend")


def png(codes: Codes) -> bytes:
    """The cells as a PNG with a palette (PNG specification, third edition, sections 5 and 11)."""
    rows, columns = codes.shape
    palette = b"".join(bytes(PALETTE.get(code, (255, 255, 255))) for code in range(CELL_NAN + 1))
    lines = np.zeros((rows, columns + 1), np.uint8)  # each row begins with its filter, none
    lines[:, 1:] = np.minimum(codes, CELL_NAN)
    head = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + _chunk(b"IHDR", head)
        + _chunk(b"PLTE", palette)
        + _chunk(b"IDAT", zlib.compress(lines.tobytes(), 9))
        + _chunk(b"IEND", b"")
    )


def data_uri(image: bytes) -> str:
    """The picture as an address that holds it."""
    return "data:image/png;base64," + base64.b64encode(image).decode()


def _chunk(kind: bytes, content: bytes) -> bytes:
    checked = kind + content
    return struct.pack(">I", len(content)) + checked + struct.pack(">I", zlib.crc32(checked))
