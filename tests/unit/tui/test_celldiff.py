"""The cell diff: the terminal ends up showing what the update says, with few bytes."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pyte
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rich.color import ColorSystem
from rich.console import Console
from rich.segment import Segment
from rich.style import Style
from textual._compositor import ChopsUpdate, CompositorUpdate, LayoutUpdate
from textual.geometry import Region
from textual.strip import Strip

from tuimon.tui.celldiff import ChangedCells, ScreenMemory

WIDTH, HEIGHT = 20, 4
STYLES = (
    Style(),
    Style(color="#d70000", bold=True),
    Style(color="#afd7ff", bgcolor="#121212"),
    Style(bgcolor="#303030"),
    Style(reverse=True),
    Style(color="#000000", bgcolor="#875f00"),
    Style(color="#875f00", bgcolor="#303030"),
    Style(color="#303030", bgcolor="#875f00", underline=True),
    Style(bold=True, bgcolor="#875f00"),
)
Cells = list[list[tuple[str, int]]]


def strips_of(cells: Cells) -> list[list[Strip]]:
    """Rows of (character, style index) as strips of one-cell segments."""
    return [[Strip([Segment(c, STYLES[s]) for c, s in row])] for row in cells]


def whole(cells: Cells) -> LayoutUpdate:
    """An update of the whole screen."""
    return LayoutUpdate(strips_of(cells), Region(0, 0, WIDTH, HEIGHT))


class Terminal:
    """A pyte screen fed by the memory."""

    def __init__(self) -> None:
        self.screen = pyte.Screen(WIDTH, HEIGHT)
        self.stream = pyte.Stream(self.screen)
        self.memory = ScreenMemory()

    def take(self, update: CompositorUpdate) -> str:
        """Apply an update, return what was written."""
        written = self.memory.changes(update, ColorSystem.TRUECOLOR)
        assert written is not None
        self.stream.feed(written)
        return written

    def shows(self, cells: Cells) -> bool:
        """Whether characters and looks are those of the cells, each drawn by itself."""
        drawn = pyte.Screen(WIDTH, HEIGHT)
        stream = pyte.Stream(drawn)
        for y, row in enumerate(cells):
            stream.feed(f"\x1b[{y + 1}H")
            for c, s in row:
                stream.feed("\x1b[0m" + STYLES[s].render(c, color_system=ColorSystem.TRUECOLOR))
        return all(
            seen(self.screen.buffer[y][x]) == seen(drawn.buffer[y][x])
            for y in range(HEIGHT)
            for x in range(WIDTH)
        )


def seen(char: Any) -> tuple[object, ...]:
    """What an eye tells cells apart by: a blank one has its background and its lines."""
    front, back = (char.bg, char.fg) if char.reverse else (char.fg, char.bg)
    lines = (char.underscore, char.strikethrough, char.blink)
    if char.data == " ":
        return " ", back, lines, front if any(lines) else ""
    return char.data, back, lines, front, char.bold, char.italics


cell = st.tuples(st.sampled_from("ab⣿│N    "), st.integers(0, len(STYLES) - 1))
grid = st.lists(st.lists(cell, min_size=WIDTH, max_size=WIDTH), min_size=HEIGHT, max_size=HEIGHT)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(grid, min_size=1, max_size=4))
def test_the_terminal_shows_the_newest_update(frames: list[Cells]) -> None:
    terminal = Terminal()
    for cells in frames:
        terminal.take(whole(cells))
        assert terminal.shows(cells)


def blank() -> Cells:
    """An empty screen."""
    return [[(" ", 0)] * WIDTH for _ in range(HEIGHT)]


def test_nothing_changed_is_nothing_written() -> None:
    terminal = Terminal()
    terminal.take(whole(blank()))
    assert terminal.take(whole(blank())) == ""


def test_one_changed_cell_costs_a_few_bytes() -> None:
    terminal = Terminal()
    cells = blank()
    terminal.take(whole(cells))
    cells[2][7] = ("x", 0)
    assert len(terminal.take(whole(cells))) < 12
    assert terminal.shows(cells)


def test_a_column_of_a_map_costs_little_more_than_its_cells() -> None:
    terminal = Terminal()
    cells = blank()
    terminal.take(whole(cells))
    for row in range(HEIGHT):
        cells[row][7] = ("#", 0)
        cells[row][8] = ("N", 0)
    written = terminal.take(whole(cells))
    assert len(written) <= 8 + 6 * HEIGHT
    assert terminal.shows(cells)
    for row in range(HEIGHT):
        cells[row][HEIGHT - row] = ("x", 0)  # also back by one column each
    terminal.take(whole(cells))
    assert terminal.shows(cells)


def test_blanks_of_two_colours_take_turns_by_reverse_video() -> None:
    terminal = Terminal()
    cells = blank()
    terminal.take(whole(cells))
    cells[1] = [(" ", 3), (" ", 5)] * (WIDTH // 2)
    written = terminal.take(whole(cells))
    assert len(written) < 40 + 6 * WIDTH
    assert terminal.shows(cells)
    cells[1][4] = ("N", 5)  # and text among them is what it is
    terminal.take(whole(cells))
    assert terminal.shows(cells)


def test_sixteen_colours_are_never_swapped() -> None:
    """Not every terminal has the bright ones behind the text as well."""
    cells = [[(" ", 3), (" ", 5)] * (WIDTH // 2) for _ in range(HEIGHT)]
    written = ScreenMemory().changes(whole(cells), ColorSystem.STANDARD)
    assert written and "\x1b[7" not in written


def test_cells_that_stay_are_jumped_over_where_their_colours_would_cost_more() -> None:
    terminal = Terminal()
    cells = blank()
    cells[0] = [(" ", s) for s in (3, 5, 6, 3, 5)] + [(" ", 0)] * (WIDTH - 5)
    terminal.take(whole(cells))
    cells[0][0] = cells[0][4] = ("x", 6)
    written = terminal.take(whole(cells))
    assert "\x1b[3C" in written and len(written) < 50
    assert terminal.shows(cells)
    cells[0][10] = cells[0][12] = ("x", 0)
    assert "x x" in terminal.take(whole(cells))


def test_chops_of_a_row_are_joined_and_holes_are_left_alone() -> None:
    terminal = Terminal()
    cells = blank()
    terminal.take(whole(cells))
    new = {0: Strip([Segment("ab")]), 2: Strip([Segment("c")]), 3: None, 9: Strip([Segment("z")])}
    terminal.take(ChopsUpdate([{}, new, {}, {}], [(1, 0, 10)], [[], [2, 3, 9, 10], [], []]))
    assert terminal.screen.display[1] == "abc      z" + " " * 10


def test_wide_characters_are_sent_and_then_overwritten() -> None:
    terminal = Terminal()
    row = [Strip([Segment("層層" + " " * (WIDTH - 4))])]
    rest = strips_of(blank())[1:]
    terminal.take(LayoutUpdate([row, *rest], Region(0, 0, WIDTH, HEIGHT)))
    assert terminal.screen.display[0].startswith("層層")
    terminal.take(whole(blank()))
    assert terminal.shows(blank())


def test_after_forgetting_everything_is_sent_again() -> None:
    terminal = Terminal()
    first = terminal.take(whole(blank()))
    terminal.memory.forget()
    assert terminal.take(whole(blank())) == first


def test_an_unknown_shape_goes_out_as_textual_writes_it() -> None:
    class Strange(CompositorUpdate):
        def render_segments(self, console: Console) -> str:
            return "stock"

    memory = ScreenMemory()
    console = Console(file=io.StringIO(), color_system="truecolor")
    assert ChangedCells(Strange(), memory).render_segments(console) == "stock"


@pytest.mark.parametrize("system", list(ColorSystem))
def test_every_number_of_colours(system: ColorSystem) -> None:
    written = ScreenMemory().changes(whole([[("x", 2)] * WIDTH] * HEIGHT), system)
    assert written and "x" in written


def test_exact_palette_colours_are_short() -> None:
    cells = blank()
    cells[0][0] = ("x", 1)
    written = ScreenMemory().changes(whole(cells), ColorSystem.TRUECOLOR)
    assert written is not None and "38;5;160" in written
    assert np.all([ord(char) < 128 for char in written])
