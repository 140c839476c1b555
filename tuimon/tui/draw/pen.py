"""What a terminal writes with: from one look, and from one place, to the next in few bytes.

A blank cell shows nothing but its background, so that a pen that holds two colours can draw blanks
of both: reverse video swaps them for half the bytes that a colour takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec
from rich.color import Color, ColorSystem
from rich.segment import Segment
from rich.style import Style
from textual.strip import SGR_STYLES

_CUBE = {0: 0, 95: 1, 135: 2, 175: 3, 215: 4, 255: 5}  # channel values of xterm's colour cube
_GREYS = {8 + 10 * index: 232 + index for index in range(24)}
_SEEN_ON_BLANKS = {"4", "5", "7", "9", "21", "51", "52", "53"}  # attributes: lines, blinks, swaps
_MAX_KNOWN = 50_000  # changes that are remembered


class Appearance(NamedTuple):
    """A style as the terminal needs it: SGR parameters, "" for the default."""

    attributes: str = ""
    colour: str = ""
    back: str = ""


class Ink(NamedTuple):
    """How a terminal would draw the next character."""

    look: Appearance = Appearance()
    is_swapped: bool = False  # by the pen, for blanks


def _parameters(colour: Color | None, system: ColorSystem, *, back: bool) -> str:
    """SGR parameters of a colour; an exact xterm-256 entry takes the short form."""
    if colour is None or colour.is_default:
        return ""
    if system is ColorSystem.TRUECOLOR and colour.triplet is not None and colour.number is None:
        red, green, blue = colour.triplet
        number = None
        if red in _CUBE and green in _CUBE and blue in _CUBE:
            number = 16 + 36 * _CUBE[red] + 6 * _CUBE[green] + _CUBE[blue]
        elif red == green == blue:
            number = _GREYS.get(red)
        if number is not None:
            return f"{48 if back else 38};5;{number}"
    return ";".join(colour.downgrade(system).get_ansi_codes(not back))


class Appearances:
    """Numbers for styles, and the shortest way to each of them."""

    def __init__(self) -> None:
        self._by_style: dict[Style | None, int] = {None: 0}
        self._by_look: dict[Appearance, int] = {Appearance(): 0}
        self._looks: list[Appearance] = [Appearance()]
        self._known: dict[tuple[Ink, int, bool], tuple[str, Ink]] = {}

    def __len__(self) -> int:
        return len(self._looks)

    def numbers(self, parts: Sequence[Segment], system: ColorSystem) -> list[int]:
        """The ids of the styles of a row; nearly always they are known."""
        known = self._by_style
        try:
            return [known[part.style] for part in parts]
        except KeyError:
            return [self.number(part.style, system) for part in parts]

    def number(self, style: Style | None, system: ColorSystem) -> int:
        """The id of a style; styles that look the same share one."""
        found = self._by_style.get(style)
        if found is None and style is not None:
            bits = style._attributes & style._set_attributes
            attributes = [code for bit, code in enumerate(SGR_STYLES) if bits >> bit & 1]
            look = Appearance(
                ";".join(attributes),
                _parameters(style.color, system, back=False),
                _parameters(style.bgcolor, system, back=True),
            )
            found = self._by_look.get(look)
            if found is None:
                found = self._by_look[look] = len(self._looks)
                self._looks.append(look)
            self._by_style[style] = found
        return found or 0

    def change(self, ink: Ink, number: int, *, blank: bool) -> tuple[str, Ink]:
        """What to send before text, or blanks, of that look, and what the ink is then."""
        key = (ink, number, blank)
        found = self._known.get(key)
        if found is None:
            if len(self._known) > _MAX_KNOWN:
                self._known.clear()
            found = self._known[key] = change(ink, self._looks[number], blank=blank)
        return found


def change(ink: Ink, look: Appearance, *, blank: bool) -> tuple[str, Ink]:
    """The parameters that lead from an ink to one that shows text, or blanks, of a look."""
    old = ink.look
    if blank and not (_codes(old) | _codes(look)) & _SEEN_ON_BLANKS:
        return _for_blanks(ink, look.back)
    new = Ink(look)
    if new == ink:
        return "", new
    parts = [part for part in look if part]
    whole = _sgr("0", *parts)
    if not _codes(old) <= _codes(look):
        return whole, new
    added = sorted(_codes(look) - _codes(old), key=int)
    parts = ["27"] if ink.is_swapped else []
    parts += added
    if old.colour != look.colour:
        parts.append(look.colour or "39")
    if old.back != look.back:
        parts.append(look.back or "49")
    return min(_sgr(*parts), whole, key=len), new


def _for_blanks(ink: Ink, back: str) -> tuple[str, Ink]:
    """To a background: one that the pen holds, or a new one in place of the one not seen last."""
    attributes, colour, held = ink.look
    can_swap = back.startswith("48;")  # the 16 colours are not the same in front and behind
    as_front = "3" + back[1:]
    if not ink.is_swapped:
        if held == back:
            return "", ink
        if can_swap and colour == as_front:
            return _sgr("7"), Ink(ink.look, is_swapped=True)
        if can_swap and held.startswith("48;"):
            return _sgr("7", as_front), Ink(Appearance(attributes, as_front, held), is_swapped=True)
        return _sgr(back or "49"), Ink(Appearance(attributes, colour, back))
    if can_swap and colour == as_front:
        return "", ink
    if held == back:
        return _sgr("27"), Ink(ink.look)
    return _sgr("27", back or "49"), Ink(Appearance(attributes, colour, back))


def _codes(look: Appearance) -> set[str]:
    return set(look.attributes.split(";")) - {""}


def _sgr(*parts: str) -> str:
    return f"\x1b[{';'.join(parts)}m"


class Pen(msgspec.Struct):
    """Where the cursor stands and what it writes with, while one frame is put together."""

    out: list[str] = msgspec.field(default_factory=list)
    at: tuple[int, int] | None = None  # (row, column); None is unknown
    ink: Ink = Ink()

    def take(self, appearances: Appearances, number: int, *, blank: bool) -> None:
        """Change to what draws text, or blanks, of that look."""
        sent, self.ink = appearances.change(self.ink, number, blank=blank)
        self.out.append(sent)

    def go(self, row: int, column: int) -> None:
        """Move with the fewest bytes."""
        if self.at == (row, column):
            return
        if self.at is not None and self.at[0] == row and self.at[1] < column:
            self.out.append(ahead(column - self.at[1]))
        else:
            there = f"\x1b[{row + 1};{column + 1}H"
            if self.at is not None and self.at[0] + 1 == row and column <= self.at[1]:
                # A column of a map: back, and down by IND, which every VT has.
                back = self.at[1] - column
                there = "\b" * back + "\x1bD" if back + 2 < len(there) else there
            self.out.append(there)
        self.at = (row, column)


def ahead(cells: int) -> str:
    """Over cells of the row that stay as they are."""
    return "\x1b[C" if cells == 1 else f"\x1b[{cells}C"
