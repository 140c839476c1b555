"""Drives the viewer without a terminal: a fake session, a clock the test turns, the screen."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

from textual.pilot import Pilot

from tests.tui.fake import FakeRun, FakeSession
from tuimon.tui.app import TuimonApp, ViewerOptions
from tuimon.tui.draw.glyphs import BRAILLE, GlyphSet
from tuimon.tui.draw.theme import FULL, Look
from tuimon.tui.keeping import Remember
from tuimon.tui.picking import Choices
from tuimon.view.frame import Frame

# So slow that no tick falls into a test: the test calls `refresh` itself.
_NO_TICKS_HZ = 0.001


@dataclass
class Clock:
    """Time as the test says."""

    now_s: float = 100.0

    def __call__(self) -> float:
        return self.now_s


@dataclass
class Driven:
    """A running viewer."""

    app: TuimonApp
    pilot: Pilot[None]
    session: FakeSession
    clock: Clock

    async def press(self, *keys: str) -> str:
        """Press keys, wait until they are handled, return the screen."""
        await self.pilot.press(*keys)
        await self.pilot.pause()
        return self.text

    async def show(self, frame: Frame) -> str:
        """Draw another frame, return the screen."""
        self.session.current = frame
        self.clock.now_s += 2  # longer than any panel rests
        self.app.refresh_picture()
        await self.pilot.pause()
        return self.text

    async def until_sent(self, count: int) -> None:
        """Wait until so many commands have reached the session."""
        for _ in range(500):
            if len(self.session.sent) >= count and not self.app.bridge.is_sending:
                return
            await self.pilot.pause(0.01)
        raise AssertionError(f"{len(self.session.sent)} commands sent, expected {count}")

    @property
    def text(self) -> str:
        """What the terminal shows, a line a row."""
        strips = self.app.screen._compositor.render_strips()
        return "\n".join(strip.text.rstrip() for strip in strips)


@asynccontextmanager
async def driven(
    frame: Frame | None = None,
    *,
    size: tuple[int, int] = (120, 40),
    readonly: bool = False,
    glyphs: GlyphSet = BRAILLE,
    colours: str = FULL,
    choices: Choices | None = None,
    remember: Remember = lambda **fields: None,
    problem: str = "",
) -> AsyncIterator[Driven]:
    """A viewer on a fake session at a size."""
    session = FakeSession(frame if frame is not None else FakeRun(steps=400).frame())
    clock = Clock()
    options = ViewerOptions(
        readonly=readonly,
        hz=_NO_TICKS_HZ,
        choices=choices,
        remember=remember,
        problem=problem,
        dump_folder=lambda f: f"/data/dumps/{f.step}",
    )
    app = TuimonApp(session, Look(colours=colours, glyphs=glyphs), clock=clock, options=options)
    async with app.run_test(size=size) as pilot:
        await pilot.pause()
        yield Driven(app, pilot, session, clock)
