"""The help: every key of this viewer in columns, and what the marks mean."""

from __future__ import annotations

from collections.abc import Sequence

from textual.events import Key

from tuimon.tui.actions import REPLAY, ROWS, TIME, TRAINING, VIEWS, Action, actions
from tuimon.tui.bridge import Clock
from tuimon.tui.dialogs import Dialog, chunks
from tuimon.tui.heatmap import cell_glyphs
from tuimon.tui.rows import Row, fit, framed, text
from tuimon.tui.theme import Look
from tuimon.view.frame import ALL_ZERO, CELL_NAN, CELL_NEG_INF, CELL_POS_INF, NO_DATA

_WIDTH = 104
_COLUMNS = ((REPLAY, VIEWS, TRAINING), (TIME, ROWS))
_KEYS = 12  # cells before the words
_TWO_COLUMNS = 72  # cells: below, the words of two columns would be a word or two wide


class HelpDialog(Dialog[None]):
    """All keys of this viewer, and what the marks mean."""

    def __init__(self, look: Look, clock: Clock, *, readonly: bool, replays: bool = False) -> None:
        super().__init__(look, clock)
        self.readonly = readonly
        self.replays = replays
        self.top = 0
        self._hidden = 0

    def draw(self) -> None:
        """Two columns of keys and a legend."""
        size, look = self.app.size, self.look
        width = max(24, min(_WIDTH, size.width))
        limits = width - 2, size.height - 2
        body = help_rows(look, *limits, readonly=self.readonly, replays=self.replays)
        room = max(1, size.height - 2)
        self._hidden = max(0, len(body) - room)
        self.top = max(0, min(self.top, self._hidden))
        note = "q quits the viewer only: the training goes on"
        words = "any key closes"
        if self._hidden:  # short, for a hint that does not fit is left out
            note, words = "q quits the viewer only", "j k scroll, others close"
        rows = framed(
            look,
            body[self.top : self.top + room],
            width,
            title=[text(look, "keys", "strong", bold=True)],
            foot=[text(look, note, "dim")],
            foot_right=[text(look, words, "dim")],
            focused=True,
        )
        self.sheet.show(look, rows, width)

    def pressed(self, event: Key) -> None:
        """Scroll where there is more than fits, else close."""
        turn = {"j": 1, "down": 1, "k": -1, "up": -1}.get(event.key)
        if turn is not None and self._hidden:
            self.top += turn
            self.draw()
        else:
            self.dismiss(None)


def help_rows(
    look: Look, width: int, height: int, *, readonly: bool, replays: bool = False
) -> list[Row]:
    """The body of the help: keys in two columns where there is room, then the legend of marks."""
    known = actions(readonly=readonly, replays=replays)
    if width < _TWO_COLUMNS:
        return [*_one_column(look, width, known), _legend(look), _marks(look)]
    half = (width - 2) // 2
    columns: tuple[list[Row], list[Row]] = ([], [])
    for column, groups in zip(columns, _COLUMNS, strict=True):
        for group in groups:
            lines = _group(look, group, half, known)
            column += [[], *lines] if column and lines else lines
    left, right = columns
    if max(len(left), len(right)) + 1 > height:  # too tall by groups: let them flow
        flat = [line for line in left + right if line]
        middle = -(-len(flat) // 2)
        left, right = flat[:middle], flat[middle:]
    height = max(len(left), len(right))
    left += [[] for _ in range(height - len(left))]
    right += [[] for _ in range(height - len(right))]
    body = [
        [text(look, " "), *fit(look, one, half), text(look, " "), *fit(look, two, half)]
        for one, two in zip(left, right, strict=True)
    ]
    return [*body, _legend(look), _marks(look)]


def _one_column(look: Look, width: int, known: Sequence[Action]) -> list[Row]:
    body: list[Row] = []
    for group in (group for column in _COLUMNS for group in column):
        lines = _group(look, group, width - 2, known)
        body += [[], *lines] if body and lines else lines
    return [[text(look, " "), *fit(look, line, width - 1)] for line in body]


def _group(look: Look, group: str, width: int, known: Sequence[Action]) -> list[Row]:
    found = [action for action in known if action.group == group]
    if not found:
        return []
    lines: list[Row] = [[text(look, group, "strong", bold=True)]]
    for action in found:
        words = action.description + (" (asks)" if action.asks_first else "")
        for index, chunk in enumerate(chunks(words, width - _KEYS)):
            keys = " ".join(action.keys) if index == 0 else ""
            lines.append([text(look, f"{keys:<{_KEYS - 1}}", "key", bold=True), text(look, chunk)])
    return lines


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
