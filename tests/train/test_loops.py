"""Whatever updates the weights: every update published as it was, and the numbers untouched."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler

import tuimon
from tests.train.conftest import Feed
from tests.train.twins import Diary, Loop, twins

Make = Callable[[nn.Module], torch.optim.Optimizer]
mse = nn.functional.mse_loss


def net() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1)
    )


def batches(count: int = 8) -> list[tuple[torch.Tensor, torch.Tensor]]:
    made = torch.Generator().manual_seed(7)
    return [
        (torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)) for _ in range(count)
    ]


def by(make: Make, *, schedule: Callable[[Any], Any] | None = None, clip: bool = False) -> Loop:
    """A plain loop over what `make` returns."""

    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = make(model)
        scheduler = schedule(optimizer) if schedule else None
        diary(model, optimizer, scheduler=scheduler)
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            diary.note(loss, model.parameters())
            if clip:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            if isinstance(scheduler, lr_scheduler.ReduceLROnPlateau):
                scheduler.step(loss.item())
            elif scheduler is not None:
                scheduler.step()
        return [model, optimizer, scheduler.state_dict() if scheduler is not None else None]

    return loop


KINDS: dict[str, Make] = {
    f"{kind.__name__}-{'-'.join(map(str, options))}": lambda model, kind=kind, options=options: (
        kind(model.parameters(), lr=0.01, **{**extra(kind), **options})
    )
    for kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    for options in ({"foreach": False}, {"foreach": True}, {"fused": True})
}
KINDS |= {
    name: lambda model, name=name: getattr(torch.optim, name)(model.parameters())
    for name in ("Adadelta", "Adamax", "ASGD", "NAdam", "RAdam", "RMSprop", "Rprop", "Adafactor")
    if hasattr(torch.optim, name)
}
KINDS["complex groups"] = lambda model: torch.optim.SGD(
    [
        {"params": model[0].parameters(), "lr": 0.1},
        {"params": [*model[1].parameters(), *model[4].parameters()], "maximize": True},
    ],
    lr=0.01,
    momentum=0.9,
    nesterov=True,
    weight_decay=0.1,
)


def extra(kind: type[torch.optim.Optimizer]) -> dict[str, Any]:
    return {"momentum": 0.9} if kind is torch.optim.SGD else {}


@pytest.mark.parametrize("clip", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_optimizers(kind: str, clip: bool, feed: Feed) -> None:
    found = twins(by(KINDS[kind], clip=clip), feed)
    assert len(found.steps) == 8
    assert all((step.max_norm is not None) is clip for step in found.steps)


SCHEDULES: dict[str, Callable[[Any], Any]] = {
    "one cycle": lambda optimizer: lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=9),
    "plateau": lambda optimizer: lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5),
    "sequence": lambda optimizer: lr_scheduler.SequentialLR(
        optimizer,
        [lr_scheduler.LinearLR(optimizer), lr_scheduler.ExponentialLR(optimizer, 0.7)],
        [3],
    ),
    "chained": lambda optimizer: lr_scheduler.ChainedScheduler(
        [lr_scheduler.StepLR(optimizer, 2), lr_scheduler.ConstantLR(optimizer)]
    ),
}


@pytest.mark.parametrize("tensor", [False, True])
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_learning_rates_as_the_scheduler_has_them(schedule: str, tensor: bool, feed: Feed) -> None:
    rates: list[float] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = torch.optim.Adam(
            model.parameters(), lr=torch.tensor(0.05) if tensor else 0.05, foreach=False
        )
        rates.clear()
        optimizer.register_step_post_hook(
            lambda made, *_: rates.append(float(made.param_groups[0]["lr"]))
        )
        return optimizer

    found = twins(by(make, schedule=SCHEDULES[schedule]), feed)
    assert [step.lrs for step in found.steps] == [[rate] for rate in rates]
    assert len(set(rates)) > 1, "the schedule changes nothing: the test is blind"


def test_several_backward_calls_and_penalties(feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        maker, judge = nn.Linear(4, 6), net()
        judged = torch.optim.Adam(judge.parameters(), lr=0.01)
        made = torch.optim.Adam(maker.parameters(), lr=0.01)
        diary([maker, judge], [judged, made])
        for x, _ in batches():
            judged.zero_grad()
            fake = maker(torch.randn(8, 4))
            judge(x).mean().neg().backward()
            judge(fake.detach()).mean().backward()
            point = x.clone().requires_grad_()
            # The penalty differentiates a gradient: its inner call is no backward of the script.
            (slope,) = torch.autograd.grad(judge(point).sum(), point, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).pow(2).mean()
            penalty.backward(retain_graph=True)
            penalty.backward()
            diary.note(penalty, judge.parameters())
            judged.step()
            made.zero_grad()
            loss = judge(fake).mean()
            torch.autograd.backward([loss, fake.mean()])
            diary.note(loss + fake.mean(), maker.parameters(), of=1)
            made.step()
        return [maker, judge, judged, made]

    found = twins(loop, feed)
    assert {step.backward_calls for step in found.of(0)} == {4}
    assert {step.backward_calls for step in found.of(1)} == {1}


def test_gradients_without_any_backward(feed: Feed) -> None:
    """`torch.autograd.grad` says no loss: the script's own log is what there is."""

    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)
        for x, y in batches():
            loss = mse(model(x), y)
            grads = torch.autograd.grad(loss, list(model.parameters()))
            for param, grad in zip(model.parameters(), grads, strict=True):
                param.grad = grad
            if diary.monitor is not None:
                diary.monitor.log(loss=loss)
            diary.norms[0].append(float(torch.nn.utils.get_total_norm(grads)))
            optimizer.step()
        return [model, optimizer]

    found = twins(loop, feed)
    assert {(step.loss, step.backward_calls) for step in found.steps} == {(None, 0)}
    norms = [step.grad_norm for step in found.steps]
    assert norms == pytest.approx(found.diary.norms[0], rel=1e-5)
    logged = feed.of(tuimon.model.records.Scalars)
    assert [(each.step, set(each.values)) for each in logged] == [
        (step, {"loss"}) for step in range(8)
    ]


@pytest.mark.hazard(6)
@pytest.mark.parametrize("keyword", [False, True])
@pytest.mark.parametrize("kind", ["LBFGS", "SGD"])
def test_closures(kind: str, keyword: bool, feed: Feed) -> None:
    """The gradients a closure makes are those of the update, and its losses all count."""
    evaluations: list[int] = []

    def loop(diary: Diary) -> list[Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer: torch.optim.Optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if kind == "LBFGS":
            optimizer = torch.optim.LBFGS(
                model.parameters(), max_iter=3, line_search_fn="strong_wolfe"
            )
        diary(model, optimizer)
        returned = []
        for x, y in batches(4):
            calls = itertools.count(1)

            def closure(x: torch.Tensor = x, y: torch.Tensor = y, calls: Any = calls) -> Any:
                optimizer.zero_grad()
                loss = mse(model(x), y)
                loss.backward()
                evaluations.append(next(calls))
                return loss

            if keyword:
                returned.append(optimizer.step(closure=closure))
            else:
                returned.append(optimizer.step(closure))
        return [model, optimizer, returned]

    found = twins(loop, feed)
    last = [a for a, b in itertools.pairwise([*evaluations, 1]) if b == 1]
    assert [step.backward_calls for step in found.steps] == last[len(last) // 2 :]
    assert all(step.grad_norm > 0 and step.loss is not None for step in found.steps)


class Sharpness(torch.optim.Optimizer):
    """A double step as published for SAM: climb, look again, come back, update by another one."""

    def __init__(self, params: Any, base: type[torch.optim.Optimizer], **options: Any) -> None:
        super().__init__(params, options)
        self.base_optimizer = base(self.param_groups, **options)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                self.state[param]["old"] = param.clone()
                param.add_(param.grad, alpha=0.05)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                param.copy_(self.state[param]["old"])
        self.base_optimizer.step()
        self.zero_grad()

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.first_step()
        torch.enable_grad()(closure)()
        self.second_step()


@pytest.mark.hazard(3)
@pytest.mark.parametrize("closure", [False, True])
def test_a_double_step_is_one_update(closure: bool, feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = Sharpness(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
        diary(model, optimizer)
        for x, y in batches():
            mse(model(x), y).backward()
            if closure:
                optimizer.step(lambda x=x, y=y: mse(model(x), y).backward())
                continue
            optimizer.first_step()
            loss = mse(model(x), y)
            loss.backward()
            diary.note(loss, model.parameters())
            optimizer.second_step()
        return [model, optimizer, optimizer.base_optimizer]

    found = twins(loop, feed)
    assert [(step.optimizer, step.step) for step in found.steps] == [(0, n) for n in range(8)]
    assert {step.backward_calls for step in found.steps} == {2}
    assert all(step.grad_norm > 0 for step in found.steps)


@pytest.mark.hazard(3)
def test_parameters_that_come_for_the_step_only(feed: Feed) -> None:
    """As one sharded engine does: groups are filled before the inner step and emptied after."""

    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        diary(model, optimizer)
        for x, y in batches():
            optimizer.zero_grad()
            mse(model(x), y).backward()
            for part in (model[0], model[4]):
                optimizer.param_groups[0]["params"] = list(part.parameters())
                optimizer.step()
                optimizer.param_groups[0]["params"] = []
        return [model]

    found = twins(loop, feed)
    assert len(found.steps) == 16 and all(step.grad_norm > 0 for step in found.steps)


@pytest.mark.hazard(7)
@pytest.mark.parametrize("clip", [False, True])
def test_an_optimizer_inside_backward(clip: bool, feed: Feed) -> None:
    """One backward is one update of everything; each gradient as it was before its own step."""

    def loop(diary: Diary) -> list[Any]:
        model = net()
        own = {param: torch.optim.Adam([param], lr=0.01) for param in model.parameters()}
        squares: list[float] = []

        def update(param: torch.Tensor) -> None:
            squares.append(float(param.grad.double().pow(2).sum()))
            if clip:
                nn.utils.clip_grad_norm_(param, 0.01)
            own[param].step()
            own[param].zero_grad()

        for param in model.parameters():
            param.register_post_accumulate_grad_hook(update)
        last = lambda: len(diary.norms[0]) == 7  # noqa: E731
        model[4].bias.register_hook(lambda grad: grad * (math.inf if last() else 1))
        diary(model, list(own.values()))
        for x, y in batches():
            squares.clear()
            loss = mse(model(x), y)
            loss.backward()
            diary.losses[0].append(loss.item())
            diary.norms[0].append(math.sqrt(sum(squares)))
        return [model, list(own.values())]

    found = twins(loop, feed)
    assert [step.optimizer for step in found.steps] == [0] * 8
    assert {step.backward_calls for step in found.steps} == {1}
    assert all(step.lrs == [0.01] for step in found.steps)
    assert [event.kind for event in found.events].count("inside-backward") == 1
    names = feed.table.names
    assert names == [name for name, _ in net().named_parameters()]
    assert set(feed.table.optimizer_index) == {0}
    assert [bad.name for bad in found.steps[7].bad if bad.what == "gradient"] == ["4.bias"]
    for step in found.steps[:7]:
        norms = np.frombuffer(step.norms, np.float32)
        assert not step.flags and math.hypot(*norms) == pytest.approx(step.grad_norm)
        assert step.max_norm == (0.01 if clip else None)
        assert (step.grad_norm_clipped < step.grad_norm) is clip


@pytest.mark.hazard(41)
def test_two_optimizers_stop_between_iterations(feed: Feed) -> None:
    """With explicit iterations no command ends the training while a graph is alive."""
    from tuimon.model import commands

    one, two = nn.Linear(6, 1), nn.Linear(6, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, two)]
    monitor = tuimon.watch([one, two], optimizers)
    done = []
    with pytest.raises(tuimon.Stop):
        for x, y in batches():
            with monitor.step():
                for index, model in enumerate((one, two)):
                    mse(model(x), y).backward()
                    if len(done) == 4 and index == 0:
                        assert feed.ask(commands.Stop()).state == "accepted"
                    optimizers[index].step()
                    done.append(index)
    assert done == [0, 1] * 3
