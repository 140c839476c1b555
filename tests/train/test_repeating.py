"""What an earlier run was told is repeated at the same updates, bit for bit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands, ledger
from tuimon.train import monitor as monitors

UPDATES = 20
Asked = Mapping[int, commands.Command]


class Trained:
    """Losses and weights of a small training; `before` is called ahead of each update."""

    def __init__(self, *, amp: bool, clips: bool, before: Callable[[int], None]) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.05)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=5, enabled=amp)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.95)
        made = torch.Generator().manual_seed(1)
        self.losses: list[str] = []
        self.monitor = tuimon.watch(self.model, self.optimizer, snapshot_every=3)
        for update in range(UPDATES):
            before(update)
            x, y = torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            self.losses.append(loss.item().hex())
            scaler.scale(loss).backward()
            if clips:
                scaler.unscale_(self.optimizer)
                clip_grad_norm_(self.model.parameters(), 5.0)
            scaler.step(self.optimizer)
            scaler.update()
            scheduler.step()

    def same(self, other: Trained) -> bool:
        pairs = zip(self.model.parameters(), other.model.parameters(), strict=True)
        return self.losses == other.losses and all(torch.equal(a, b) for a, b in pairs)


def asking(feed: Feed, asked: Asked) -> Callable[[int], None]:
    def before(update: int) -> None:
        if update in asked:
            assert feed.ask(asked[update]).state == "accepted"

    return before


def nothing(_: int) -> None:
    pass


def written(feed: Feed) -> ledger.Ledger:
    """What a scribe would have kept of the run so far, read back."""
    head = ledger.head_bytes(run="first", name="n", host="h", argv=["x"], started_at_s=1.7e9)
    states = feed.of(tuimon.model.records.CommandState)
    return ledger.parse(head + b"".join(map(ledger.line_bytes, states)))


def repeating(what: ledger.Ledger) -> Callable[[int], None]:
    def before(update: int) -> None:
        if update == 0:
            monitors._wiring.observer.repeat(what)

    return before


@pytest.mark.parametrize("amp", [False, True])
@pytest.mark.parametrize("clips", [False, True])
def test_the_same_interventions_at_the_same_updates(amp: bool, clips: bool, feed: Feed) -> None:
    asked = {
        0: commands.SetLr(0.04),
        2: commands.SetClip("on", 0.3),
        5: commands.ScaleLr(0.5),
        7: commands.SkipUpdate(2),
        10: commands.SetMaxNorm(0.1),
        13: commands.RollBack(0.5),
        15: commands.ReleaseLr(),
        17: commands.SetClip("off"),
    }
    free = Trained(amp=amp, clips=clips, before=nothing)
    free.monitor.close()
    first = Trained(amp=amp, clips=clips, before=asking(feed, asked))
    assert not first.same(free), "the commands make no difference here: the test is blind"
    what = written(feed)
    assert [each.command for each in what.applied] == list(asked.values())
    first.monitor.close()
    second = Trained(amp=amp, clips=clips, before=repeating(what))
    assert second.same(first)
    again = written(feed)
    told = [(each.step, each.command) for each in again.applied]
    assert len(told) == 2 * len(asked) and told[0][0] <= told[-1][0]
    assert told[::2] == told[1::2], "the ledger of the second run says what that of the first does"
    shown = [(step.left_out != "", step.clip, step.lrs) for step in feed.steps]
    assert shown[-UPDATES:] == shown[-2 * UPDATES : -UPDATES]


@pytest.mark.parametrize("clips", [False, True])
def test_an_undo_takes_back_the_same_change(clips: bool, feed: Feed) -> None:
    one, two = commands.SetClip("on", 0.3), commands.ScaleLr(0.5)
    asked = {
        2: [commands.SetClip("on", 0.1), commands.SetLr(0.04)],
        4: [commands.Undo()],
        6: [two, one],  # what concerns clipping may take effect one update later than rates
        7: [commands.Undo()],
        9: [one, two],
        10: [commands.Undo()],
        12: [commands.RollBack(0.5)],
        14: [commands.Undo(), commands.Undo()],
        16: [commands.ScaleLr(0.7), commands.SetMaxNorm(0.05), commands.Undo("lr")],
    }

    def ask(update: int) -> None:
        for command in asked.get(update, ()):
            assert feed.ask(command).state == "accepted"

    def state() -> tuple[object, ...]:
        clipping, rates = monitors._wiring.observer.clipping, monitors._wiring.observer.rates
        return clipping.mode, clipping.max_norm, rates.factor, dict(rates.fixed)

    first = Trained(amp=False, clips=clips, before=ask)
    what, left = written(feed), state()
    first.monitor.close()
    second = Trained(amp=False, clips=clips, before=repeating(what))
    assert second.same(first) and state() == left
    again = [each for each in written(feed).applied if each.by.startswith("ledger")]
    assert [(each.step, each.command) for each in again] == [
        (each.step, each.command) for each in what.applied
    ]
    told = {(event.kind, event.step) for event in feed.events if event.kind in ("clip", "undo")}
    kinds = commands.SetClip | commands.SetMaxNorm | commands.Undo
    assert told == {
        ("undo" if isinstance(each.command, commands.Undo) else "clip", each.step)
        for each in what.applied
        if isinstance(each.command, kinds)
    }, "the events stand where the answers say"


def test_what_is_not_repeated_and_what_cannot_be_is_told(
    feed: Feed, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "dumps")
    wanted: list[tuple[int, Any]] = [
        (2, commands.Pause()),
        (2, commands.StepOnce()),
        (3, commands.Resume()),
        (4, commands.Dump(["0"], folder)),
        (5, commands.Dump(["nowhere"], folder)),
        (6, commands.SaveCheckpoint(folder)),
        (7, commands.SetLr(0.1, 9)),
        (8, commands.ArmHold()),
        (UPDATES + 5, commands.ScaleLr(0.5)),
    ]
    found = tuple(
        ledger.Intervention(str(place), step, command, "me")
        for place, (step, command) in enumerate(wanted)
    )

    def late(update: int) -> None:
        if update == 1:
            what = ledger.Ledger("first", (ledger.Intervention("0", 0, commands.Stop(), "me"),))
            monitors._wiring.observer.repeat(what)
        if update == 2:
            assert "step 0 is past" in capsys.readouterr().err
            monitors._wiring.observer.repeat(ledger.Ledger("first", found, ("dump",)))

    trained = Trained(amp=False, clips=False, before=late)
    assert len(trained.losses) == UPDATES
    run = feed.session.info.id
    trained.monitor.close()
    said = capsys.readouterr().err
    assert "no layer 'nowhere'" in said and "no param_group 9" in said
    assert "2 of run first repeated; 2 refused; 1 not reached" in said
    assert "1 pause, 1 one step" not in said and "1 pause, 1 step" in said and "1 dump" in said
    assert (tmp_path / "dumps" / f"run-{run}" / "step-000004").is_dir()
    assert (tmp_path / "dumps" / f"run-{run}" / "checkpoint-000006.pt").is_file()
    states = {state.id: state for state in feed.of(tuimon.model.records.CommandState)}
    assert sorted(state.state for state in states.values()) == [
        "applied", "applied", "expired", "refused", "refused", "refused",
    ]  # fmt: skip
    assert all("ledger of first: me" in state.by for state in states.values())


def test_a_stop_ends_it_at_the_same_step(feed: Feed) -> None:
    what = ledger.Ledger("first", (ledger.Intervention("0", 7, commands.Stop(), "me"),))
    with pytest.raises(tuimon.Stop, match="at step 7"):
        Trained(amp=False, clips=False, before=repeating(what))
    assert len(feed.steps) == 7
