"""What people come for, each within a number of keys, all of them in the table that help shows."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import numpy as np

from tests.tui.driving import Driven, driven
from tests.tui.fake import FakeRun, FakeSeries
from tests.tui.incidents import FINDINGS, STEP, incident_frame
from tuimon.model.commands import SetClip
from tuimon.model.findings import FindingRecord
from tuimon.tui.keys.actions import ACTIONS
from tuimon.view.frame import Clip, Frame

_TYPED = {"/": "slash", "@": "at", ".": "full_stop"}
_KNOWN = {key for action in ACTIONS for key in action.keys} | {f"{number}" for number in range(10)}


class Person:
    """Presses keys and counts them; what goes into an open line is counted too."""

    def __init__(self, viewer: Driven) -> None:
        self.viewer = viewer
        self.keys = 0

    async def press(self, key: str) -> str:
        """One key of the table."""
        assert key in _KNOWN, key
        self.keys += 1
        return await self.viewer.press(_TYPED.get(key, key))

    async def type(self, words: str, *, counts: bool = True) -> str:
        """Into a line, with enter at its end."""
        self.viewer.clock.now_s += 1  # nobody types as fast as a key typed ahead
        self.keys += (len(words) if counts else 0) + 1
        return await self.viewer.press(*(_TYPED.get(char, char) for char in words), "enter")


@asynccontextmanager
async def person(frame: Frame) -> AsyncIterator[Person]:
    async with driven(frame) as viewer:
        yield Person(viewer)


def row_of(text: str, words: str) -> str:
    return next(line for line in text.splitlines() if words in line)


async def test_the_layer_that_went_bad_first_in_4() -> None:
    frame = FakeRun(steps=2000, incident=True).frame()
    assert frame.heat is not None and frame.layers is not None
    first = frame.heat.first_bad()
    culprit = frame.layers.names[int(np.where(first < 0, 1 << 60, first).argmin())]
    async with person(frame) as someone:
        await someone.press("3")
        await someone.press("S")
        text = await someone.press("S")
        assert someone.keys <= 4
        first_row = next(line for line in text.splitlines() if line.startswith("│"))
        assert culprit in first_row and "first bad first" in text
    async with person(frame) as someone:  # and it is the one that is selected, without any sorting
        text = await someone.press("3")
        assert culprit in text.split("selected")[1]


async def test_every_layer_at_the_worst_loss_spike_in_6() -> None:
    run = FakeRun(steps=2000)
    loss = 2 + np.exp(-np.arange(2000) / 300) + 0.01 * np.sin(np.arange(2000))
    loss[700], loss[1234] = 4.0, 9.0
    run.extra = {"loss": FakeSeries("loss", loss)}
    async with person(run.frame()) as someone:
        assert "step 1,234" in await someone.press("M")
        text = await someone.press("3")
        assert someone.keys <= 6
        assert "norms at step 1,234" in text
        for block in (0, 10, 23):
            assert row_of(text, f"layers.{block} ").split("││")[0].rstrip("│┃ ")[-1].isdigit()


async def test_the_learning_rate_at_step_1000_in_5() -> None:
    run = FakeRun(steps=2000)
    run.extra = {"lr": FakeSeries("lr", np.linspace(1e-3, 1e-5, 2000))}
    async with person(run.frame()) as someone:
        await someone.press("2")
        await someone.press("@")
        text = await someone.type("1k")
        assert someone.keys <= 5
        assert "step 1,000  0.0005048" in row_of(text, " lr ")


async def test_clip_at_a_half_in_6() -> None:
    run = FakeRun(steps=400)
    async with person(run.frame(clip=Clip("user", None))) as someone:
        await someone.press("c")
        await someone.type("0.5")
        assert someone.keys <= 6
        await someone.viewer.until_sent(1)
        assert someone.viewer.session.sent == [SetClip("on", 0.5)]
    async with person(run.frame(clip=Clip("user", 1.0))) as someone:  # the script clips as well
        await someone.press("c")
        await someone.type("0.5")
        assert someone.keys <= 6
        await someone.viewer.until_sent(1)
        assert someone.viewer.session.sent == [SetClip("on", 0.5)]


async def test_only_the_attention_layers_in_4_and_the_pattern() -> None:
    async with person(FakeRun(steps=400).frame()) as someone:
        assert "/ filter" in (await someone.press("3")).splitlines()[-1], "the footer must say so"
        await someone.press("/")
        text = await someone.type("attn", counts=False)
        assert someone.keys <= 4
        assert "q_proj" in text and "mlp" not in text.split("selected")[0]


async def test_the_remedy_is_copied_in_3() -> None:
    async with person(incident_frame(findings=FINDINGS)) as someone:
        assert "Y copy" in (await someone.press("v")).splitlines()[-1]
        await someone.press("Y")
        assert someone.keys <= 3
        assert "F.cross_entropy" in someone.viewer.app.clipboard


async def test_the_remedy_of_what_led_to_the_incident_is_copied_in_3() -> None:
    """A growth is told of the step before the one whose operations were examined."""
    grown = FindingRecord("g", "lr-schedule", "critical", 0.9, "consistent", STEP - 1,
                          evidence=["the learning rate has risen"], code="BOUND = 1")  # fmt: skip
    frame = incident_frame(findings=(grown,))
    async with person(frame) as someone:
        shown = await someone.press("v")
        await someone.press("Y")
        assert someone.keys <= 3
        for words in (shown, someone.viewer.app.clipboard):
            assert words.index("cause") < words.index("remedy") < words.index("operation")
            assert words.index("the learning rate has risen") < words.index("path")
        assert "BOUND = 1" in someone.viewer.app.clipboard


async def test_leaving_takes_1_and_sends_nothing() -> None:
    async with person(FakeRun(steps=400).frame()) as someone:
        assert "q quit" in someone.viewer.text.splitlines()[-1]
        await someone.press("q")
        assert someone.keys == 1 and not someone.viewer.app.is_running
        assert someone.viewer.session.sent == []
