"""The viewer on a recording: its keys play and seek, and none of them reaches a training."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from textual.pilot import Pilot

from tests.tui.driving import Clock
from tests.unit.view.test_replay import BAD, Stopwatch, a_run, write_recording
from tuimon.feed.recording import read_recording
from tuimon.tui.app import TuimonApp, ViewerOptions
from tuimon.tui.draw.glyphs import BRAILLE
from tuimon.tui.draw.theme import FULL, Look
from tuimon.tui.keys.actions import ACTIONS, REPLAYING, actions, bindings
from tuimon.tui.keys.playback import STEERING
from tuimon.tui.once import paint
from tuimon.view.replay import END, ReplaySession


class Played:
    """A viewer of a recording."""

    def __init__(self, app: TuimonApp, pilot: Pilot[None], watch: Stopwatch) -> None:
        self.app, self.pilot, self.watch = app, pilot, watch

    async def press(self, *keys: str) -> str:
        await self.pilot.press(*keys)
        return await self.look()

    async def look(self) -> str:
        """The screen, once what was asked for has been reached."""
        for _ in range(200):
            self.app.refresh_picture()
            if not self.session.is_busy:
                break
        await self.pilot.pause()
        rows = paint(self.app.scene, 120, 40)
        return "\n".join("".join(part.text for part in row) for row in rows)

    @property
    def session(self) -> ReplaySession:
        found = self.app.bridge.playback
        assert isinstance(found, ReplaySession)
        return found

    @property
    def step(self) -> int | None:
        return self.app.bridge.frame.step


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("recorded") / "run"
    write_recording(folder, a_run(2000))
    return folder


@asynccontextmanager
async def played(folder: Path, *, other: str = "") -> AsyncIterator[Played]:
    watch = Stopwatch()
    session = ReplaySession(read_recording(folder), path=folder, playing=False, stopwatch=watch)
    options = ViewerOptions(
        readonly=True,
        replays=True,
        hz=0.001,
        open_run=lambda name: ReplaySession(read_recording(Path(name)), at=END, playing=False),
        other=other,
    )
    app = TuimonApp(session, Look(colours=FULL, glyphs=BRAILLE), clock=Clock(), options=options)
    async with app.run_test(size=(120, 40)) as pilot:
        yield Played(app, pilot, watch)


def test_the_keys_of_a_recording() -> None:
    shown = actions(readonly=True, replays=True)
    keys = [key for action in shown for key in action.keys]
    assert len(keys) == len(set(keys))
    assert not any(action.needs_training for action in shown)
    assert {action.id for action in REPLAYING} == {*STEERING, "go_to"}
    assert len(list(bindings(readonly=True, replays=True))) == len(keys)
    assert not {action.id for action in REPLAYING} & {action.id for action in ACTIONS}


async def test_play_pause_speed_and_step(folder: Path) -> None:
    async with played(folder) as viewer:
        shown = await viewer.press(".")
        assert viewer.step == 0
        assert "REPLAY" in shown and "READ-ONLY" not in shown and "1×" in shown
        await viewer.press("space")
        viewer.watch.now_s += 0.4
        await viewer.look()
        assert viewer.step == 4
        shown = await viewer.press(">", ">", ">")
        assert "8×" in shown
        viewer.watch.now_s += 0.5
        await viewer.look()
        assert viewer.step == 44
        shown = await viewer.press("p", "<", "<", "<", "<")
        assert "1/2×" in shown
        viewer.watch.now_s += 0.5
        await viewer.look()
        assert viewer.step == 44
        await viewer.press(".")
        assert viewer.step == 45


async def test_seek_by_keys_by_events_and_by_number(folder: Path) -> None:
    async with played(folder) as viewer:
        await viewer.press("L", "L")
        assert viewer.step == 200  # the second key counts from where the first one was heading
        await viewer.press("n")
        assert viewer.step == BAD[0]
        await viewer.press("n")
        assert viewer.step == BAD[1]
        shown = await viewer.press("n")
        assert viewer.step == BAD[1]
        assert "nothing critical after this step" in shown
        await viewer.press("N")
        assert viewer.step == BAD[0]
        await viewer.press("J", *"1,234", "enter")
        assert viewer.step == 1234
        await viewer.press("H")
        assert viewer.step == 1134
        shown = await viewer.press("J", *"soon", "enter")
        assert "a step is a number" in shown
        shown = await viewer.press("J", *"end", "enter")
        assert "EXITED" in shown
        assert viewer.step == 1999


async def test_help_and_palette_hold_the_keys_of_a_recording(folder: Path) -> None:
    async with played(folder) as viewer:
        await viewer.press("?")
        text = "\n".join(
            "".join(part.text for part in viewer.app.screen.sheet.render_line(y))  # type: ignore[attr-defined]
            for y in range(40)
        )
        assert "play, pause" in text and "clipping" not in text


async def test_another_recording_is_laid_over(folder: Path, tmp_path: Path) -> None:
    write_recording(tmp_path / "second", a_run(300))
    async with played(folder, other=str(tmp_path / "second")) as viewer:
        for _ in range(500):
            await viewer.look()
            other = viewer.app.scene.other
            if other is not None and other.step == 299:
                break
            await viewer.pilot.pause(0.01)
        assert other is not None
        assert (other.step, viewer.app.scene.other_name) == (299, "night")
