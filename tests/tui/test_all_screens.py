"""Every screen and every state as text at three sizes, from records built by hand: to review.

Drawn by the panels alone, without a terminal or a running viewer, so that all of it takes seconds.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from tests.tui.full import NOW_S, full_frame
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.records import Event
from tuimon.tui.draw.rows import width_of
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.actions import SCREENS
from tuimon.tui.keys.choices import CHOICES, settle_focus
from tuimon.tui.keys.hinting import hints
from tuimon.tui.once import paint
from tuimon.tui.scene import Scene
from tuimon.tui.screens import arrange
from tuimon.view.frame import (
    GONE,
    LATE,
    LOADING,
    WAITING,
    Exit,
    Frame,
)
from tuimon.view.runs import RunGlance
from tuimon.view.series import Series
from tuimon.view.source import SourceStatus
from tuimon.view.staleness import Signs, judge

SIZES = ((120, 40), (80, 24), (60, 20))
FULL = full_frame()
CALM = full_frame(bad=False)
_STILL = {"steps_per_s": None, "eta_s": None}


def judged(status: SourceStatus, *, after_s: float = 0.0, frame: Frame = CALM) -> Frame:
    """A frame as the reader of a run says how it stands."""
    signs = Signs(48213, True, True, 399, NOW_S, 0.0977, NOW_S - 60, None)
    standing = judge(NOW_S + after_s, replace(status, connected=True, caught_up=True), signs)
    still = {} if standing.state == LATE else _STILL
    return replace(
        frame,
        state=standing.state,
        state_detail=standing.detail,
        silent_for_s=standing.silent_for_s,
        exit=standing.exit,
        **still,
    )


_DEAD = SourceStatus(alive=False)
STATES: dict[str, Frame] = {
    "waiting": Frame(state=WAITING),
    "loading": Frame(state=LOADING, name="llama-1b-pretrain", host="gpu-07", pid=48213),
    "late": judged(SourceStatus(), after_s=7.0),
    "silent": judged(SourceStatus(), after_s=75.0),
    "paused": replace(judged(SourceStatus(word="paused")), waits_for_s=312.0),
    "held": replace(
        judged(SourceStatus(word="held"), frame=FULL), hold_left_s=250.0, waits_for_s=50.0
    ),
    "done": judged(replace(_DEAD, exit=Exit("ok", 0, ""))),
    "killed": judged(replace(_DEAD, exit=Exit("killed", 137, "killed by SIGKILL")), frame=FULL),
    "cut off": judged(SourceStatus(deleted=True), frame=FULL),
    "reconnecting": judged(
        SourceStatus(link="trying again in 4 s: the connection was closed", link_lost_for_s=14.0)
    ),
    "other version": judged(
        SourceStatus(problem="the run speaks format 2, this tuimon format 1; attach with its own")
    ),
}


NEXT = {
    "waiting": "appears here",
    "loading": "reading",
    "late": "no step for",
    "silent": "py-spy dump",
    "paused": "resume",
    "held": "resume",
    "done": "q leaves",
    "killed": "q leaves",
    "cut off": "kill -INT 48213",
    "reconnecting": "trying again",
    "other version": "attach with its own",
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
    text = picture(STATES[state], (), size)
    assert text == snapshot
    above = " ".join(line.strip(" •✖") for line in text.splitlines()[1:4])
    assert NEXT[state] in above, "what to do next is not to be read"


@pytest.mark.parametrize("screen", sorted(SCREENS))
@pytest.mark.parametrize("state", ["waiting", "loading", "done", "killed"])
def test_every_screen_stands_in_every_state(screen: str, state: str) -> None:
    text = picture(STATES[state], (screen,), (80, 24))
    inside = text.splitlines()[2:-1]
    assert sum(any(char.isalpha() for char in line) for line in inside) >= 1, "an empty screen"


def test_too_small_says_what_is_needed() -> None:
    assert "needs 60×20" in picture(FULL, (), (59, 19))


def test_the_end_of_a_killed_run_is_told_once() -> None:
    why = "the training ended without a last word after step 399: killed or crashed"
    end = Event(399, 1e9, "critical", "killed", why)
    frame = replace(
        CALM, state=GONE, state_detail=f"{why}; the picture stays", exit=Exit("killed", None, "")
    )
    shown = picture(replace(frame, events=(end,), alert=end), (), (120, 40))
    above = " ".join(shown.splitlines()[1:3])
    assert "the picture stays" in above and above.count("without a last word") == 1
