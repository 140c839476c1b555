"""Sends only the cells that changed. Sits between Textual's compositor and the driver.

Textual repaints every changed row from the left edge of its widget with full 24-bit colours. This
layer remembers what the terminal shows and writes the difference; where an update has a shape it
does not know, Textual's own output goes out and the memory is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.color import Color, ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import SGR_STYLES, Strip

from tuimon.model.text import plain

_CUBE = {0: 0, 95: 1, 135: 2, 175: 3, 215: 4, 255: 5}  # channel values of xterm's colour cube
_GREYS = {8 + 10 * index: 232 + index for index in range(24)}
_BRIDGE_CELLS = 4  # unchanged cells up to this many are cheaper to send than to jump over
_MAX_LOOKS = 60_000  # ids are 16 bits
_UNKNOWN = 0  # no character has this code point on a screen

Points = npt.NDArray[np.uint32]
Ids = npt.NDArray[np.uint16]


class _Appearance(msgspec.Struct, frozen=True):
    """A style as the terminal needs it: SGR parameters, "" for the default."""

    attributes: str = ""
    colour: str = ""
    back: str = ""

    @property
    def whole(self) -> str:
        """From nothing to this."""
        parts = [part for part in (self.attributes, self.colour, self.back) if part]
        return "\x1b[" + ";".join(["0", *parts]) + "m"


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
    """Numbers for styles, and the shortest way from one to another."""

    def __init__(self) -> None:
        self._by_style: dict[Style | None, int] = {None: 0}
        self._by_look: dict[_Appearance, int] = {_Appearance(): 0}
        self._looks: list[_Appearance] = [_Appearance()]
        self._steps: dict[tuple[int, int], str] = {}

    def __len__(self) -> int:
        return len(self._looks)

    def number(self, style: Style | None, system: ColorSystem) -> int:
        """The id of a style; styles that look the same share one."""
        found = self._by_style.get(style)
        if found is None and style is not None:
            bits = style._attributes & style._set_attributes
            attributes = [code for bit, code in enumerate(SGR_STYLES) if bits >> bit & 1]
            look = _Appearance(
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

    def step(self, old: int, new: int) -> str:
        """What to send to change from one id to another."""
        found = self._steps.get((old, new))
        if found is None:
            found = self._steps[old, new] = self._shortest(self._looks[old], self._looks[new])
        return found

    def _shortest(self, old: _Appearance, new: _Appearance) -> str:
        if old.attributes != new.attributes:
            return new.whole
        parts = []
        if old.colour != new.colour:
            parts.append(new.colour or "39")
        if old.back != new.back:
            parts.append(new.back or "49")
        change = "\x1b[" + ";".join(parts) + "m" if parts else ""
        return min(change, new.whole, key=len)


class _Pen(msgspec.Struct):
    """Where the cursor stands and what it writes with, while one frame is put together."""

    out: list[str] = msgspec.field(default_factory=list)
    at: tuple[int, int] | None = None  # (row, column); None is unknown
    look: int = 0

    def go(self, row: int, column: int) -> None:
        """Move with the fewest bytes."""
        if self.at == (row, column):
            return
        if self.at is not None and self.at[0] == row and self.at[1] < column:
            ahead = column - self.at[1]
            self.out.append("\x1b[C" if ahead == 1 else f"\x1b[{ahead}C")
        else:
            there = f"\x1b[{row + 1};{column + 1}H"
            if self.at is not None and self.at[0] + 1 == row and column <= self.at[1]:
                # A column of a map: back, and down by IND, which every VT has.
                back = self.at[1] - column
                there = "\b" * back + "\x1bD" if back + 2 < len(there) else there
            self.out.append(there)
        self.at = (row, column)


class ScreenMemory:
    """What the terminal shows. Written by the thread of the event loop only."""

    def __init__(self) -> None:
        self._size = (0, 0)
        self._points: Points = np.zeros((0, 0), np.uint32)
        self._ids: Ids = np.zeros((0, 0), np.uint16)
        self._appearances = Appearances()

    def forget(self) -> None:
        """The terminal may show anything: the next update is sent whole."""
        self._points[:] = _UNKNOWN

    def changes(self, update: CompositorUpdate, system: ColorSystem) -> str | None:
        """What to write so that the terminal shows the update; None for an unknown shape."""
        if len(self._appearances) > _MAX_LOOKS:
            self._appearances = Appearances()
            self.forget()
        pen = _Pen()
        if isinstance(update, LayoutUpdate):
            region = update.region
            if region.x == 0 and region.y == 0 and (region.width, region.height) != self._size:
                self._resize(region.width, region.height)
            for row, strips in enumerate(update.strips, region.y):
                self._row(pen, row, region.x, [s for strip in strips for s in strip], system)
        elif isinstance(update, ChopsUpdate):
            for row in sorted({span[0] for span in update.spans}):
                for column, parts in _runs(update.chops[row].items()):
                    self._row(pen, row, column, parts, system)
        else:
            self.forget()
            return None
        if pen.look:
            pen.out.append("\x1b[0m")
        return "".join(pen.out)

    def _resize(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._points = np.zeros((height, width), np.uint32)
        self._ids = np.zeros((height, width), np.uint16)

    def _row(
        self,
        pen: _Pen,
        row: int,
        column: int,
        parts: Sequence[Segment],
        system: ColorSystem,
    ) -> None:
        """Write what differs in a part of one row and remember it."""
        width, height = self._size
        content = "".join([part.text for part in parts])
        if not content.isprintable():
            # Every panel makes what came from a training safe; this is where a slip ends.
            parts = [Segment(plain(part.text), part.style) for part in parts]
            content = "".join([part.text for part in parts])
        if not content or row >= height or column >= width:
            return
        number = self._appearances.number
        if not content.isascii() and cell_len(content) != len(content):
            self._whole(pen, row, column, parts, system)
            return
        points = np.frombuffer(content.encode("utf-32-le"), np.uint32)[: width - column]
        numbers = np.array([number(part.style, system) for part in parts], np.uint16)
        ids = np.repeat(numbers, [len(part.text) for part in parts])[: len(points)]
        old_points = self._points[row, column : column + len(points)]
        old_ids = self._ids[row, column : column + len(points)]
        changed = np.flatnonzero((points != old_points) | (ids != old_ids))
        if not len(changed):
            return
        old_points[:], old_ids[:] = points, ids
        breaks = np.flatnonzero(np.diff(changed) > _BRIDGE_CELLS + 1)
        starts = changed[np.concatenate(([0], breaks + 1))].tolist()
        ends = (changed[np.concatenate((breaks, [len(changed) - 1]))] + 1).tolist()
        for start, end in zip(starts, ends, strict=True):
            pen.go(row, column + start)
            self._write(pen, content[start:end], ids[start:end])
            # After the last column the cursor's place depends on the terminal.
            pen.at = (row, column + end) if column + end < width else None

    def _write(self, pen: _Pen, content: str, ids: Ids) -> None:
        edges = (np.flatnonzero(ids[1:] != ids[:-1]) + 1).tolist()
        at = 0
        for edge in [*edges, len(ids)]:
            look = int(ids[at])
            pen.out.append(self._appearances.step(pen.look, look))
            pen.out.append(content[at:edge])
            pen.look = look
            at = edge

    def _whole(
        self,
        pen: _Pen,
        row: int,
        column: int,
        parts: Sequence[Segment],
        system: ColorSystem,
    ) -> None:
        """A part with wide or zero-width characters: sent as it is, remembered as unknown."""
        pen.go(row, column)
        for part in parts:
            look = self._appearances.number(part.style, system)
            pen.out += [self._appearances.step(pen.look, look), part.text]
            pen.look = look
        self._points[row, column : column + sum(part.cell_length for part in parts)] = _UNKNOWN
        pen.at = None


def _runs(chops: Iterable[tuple[int, Strip | None]]) -> Iterable[tuple[int, list[Segment]]]:
    """Neighbouring strips of a row joined: (column, segments)."""
    start, end = 0, -1
    parts: list[Segment] = []
    for column, strip in chops:
        if strip is None:
            continue
        if column != end:
            if parts:
                yield start, parts
            start, parts = column, []
        parts.extend(strip)
        end = column + strip.cell_length
    if parts:
        yield start, parts


class ChangedCells(CompositorUpdate):
    """An update that writes only what the terminal does not show yet."""

    def __init__(self, inner: CompositorUpdate, memory: ScreenMemory) -> None:
        self._inner = inner
        self._memory = memory
        self._rendered: str | None = None

    def render_segments(self, console: Console) -> str:
        """The escape sequences to write; the same whenever they are asked for."""
        if self._rendered is None:
            system = console._color_system or ColorSystem.TRUECOLOR
            changes = self._memory.changes(self._inner, system)
            self._rendered = self._inner.render_segments(console) if changes is None else changes
        return self._rendered
