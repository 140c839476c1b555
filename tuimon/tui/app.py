"""The viewer on a terminal: it puts panels together, passes keys on, and draws what changed."""

from __future__ import annotations

import gc
import os
from typing import ClassVar

from rich.console import RenderableType
from textual import events
from textual._compositor import CompositorUpdate
from textual.binding import Binding
from textual.geometry import Size
from textual.screen import Screen

from tuimon.tui.bridge import Bridge, Clock, RunSession
from tuimon.tui.celldiff import ChangedCells, ScreenMemory
from tuimon.tui.draw.theme import FULL, NONE, Look
from tuimon.tui.driver import SafeDriver
from tuimon.tui.keeping import KEEPS, recall, remembered
from tuimon.tui.keys.actions import bindings
from tuimon.tui.keys.asking import Asking
from tuimon.tui.keys.choices import CHOICES, focusable, settle_focus
from tuimon.tui.keys.mouse import pointed, pulled
from tuimon.tui.keys.playback import STEERING, steer
from tuimon.tui.options import ViewerOptions as ViewerOptions
from tuimon.tui.pane import Pane
from tuimon.tui.panels.ranks import rank_wanted
from tuimon.tui.panels.registry import make_panel
from tuimon.tui.picking import fresh, look_around, picked
from tuimon.tui.scene import RUNS, Scene
from tuimon.tui.screens import Box, arrange
from tuimon.tui.second import SecondRun
from tuimon.tui.signs import Signs
from tuimon.tui.taking import take
from tuimon.view.frame import Frame

UNFOCUSED_HZ = 4.0
DIALOG_HZ = 2.0  # a dimmed background doubles the cost of a frame


class Picture(Screen[None], inherit_bindings=False):
    """The screen that holds the panes; tab and escape are the table's, not Textual's."""


class TuimonApp(Asking):
    """Composition and delegation only: panels draw, `choices` and `reach` decide."""

    AUTO_FOCUS = None
    ENABLE_COMMAND_PALETTE = False
    # Also while a dialog takes the keys.
    BINDINGS: ClassVar = [Binding("ctrl+z", "do('suspend')", show=False, priority=True)]
    CSS = "Screen { layout: vertical; overflow: hidden; }"

    def __init__(
        self,
        session: RunSession,
        look: Look,
        *,
        clock: Clock,
        options: ViewerOptions | None = None,
    ) -> None:
        native = look.colours != FULL
        super().__init__(driver_class=SafeDriver, ansi_color=True if native else None)
        self.bridge = Bridge(session, clock)
        self.options = options or ViewerOptions()
        self.clock = clock
        price = self.options.price_per_hour
        readonly = self.options.readonly
        self.scene = Scene(Frame(), look, readonly=readonly, price_per_hour=price)
        self.scene.replays = self.options.replays
        recall(self.scene, self.options.kept)
        if self.options.problem:
            self.bridge.say(self.options.problem)
        if self.options.picks_first:
            self.scene.screen = self.scene.focus = RUNS
        self.boxes: list[Box] = []
        self.failure: BaseException | None = None
        self.panes: dict[str, Pane] = {}
        self.second = SecondRun(self.options.open_run, self.options.other)
        self.signs = Signs(self.options.signs, os.environ)
        self._has_focus = True
        self._drawn_s = float("-inf")
        self._memory = ScreenMemory()
        for key, action in bindings(readonly=readonly, replays=self.options.replays):
            self.bind(key, f"do('{action.id}')", description=action.description)

    def get_default_screen(self) -> Screen[None]:
        """The one screen below all dialogs."""
        return Picture()

    def on_mount(self) -> None:
        """First picture, then one tick for everything."""
        self._paint_background()
        self.refresh_picture()
        self.set_interval(1 / self.options.hz, self.tick)
        self.app_resume_signal.subscribe(self, lambda _: self._repaint())
        gc.freeze()
        gc.enable()

    def on_resize(self, event: events.Resize) -> None:
        """Lay the panels out anew; `size` itself changes only after this."""
        if self.screen_stack:
            self.draw(event.size)

    def on_app_blur(self, event: events.AppBlur) -> None:
        """Nobody looks: draw less often."""
        self._has_focus = False

    def on_app_focus(self, event: events.AppFocus) -> None:
        """Somebody looks again."""
        self._has_focus = True

    def tick(self) -> None:
        """Drain the session always; draw at the rate the situation deserves."""
        if not self.screen_stack or not self.is_running:
            return
        frame = self.bridge.tick()
        self.bridge.renew_hold()
        self._sign(frame)
        rate = self.options.hz
        if not self._has_focus:
            rate = min(rate, UNFOCUSED_HZ)
        if len(self.screen_stack) > 1:
            rate = min(rate, DIALOG_HZ)
        # A tick that comes a little early still counts, or 10 Hz would become 5.
        if self.clock() - self._drawn_s < 0.9 / rate:
            return
        self._take(frame)
        self.draw()

    def _sign(self, frame: Frame) -> None:
        driver = self._driver
        if not isinstance(driver, SafeDriver) or driver.is_backed_up:
            return
        if told := self.signs.changes(frame, self.scene.look.glyphs):
            driver.write(told)

    def refresh_picture(self) -> None:
        """Drain and draw now."""
        self._take(self.bridge.tick())
        self.draw()

    def _take(self, frame: Frame) -> None:
        look_around(self.scene, self.options.choices)
        if words := self.second.tick(self.scene):
            self.bridge.say(words, "bad")
        take(self.scene, frame, is_free=len(self.screen_stack) < 2)

    def draw(self, size: Size | None = None) -> None:
        """Place the panels and let each draw what changed; later, while the terminal is busy."""
        busy = isinstance(self._driver, SafeDriver) and self._driver.is_backed_up
        if busy and self.boxes:
            return
        scene, size = self.scene, size or self.size
        self._drawn_s = self.clock()
        scene.hint, scene.notice = self.footer_hints(), self.bridge.notice
        boxes = arrange(scene, size.width, size.height)
        if scene.focus not in focusable(boxes):
            settle_focus(scene, boxes)
            scene.hint = self.footer_hints()
            boxes = arrange(scene, size.width, size.height)
        if boxes != self.boxes:
            self._place(boxes)
        for box in boxes:
            live = scene.frozen and box.panel in ("header", "footer")
            shown = scene.with_frame(self.bridge.frame) if live else scene
            self.panes[box.panel].sync(shown, self._drawn_s)

    def _place(self, boxes: list[Box]) -> None:
        self.boxes = boxes
        wanted = {box.panel for box in boxes}
        for name, pane in self.panes.items():
            if name not in wanted:
                pane.display = False
        fresh: list[Pane] = []
        for box in boxes:
            if box.panel not in self.panes:
                self.panes[box.panel] = Pane(make_panel(box.panel))
                fresh.append(self.panes[box.panel])
            self.panes[box.panel].place(box)
        if fresh:
            self.screen_stack[0].mount(*fresh)

    def _paint_background(self) -> None:
        look = self.scene.look
        back = look.colour("bg") if look.colours == FULL else "ansi_default"
        self.screen_stack[0].styles.background = back
        if look.colours == NONE:
            self.screen_stack[0].styles.color = "ansi_default"

    def action_do(self, name: str) -> None:
        """Everything a key of the table does."""
        if not self.takes(name):
            return
        scene = self.scene
        scene.revision += 1
        is_pick = name == "open" and scene.screen == RUNS
        choice = None if is_pick else CHOICES.get(name)
        if choice is not None:
            if words := choice(scene, self.boxes):
                self.bridge.say(words, "key" if name == "sort" else "warn")
            if name == "theme":
                self._paint_background()
            if name in KEEPS and not words:
                self._keep(name)
            elif name == "freeze":
                self._take(self.bridge.frame)
            elif name == "runs":
                look_around(scene, self.options.choices)
        elif is_pick:
            self._pick()
            return
        elif name == "quit":
            self.exit()
            return
        elif name == "suspend":
            self.action_suspend_process()
            return
        elif self.asks(name):
            return
        elif self.bridge.playback is not None and name in STEERING:
            steer(self.bridge.playback, name)
            self._take(self.bridge.tick())
        elif name == "copy":
            self._copy()
        elif name == "rank":
            self.bridge.look_at(rank_wanted(scene))
        elif name in ("write", "picture"):
            self._write(name)
        else:
            self._reach(name)
        self.draw()

    def on_key(self, event: events.Key) -> None:
        """Keys typed so fast after `/` that they came before its line belong into it.

        Other dialogs get no such keys: what was typed ahead must not confirm anything.
        """
        from tuimon.tui.keys.palette import PaletteDialog
        from tuimon.tui.keys.typed import FilterDialog

        if isinstance(self.screen, FilterDialog | PaletteDialog):
            event.prevent_default()
            self.screen.pressed(event)

    def action_help_quit(self) -> None:
        """ctrl+c ends the viewer; the training goes on."""
        self.exit(return_code=130)

    def on_pane_pointed(self, message: Pane.Pointed) -> None:
        """The mouse focuses and selects; its wheel moves rows or zooms time."""
        pointed(self.scene, self.boxes, self.panes, message)
        self.draw()

    def on_pane_pulled(self, message: Pane.Pulled) -> None:
        """The mouse moves the edge between two panels."""
        pulled(self.scene, self.boxes, message)
        self._keep("taller")
        self.draw()

    def _keep(self, name: str) -> None:
        said, colour = remembered(self.scene, name, self.options.remember)
        if said:
            self.bridge.say(said, colour)

    def _pick(self) -> None:
        session = picked(self.scene, self.options.choices)
        if isinstance(session, str):
            self.bridge.say(session)
            self.draw()
            return
        self.bridge.close()
        self.bridge, self.scene = Bridge(session, self.clock), fresh(self.scene)
        self.refresh_picture()

    def _display(self, screen: Screen[object], renderable: RenderableType | None) -> None:
        if isinstance(renderable, CompositorUpdate):
            renderable = ChangedCells(renderable, self._memory)
            writes = self._running and not (self._closed or self._batch_count or self.is_headless)
            # Without a changed cell the marks of an update and the cursor would be written still.
            if writes and not renderable.render_segments(self.console):
                self.post_display_hook()
                return
        super()._display(screen, renderable)

    def _repaint(self) -> None:
        """The terminal lost its content: send everything again."""
        self._memory.forget()
        self.screen.refresh(layout=True)

    def _fatal_error(self) -> None:
        """Leave without a traceback on the screen: local variables may hold secrets."""
        self.failure = self._exception
        self._close_messages_no_wait()
