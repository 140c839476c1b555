"""Questions and lines to type into: modal screens that take every key while they are open."""

from __future__ import annotations

import re
from typing import TypeVar

from textual.app import ComposeResult
from textual.events import Key, Paste
from textual.screen import ModalScreen
from textual.strip import Strip
from textual.widget import Widget

from tuimon.model.commands import AnyCommand
from tuimon.model.text import plain
from tuimon.tui.bridge import Clock
from tuimon.tui.draw.rows import Row, chunks, data, fit, framed, in_alphabet, text
from tuimon.tui.draw.theme import FULL, Look
from tuimon.tui.keys.hinting import Hint
from tuimon.tui.keys.reach import Question

# A key typed ahead or pasted must not confirm a dialog the person has not seen yet.
DEAF_S = 0.4
_WIDTH = 68
_PROBLEM_LINES = 4
_MAX_TYPED = 1024
_NUMBER_SO_FAR = re.compile(r"[+-]?\d*\.?\d*([eE][+-]?\d*)?", re.ASCII)

Answer = TypeVar("Answer")


class Sheet(Widget):
    """Rows in the middle of a modal screen."""

    DEFAULT_CSS = "Sheet { width: auto; height: auto; }"

    def __init__(self) -> None:
        super().__init__()
        self._strips: list[Strip] = []

    def show(self, look: Look, rows: list[Row], width: int) -> None:
        """Replace what is shown."""
        self._strips = [Strip(row, width) for row in in_alphabet(look, rows)]
        self.styles.width, self.styles.height = width, len(rows)
        self.refresh(layout=True)

    def render_line(self, y: int) -> Strip:
        """One row."""
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width)


class Dialog(ModalScreen[Answer]):
    """Base: a sheet, and every key goes to `pressed`."""

    dims = True  # what lies below, where there are colours to dim
    hints: tuple[Hint, ...] = ()  # (key, word) for the footer; none where it lies over it

    DEFAULT_CSS = "Dialog { align: center middle; }"

    def __init__(self, look: Look, clock: Clock) -> None:
        super().__init__()
        self.look = look
        self.clock = clock
        self.born_s = clock()
        self.sheet = Sheet()

    def compose(self) -> ComposeResult:
        """The sheet."""
        yield self.sheet

    def on_mount(self) -> None:
        """Textual calls this of every class of a dialog: it is not for them to override."""
        back = self.look.colour("bg")
        if self.look.colours == FULL and back:
            self.styles.background = f"{back} 60%" if self.dims else "transparent"
            self.sheet.styles.background = self.look.colour("raised")
        else:
            self.styles.background = "transparent"
            self.sheet.styles.background = "ansi_default"
        self.draw()

    def on_resize(self) -> None:
        """Fit the new size."""
        self.draw()

    @property
    def is_deaf(self) -> bool:
        """Whether the dialog is too young for a confirming key to be meant for it."""
        return self.clock() - self.born_s < DEAF_S

    def draw(self) -> None:
        """Show the present rows."""
        raise NotImplementedError

    def pressed(self, event: Key) -> None:
        """React to a key."""
        raise NotImplementedError

    def on_key(self, event: Key) -> None:
        """Every key ends here: nothing reaches the screen below."""
        event.stop()
        event.prevent_default()
        if event.key in ("ctrl+c", "ctrl+q"):
            self.app.exit(return_code=130)
            return
        self.pressed(event)


class TypedLine:
    """One line of typed text with a cursor; a `proposal` gives way to the first thing typed."""

    def __init__(
        self, content: str = "", *, proposal: bool = False, is_number: bool = False
    ) -> None:
        self.content = content
        self.at = len(content)
        self.is_proposal = proposal
        self.is_number = is_number
        self.problem = ""  # why the newest thing typed was not taken

    def insert(self, typed: str) -> None:
        """Put text in at the cursor; what cannot be in a number leaves a line for one as it is."""
        clean = plain(typed.strip() if self.is_number else typed, _MAX_TYPED)
        before, after = self.content[: self.at], self.content[self.at :]
        if self.is_proposal:
            before = after = ""
        clean = clean[: _MAX_TYPED - len(before) - len(after)]
        if self.is_number and not _NUMBER_SO_FAR.fullmatch(before + clean + after):
            self.problem = f"a number is asked for: {clean[:20]!r} was not taken"
            return
        self.problem, self.is_proposal = "", False
        self.content, self.at = before + clean + after, len(before) + len(clean)

    def press(self, event: Key) -> bool:
        """React to an editing key; False when the key does not edit."""
        moves = {"left": self.at - 1, "right": self.at + 1, "home": 0, "ctrl+a": 0}
        moves |= {"end": len(self.content), "ctrl+e": len(self.content)}
        self.problem = ""
        if event.key in moves:
            self.at = max(0, min(moves[event.key], len(self.content)))
            self.is_proposal = False
        elif self.is_proposal and event.key in ("backspace", "delete"):
            self._clear()
        elif event.key == "backspace":
            self.content = self.content[: max(0, self.at - 1)] + self.content[self.at :]
            self.at = max(0, self.at - 1)
        elif event.key == "delete":
            self.content = self.content[: self.at] + self.content[self.at + 1 :]
        elif event.key == "ctrl+u":
            self.content, self.at = self.content[self.at :], 0
            self.is_proposal = False
        elif event.is_printable and event.character:
            self.insert(event.character)
        else:
            return False
        return True

    def row(self, look: Look, width: int) -> Row:
        """The line with its cursor, scrolled so that the cursor is in sight."""
        if self.is_proposal:
            shown = self.content[-(width - 1) :]
            row = [data(look, shown, "on_level", "key")]
            return fit(look, row, width, pad=look.style("text", "selected"))
        start = max(0, self.at - width + 2)
        before = self.content[start : self.at]
        under = self.content[self.at : self.at + 1] or " "
        after = self.content[self.at + 1 :]
        parts = [
            data(look, before, "strong", "selected"),
            data(look, under, "on_level", "key"),
            data(look, after, "strong", "selected"),
        ]
        return fit(look, parts, width, pad=look.style("text", "selected"))

    def _clear(self) -> None:
        self.content, self.at, self.is_proposal = "", 0, False


class QuestionDialog(Dialog[AnyCommand | None]):
    """Asks before a command goes to the training; answers with the command or None."""

    def __init__(self, look: Look, clock: Clock, question: Question) -> None:
        super().__init__(look, clock)
        self.question = question
        self.line = TypedLine(question.default, proposal=True, is_number=question.is_number)
        self.problem = ""
        typed = bool(question.label)
        self.hints = (
            ("enter" if typed else "y", "send"),
            ("esc" if typed else "n esc", "cancel"),
        )

    def draw(self) -> None:
        """The question in its frame."""
        look, question = self.look, self.question
        width = max(20, min(_WIDTH, self.app.size.width - 4))
        inner = width - 2
        column = 1 + max(8, *(len(word) for word, _ in question.lines), len(question.label))
        room = max(4, inner - column - 4)
        body: list[Row] = [[]]
        for word, value in question.lines:
            head = text(look, f"  {word:<{column}}", "dim")
            for index, chunk in enumerate(chunks(plain(value), room)):
                lead = head if index == 0 else text(look, " " * (2 + column))
                body.append([lead, text(look, chunk, "strong" if index == 0 else "text")])
        if question.label:
            label = text(look, f"  {question.label:<{column}}", "dim")
            body += [[], [label, *self.line.row(look, room)]]
        for line in chunks(plain(self.problem), inner - 4)[:_PROBLEM_LINES]:
            body.append([text(look, "  "), data(look, line, "bad", bold=True)])
        (send, _), (cancel, _) = self.hints
        foot = [
            text(look, send, "key", bold=True),
            text(look, " send   ", "text"),
            text(look, cancel.replace(" ", ", "), "key", bold=True),
            text(look, " cancel", "text"),
        ]
        title = [text(look, question.title, "warn", bold=True)]
        self.sheet.show(
            look, framed(look, body, width, title=title, foot_right=foot, focused=True), width
        )

    def pressed(self, event: Key) -> None:
        """Send, cancel, or edit the line."""
        confirm = "enter" if self.question.label else "y"
        if event.key == confirm:
            if self.is_deaf:
                self._say(f"asked just now: {confirm} once more sends it")
            else:
                self._confirm()
        elif event.key == "escape" or (not self.question.label and event.key in ("n", "q")):
            self.dismiss(None)
        elif not self.question.label:
            key = event.character if event.is_printable else event.key
            self._say(f"{key} does nothing here: y sends, n or esc cancels")
        elif self.line.press(event):
            self._say(self.line.problem)

    def _say(self, problem: str) -> None:
        self.problem = problem
        self.draw()

    def _confirm(self) -> None:
        answer = self.question.answer(self.line.content)
        if isinstance(answer, str):
            self._say(answer)
        else:
            self.dismiss(answer)

    def on_paste(self, event: Paste) -> None:
        """Pasted text goes into the line, never past it."""
        event.stop()
        if self.question.label and not self.is_deaf:
            self.line.insert(event.text)
            self._say(self.line.problem)
