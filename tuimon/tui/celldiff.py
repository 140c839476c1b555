"""Sends only the cells that changed. Sits between Textual's compositor and the driver.

Textual repaints every changed row from the left edge of its widget with full 24-bit colours. This
layer remembers what the terminal shows and writes the difference; where an update has a shape it
does not know, Textual's own output goes out and the memory is dropped.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.strip import Strip

from tuimon.model.text import plain
from tuimon.tui.draw.pen import Appearances, Ink, Pen, ahead

_BRIDGE_CELLS = 5  # unchanged cells up to this many may be cheaper to send than to jump over
_MAX_LOOKS = 60_000  # ids are 16 bits
_UNKNOWN = 0  # no character has this code point on a screen

Points = npt.NDArray[np.uint32]
Ids = npt.NDArray[np.uint16]


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
        pen = Pen()
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
        if pen.ink != Ink():
            pen.out.append("\x1b[0m")
        return "".join(pen.out)

    def _resize(self, width: int, height: int) -> None:
        self._size = (width, height)
        self._points = np.zeros((height, width), np.uint32)
        self._ids = np.zeros((height, width), np.uint16)

    def _row(
        self,
        pen: Pen,
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
        if not content.isascii() and cell_len(content) != len(content):
            self._whole(pen, row, column, parts, system)
            return
        points = np.frombuffer(content.encode("utf-32-le"), np.uint32)[: width - column]
        numbers = np.array(self._appearances.numbers(parts, system), np.uint16)
        ids = np.repeat(numbers, [len(part.text) for part in parts])[: len(points)]
        old_points = self._points[row, column : column + len(points)]
        old_ids = self._ids[row, column : column + len(points)]
        changed = np.flatnonzero((points != old_points) | (ids != old_ids))
        if not len(changed):
            return
        old_points[:], old_ids[:] = points, ids
        breaks = np.flatnonzero(np.diff(changed) > 1)
        starts = changed[np.concatenate(([0], breaks + 1))].tolist()
        ends = (changed[np.concatenate((breaks, [len(changed) - 1]))] + 1).tolist()
        looks = ids.tolist()
        done = -_BRIDGE_CELLS - 1
        for start, end in zip(starts, ends, strict=True):
            if start - done > _BRIDGE_CELLS or not self._cross(pen, content, looks, done, start):
                pen.go(row, column + start)
            self._write(pen, content, looks, start, end)
            # After the last column the cursor's place depends on the terminal.
            pen.at = (row, column + end) if column + end < width else None
            done = end

    def _write(self, pen: Pen, content: str, looks: list[int], at: int, end: int) -> None:
        # Mostly a few cells: a loop is quicker there than an array.
        while at < end:
            edge = at + 1
            while edge < end and looks[edge] == looks[at]:
                edge += 1
            words = content[at:edge]
            pen.take(self._appearances, looks[at], blank=not words.strip(" "))
            pen.out.append(words)
            at = edge

    def _cross(self, pen: Pen, content: str, looks: list[int], start: int, end: int) -> bool:
        """Write cells that stay as they are, where that takes fewer bytes than to jump over them.

        In a map each of them may need a colour of its own.
        """
        before, ink = len(pen.out), pen.ink
        number, blank = looks[end], content[end] == " "
        jump, _ = self._appearances.change(ink, number, blank=blank)
        self._write(pen, content, looks, start, end)
        on, _ = self._appearances.change(pen.ink, number, blank=blank)
        written = len("".join(pen.out[before:]).encode())
        if written + len(on) < len(ahead(end - start)) + len(jump):
            return True
        del pen.out[before:]
        pen.ink = ink
        return False

    def _whole(
        self,
        pen: Pen,
        row: int,
        column: int,
        parts: Sequence[Segment],
        system: ColorSystem,
    ) -> None:
        """A part with wide or zero-width characters: sent as it is, remembered as unknown."""
        pen.go(row, column)
        for part in parts:
            number = self._appearances.number(part.style, system)
            pen.take(self._appearances, number, blank=False)
            pen.out.append(part.text)
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
