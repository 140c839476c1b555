"""The screen as text at three sizes, in its states, on every screen: a diff to review."""

from __future__ import annotations

import time

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.tui.driving import driven
from tests.tui.fake import FakeRun
from tuimon.tui.draw.glyphs import ASCII
from tuimon.tui.draw.theme import NONE
from tuimon.view.frame import GONE, PAUSED, WAITING, Clip, Exit, Frame


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of day in the log do not depend on where the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize("size", [(80, 24), (120, 40), (200, 50)], ids=str)
async def test_overview_of_an_incident(size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    async with driven(FakeRun(steps=2000, incident=True).frame(), size=size) as viewer:
        assert viewer.text == snapshot


@pytest.mark.parametrize("key", ["2", "3", "5", "question_mark", "c", "Q"])
async def test_screens_and_dialogs(key: str, snapshot: SnapshotAssertion) -> None:
    run = FakeRun(steps=2000, incident=True)
    clip = Clip("user", 1.0) if key == "c" else Clip("off", None)
    async with driven(run.frame(clip=clip)) as viewer:
        assert await viewer.press(key) == snapshot


@pytest.mark.parametrize(
    "frame",
    [
        Frame(state=WAITING, state_detail="no run yet: start one with `tuimon run SCRIPT`"),
        FakeRun(steps=300).frame(state=PAUSED, steps_per_s=None, eta_s=None),
        FakeRun(steps=300).frame(state=GONE, exit=Exit("killed", 137, "killed by SIGKILL")),
    ],
    ids=["waiting", "paused", "gone"],
)
async def test_states(frame: Frame, snapshot: SnapshotAssertion) -> None:
    async with driven(frame, size=(80, 24)) as viewer:
        assert viewer.text == snapshot


async def test_without_colour_and_in_ascii(snapshot: SnapshotAssertion) -> None:
    frame = FakeRun(steps=2000, incident=True).frame()
    async with driven(frame, size=(80, 24), glyphs=ASCII, colours=NONE) as viewer:
        assert viewer.text.isascii()
        assert viewer.text == snapshot


async def test_layers_in_80_columns(snapshot: SnapshotAssertion) -> None:
    async with driven(FakeRun(steps=2000, incident=True).frame(), size=(80, 24)) as viewer:
        assert await viewer.press("3") == snapshot


async def test_resizing_through_every_layout_draws_each() -> None:
    async with driven(FakeRun(steps=100, incident=True).frame()) as viewer:
        for width, height in ((80, 24), (20, 5), (200, 60), (1, 1), (99, 30), (120, 40)):
            await viewer.pilot.resize_terminal(width, height)
            await viewer.pilot.pause()
            lines = viewer.text.split("\n")
            assert len(lines) == height
            assert ("needs" in viewer.text or width < 20) == (width < 60 or height < 20)
