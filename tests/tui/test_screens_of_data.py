"""Keys on the screens of layers, batches and output: what is selected, opened, found and left."""

from __future__ import annotations

from tests.tui.driving import driven
from tests.tui.fake import FakeSession
from tests.tui.full import batch, full_frame
from tuimon.feed.registry import RankInfo, RunInfo
from tuimon.model.samples import Governor
from tuimon.tui.picking import Choices
from tuimon.tui.scene import LAYER, LAYERS, OVERVIEW
from tuimon.view.runs import RunGlance
from tuimon.view.series import Series


async def test_a_layer_is_opened_walked_and_left() -> None:
    async with driven(full_frame()) as viewer:
        scene = viewer.app.scene
        await viewer.press("3", "S")
        assert "worst first" in viewer.text
        text = await viewer.press("enter")
        assert scene.screen == LAYER and "its update ratio" in text and "gradients" in text
        first = text.splitlines()[2]
        text = await viewer.press("j")
        assert text.splitlines()[2] != first, "j does not go to the next layer"
        await viewer.press("y")
        assert not scene.charts.of("its gradient norm").log
        await viewer.press("h")
        assert scene.charts.cross_step is not None
        await viewer.press("escape", "escape")
        assert scene.screen == LAYERS and scene.focus == "layers"
        text = await viewer.press("2")
        assert "its update" not in text, "a layer's series stay among those of the run"

        text = await viewer.press("7")
        assert "7 NaN of 25,088" in text and "2 targets lie outside" in text
        text = await viewer.press("j")
        assert "step 320" in text and "finite, shapes and dtypes as before" in text
        newer = full_frame()
        assert newer.past is not None
        newer.past.see(batch(395, bad=False))
        text = await viewer.show(newer)
        assert "step 320" in text, "the selection does not stay on its batch"

        text = await viewer.press("9")
        assert "follows the end" in text and "61%" in text
        text = await viewer.press("k", "k")
        assert "lines below" in text
        await viewer.press("slash", "n", "a", "n", "enter")
        assert "loss nan" in viewer.text and "loss 0.0" not in viewer.text
        text = await viewer.press("escape")
        assert "loss 0.0" in text
        text = await viewer.press("n")
        assert "loss nan" in text

        text = await viewer.press("4")
        assert "accelerators" in text and "tuimon itself" in text and "one step" in text


async def test_screens_without_data_say_what_would_fill_them() -> None:
    from tests.tui.fake import FakeRun

    frame = FakeRun(steps=3).frame(system=None, output=(), past=None, amp=None, world_size=1)
    frame.series.pop("loss_scale", None)
    async with driven(frame) as viewer:
        assert "the scribe reads the host" in await viewer.press("4")
        text = await viewer.press("6")
        assert "no GradScaler is in use: bfloat16 and float32 need none" in " ".join(text.split())
        assert "waiting for the first step" not in text
        assert "the first batch is looked at" in await viewer.press("7")
        assert "single process" in await viewer.press("8")
        text = await viewer.press("9")
        assert "goes to the terminal that it was started in" in " ".join(text.split())
        assert "tuimon run --attach" in text and "0 lines" not in text


async def test_a_run_is_picked_among_those_of_the_host() -> None:
    opened: list[str] = []
    runs = tuple(
        RunGlance(
            RunInfo(id=f"r{at}", name=f"run-{at}", host="gpu-07", uid=0, folder="/x",
                    ranks=[RankInfo(0, 100 + at, 1, "1.ring")]),
            "running" if at < 2 else "gone", 10 * at, 60.0,
            ended="" if at < 2 else "ok 0", loss=_losses(at) if at < 2 else None,
            ended_s=125.0 if at == 2 else None,
        )
        for at in range(4)
    )  # fmt: skip

    def open_run(run: RunGlance) -> FakeSession:
        opened.append(run.info.id)
        return FakeSession(full_frame(name=run.info.name, run_id=run.info.id))

    choices = Choices(lambda: runs, open_run)
    async with driven(full_frame(run_id="r0"), choices=choices) as viewer:
        text = await viewer.press("W")
        assert "2 live, 2 ended" in text and "loss 2.5" in text and "ok 0" in text
        assert "ran 1m00s, ended 2m05s ago" in text and "began 1m00s ago" in text
        assert "is the one that is shown" in await viewer.press("enter")
        assert "enter shows a run first" in await viewer.press("j", "space")
        assert not viewer.session.sent
        text = await viewer.press("enter")
        assert opened == ["r1"] and viewer.app.scene.frame.name == "run-1" and "grad norm" in text
        assert viewer.app.scene.screen == OVERVIEW
    async with driven(full_frame()) as viewer:
        assert "on another host" in await viewer.press("W")
    async with driven(full_frame(run_id="r0"), choices=choices) as viewer:
        asked: list[str] = []
        viewer.app.second.lay = lambda name: asked.append(name) or ""  # type: ignore[method-assign]
        assert "run-1  run-2  run-3" in await viewer.press("O"), "those that can be laid over"
        await viewer.press("tab", "tab", "enter")
        assert asked == ["run-2"]


def _losses(at: int) -> Series:
    series = Series("loss")
    for step in range(50):
        series.append(step, 3.0 - step / 98)
    return series


async def test_sampling_that_is_over_its_budget_says_so_and_contradicts_nothing() -> None:
    frame = full_frame()
    assert frame.samples is not None
    frame.samples.add(Governor(9, 214, 0.0136, 0.005))
    async with driven(frame) as viewer:
        assert "sampling 1/214, 1.36% → 0.5%" in viewer.text
        text = await viewer.press("4")
        assert "1/214, 1.36% → 0.5%" in text and "the first ones are paid off" in text
        assert "at most" not in text
