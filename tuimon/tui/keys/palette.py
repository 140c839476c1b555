"""Every action by its name: a line to type into, and what matches it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.events import Key, Paste

from tuimon.tui.bridge import Clock
from tuimon.tui.draw.rows import Row, data, fit, framed, shortened, text, thumb_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.actions import ACTIONS, Action, actions
from tuimon.tui.keys.dialogs import Dialog, TypedLine

_WIDTH = 72
_KEYS = 12  # cells
_SHOWN = 14  # actions at a time
_UNLISTED = ("palette",)  # it is open already


def matching(typed: str, known: Sequence[Action] = ACTIONS) -> list[Action]:
    """The actions that all typed words speak of, those that begin so first."""
    words = typed.lower().split()

    def place(action: Action) -> int | None:
        told = f"{action.description} {action.group} {action.id}".lower()
        if not all(word in told for word in words):
            return None
        return told.find(words[0]) if words else 0

    found = [(place(each), at, each) for at, each in enumerate(known) if each.id not in _UNLISTED]
    return [each for where, _, each in sorted(found, key=_order) if where is not None]


def _order(entry: tuple[int | None, int, Action]) -> tuple[int, int]:
    where, at, _ = entry
    return (0 if where == 0 else 1, at)


class PaletteDialog(Dialog[str | None]):
    """Answers with the id of an action, or None."""

    hints = (("↑ ↓", "choose"), ("enter", "does it"), ("esc", "leaves"))

    def __init__(self, look: Look, clock: Clock, *, readonly: bool, replays: bool = False) -> None:
        super().__init__(look, clock)
        self.readonly = readonly
        self.known = actions(readonly=readonly, replays=True) if replays else ACTIONS
        self.line = TypedLine()
        self.cursor = 0
        self.problem = ""

    def draw(self) -> None:
        """The line, then the actions that match."""
        look = self.look
        width = max(24, min(_WIDTH, self.app.size.width - 4))
        inner = width - 2
        room = max(1, min(_SHOWN, self.app.size.height - 8))
        found = matching(self.line.content, self.known)
        self.cursor = max(0, min(self.cursor, len(found) - 1))
        top = max(0, min(self.cursor - room // 2, len(found) - room))
        body: list[Row] = [
            [text(look, " : ", "key", bold=True), *self.line.row(look, inner - 4)],
            [],
        ]
        body += [
            self._entry(found[at], at == self.cursor, inner) if at < len(found) else []
            for at in range(top, top + room)
        ]
        words = self.problem or ("" if found else "no action has such a name")
        body.append([text(look, "  "), data(look, words, "bad", bold=True)])
        (do, does), (leave, leaves) = self.hints[-2:]
        foot = [
            text(look, do, "key", bold=True),
            text(look, f" {does}   ", "text"),
            text(look, leave, "key", bold=True),
            text(look, f" {leaves}", "text"),
        ]
        title = [text(look, "actions", "strong", bold=True)]
        reading = [[text(look, f"{len(found):,}", "dim")]]
        thumb = thumb_of(top, room, len(found))
        rows = framed(
            look,
            body,
            width,
            title=title,
            reading=reading,
            foot_right=foot,
            focused=True,
            thumb=thumb and (thumb[0] + 2, thumb[1] + 2),  # below the line and a blank
        )
        self.sheet.show(look, rows, width)

    def _entry(self, action: Action, selected: bool, width: int) -> Row:
        look = self.look
        back = "selected" if selected else ""
        is_closed = self.readonly and action.needs_training
        colour = "faint" if is_closed else "strong" if selected else "text"
        tail = " (read-only)" if is_closed else " (asks)" if action.asks_first else ""
        room = width - _KEYS - 2 - len(tail)
        parts = [
            text(look, f"  {' '.join(action.keys):<{_KEYS}}", "key", back, bold=True),
            text(look, shortened(look, action.description, room), colour, back),
            text(look, tail, "dim", back),
        ]
        return fit(look, parts, width, pad=look.style("text", back))

    def pressed(self, event: Key) -> None:
        """Edit, move, do, leave."""
        turn = {"down": 1, "ctrl+n": 1, "up": -1, "ctrl+p": -1}.get(event.key)
        if event.key == "enter":
            if not self.is_deaf:
                self._confirm()
            return
        if event.key == "escape":
            self.dismiss(None)
            return
        if turn is not None:
            self.cursor += turn
        elif self.line.press(event):
            self.cursor = 0
        self.problem = ""
        self.draw()

    def _confirm(self) -> None:
        found = matching(self.line.content, self.known)
        if not found:
            return
        action = found[self.cursor]
        if self.readonly and action.needs_training:
            self.problem = "this viewer is read-only: nothing reaches the training"
            self.draw()
        else:
            self.dismiss(action.id)

    def on_paste(self, event: Paste) -> None:
        """Pasted text is typed text here."""
        event.stop()
        self.line.insert(event.text)
        self.draw()
