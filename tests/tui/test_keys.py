"""Every key of the table, on a running viewer with a fake session."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from msgspec import structs

from tests.tui.driving import driven
from tests.tui.fake import FakeRun
from tuimon.model.commands import (
    Dump,
    Pause,
    Resume,
    SetClip,
    SetMaxNorm,
    StepOnce,
    Stop,
)
from tuimon.model.records import CommandState, Event
from tuimon.model.snapshots import SnapshotState
from tuimon.tui.keys.actions import ACTIONS, actions
from tuimon.tui.keys.choices import CHOICES
from tuimon.tui.start import dump_folder_of
from tuimon.view.frame import GONE, PAUSED, Clip, Exit


def test_every_action_of_the_table_does_something() -> None:
    elsewhere = {"quit", "help", "filter", "copy", "write", "picture", "palette", "rank", "go"}
    elsewhere |= {"overlay", "suspend"}
    for action in ACTIONS:
        handled = action.id in CHOICES or action.id in elsewhere or action.needs_training
        assert handled, action.id


def test_no_key_means_two_things() -> None:
    keys = [key for action in ACTIONS for key in action.keys]
    assert len(keys) == len(set(keys))


def test_a_read_only_viewer_has_no_training_key() -> None:
    assert not any(action.needs_training for action in actions(readonly=True))
    assert len(actions(readonly=True)) < len(actions(readonly=False))


async def test_screens_and_panels() -> None:
    async with driven() as viewer:
        assert "device memory" in viewer.text
        assert "loss scale" in await viewer.press("2")
        assert "selected" in await viewer.press("3")
        assert "commands" in await viewer.press("5")
        assert "device memory" in await viewer.press("1")
        await viewer.press("tab")
        assert viewer.app.scene.focus == "grad"
        await viewer.press("shift+tab", "shift+tab")
        assert viewer.app.scene.focus == "events"


async def test_zoom_and_back() -> None:
    async with driven() as viewer:
        zoomed = await viewer.press("z")
        assert "grad norm" not in zoomed and "loss" in zoomed
        assert "grad norm" in await viewer.press("escape")


async def test_escape_hides_the_incident_and_a_new_one_shows_again() -> None:
    run = FakeRun(steps=400, incident=True)
    async with driven(run.frame()) as viewer:
        assert "NaN gradients in 163" in viewer.text.splitlines()[1]
        text = await viewer.press("escape")
        assert "NaN gradients" not in text.splitlines()[1]
        alert = run.frame().alert
        assert alert is not None
        later = run.frame(alert=structs.replace(alert, time_s=alert.time_s + 1, text="again"))
        assert "again" in (await viewer.show(later)).splitlines()[1]


async def test_the_crosshair_reads_the_column_under_it() -> None:
    async with driven() as viewer:
        text = await viewer.press("h")
        assert "step 399" in text or "step 39" in text
        first = viewer.app.scene.charts.cross_step
        await viewer.press("left")
        second = viewer.app.scene.charts.cross_step
        assert first is not None and second is not None and second < first
        await viewer.press("l")
        assert viewer.app.scene.charts.cross_step == first
        await viewer.press("escape")
        assert viewer.app.scene.charts.cross_step is None


async def test_time_zooms_pans_and_returns_to_the_whole() -> None:
    async with driven() as viewer:
        window = viewer.app.scene.charts.window
        await viewer.press("plus")
        assert window.span == 200 and window.end is None
        await viewer.press("H")
        assert window.end is not None
        await viewer.press("L")
        assert window.end is None
        await viewer.press("minus")
        assert window.span is None
        await viewer.press("plus", "0")
        assert window.span is None


async def test_axis_smoothing_and_cap() -> None:
    async with driven() as viewer:
        choice = viewer.app.scene.charts.of("loss")
        assert "loss log" in await viewer.press("y")
        assert "loss log" not in await viewer.press("y")
        await viewer.press("e", "o")
        assert choice.keep == 0.9 and not choice.cap
        assert "ema(0.9)" in viewer.text


async def test_the_next_non_finite_step_gets_the_crosshair() -> None:
    async with driven(FakeRun(steps=400, incident=True).frame()) as viewer:
        await viewer.press("tab", "n")
        assert viewer.app.scene.charts.cross_step == 384
        assert "+Inf" in viewer.text
        begins = viewer.app.scene.charts.cross_step
        await viewer.press("n")
        assert viewer.app.scene.charts.cross_step not in (385, 386), "it is the same incident"
        await viewer.press("@", "3", "9", "0", "enter", "N")
        assert viewer.app.scene.charts.cross_step == begins


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        (("tab", "n"), "no NaN or Inf in grad norm"),
        (("N",), "no NaN or Inf in loss"),
        (("3", "n"), "no layer was NaN or Inf"),
        (("5", "N"), "no critical event"),
    ],
)
async def test_nothing_to_go_to_is_said(keys: tuple[str, ...], words: str) -> None:
    async with driven(FakeRun(steps=400).frame()) as viewer:
        await viewer.press(*keys)
        assert words in viewer.text.splitlines()[-1]


async def test_layers_fold_move_and_filter() -> None:
    async with driven(FakeRun(steps=400).frame()) as viewer:
        await viewer.press("3", "g", "j", "j")
        text = await viewer.press("l")
        assert "▾ layers.0" in text
        assert "▸ layers.0" in await viewer.press("h")
        await viewer.press("G")
        assert viewer.app.scene.heat.cursor == len(viewer.app.scene.heat.tree.rows()) - 1
        await viewer.press("slash", *"v_proj", "enter")
        assert len(viewer.app.scene.heat.tree.rows()) == 24
        assert "/v_proj" in viewer.text
        await viewer.press("escape")
        assert viewer.app.scene.heat.tree.filter == ""


async def test_the_newest_event_of_a_narrow_screen_names_its_step_once() -> None:
    event = Event(399, 0.0, "info", "autopsy", "step 400: nothing that is not finite")
    other = structs.replace(event, kind="skip", text="update 400 left out")
    frame = FakeRun(steps=400).frame()
    async with driven(replace(frame, events=[event]), size=(80, 24)) as viewer:
        assert "step 400: nothing" in viewer.text and "399 step 400" not in viewer.text
        assert "399 update 400" in await viewer.show(replace(frame, events=[other]))


async def test_only_bad_rows_and_the_next_of_them() -> None:
    async with driven(FakeRun(steps=400, incident=True).frame()) as viewer:
        await viewer.press("3", "b")
        rows = viewer.app.scene.heat.tree.rows()
        assert len(rows) == len(viewer.app.scene.heat.tree.names)  # every layer tripped
        await viewer.press("escape", "g", "n")

        assert viewer.app.scene.heat.cursor == 1
        assert "absolute" not in await viewer.press("m")
        assert viewer.app.scene.heat.absolute


async def test_a_new_incident_shows_its_first_layer_unless_somebody_looks_elsewhere() -> None:
    calm, bad = FakeRun(steps=400), FakeRun(steps=400, incident=True)
    async with driven(calm.frame()) as viewer:
        await viewer.press("3", "j", "j", "j")
        await viewer.show(bad.frame())
        assert viewer.app.scene.heat.cursor == 3
    async with driven(calm.frame()) as viewer:
        await viewer.show(bad.frame())
        heat = viewer.app.scene.heat
        first_bad = len(heat.tree.names) // 2  # Inf one step before the NaN of all others
        assert heat.tree.rows()[heat.cursor].members == (first_bad,)


async def test_freezing_keeps_the_picture_while_the_header_goes_on() -> None:
    async with driven(FakeRun(steps=400).frame()) as viewer:
        before = await viewer.press("f")
        assert "VIEW FROZEN" in before
        after = await viewer.show(FakeRun(steps=900).frame())
        assert "step 899" in after.splitlines()[0]
        assert after.splitlines()[2:-1] == before.splitlines()[2:-1]
        thawed = await viewer.press("f")
        assert thawed.splitlines()[2:-1] != before.splitlines()[2:-1]


async def test_glyphs_cycle_to_ascii_without_a_byte_above_127() -> None:
    async with driven(FakeRun(steps=400, incident=True).frame()) as viewer:
        assert not (await viewer.press("a")).isascii()
        assert (await viewer.press("a")).isascii()
        for key in ("2", "3", "5", "1"):
            assert (await viewer.press(key)).isascii(), key
        help_text = await viewer.press("question_mark")
        assert help_text.isascii()


async def test_themes_cycle() -> None:
    async with driven() as viewer:
        for theme in ("light", "high-contrast", "colour-blind", "dark"):
            await viewer.press("t")
            assert viewer.app.scene.look.theme == theme


async def test_theme_glyphs_and_sizes_are_kept_for_the_next_viewer() -> None:
    kept: list[dict[str, object]] = []
    why = "what was chosen before is not used: viewer.json: no JSON"
    async with driven(remember=lambda **fields: kept.append(fields), problem=why) as viewer:
        assert why in viewer.text
        assert "theme light" in await viewer.press("t")
        await viewer.press("a", "right_parenthesis", "z", "right_parenthesis")
        assert [*map(list, kept)] == [["theme"], ["glyphs"], ["sizes"]]
        assert kept[-1]["sizes"] == {"overview": {"loss": (4, 0)}}


@pytest.mark.parametrize("size", [(80, 24), (60, 20)])
async def test_help_that_does_not_fit_says_how_to_read_on(size: tuple[int, int]) -> None:
    async with driven(size=size) as viewer:
        text = await viewer.press("question_mark")
        assert "j k scroll" in text and re.search(r"[1-9]\d* lines more", text)
        assert "off axis" in await viewer.press("G")


async def test_the_footer_of_the_layers_says_how_to_fold_and_to_move_the_crosshair() -> None:
    async with driven() as viewer:
        footer = (await viewer.press("3")).splitlines()[-1]
        assert "h l fold" in footer and ", ; cross" in footer


async def test_help_lists_every_key_at_home_and_closes_on_any() -> None:
    async with driven(size=(120, 40)) as viewer:
        text = await viewer.press("question_mark")
        for action in ACTIONS:
            assert action.description.split(";")[0].split(":")[0][:20] in text, action.id
        assert "quits the viewer only" in text
        assert "quits the viewer only" not in await viewer.press("x")


async def test_pause_resume_and_one_step() -> None:
    run = FakeRun(steps=400)
    async with driven(run.frame()) as viewer:
        await viewer.press("full_stop")
        assert "only while paused" in viewer.text
        await viewer.press("space")
        await viewer.until_sent(1)
        await viewer.show(run.frame(state=PAUSED, state_detail="waits before update 400"))
        assert "waits before update 400" in viewer.text and "PAUSED" in viewer.text
        await viewer.press("full_stop", "p")
        await viewer.until_sent(3)
        assert viewer.session.sent == [Pause(), StepOnce(), Resume()]


async def test_a_command_shows_its_life_in_the_footer() -> None:
    run = FakeRun(steps=400)
    async with driven(run.frame()) as viewer:
        await viewer.press("space")
        await viewer.until_sent(1)
        assert "pause accepted" in viewer.text.splitlines()[-1]
        done = CommandState("id1", "Pause", "applied", step=400)
        await viewer.show(run.frame(commands=(done,)))
        assert "pause applied at step 400" in viewer.text.splitlines()[-1]
        viewer.clock.now_s += 60
        await viewer.show(run.frame(commands=(done,)))
        assert "pause applied" not in viewer.text.splitlines()[-1]
        refused = CommandState("id2", "Stop", "refused", reason="two ranks")
        await viewer.show(run.frame(commands=(done, refused)))
        assert "stop refused: two ranks" in viewer.text.splitlines()[-1]


async def test_clip_asks_for_the_bound_once_then_cycles() -> None:
    run = FakeRun(steps=400)
    async with driven(run.frame(clip=Clip("user", None))) as viewer:
        text = await viewer.press("c")
        assert "clip gradients" in text and "max_norm" in text
        await viewer.press("enter")  # too soon: typed ahead
        assert viewer.session.sent == []
        viewer.clock.now_s += 1
        await viewer.press("backspace", "x")
        assert "a number is asked for" in viewer.text
        assert "is not a number" in await viewer.press("enter")
        await viewer.press("ctrl+u", *"0.5", "enter")
        await viewer.until_sent(1)
        await viewer.show(run.frame(clip=Clip("on", 0.5)))
        await viewer.press("left_square_bracket", "right_square_bracket", "c")
        await viewer.until_sent(4)
        await viewer.show(run.frame(clip=Clip("off", None)))
        await viewer.press("c")
        await viewer.until_sent(5)
        await viewer.show(run.frame(clip=Clip("user", None)))
        await viewer.press("c")
        await viewer.until_sent(6)
        assert viewer.session.sent == [
            SetClip("on", 0.5),
            SetMaxNorm(0.25),
            SetMaxNorm(0.5),
            SetClip("off"),
            SetClip("user"),
            SetClip("on"),
        ]


async def test_help_has_one_column_where_two_would_be_a_word_wide() -> None:
    async with driven(size=(60, 20)) as viewer:
        text = await viewer.press("question_mark")
        rows = [row.split("│")[1].strip() for row in text.splitlines() if row.count("│") >= 2]
        assert any(row.startswith("3 ") and "layers: heat map, detail" in row for row in rows)
        assert any(row.endswith("devices, host, step time") for row in rows)


async def test_a_terminal_that_is_too_small_shows_its_sentence_and_nothing_else() -> None:
    async with driven(FakeRun(steps=40).frame(clip=Clip("user", None)), size=(50, 15)) as viewer:
        for key in ("question_mark", "c", "B", "colon", "slash", "at", "Q", "space", "u"):
            text = await viewer.press(key)
            assert "too small: 50×15, needs 60×20" in text and "╭" not in text, key
            assert len(viewer.app.screen_stack) == 1, key
        assert viewer.session.sent == [], "nobody sees what it would do"


async def test_clip_never_begins_by_taking_the_script_s_own_clipping_away() -> None:
    run = FakeRun(steps=400)
    async with driven(run.frame(clip=Clip("user", 2.5))) as viewer:
        text = await viewer.press("c")
        assert "clip gradients" in text and "max_norm 2.5" in " ".join(text.split())
        assert "the script's own clipping, max_norm 2.5" in text
        viewer.clock.now_s += 1
        await viewer.press("enter")
        await viewer.until_sent(1)
        assert viewer.session.sent == [SetClip("on", 2.5)]


@pytest.mark.parametrize(("key", "word"), [("c", "max_norm"), ("R", "learning rate ×")])
async def test_a_number_is_asked_for_and_no_letters_go_into_it(key: str, word: str) -> None:
    frame = FakeRun(steps=400).frame(clip=Clip("user", None), snapshots=SnapshotState(100, 300))
    async with driven(frame) as viewer:
        await viewer.press(key)
        viewer.clock.now_s += 1
        text = await viewer.press(*"cpi")
        line = next(row for row in text.splitlines() if f"  {word}" in row)
        assert line.split(word)[-1].split()[0] == "1", "what cannot be in a number is not taken"
        assert "a number" in text
        text = await viewer.press("2", "full_stop", "full_stop", *"5x", "minus", *"e-1")
        line = next(row for row in text.splitlines() if f"  {word}" in row)
        assert line.split(word)[-1].split()[0] == "2.5e-1" and "a number" not in text


async def test_what_is_typed_takes_the_place_of_what_a_question_proposes() -> None:
    async with driven(FakeRun(steps=400).frame(clip=Clip("user", None))) as viewer:
        assert "max_norm 1" in await viewer.press("c")
        text = await viewer.press("1")
        assert "max_norm 1" in text and "max_norm 11" not in text
        viewer.clock.now_s += 1
        await viewer.press("enter")
        await viewer.until_sent(1)
        assert viewer.session.sent == [SetClip("on", 1.0)]
    async with driven() as viewer:
        await viewer.press("3", "g", "d")
        viewer.clock.now_s += 1
        await viewer.press("end", *"/a", "enter")  # whoever moves wants to edit it
        await viewer.until_sent(1)
        assert viewer.session.sent == [Dump(["embed_tokens.weight"], "/data/dumps/399/a")]


@pytest.mark.parametrize("size", [(120, 40), (60, 20)])
async def test_a_question_keeps_its_words_apart_and_shows_what_is_typed(
    size: tuple[int, int],
) -> None:
    frame = FakeRun(steps=400).frame(snapshots=SnapshotState(100, 300))
    async with driven(frame, size=size) as viewer:
        asked = await viewer.press("R")
        assert "leaves out" in asked and "leaves outthe" not in asked
        line = next(row for row in asked.splitlines() if "learning rate ×" in row)
        assert "…" not in line.partition("learning rate ×")[2].partition("│")[0]
        await viewer.press("escape")
        assert "leaves outupdate" not in await viewer.press("x")


async def test_halving_without_clipping_explains_itself() -> None:
    async with driven(FakeRun(steps=400).frame()) as viewer:
        await viewer.press("left_square_bracket")
        assert "c switches clipping on" in viewer.text


async def test_dump_asks_for_the_folder_and_shows_the_size() -> None:
    async with driven(FakeRun(steps=400).frame()) as viewer:
        await viewer.press("3", "g")
        text = await viewer.press("d")
        assert "embed_tokens.weight" in text and "32.0 KiB" in text
        assert "/data/dumps/399" in text
        viewer.clock.now_s += 1
        await viewer.press("enter")
        await viewer.until_sent(1)
        assert viewer.session.sent == [Dump(["embed_tokens.weight"], "/data/dumps/399")]
        await viewer.press("d")
        viewer.clock.now_s += 1
        await viewer.press("ctrl+u", *"here", "enter")
        assert "absolute path" in viewer.text
        await viewer.press("escape")
        assert len(viewer.session.sent) == 1


def test_the_step_is_in_the_path_of_a_dump_once() -> None:
    """The training makes a folder of the step in the one that is proposed."""
    assert dump_folder_of("/data/run")(FakeRun(steps=400).frame()) == "/data/run/tuimon-dumps"


async def test_stop_asks_and_ignores_a_key_typed_ahead() -> None:
    async with driven() as viewer:
        await viewer.press("Q", "y")
        assert "stop the training" in viewer.text and viewer.session.sent == []
        viewer.clock.now_s += 1
        await viewer.press("n")
        assert "nothing was sent" in viewer.text
        await viewer.press("Q")
        viewer.clock.now_s += 1
        await viewer.press("y")
        await viewer.until_sent(1)
        assert viewer.session.sent == [Stop()]


@pytest.mark.parametrize("key", ["space", "p", "full_stop", "c", "d", "Q", "left_square_bracket"])
async def test_read_only_sends_nothing(key: str) -> None:
    async with driven(readonly=True) as viewer:
        await viewer.press(key)
        viewer.clock.now_s += 1
        await viewer.press("y", "enter")
        assert viewer.session.sent == []
        assert "READ-ONLY" in viewer.text and "pause" not in viewer.text


async def test_nothing_is_sent_to_a_run_that_is_gone() -> None:
    frame = FakeRun(steps=400).frame(state=GONE, exit=Exit("killed", 137, "SIGKILL"))
    async with driven(frame) as viewer:
        assert "KILLED 137" in viewer.text
        await viewer.press("space")
        assert viewer.session.sent == [] and "nothing was sent" in viewer.text


async def test_quit_ends_with_success_and_ctrl_c_as_interrupted() -> None:
    async with driven() as viewer:
        await viewer.press("q")
        assert viewer.app.return_code == 0
    async with driven() as viewer:
        await viewer.press("ctrl+c")
        assert viewer.app.return_code == 130


async def test_a_frame_without_news_repaints_nothing() -> None:
    frame = FakeRun(steps=400).frame()
    async with driven(frame) as viewer:
        painted: list[object] = []
        drawn: list[object] = []
        for pane in viewer.app.panes.values():
            pane.refresh = lambda *regions, **_: painted.append(regions)  # type: ignore[method-assign]
            draw = pane.panel.draw
            pane.panel.draw = (  # type: ignore[method-assign]
                lambda *scene, draw=draw: drawn.append(scene) or draw(*scene)
            )
        await viewer.show(frame)
        assert painted == [] and drawn == []
        await viewer.show(replace(frame, step=400))
        assert painted and drawn
