"""What was changed from outside is taken back, the newest first, to exactly what was before."""

from __future__ import annotations

import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands
from tuimon.train import monitor as monitors


def test_changes_are_taken_back_in_order(feed: Feed) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    tuimon.watch(model, optimizer)
    observer = monitors._wiring.observer
    before: list[tuple[object, ...]] = []
    told = []
    asked = [
        commands.SetClip("on", 0.7), commands.SetMaxNorm(0.1), commands.ScaleLr(1 / 3),
        commands.SetLr(0.7), commands.ScaleLr(0.1), commands.SetClip("off"), commands.ReleaseLr(),
    ]  # fmt: skip

    def now() -> tuple[object, ...]:
        clipping, rates = observer.clipping, observer.rates
        return clipping.mode, clipping.max_norm, rates.factor, dict(rates.fixed)

    def update(command: commands.Command) -> None:
        told.append(feed.ask(command).id)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    for command in asked:
        before.append(now())
        update(command)
    update(commands.SetClip("on", -1.0))  # refused: there is nothing of it to take back
    for state in reversed(before):
        assert now() != state
        update(commands.Undo())
        assert now() == state
    update(commands.Undo())
    *_, first, nothing = [feed.states(each)[-1] for each in told]
    assert (first.state, first.old, first.new) == ("applied", "on 0.7, 0.7", "user, none")
    assert nothing.state == "refused" and "nothing to undo" in nothing.reason
    texts = [event.text for event in feed.events if event.kind == "undo"]
    assert texts[0] == "undone: learning rate 0.3 → 0.07 from update 8 on"
    assert texts[-1] == "undone: clip and max_norm on 0.7, 0.7 → user, none from update 14 on"
    assert first.reason == "takes back clip on 0.7"
    assert {step.lrs[0] for step in feed.steps[-2:]} == {0.3}


def test_an_undo_says_what_it_takes_back_also_where_that_had_changed_nothing(feed: Feed) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    tuimon.watch(model, optimizer)
    told = []
    for command in (commands.SetClip("off"), commands.ReleaseLr(), commands.Undo()):
        told.append(feed.ask(command).id)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    undone = feed.states(told[-1])[-1]
    assert (undone.state, undone.old, undone.new) == ("applied", None, None)
    assert undone.reason == "takes back the script's own learning rate, which had changed nothing"
    event = next(event for event in feed.events if event.kind == "undo")
    assert event.text == "undone: the script's own learning rate, which had changed nothing"
