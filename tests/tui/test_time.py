"""One crosshair for all panels and screens, a step that is typed, and a second run laid over."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tui.driving import Driven, driven
from tests.tui.fake import FakeRun, FakeSeries, FakeSession
from tuimon.errors import NoSuchRun
from tuimon.tui.draw.chart import draw_chart
from tuimon.tui.draw.glyphs import ASCII, BRAILLE, GlyphSet
from tuimon.tui.draw.theme import FULL, NONE, Look
from tuimon.tui.scene import Scene
from tuimon.tui.second import SecondRun
from tuimon.view.frame import Frame


def titles(text: str) -> list[str]:
    """The top edges of panels."""
    return [line for line in text.splitlines() if "╭─ " in line or "+- " in line]


async def typed(viewer: Driven, words: str) -> str:
    for char in words:
        await viewer.press({" ": "space", "%": "percent_sign", "-": "minus"}.get(char, char))
    return viewer.text


async def test_a_step_that_is_typed_is_read_in_every_chart() -> None:
    run = FakeRun(steps=3000)
    rates = FakeSeries("lr", [3e-4] * 900 + [1.25e-4] * 2100)
    async with driven(run.frame(series={**run.frame().series, "lr": rates})) as viewer:
        await viewer.press("2", "at")
        text = await typed(viewer, "1k")  # the picture follows while it is typed
        assert text.count("step 1,000") == 4 and "0.000125" in text
        assert viewer.app.screen.styles.background.a == 0  # and is not dimmed
        await viewer.press("enter")
        assert viewer.app.scene.charts.cross_step == 1000
        await viewer.press("at")
        await typed(viewer, "5%")
        await viewer.press("escape")
        assert viewer.app.scene.charts.cross_step == 1000


async def test_a_step_that_is_none_is_said() -> None:
    async with driven() as viewer:
        for words, said in (("1e5", "is no step"), ("9999", "steps 0 to 399 are known")):
            await viewer.press("at")
            await typed(viewer, words)
            await viewer.press("enter")
            assert said in viewer.text


async def test_the_sharpest_spike_and_each_layer_at_it() -> None:
    run = FakeRun(steps=2000)
    loss = FakeSeries("loss", [9 - step / 400 + 30 * (step == 1500) for step in range(2000)])
    async with driven(run.frame(series={**run.frame().series, "loss": loss})) as viewer:
        text = await viewer.press("M", "3")
        assert viewer.app.scene.charts.cross_step == 1500
        assert "norms at step 1,500" in text
        rows = [line[:80] for line in text.splitlines() if "▸ " in line[:20]]
        assert len(rows) > 5 and all(row[70:79].strip(" │–≈0123456789.") == "" for row in rows)
        assert all(any(char.isdigit() for char in row[70:79]) for row in rows)


@pytest.mark.parametrize(("glyphs", "colours"), [(BRAILLE, FULL), (ASCII, NONE)])
async def test_one_crosshair_stands_in_charts_and_in_the_map(
    glyphs: GlyphSet, colours: str
) -> None:
    async with driven(glyphs=glyphs, colours=colours) as viewer:
        text = await viewer.press("comma", "comma")
        step = viewer.app.scene.charts.cross_step
        assert step is not None and f"step {step:,}" in titles(text)[0]
        assert text.count(f"step {step:,}") >= 3  # loss, gradient norm, map
        wall = glyphs.box[5]
        rows = [line for line in text.splitlines() if "layers." in line]
        assert all(row.count(wall) >= 4 for row in rows)
        on_layers = await viewer.press("3", "semicolon")
        assert viewer.app.scene.charts.cross_step in (step + 1, step)
        assert "norms at step" in on_layers
        if glyphs.ascii_only:
            assert on_layers.isascii()
        assert "norms at step" not in await viewer.press("escape")


async def test_the_map_goes_to_where_the_crosshair_goes_and_back_to_the_newest() -> None:
    async with driven(FakeRun(steps=2000).frame()) as viewer:
        await viewer.press("3", "at")
        await typed(viewer, "100")
        await viewer.press("enter")
        desk = viewer.app.scene.heat
        assert desk.end is not None and desk.end - desk.columns <= 100 < desk.end
        await viewer.press("escape")
        assert desk.end is None


async def test_time_goes_back_to_the_first_step_while_the_run_goes_on() -> None:
    run = FakeRun(steps=400)
    async with driven(run.frame()) as viewer:
        await viewer.press("plus", *"HHHH")
        window = viewer.app.scene.charts.window
        assert window.steps(0, 399)[0] == 0
        before = viewer.text.splitlines()[2]
        await viewer.show(replace(FakeRun(steps=900).frame(), step=899))
        assert window.steps(0, 899)[0] == 0 and "step 899" in viewer.text
        assert before.split("─")[-1] == viewer.text.splitlines()[2].split("─")[-1]


async def test_another_run_stands_beside_in_every_chart_with_its_own_legend() -> None:
    opened: list[FakeSession] = []

    def open_run(name: str) -> FakeSession:
        if name != "lower-lr":
            raise NoSuchRun(f"no run {name}")
        opened.append(FakeSession(FakeRun(steps=700, seed=3).frame(name="lower-lr")))
        return opened[-1]

    async with driven() as viewer:
        second = viewer.app.second = SecondRun(open_run)
        await viewer.press("O")
        await typed(viewer, "nope")
        await viewer.press("enter")
        await _until(viewer, "no run nope")
        await viewer.press("O", *["backspace"] * 4)
        await typed(viewer, "lower-lr")
        await viewer.press("enter")
        text = await _until(viewer, "lower-lr")
        assert titles(text)[0].count("lower-lr") == 1
        assert "600" in text  # the axis holds the longer one
        cut = await viewer.press("h")
        assert "lower-lr" in titles(cut)[0]
        assert "lower-lr" in titles(await viewer.press("O", "escape"))[0]
        await viewer.press("O", *["backspace"] * 8, "enter")
        assert "lower-lr" not in (await viewer.show(viewer.session.current))[:2000]
        assert opened[0].closed and second.name == ""


async def _until(viewer: Driven, words: str) -> str:
    """Ticks until a sentence is on the screen."""
    text = ""
    for _ in range(200):
        text = await viewer.show(viewer.session.current)
        if words in text:
            return text
        await viewer.pilot.pause(0.01)
    raise AssertionError(text)


def frame_with_marks() -> Frame:
    run = FakeRun(steps=4800)
    return run.frame(
        milestones=((1000, "epoch", "epoch 1 begins"), (2000, "rate", "learning rate 3e-4 → 1e-4"))
    )


async def test_n_goes_to_events_and_the_footer_tells_what_happened() -> None:
    async with driven(frame_with_marks()) as viewer:
        text = await viewer.press("n")
        assert viewer.app.scene.charts.cross_step == 4003
        assert "loss spike 8.1 sigma" in text.splitlines()[-1]
        edge = next(line for line in text.splitlines() if line.startswith("╰"))
        assert [edge.count(letter) for letter in "er!"] == [1, 1, 1]


def test_where_epochs_crowd_they_give_way() -> None:
    frame = FakeRun(steps=4800).frame(
        milestones=tuple((step, "epoch", "epoch") for step in range(10, 4800, 10))
    )
    rows = draw_chart(Scene(frame, Look()), "loss", 80, 12, focused=True)
    edge = "".join(part.text for part in rows[-1])
    assert edge.count("e") == 0 and edge.count("!") == 1
