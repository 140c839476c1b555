"""The help: every key of this viewer in columns, and what the marks mean."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from textual.events import Key

from tuimon.tui.bridge import Clock
from tuimon.tui.draw.heatmap import cell_glyphs
from tuimon.tui.draw.rows import Row, chunks, fit, framed, text, thumb_of, width_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.actions import MOUSE, REPLAY, ROWS, TIME, TRAINING, VIEWS, Action, actions
from tuimon.tui.keys.dialogs import Dialog
from tuimon.tui.keys.hinting import Hint
from tuimon.tui.scrolling import FAR
from tuimon.view.frame import ALL_ZERO, CELL_NAN, CELL_NEG_INF, CELL_POS_INF, NO_DATA

_WIDTH = 120
_ORDER = (REPLAY, VIEWS, TIME, ROWS, TRAINING)
_KEYS = 10  # cells before the words
_COLUMN = 36  # cells: in narrower columns the words would be a word or two wide
_BLANK: list[Row] = [[]]
_TURNS = {"j": 1, "down": 1, "k": -1, "up": -1, "pagedown": 10, "pageup": -10, "g": -FAR, "G": FAR}


class HelpDialog(Dialog[None]):
    """All keys of this viewer, and what the marks mean."""

    hints: tuple[Hint, ...] = (("any key", "closes the help"),)

    def __init__(self, look: Look, clock: Clock, *, readonly: bool, replays: bool = False) -> None:
        super().__init__(look, clock)
        self.readonly = readonly
        self.replays = replays
        self.top = 0
        self._hidden = 0

    def draw(self) -> None:
        """As many columns of keys as there is room for, and a legend."""
        size, look = self.app.size, self.look
        width = max(24, min(_WIDTH, size.width))
        limits = width - 2, size.height - 2
        body = help_rows(look, *limits, readonly=self.readonly, replays=self.replays)
        room = max(1, size.height - 2)
        self._hidden = max(0, len(body) - room)
        self.top = max(0, min(self.top, self._hidden))
        note, words = "q quits the viewer only: the training goes on", "any key closes"
        if self._hidden:
            note = f"{self._hidden - self.top} lines more"
            words = "j k scroll, other keys close"
            self.hints = (("j k", "scroll"), ("other keys", "close the help"))
        rows = framed(
            look,
            body[self.top : self.top + room],
            width,
            title=[text(look, "keys", "strong", bold=True)],
            foot=[text(look, note, "dim")],
            foot_right=[text(look, words, "dim")],
            focused=True,
            thumb=thumb_of(self.top, room, len(body)),
        )
        self.sheet.show(look, rows, width)

    def pressed(self, event: Key) -> None:
        """Scroll where there is more than fits, else close."""
        turn = _TURNS.get(event.key)
        if turn is not None and self._hidden:
            self.top += turn
            self.draw()
        else:
            self.dismiss(None)


def help_rows(
    look: Look, width: int, height: int, *, readonly: bool, replays: bool = False
) -> list[Row]:
    """The body of the help: keys in columns, then the legend of marks."""
    known = actions(readonly=readonly, replays=replays)
    count = max(1, min(3, width // (_COLUMN + 1)))
    wide, blank = (width - count) // count, text(look, " ")
    blocks = [block for group in _ORDER for block in _group(look, group, wide, known)]
    columns = _flowed(blocks, count)
    if count > 1 and len(columns[0]) + 2 > height:
        columns = _flowed([block for block in blocks if block != _BLANK], count)
    rows = zip_longest(*columns, fillvalue=[])
    body = [[part for line in row for part in (blank, *fit(look, line, wide))] for row in rows]
    return [*body, _legend(look), _marks(look), *_mouse(look, width)]


def _flowed(blocks: Sequence[list[Row]], count: int) -> list[list[Row]]:
    """The blocks in so many columns of about the same height, none of them torn."""
    height = -(-sum(map(len, blocks)) // count)
    while len(columns := _packed(blocks, height)) > count:
        height += 1
    return columns


def _packed(blocks: Sequence[list[Row]], height: int) -> list[list[Row]]:
    columns: list[list[Row]] = [[]]
    for block in blocks:
        if len(columns[-1]) + len(block) > height:
            columns.append([])
        if columns[-1] or block != _BLANK:
            columns[-1] += block
    return columns


def _group(look: Look, group: str, width: int, known: Sequence[Action]) -> list[list[Row]]:
    """A blank, the heading with the first key, the other keys."""
    blocks: list[list[Row]] = []
    for action in (action for action in known if action.group == group):
        words = action.description + (" (asks)" if action.asks_first else "")
        lines: list[Row] = [] if blocks else [[text(look, group, "strong", bold=True)]]
        for index, chunk in enumerate(chunks(words, width - _KEYS)):
            keys = " ".join(action.keys) if index == 0 else ""
            lines.append([text(look, f"{keys:<{_KEYS - 1}} ", "key", bold=True), text(look, chunk)])
        blocks.append(lines)
    return [_BLANK, *blocks] if blocks else []


def _legend(look: Look) -> Row:
    table = cell_glyphs(look)
    row: Row = [text(look, " ")]
    for code, word in (
        (CELL_NAN, "NaN"),
        (CELL_POS_INF, "+Inf"),
        (CELL_NEG_INF, "-Inf"),
        (ALL_ZERO, "all zero"),
        (NO_DATA, "no data"),
    ):
        glyph, fg, bg = table[code]
        row += [text(look, glyph, fg, bg, bold=True), text(look, f" {word}  ", "dim")]
    row += [text(look, look.glyphs.above, "warn"), text(look, " off axis  ", "dim")]
    return [*row, text(look, look.glyphs.dash, "faint"), text(look, " clip", "dim")]


def _mouse(look: Look, width: int) -> list[Row]:
    """What the mouse does, in as many lines as it takes."""
    rows: list[Row] = [[text(look, " ")]]
    for what, words in MOUSE:
        part: Row = [text(look, f"{what} ", "key", bold=True), text(look, f"{words}   ", "dim")]
        if width_of([*rows[-1], *part]) > width:
            rows.append([text(look, " ")])
        rows[-1] += part
    return rows


def _marks(look: Look) -> Row:
    """What stands at the edge below a chart."""
    row: Row = [text(look, " ")]
    for glyph, colour, word in (
        (look.glyphs.mark, "warn", "command"),
        ("!", "bad", "event"),
        ("e", "dim", "epoch"),
        ("r", "key", "learning rate"),
    ):
        row += [text(look, glyph, colour, bold=True), text(look, f" {word}  ", "dim")]
    return row
