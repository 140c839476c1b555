"""Several optimizers, late parameters, nested steps: whose update, and which number."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands
from tuimon.model.records import UNMEASURED
from tuimon.train import monitor as monitors
from tuimon.train.owner import Owner


def test_tied_and_late_parameters(feed: Feed) -> None:
    first = nn.Linear(3, 3, bias=False)
    model = nn.Sequential(first, nn.ReLU(), first, nn.Linear(3, 1))
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    assert feed.table.aliases == {"2.weight": "0.weight"}
    assert feed.table.optimizer_index == [0, -1, -1]
    assert list(feed.steps[0].flags) == [0, UNMEASURED, UNMEASURED]
    optimizer.add_param_group({"params": list(model[3].parameters()), "lr": 0.5})
    optimizer.step()
    assert feed.table.optimizer_index == [0, 0, 0]
    assert feed.steps[1].epoch == feed.table.epoch > feed.steps[0].epoch
    assert feed.steps[1].lrs == [0.1, 0.5] and feed.steps[1].flags == b""


def test_several_optimizers_and_a_second_training(feed: Feed) -> None:
    made, judge = nn.Linear(3, 3), nn.Linear(3, 1)
    late, early = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (made, judge))
    tuimon.watch([made, judge], [late, early])
    for _ in range(2):
        judge(torch.randn(2, 3)).sum().backward()
        early.step()
        judge(made(torch.randn(2, 3))).sum().backward()
        late.step()
    assert [(step.optimizer, step.step) for step in feed.steps] == [(0, 0), (1, 0), (0, 1), (1, 1)]
    assert all(step.backward_calls == 1 for step in feed.steps)
    names, owners = feed.table.names, feed.table.optimizer_index
    assert dict(zip(names, owners, strict=True)) == {
        "Linear#0.weight": 1,
        "Linear#0.bias": 1,
        "Linear#1.weight": 0,
        "Linear#1.bias": 0,
    }
    later = torch.optim.Adam(judge.parameters())
    tuimon.watch(judge, later)
    judge(torch.randn(2, 3)).sum().backward()
    later.step()
    assert (feed.steps[-1].optimizer, feed.steps[-1].step) == (0, 2)


def test_a_shared_loss_belongs_to_both_updates(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    optimizers = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    tuimon.watch(model, optimizers)
    loss = model(torch.randn(2, 3)).sum()
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    for optimizer in optimizers:
        optimizer.step()
    assert [step.loss for step in feed.steps] == [loss.item()] * 2
    assert [step.max_norm for step in feed.steps] == [pytest.approx(0.1)] * 2
    assert all(step.grad_norm > step.grad_norm_clipped for step in feed.steps)


@pytest.mark.hazard(3)
def test_nested_steps_count_once(feed: Feed) -> None:
    class Twice(torch.optim.SGD):
        def step(self, closure: object = None) -> object:
            return super().step(closure)

    model = nn.Linear(3, 1)
    optimizer = Twice(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    for index in range(4):
        optimizer.zero_grad()
        model(torch.randn(2, 3)).sum().backward()
        if index == 1:
            model.bias.grad = torch.ones(1)
            optimizer.param_groups[0]["lr"] = "broken"
            with pytest.raises(TypeError):
                optimizer.step()
            optimizer.param_groups[0]["lr"] = 0.1
        else:
            optimizer.step()
    assert len(feed.steps) == 3


def test_no_optimizer_given(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stranger = torch.optim.SGD(nn.Linear(2, 2).parameters(), lr=0.1)
    tuimon.watch(model)
    model(torch.randn(2, 3)).sum().backward()
    stranger.step()
    optimizer.step()
    (step,) = feed.steps
    assert step.loss is not None and step.grad_norm > 0 and step.optimizer == 0


@pytest.mark.hazard(3)
def test_a_container_counts_and_its_parts_do_not(feed: Feed) -> None:
    class Container(torch.optim.Optimizer):
        def __init__(self, parts: list[torch.optim.Optimizer]) -> None:
            self.parts = parts
            super().__init__([p for part in parts for p in part.param_groups[0]["params"]], {})

        def step(self, closure: object = None) -> None:
            for part in self.parts:
                part.step()

    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1))
    parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in model]
    whole = Container(parts)
    tuimon.watch(model, [whole, *parts])
    for _ in range(3):
        model(torch.randn(2, 3)).sum().backward()
        whole.step()
    assert [(step.optimizer, step.step) for step in feed.steps] == [(0, 0), (0, 1), (0, 2)]


@pytest.mark.hazard(7)
def test_steps_inside_backward_can_be_paused_but_not_clipped(feed: Feed) -> None:
    model = nn.Linear(3, 1)
    own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    monitor = tuimon.watch(model, list(own.values()))
    for param in model.parameters():
        param.register_post_accumulate_grad_hook(lambda p: own[p].step())
    seen = []
    for step in range(4):
        model(torch.ones(1, 3)).sum().backward()
        seen.append(model.weight.detach().clone())
        if step == 1:
            paused = feed.ask(commands.Pause())
            clipped = feed.ask(commands.SetClip("on", 1.0))
            resume = threading.Timer(0.2, feed.ask, [commands.Resume()])
            resume.start()
    resume.join()
    assert [(step.optimizer, step.step) for step in feed.steps] == [(0, n) for n in range(4)]
    assert paused.state == "accepted"
    assert [(state.state, state.step) for state in feed.states(paused.id)][-1] == ("applied", 3)
    assert "inside backward" in feed.states(clipped.id)[-1].reason
    assert not any(map(torch.equal, seen, seen[1:]))
    monitor.close()
    assert monitors._wiring.observer.inside._members == {}


@pytest.mark.hazard(7)
def test_a_parameter_that_is_updated_outside_counts_by_itself(feed: Feed) -> None:
    model = nn.Linear(3, 1)
    own = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}
    tuimon.watch(model, list(own.values()))
    handle, _ = (p.register_post_accumulate_grad_hook(lambda p: own[p].step()) for p in own)
    model(torch.ones(1, 3)).sum().backward()
    handle.remove()
    for _ in range(2):
        model(torch.ones(1, 3)).sum().backward()
        own[model.weight].step()
    assert sorted((step.optimizer, step.step) for step in feed.steps) in (
        [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1)],
        [(0, 0), (0, 1), (0, 2), (0, 3), (0, 4)],
    )


@pytest.mark.hazard(2)
def test_an_optimizer_may_go_whatever_fails(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(self: Owner, _: Any) -> None:
        raise ZeroDivisionError("on purpose")

    gc.collect()  # what other tests left
    monkeypatch.setattr(Owner, "_forget", fails)
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    capsys.readouterr()
    del optimizer
    gc.collect()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("tuimon: the end of an optimizer could not be watched")
