"""Every screen and every state as text at three sizes, from records built by hand: to review.

Drawn by the panels alone, without a terminal or a running viewer, so that all of it takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.tui.full import full_frame
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.tui.actions import SCREENS, hints
from tuimon.tui.choices import CHOICES, settle_focus
from tuimon.tui.once import paint
from tuimon.tui.rows import width_of
from tuimon.tui.scene import Scene
from tuimon.tui.screens import arrange
from tuimon.tui.theme import Look
from tuimon.view.frame import (
    GONE,
    HELD,
    LATE,
    LOADING,
    OTHER_VERSION,
    PAUSED,
    RECONNECTING,
    SILENT,
    WAITING,
    Exit,
    Frame,
)
from tuimon.view.runs import RunGlance
from tuimon.view.series import Series

SIZES = ((120, 40), (80, 24), (60, 20))
FULL = full_frame()
CALM = full_frame(bad=False)
_STILL = {"steps_per_s": None, "eta_s": None}
STATES: dict[str, Frame] = {
    "waiting": Frame(state=WAITING),
    "loading": Frame(state=LOADING, name="llama-1b-pretrain", host="gpu-07", pid=48213),
    "late": replace(CALM, state=LATE, silent_for_s=7.0),
    "silent": replace(CALM, state=SILENT, silent_for_s=75.0, steps_per_s=None),
    "paused": replace(CALM, state=PAUSED, waits_for_s=312.0, **_STILL),
    "held": replace(FULL, state=HELD, hold_left_s=250.0, waits_for_s=50.0, **_STILL),
    "done": replace(CALM, state=GONE, exit=Exit("ok", 0, ""), **_STILL),
    "killed": replace(FULL, state=GONE, exit=Exit("killed", 137, "killed by SIGKILL"), **_STILL),
    "reconnecting": replace(CALM, state=RECONNECTING, silent_for_s=14.0, **_STILL),
    "other version": Frame(state=OTHER_VERSION, name="old-run"),
}


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Times of day do not depend on where the tests run."""
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def runs() -> tuple[RunGlance, ...]:
    """Two live runs and one that has ended."""
    loss = Series("loss")
    for step in range(200):
        loss.append(step, 4.0 / (1 + step / 40) if step != 150 else float("nan"))
    info = RunInfo("9f3c", "llama-1b", "gpu-07", 0, "/x", ranks=[RankInfo(0, 48213, 1, "1.ring")])
    return (
        RunGlance(info, "running", 199, 125.0, loss=loss, steps_per_s=10.2),
        RunGlance(replace_info(info, "77aa", "vit-b16"), "held", 12, 7265.0),
        RunGlance(replace_info(info, "0b21", "mnist"), "gone", 900, 90_000.0, "killed: no memory"),
    )


def replace_info(info: RunInfo, run_id: str, name: str) -> RunInfo:
    """The same with another name."""
    return RunInfo(run_id, name, info.host, 0, "/x", ranks=info.ranks)


def picture(frame: Frame, keys: tuple[str, ...], size: tuple[int, int]) -> str:
    """What the terminal shows after these keys."""
    scene = Scene(frame, Look(), runs=runs())
    for key in keys:
        CHOICES[key](scene, arrange(scene, *size))
        settle_focus(scene, arrange(scene, *size))
    scene.hint = hints(scene)
    settle_focus(scene, arrange(scene, *size))
    rows = paint(scene, *size)
    assert [width_of(row) for row in rows] == [size[0]] * size[1]
    return "\n".join("".join(part.text for part in row).rstrip() for row in rows)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("screen", sorted(SCREENS))
def test_screens(screen: str, size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    assert picture(FULL, (screen,), size) == snapshot


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
def test_one_layer(size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    assert picture(FULL, ("layers", "sort", "open"), size) == snapshot


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("state", STATES)
def test_states(state: str, size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    assert picture(STATES[state], (), size) == snapshot


@pytest.mark.parametrize("screen", sorted(SCREENS))
@pytest.mark.parametrize("state", ["waiting", "loading", "done", "killed"])
def test_every_screen_stands_in_every_state(screen: str, state: str) -> None:
    text = picture(STATES[state], (screen,), (80, 24))
    inside = text.splitlines()[2:-1]
    assert sum(any(char.isalpha() for char in line) for line in inside) >= 1, "an empty screen"


def test_too_small_says_what_is_needed() -> None:
    assert "needs 60×20" in picture(FULL, (), (59, 19))
