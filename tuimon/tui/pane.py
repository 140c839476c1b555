"""The one widget: it shows a panel and repaints only the rows that changed."""

from __future__ import annotations

from textual.events import Click, MouseDown, MouseScrollDown, MouseScrollUp, MouseUp, Resize
from textual.geometry import Region
from textual.message import Message
from textual.strip import Strip
from textual.widget import Widget

from tuimon.tui.draw.rows import Row, in_alphabet
from tuimon.tui.panes import Box
from tuimon.tui.scene import Panel, Scene


class Pane(Widget):
    """A panel on the screen. Owned by the app, which places it and calls `sync`."""

    DEFAULT_CSS = "Pane { position: absolute; }"
    ALLOW_SELECT = False

    class Pointed(Message):
        """The mouse clicked or turned its wheel over a panel."""

        def __init__(self, panel: str, turn: int, x: int, y: int) -> None:
            super().__init__()
            self.panel = panel
            self.turn = turn
            self.x, self.y = x, y

    class Pulled(Message):
        """The mouse moved an edge: at the panel's "top" or "left" by so many cells."""

        def __init__(self, panel: str, edge: str, cells: int) -> None:
            super().__init__()
            self.panel = panel
            self.edge = edge
            self.cells = cells

    def __init__(self, panel: Panel) -> None:
        super().__init__()
        self.panel = panel
        self.box: Box | None = None
        self._rows: list[Row] = []
        self._strips: list[Strip] = []
        self._key: object = None
        self._place: object = None
        self._revision = -1
        self._grip: tuple[str, int, int] | None = None
        self._drawn_s = float("-inf")

    def place(self, box: Box) -> None:
        """Move to a box and become visible."""
        if box != self.box:
            self.box = box
            self.styles.offset = (box.x, box.y)
            self.styles.width, self.styles.height = box.width, box.height
        self.display = True

    def sync(self, scene: Scene, now_s: float) -> None:
        """Draw what changed since the last call; nothing at all when nothing did.

        Args:
            now_s: monotonic time. Newer data alone is drawn once in the panel's `rest_s`.
        """
        box = self.box
        if box is None or not self.display:
            return
        focused = self.panel.can_focus and scene.focus == self.panel.name
        place = (box, scene.look.stamp, focused, scene.frozen)
        may_wait = place == self._place and scene.revision == self._revision
        if may_wait and now_s - self._drawn_s < self.panel.rest_s:
            return
        self._revision = scene.revision
        if place == self._place and self.panel.key(scene) == self._key:
            return
        self._place, self._drawn_s = place, now_s
        drawn = self.panel.draw(scene, box.width, box.height, focused)
        rows = in_alphabet(scene.look, drawn[: box.height])
        # Drawing settles cursors and scroll offsets, which are part of the key.
        self._key = self.panel.key(scene)
        self._show(rows, box)

    def _show(self, rows: list[Row], box: Box) -> None:
        old, self._rows = self._rows, rows
        if len(old) != len(rows) or not self._strips:
            self._strips = [Strip(row, box.width) for row in rows]
            self.refresh()
            return
        dirty = [index for index, row in enumerate(rows) if row != old[index]]
        for index in dirty:
            self._strips[index] = Strip(rows[index], box.width)
        if dirty:
            self.refresh(*(Region(0, index, box.width, 1) for index in dirty))

    def render_lines(self, crop: Region) -> list[Strip]:
        """Some of the rows, as they are: a pane has no border, padding or colour of its own.

        Textual asks for all that lie between the first and the last row that changed.
        """
        width = self.size.width
        strips = [self._line(y, width) for y in crop.line_range]
        if crop.column_span != (0, width):
            strips = [strip.crop(*crop.column_span) for strip in strips]
        return strips

    def render_line(self, y: int) -> Strip:
        """One row, cut or padded to the widget's present width."""
        return self._line(y, self.size.width)

    def _line(self, y: int, width: int) -> Strip:
        if y >= len(self._strips):
            return Strip.blank(width)
        return self._strips[y].adjust_cell_length(width)

    def on_resize(self, event: Resize) -> None:
        """Textual has given the pane its box."""
        if self._rows and self.box is not None:
            self._strips = []
            self._show(self._rows, self.box)

    def on_mouse_down(self, event: MouseDown) -> None:
        """An edge is taken hold of."""
        edge = self._edge_at(event.x, event.y)
        if edge:
            self._grip = (edge, event.screen_x, event.screen_y)
            self.capture_mouse()

    def on_mouse_up(self, event: MouseUp) -> None:
        """An edge is let go, somewhere else."""
        grip, self._grip = self._grip, None
        if grip is None:
            return
        self.release_mouse()
        edge, x, y = grip
        vertical = edge in ("top", "bottom")
        cells = event.screen_y - y if vertical else event.screen_x - x
        if cells:
            self.post_message(self.Pulled(self.panel.name, edge, cells))

    def _edge_at(self, x: int, y: int) -> str:
        """Which edge of the frame a cell lies in; "" inside and in panels without a frame."""
        if not self.panel.can_focus:
            return ""
        if y == 0:
            return "top"
        if y == self.size.height - 1:
            return "bottom"
        return "left" if x == 0 else "right" if x == self.size.width - 1 else ""

    def on_click(self, event: Click) -> None:
        """A click gives the focus, and selects what is there."""
        self.post_message(self.Pointed(self.panel.name, 0, event.x, event.y))

    def on_mouse_scroll_up(self, event: MouseScrollUp) -> None:
        """The wheel moves, or zooms a chart."""
        self.post_message(self.Pointed(self.panel.name, -1, event.x, event.y))

    def on_mouse_scroll_down(self, event: MouseScrollDown) -> None:
        """The wheel moves, or zooms a chart."""
        self.post_message(self.Pointed(self.panel.name, 1, event.x, event.y))
