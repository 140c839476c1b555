"""A line at the bottom of the screen that the picture follows while somebody types into it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.cells import cell_len
from textual.events import Key, Paste

from tuimon.tui.bridge import Clock
from tuimon.tui.draw.rows import Row, data, fit, text
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.dialogs import Dialog, TypedLine
from tuimon.tui.keys.filtering import filter_line
from tuimon.tui.keys.time_choices import go_to
from tuimon.tui.scene import Scene

Say = Callable[[str], None]


def filter_dialog(scene: Scene, clock: Clock, draw: Callable[[], None]) -> FilterDialog:
    """The filter of the list that has the focus."""
    content, change = filter_line(scene)

    def changed(words: str) -> None:
        change(words)
        draw()

    draw()
    return FilterDialog(scene.look, clock, content, changed)


def step_dialog(scene: Scene, clock: Clock, draw: Callable[[], None], say: Say) -> FilterDialog:
    """A step for the crosshair, which follows what is typed."""
    before = scene.charts.cross_step

    def changed(words: str) -> None:
        say(go_to(scene, words, before) or "")
        draw()

    words = ("step", "enter stays there  esc returns")
    return FilterDialog(scene.look, clock, "", changed, words=words)


def run_dialog(scene: Scene, clock: Clock, present: str, known: Sequence[str]) -> FilterDialog:
    """The name of a run to lay over the charts; an empty line takes the present one away."""
    words = ("overlay run", "id, name or pid; empty takes it away  esc leaves")
    dialog = FilterDialog(scene.look, clock, present, lambda _: None, words=words, escaped=present)
    dialog.known = known
    return dialog


class FilterDialog(Dialog[str]):
    """One line at the bottom; what is below follows with every letter."""

    DEFAULT_CSS = "FilterDialog { align: left bottom; }"
    dims = False  # the person watches the result

    def __init__(
        self,
        look: Look,
        clock: Clock,
        content: str,
        changed: Callable[[str], None],
        *,
        words: tuple[str, str] = ("/", "enter keeps  esc clears"),
        escaped: str = "",
    ) -> None:
        """`words` are what stands before the line, and what its keys do.

        `escaped` is the answer of somebody who leaves by esc.
        """
        super().__init__(look, clock)
        self.line = TypedLine(content)
        self.changed = changed
        self.words, self.escaped = words, escaped
        self.known: Sequence[str] = ()  # answers that are offered, and that tab goes through

    def draw(self) -> None:
        """The line."""
        width = self.app.size.width
        head: Row = [text(self.look, f" {self.words[0]} ", "key", "selected", bold=True)]
        told = self.words[1]
        if 2 * cell_len(told) > width:  # the line comes first
            told = told.rpartition("; ")[2]
        tail = text(self.look, f" {told} ", "dim", "selected")
        room = max(4, width - cell_len(head[0].text) - cell_len(tail.text))
        row = [*head, *self.line.row(self.look, room), tail]
        rows = [fit(self.look, row, width)]
        if self.known:
            offered = data(self.look, "  ".join(self.known), "text", "selected")
            key = text(self.look, " tab ", "key", "selected", bold=True)
            rows.insert(
                0, fit(self.look, [key, offered], width, pad=self.look.style("text", "selected"))
            )
        self.sheet.show(self.look, rows, width)

    def pressed(self, event: Key) -> None:
        """Edit, keep or clear."""
        if event.key == "enter":
            self.dismiss(self.line.content)
        elif event.key == "escape":
            self.changed("")
            self.dismiss(self.escaped)
        elif event.key == "tab" and self.known:
            now = self.line.content
            at = self.known.index(now) + 1 if now in self.known else 0
            self.line = TypedLine(self.known[at % len(self.known)])
            self.draw()
        elif self.line.press(event):
            self.changed(self.line.content)
            self.draw()

    def on_paste(self, event: Paste) -> None:
        """Pasted text is typed text here."""
        event.stop()
        self.line.insert(event.text)
        self.changed(self.line.content)
        self.draw()
