"""Keys that reach in: looks at a layer, breakpoints, undo, the palette, and what a wait shows."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from msgspec.structs import replace as replace_struct
from syrupy.assertion import SnapshotAssertion

from tests.tui.driving import driven
from tests.tui.fake import FakeRun
from tuimon.model.breakpoints import Breakpoint
from tuimon.model.commands import ClearBreakpoint, Inspect, Pause, SetBreakpoint, Stop, Undo
from tuimon.model.inspection import Inspected, InspectReply, Place
from tuimon.model.records import CommandState
from tuimon.model.samples import HISTOGRAM_BINS, Histogram
from tuimon.model.snapshots import SnapshotState
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.palette import matching
from tuimon.tui.keys.reach import Question, intent
from tuimon.tui.scene import Scene
from tuimon.view.frame import PAUSED, Frame


def looked(layer: str) -> InspectReply:
    """A reply as a training gives it, with a NaN in the gradient."""
    counts = np.zeros(2 * HISTOGRAM_BINS, "<u4")
    for place in range(30, 50):
        share = max(1, 900 - 9 * (place - 42) ** 2)
        counts[HISTOGRAM_BINS + place], counts[HISTOGRAM_BINS - 1 - place] = share, share // 2
    drawn = Histogram(1999, "weight", layer, 2048, 2048, counts.tobytes(), zeros=3, nan=1)
    weight = Inspected(
        "parameter", f"{layer}.weight", shape=[64, 32], dtype="float32", device="cpu", numel=2048,
        nan=0, posinf=0, neginf=0, zeros=3, minimum=-0.1823, maximum=0.1794, mean=1.2e-4,
        std=0.0503, absmax=0.1823, rms=0.0503, counted=2048, histogram=drawn,
        percentiles=[-0.15, -0.117, -0.083, -0.034, 1e-4, 0.034, 0.083, 0.118, 0.152],
        outliers=[Place([61, 3], -0.1823), Place([0, 31], 0.1794), Place([12, 7], 0.1702)],
    )  # fmt: skip
    gradient = replace_struct(
        weight, what="gradient", nan=1, posinf=2, bad=[Place([3, 5], math.nan)],
        note="the shard of this rank",
    )  # fmt: skip
    output = replace_struct(weight, what="output", name=layer, source="run again", shape=[8, 32])
    notes = ["gradients as before the update", f"{layer}.bias has no gradient"]
    return InspectReply("id1", 2000, layer, "Linear", [weight, gradient, output], notes, 0.0123)


def paused(run: FakeRun, **changes: object) -> Frame:
    return run.frame(state=PAUSED, waits_for_s=192.0, **changes)


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (None, "start with --snapshot-every N"),
        (SnapshotState(100), "no healthy snapshot has been taken yet"),
        (SnapshotState(100, unable="a sharded model"), "a sharded model"),
    ],
)
def test_going_back_is_not_offered_where_there_is_nothing_to_go_back_to(
    state: SnapshotState | None, words: str
) -> None:
    scene = Scene(FakeRun(steps=20).frame(snapshots=state), Look())
    refused = intent("rollback", scene, dump_folder="")
    assert isinstance(refused, str) and words in refused
    there = Scene(FakeRun(steps=20).frame(snapshots=SnapshotState(100, step=12)), Look())
    assert isinstance(intent("rollback", there, dump_folder=""), Question)


@pytest.mark.parametrize("size", [(120, 40), (80, 24)])
async def test_a_look_at_a_layer(size: tuple[int, int], snapshot: SnapshotAssertion) -> None:
    run = FakeRun(steps=2000)
    async with driven(run.frame(), size=size) as viewer:
        await viewer.press("3", "j")
        assert "space pauses" in await viewer.press("i") and viewer.session.sent == []
        await viewer.show(paused(run))
        text = await viewer.press("i")
        await viewer.until_sent(1)
        (command,) = viewer.session.sent
        assert isinstance(command, Inspect) and f"looking at {command.layer}" in text
        assert await viewer.show(paused(run, inspections=(looked(command.layer),))) == snapshot
        assert "lines more" not in await viewer.press("G")
        assert "1 NaN" in await viewer.press("g")
        assert "grad norm, ×" in await viewer.press("escape")


async def test_a_look_that_was_refused_says_why() -> None:
    run = FakeRun(steps=200)
    async with driven(paused(run)) as viewer:
        await viewer.press("3", "i")
        await viewer.until_sent(1)
        told = CommandState("id1", "Inspect", "refused", reason="no layer 'x'")
        assert "no layer 'x'" in await viewer.show(paused(run, commands=(told,)))


async def test_breakpoints_are_set_and_cleared_by_a_dialog() -> None:
    run = FakeRun(steps=200)
    known = (Breakpoint(2, "loss > 9", "kim", 3, 100),)
    async with driven(run.frame(breakpoints=known)) as viewer:
        text = await viewer.press("B")
        assert "set 2" in text and "loss > 9   hits 3" in text and "clear all" in text
        viewer.clock.now_s += 1
        await viewer.press(*"loss", "space", "greater_than_sign")
        assert "column 7: expected a number" in await viewer.press("enter")
        await viewer.press("space", "4", "enter")
        await viewer.press("B")
        viewer.clock.now_s += 1
        await viewer.press(*"clear", "space", "2", "enter")
        await viewer.until_sent(2)
        assert viewer.session.sent == [SetBreakpoint("loss > 4"), ClearBreakpoint(2)]


async def test_a_condition_that_cannot_be_read_is_told_to_its_end() -> None:
    async with driven() as viewer:
        await viewer.press("B")
        viewer.clock.now_s += 1
        await viewer.press(*"norm", "greater_than_sign", "1")
        text = await viewer.press("enter")
        boxed = [row[27:93].split() for row in text.splitlines() if row[26:27] == "│"]
        shown = " ".join(" ".join(words) for words in boxed)
        assert SetBreakpoint("norm>1").problem() in shown


async def test_undo_and_the_palette() -> None:
    async with driven(FakeRun(steps=200).frame()) as viewer:
        await viewer.press("u")
        text = await viewer.press("colon")
        assert "actions" in text and "pause, resume" in text
        await viewer.press(*"stop")
        viewer.clock.now_s += 1
        assert viewer.text.splitlines()[-1].endswith("enter does it  esc leaves")
        text = await viewer.press("enter")
        assert "stop the training" in text
        assert text.splitlines()[-1].endswith("y send  n esc cancel"), "its own keys"
        assert "asked just now" in await viewer.press("y")
        assert "enter does nothing here: y sends, n or esc cancels" in await viewer.press("enter")
        await viewer.until_sent(1)
        assert viewer.session.sent == [Undo()], "a question typed ahead is not answered"
        viewer.clock.now_s += 1
        assert "q quit" in (await viewer.press("y")).splitlines()[-1]
        assert "any key closes" in (await viewer.press("question_mark")).splitlines()[-1]
        assert "q quit" in (await viewer.press("escape")).splitlines()[-1]
        await viewer.press("ctrl+p", *"amp")
        viewer.clock.now_s += 1
        await viewer.press("enter")
        assert viewer.app.scene.screen == "amp"
        await viewer.press("colon", "down", "up", *"nothing so")
        assert "no action has such a name" in viewer.text
        await viewer.press("enter", "escape")
        await viewer.until_sent(2)
        assert viewer.session.sent == [Undo(), Stop()]


async def test_a_read_only_palette_refuses_what_reaches_in() -> None:
    async with driven(FakeRun(steps=200).frame(), readonly=True) as viewer:
        text = await viewer.press("colon", *"pause")
        assert "(read-only)" in text
        viewer.clock.now_s += 1
        assert "this viewer is read-only" in await viewer.press("enter")
        assert viewer.session.sent == []


def test_names_are_found_by_their_words() -> None:
    assert matching("roll")[0].id == "rollback"
    assert [each.id for each in matching("training stop")] == ["stop"]
    assert matching("pause")[0].id == "pause" and not matching("xyzzy")
    assert "palette" not in {each.id for each in matching("")}


async def test_a_wait_shows_since_when_and_what_it_has_cost() -> None:
    run = FakeRun(steps=200)
    detail = "breakpoint 2: loss > 9 (loss = 11) at step 199: space resumes, . makes one step"
    frame = replace(paused(run), state_detail=detail, hold_left_s=108.0)
    async with driven(frame) as viewer:
        viewer.app.scene.price_per_hour = 36.0
        lines = (await viewer.show(replace(frame, waits_for_s=200.6))).splitlines()
        assert "PAUSED 3m20s cost 2.01" in lines[0]
        assert "breakpoint 2: loss > 9 (loss = 11)" in lines[1] and "1m48s" in lines[1]
        told = " ".join((await viewer.press("x")).split())
        assert "the update that is held" in told and "after the training goes on │" in told
        await viewer.press("escape")
        await viewer.show(replace(frame, hold_left_s=None))
        assert "after it stays paused" in " ".join((await viewer.press("x")).split())
        await viewer.press("escape")
        await viewer.press("space")
        await viewer.until_sent(1)
        assert not isinstance(viewer.session.sent[0], Pause)
