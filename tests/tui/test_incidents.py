"""Incidents on the screen: the line above, the list, the story, a hold, the AMP ledger, copies."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import structs

from tests.tui.driving import Driven, driven
from tests.tui.fake import FakeRun
from tests.tui.incidents import (
    AUTOPSY,
    CRASH,
    FINDINGS,
    LEAF_AUTOPSY,
    STEP,
    TRIALS,
    amp_frame,
    held_frame,
    incident_frame,
)
from tuimon.model.autopsy import NOT_REPRODUCED, OpSite, TensorNote
from tuimon.model.commands import ArmHold, DisarmHold, RenewHold, RunAutopsy, SkipUpdate
from tuimon.model.records import CommandState, Event
from tuimon.model.verdict import sentence
from tuimon.tui.draw.glyphs import ASCII
from tuimon.tui.draw.theme import Look
from tuimon.tui.keys.actions import ACTIONS
from tuimon.tui.once import verdict_of
from tuimon.tui.panels.header import HOLD_KEYS
from tuimon.tui.panels.incident import wrapped
from tuimon.tui.stories.autopsy_story import path_lines
from tuimon.tui.stories.story import as_text
from tuimon.view.frame import GONE, LIVE, Exit
from tuimon.view.incidents import of_autopsy

VERDICT = "step 147: aten::log gave -Inf in loss code, train.py:24"


def _banner(text: str) -> str:
    return text.splitlines()[1]


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)], ids=str)
async def test_the_line_of_an_incident_names_the_operation_and_the_key(
    size: tuple[int, int],
) -> None:
    async with driven(incident_frame(), size=size) as viewer:
        for key in ("1", "2", "3", "5", "6"):
            banner = _banner(await viewer.press(key))
            assert VERDICT[:40] in banner and banner.rstrip().endswith(("v look", "hide")), key


async def test_v_tells_the_whole_incident() -> None:
    async with driven(incident_frame(findings=FINDINGS), size=(120, 60)) as viewer:
        text = await viewer.press("v")
        for words in (
            VERDICT,
            "loss = -(onehot[idx] * torch.log(prob)).sum(-1).mean()",
            "prob  64×3  float32      0 … 1  zeros 3",
            "-Inf 3 of 192",
            "97%       logarithm of 0, or of almost 0  log-zero  confirmed",
            "prob held 3 exact zeros",
            "F.cross_entropy",
            "4  aten::mean",
            "and 1 with nothing bad in them",
            "non-finite-loss  loss is NaN",
            "the batch was drawn again",
        ):
            assert words in text, words
        assert text.index("log-zero") < text.index("lr-too-high")  # refuted comes last


async def test_the_cause_and_its_remedy_stand_above_the_fold() -> None:
    async with driven(incident_frame(findings=FINDINGS), size=(80, 24)) as viewer:
        text = await viewer.press("v")
        assert "lines more" in text
        assert (
            text.index("logarithm of 0, or of almost 0")
            < text.index("remedy")
            < text.index("aten::log  in")
        )


async def test_trials_stand_with_the_finding_they_tested() -> None:
    frame = incident_frame(findings=FINDINGS, trials=TRIALS)
    async with driven(frame, size=(120, 60)) as viewer:
        text = await viewer.press("v")
        assert "tested    confirmed  log is given 1e-12 where it got 0: loss 4.2 instead" in text
        assert text.index("tested    refuted  learning rate divided by 10") > text.index(
            "lr-too-high"
        )
        assert "exp is given" not in text  # of a finding that is no longer held


async def test_a_poisoned_leaf_and_a_crash_tell_their_own() -> None:
    async with driven(incident_frame(LEAF_AUTOPSY)) as viewer:
        text = await viewer.press("v")
        assert text.index("not finite before anything was computed") < text.index("met by")
        assert "samples   17" in text
    ended = incident_frame(crash=CRASH, state=GONE, exit=Exit("exception", 1, "IndexError"))
    async with driven(ended) as viewer:
        assert "IndexError: Target 10 is out of bounds.  in train.py:41" in _banner(viewer.text)
        text = await viewer.press("v")
        assert "aten::nll_loss_nd" in text and "0 … 10" in text and "train.py:88" in text


async def test_the_selection_stays_on_its_entry_while_events_come_in() -> None:
    frame = incident_frame()
    async with driven(frame) as viewer:
        await viewer.press("v")
        late = Event(STEP + 9, 1.8e9, "info", "dump", "tensors written")
        text = await viewer.show(replace(frame, events=(*frame.events, late)))
        assert "tensors written" in text and "module    loss code" in text
        # The list follows what is new again from its top.
        text = await viewer.press("shift+tab", "g", "tab")
        assert "operation" not in text


async def test_an_incident_longer_than_the_screen_scrolls_to_its_end() -> None:
    async with driven(incident_frame(findings=FINDINGS), size=(80, 24)) as viewer:
        assert "lines more" in await viewer.press("v")
        text = await viewer.press("G")
        assert "the batch was drawn again" in text and "lines more" not in text
        assert "operation" in await viewer.press("g")


async def test_what_nobody_could_reproduce_does_not_hide_the_symptom() -> None:
    autopsy = structs.replace(AUTOPSY, verdict=NOT_REPRODUCED, first=None, path=[])
    async with driven(incident_frame(autopsy)) as viewer:
        assert "loss is NaN" in _banner(viewer.text)


async def test_an_autopsy_that_was_asked_for_is_no_alarm() -> None:
    asked = structs.replace(AUTOPSY, trigger="request")
    async with driven(incident_frame(asked, alert=None, events=())) as viewer:
        assert "aten::log" not in _banner(viewer.text)
        assert "operation" in await viewer.press("v")


def test_the_keys_of_a_hold_are_keys_of_the_table() -> None:
    known = {action.keys[0] for action in ACTIONS}
    assert {key for key, _ in HOLD_KEYS} <= known


@pytest.mark.parametrize("size", [(120, 40), (80, 24), (60, 20)], ids=str)
async def test_a_hold_says_what_to_press_and_how_long(size: tuple[int, int]) -> None:
    async with driven(held_frame(), size=size) as viewer:
        above = "\n".join(viewer.text.splitlines()[1:3])
        assert "4m12s" in above and "aten::log" in above
        for key, word in HOLD_KEYS:
            assert f"{key} {word}" in above


async def test_a_hold_opens_its_incident_once_and_never_against_the_person() -> None:
    held = held_frame()
    async with driven(incident_frame()) as viewer:
        assert "loss ─" in viewer.text
        assert "operation" in await viewer.show(held)
        assert "loss ─" in await viewer.press("1")
        again = await viewer.show(replace(held, hold_left_s=200.0))
        assert "operation" not in again and "3m20s" in again
        await viewer.show(replace(held, state=LIVE))
        assert "operation" not in await viewer.show(held)


async def test_a_second_hold_at_the_same_place_tells_its_own_step() -> None:
    held = held_frame()
    again = structs.replace(
        held.events[-1], time_s=2e9, step=STEP + 8, detail=sentence(AUTOPSY).replace("147", "155")
    )
    async with driven(replace(held, events=(*held.events, again))) as viewer:
        assert "step 155: aten::log gave -Inf" in viewer.text.splitlines()[1]
        assert "as at step 147, whose figures follow" in viewer.text
        assert "-Inf 3 of 192" in viewer.text


async def test_while_it_is_held_an_incident_has_its_cause_or_says_that_it_is_awaited() -> None:
    frame = held_frame(hold_left_s=299.0)
    hold = frame.events[-1]
    hold = structs.replace(hold, until_s=hold.time_s + 300.0)
    soon = replace(frame, events=(*frame.events[:-1], hold))
    async with driven(soon) as viewer:
        assert "examining…" in viewer.text and "remedy" not in viewer.text
        told = await viewer.show(replace(soon, findings=FINDINGS, trials=TRIALS))
        assert "examining…" not in told and "remedy" in told and "log-zero" in told
        assert "remedy" in as_text(of_autopsy(replace(soon, findings=FINDINGS), AUTOPSY))
        late = replace(soon, hold_left_s=240.0)
        assert "examining…" not in await viewer.show(late)  # nobody is there to conclude


async def test_a_hold_opens_nothing_behind_a_question() -> None:
    async with driven(incident_frame()) as viewer:
        await viewer.press("Q")
        assert "operation" not in await viewer.show(held_frame())
        await viewer.press("escape")
        assert "operation" in await viewer.show(held_frame())


async def test_hold_autopsy_and_skip_reach_the_training() -> None:
    frame = held_frame()
    async with driven(frame) as viewer:
        await viewer.press("exclamation_mark", "A", "x")
        assert "skip an update" in viewer.text
        viewer.clock.now_s += 1
        await viewer.press("y")
        await viewer.until_sent(3)
        assert viewer.session.sent == [ArmHold(30.0), RunAutopsy(), SkipUpdate()]
        armed = CommandState("a", "ArmHold", "applied")
        await viewer.show(replace(frame, commands=(armed,)))
        await viewer.press("exclamation_mark")
        await viewer.until_sent(4)
        assert viewer.session.sent[3] == DisarmHold()


async def test_a_hold_stays_armed_while_a_viewer_is_there() -> None:
    run = FakeRun(steps=160, blocks=2)
    async with driven(run.frame(commands=(CommandState("a", "ArmHold", "applied"),))) as viewer:
        viewer.app.bridge.renew_hold()
        viewer.app.bridge.renew_hold()  # once in a third of the lease
        await _until_renewed(viewer, 1)
        assert "HOLD ARMED" in viewer.text.splitlines()[0]
        viewer.clock.now_s += 11
        viewer.app.bridge.renew_hold()
        await _until_renewed(viewer, 2)
        assert viewer.session.sent == [RenewHold(30.0)] * 2
        viewer.clock.now_s += 11
        await viewer.show(run.frame())
        viewer.app.bridge.renew_hold()
        await viewer.pilot.pause(0.05)
        assert len(viewer.session.sent) == 2


async def _until_renewed(viewer: Driven, count: int) -> None:
    for _ in range(500):
        if len(viewer.session.sent) >= count:
            return
        await viewer.pilot.pause(0.01)
    raise AssertionError(f"{len(viewer.session.sent)} signs of life, expected {count}")


async def test_a_copy_is_plain_text_without_control_characters(tmp_path: Path) -> None:
    evil = structs.replace(AUTOPSY, notes=["\x1b]52;c;AAAA\x07 \u202egpj"])
    async with driven(incident_frame(evil, findings=FINDINGS)) as viewer:
        viewer.app.options = replace(viewer.app.options, folder=tmp_path)
        await viewer.press("Y")
        text = viewer.app.clipboard
        assert VERDICT in text and "F.cross_entropy" in text and "train.py:24" in text
        assert all(char == "\n" or char.isprintable() for char in text)
        assert "copied" in viewer.text.splitlines()[-1]
        await viewer.press("w", "w")
        names = sorted(path.name for path in tmp_path.iterdir())
        assert names == [
            "tuimon-llama-1b-pretrain-step-147-2.txt",
            "tuimon-llama-1b-pretrain-step-147.txt",
        ]
        assert (tmp_path / names[1]).read_text() == text
        viewer.app.options = replace(viewer.app.options, folder=tmp_path / "none")
        assert "not written: No such file" in (await viewer.press("w")).splitlines()[-1]


async def test_nothing_to_copy_is_said() -> None:
    async with driven(FakeRun(steps=160, blocks=2).frame()) as viewer:
        for key in ("Y", "w", "v"):
            assert "nothing has gone wrong" in (await viewer.press(key)).splitlines()[-1], key


@pytest.mark.parametrize("size", [(120, 40), (80, 24)], ids=str)
async def test_the_amp_ledger(size: tuple[int, int]) -> None:
    async with driven(amp_frame(), size=size) as viewer:
        text = await viewer.press("6")
        for words in (
            "4,096 = 2^12",
            "3 of 1,600 (0.188%)",
            "2.11×",
            "lm_head.weight",
            "16/30",
            "+Inf 12 -Inf 3 of 4,096",
            "clipping before scaler.unscale_()",
            "first at step 7",
        ):
            assert words in text, words
        plot = next(line for line in text.splitlines() if "×" in line[8:79] and "│" in line)
        assert plot[8:79].count("×") == 1  # the update that was left out, under its step


async def test_a_run_without_a_scaler_has_an_empty_ledger_that_says_so() -> None:
    async with driven(FakeRun(steps=160, blocks=2).frame(amp=None), size=(80, 24)) as viewer:
        assert "no GradScaler is in use" in await viewer.press("6")


def test_one_printed_frame_ends_with_the_verdict_in_whole() -> None:
    lines = verdict_of(incident_frame())
    assert lines[0].startswith(VERDICT) and "torch.log(prob)" in lines[0]
    assert lines[1] == "it was given prob [64x3] float32 0 … 1"
    assert verdict_of(incident_frame(), ASCII)[1].isascii()
    assert verdict_of(incident_frame(crash=CRASH))[0].startswith("step 147: IndexError")
    assert verdict_of(FakeRun(steps=9, blocks=1).frame()) == []


def test_rows_of_the_path_are_one_line_each_where_an_operation_has_a_long_name() -> None:
    long = OpSite(
        "aten::_scaled_dot_product_flash_attention_for_cpu",
        module="transformer.blocks.1.attn",
        file="/project/train.py",
        line=10,
        outputs=[TensorNote("", [1], "float32", nan=1)],
    )
    autopsy = structs.replace(AUTOPSY, path=[long, structs.replace(long, op="aten::addmm"), long])
    for width in (76, 78, 118):
        lines = path_lines(autopsy, width - 12)
        shown = [line.text for line in lines[2:]]
        assert [len(wrapped(Look(), line, width)) for line in lines[2:]] == [1, 1, 1]
        assert "addmm" in shown[1] and all("train.py:10  NaN" in line for line in shown)
        assert (long.op in shown[0]) == (width == 118) and shown[0].split()[1].endswith("cpu")
