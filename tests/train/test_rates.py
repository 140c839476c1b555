"""A learning rate asked for from outside holds for the updates, and for nothing else."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands

UPDATES, ASKED_AT = 12, 4
COMBINATIONS = list(
    itertools.product((torch.optim.SGD, torch.optim.AdamW), (False, True), (False, True))
)
Rate = Callable[[int, int, float], float]  # (update, group, the script's own) -> the update's


class Trained:
    """A small training with two groups and a scheduler, and what it leaves."""

    def __init__(self, kind: Any, *, amp: bool = False, tensor: bool = False, **options: Any):
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        rate = torch.tensor(0.05) if tensor else 0.05
        groups = [
            {"params": list(self.model[0].parameters()), "lr": rate},
            {"params": list(self.model[2].parameters()), "lr": 0.02},
        ]
        self.optimizer = kind(groups, **options)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=amp)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)

    def run(self, before: Callable[[int], None], rate: Rate | None = None) -> Trained:
        made = torch.Generator().manual_seed(1)
        for update in range(UPDATES):
            x, y = torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)
            self.optimizer.zero_grad()
            self.scaler.scale(nn.functional.mse_loss(self.model(x), y)).backward()
            before(update)
            own = [group["lr"] for group in self.optimizer.param_groups]
            if rate is not None:
                for index, group in enumerate(self.optimizer.param_groups):
                    group["lr"] = rate(update, index, own[index])
            self.scaler.step(self.optimizer)
            for group, value in zip(self.optimizer.param_groups, own, strict=True):
                assert rate is not None or group["lr"] is value
                group["lr"] = value
            self.scaler.update()
            self.scheduler.step()
        return self

    def left(self) -> list[torch.Tensor]:
        state = self.optimizer.state_dict()["state"]
        tensors = [torch.as_tensor(v) for entry in state.values() for v in entry.values()]
        return [param.detach() for param in self.model.parameters()] + tensors

    def rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


def nothing(_: int) -> None:
    pass


def same(one: Trained, other: Trained) -> bool:
    pairs = zip(one.left(), other.left(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def scaled(update: int, group: int, own: float) -> float:
    return own * 0.5 if update >= ASKED_AT else own


def fixed(update: int, group: int, own: float) -> float:
    return 0.3 if update >= ASKED_AT and group == 1 else own


@pytest.mark.parametrize(("kind", "fused", "amp"), COMBINATIONS)
@pytest.mark.parametrize(
    "asked", [(commands.ScaleLr(0.5), scaled), (commands.SetLr(0.3, 1), fixed)]
)
def test_bitwise_the_users_own_and_unseen_by_the_scheduler(
    kind: Any, fused: bool, amp: bool, asked: tuple[commands.Command, Rate], feed: Feed
) -> None:
    command, rate = asked
    free = Trained(kind, amp=amp, fused=fused).run(nothing)
    own = Trained(kind, amp=amp, fused=fused).run(nothing, rate)
    assert not same(own, free), "the rate makes no difference here: the test is blind"
    watched = Trained(kind, amp=amp, fused=fused)
    tuimon.watch(watched.model, watched.optimizer)

    def ask(update: int) -> None:
        if update == ASKED_AT:
            assert feed.ask(command).state == "accepted"

    watched.run(ask)
    assert same(watched, own)
    assert watched.rates() == free.rates() == own.rates()
    assert watched.scheduler.get_last_lr() == free.scheduler.get_last_lr()
    shown = [step.lrs for step in feed.steps]
    begun = [[0.05, 0.02]]
    for _ in range(UPDATES - 1):
        begun.append([value * 0.9 for value in begun[-1]])
    expected = [
        [rate(update, group, value) for group, value in enumerate(values)]
        for update, values in enumerate(begun)
    ]
    assert shown == [pytest.approx(each) for each in expected]


def test_a_tensor_keeps_its_identity_and_its_value(feed: Feed) -> None:
    own = Trained(torch.optim.AdamW, tensor=True, foreach=False).run(nothing, scaled)
    watched = Trained(torch.optim.AdamW, tensor=True, foreach=False)
    tuimon.watch(watched.model, watched.optimizer)
    watched.run(lambda update: feed.ask(commands.ScaleLr(0.5)) if update == ASKED_AT else None)
    assert same(watched, own) and watched.rates() == own.rates()


def test_released_it_goes_on_as_the_script_says(feed: Feed) -> None:
    watched = Trained(torch.optim.SGD)
    tuimon.watch(watched.model, watched.optimizer)
    asked = {
        2: commands.ScaleLr(2.0), 3: commands.ScaleLr(2.0), 5: commands.SetLr(0.0, 0),
        7: commands.ReleaseLr(), 8: commands.SetLr(0.1, 9), 9: commands.SetLr(0.1, None, 3),
    }  # fmt: skip
    ids = {at: "" for at in asked}

    def ask(update: int) -> None:
        if update in asked:
            ids[update] = feed.ask(asked[update]).id

    watched.run(ask)
    firsts = [step.lrs[0] / (0.05 * 0.9**i) for i, step in enumerate(feed.steps)]
    assert firsts == pytest.approx([1, 1, 2, 4, 4, 0, 0, 1, 1, 1, 1, 1])
    told = {at: feed.states(asked_as)[-1] for at, asked_as in ids.items()}
    assert (told[2].state, told[2].step) == ("applied", 2)
    assert told[5].new is not None and told[5].new.startswith("0, ")
    assert told[8].state == "refused" and "param_group 9" in told[8].reason
    assert told[9].state == "refused" and "optimizer 3" in told[9].reason
    assert sum(event.kind == "lr" for event in feed.events) == 4


def test_a_step_that_raises_leaves_the_scripts_own_at_the_next(feed: Feed) -> None:
    class Fails(torch.optim.SGD):
        raises = False

        def step(self, closure: Any = None) -> Any:
            if self.raises:
                self.raises = False
                raise RuntimeError("once")
            return super().step(closure)

    watched = Trained(Fails)
    tuimon.watch(watched.model, watched.optimizer)
    feed.ask(commands.SetLr(0.3))
    watched.optimizer.raises = True
    watched.optimizer.zero_grad()
    watched.model(torch.ones(1, 6)).sum().backward()
    with pytest.raises(RuntimeError):
        watched.optimizer.step()
    watched.optimizer.step()
    assert watched.rates() == [0.05, 0.02]


@pytest.mark.parametrize(
    "command",
    [
        commands.ScaleLr(0.0), commands.ScaleLr(float("nan")), commands.ScaleLr(1e9),
        commands.SetLr(-1.0), commands.SetLr(float("inf")), commands.SetLr(0.1, -1),
    ],
)  # fmt: skip
def test_what_no_training_can_do(command: commands.Command, feed: Feed) -> None:
    watched = Trained(torch.optim.SGD)
    tuimon.watch(watched.model, watched.optimizer)
    assert feed.ask(command).state == "refused"
