"""Interventions are bit for bit what the user's own lines would have done, in every combination.

Optimizer, its kind of step, loss scaling, and a norm that is finite or not.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands
from tuimon.train.control.policy import Policy

UPDATES, AT, BOUND = 12, 4, 0.2
STEPS: dict[str, dict[str, bool]] = {
    "plain": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True},
}  # fmt: skip
COMBINATIONS = list(
    itertools.product((torch.optim.SGD, torch.optim.AdamW), STEPS, (False, True))
)  # fmt: skip


class Trained:
    """What a small training leaves: weights, optimizer state, losses, rates, loss scale.

    Args:
        own: the user's own lines instead of a command: "clip", "skip" or "".
        infinite: update at which one gradient is Inf.
        clips: the loop clips by itself, with this bound.
        ask: called before each update, with its number.
    """

    def __init__(
        self,
        kind: Any,
        how: str,
        amp: bool,
        *,
        own: str = "",
        infinite: int = -1,
        clips: float | None = None,
        ask: Callable[[int], None] | None = None,
    ) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        self.optimizer = kind(self.model.parameters(), lr=0.05, **STEPS[how], **extra)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, enabled=amp)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.losses: list[float] = []
        monitor = None
        if ask is not None:
            monitor = tuimon.watch(self.model, self.optimizer, policy=Policy(autopsy="off"))
        made = torch.Generator().manual_seed(1)
        for update in range(UPDATES):
            if ask is not None:
                ask(update)
            x, y = torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)
            self.optimizer.zero_grad()
            loss = nn.functional.mse_loss(self.model(x), y)
            self.losses.append(loss.item())
            self.scaler.scale(loss).backward()
            if update == infinite:
                self.model[0].weight.grad[0, 0] = math.inf
            bound = clips if clips is not None else BOUND
            if clips is not None or (own == "clip" and update >= AT):
                self.scaler.unscale_(self.optimizer)
                clip_grad_norm_(self.model.parameters(), BOUND if own == "clip" else bound)
            if own != "skip" or update not in (AT, AT + 1):
                self.scaler.step(self.optimizer)
            elif clips is None:
                self.scaler.unscale_(self.optimizer)
            self.scaler.update()
            self.scheduler.step()
        if monitor is not None:
            monitor.close()

    def bits(self) -> list[Any]:
        state = self.optimizer.state_dict()["state"]
        tensors = [torch.as_tensor(v) for entry in state.values() for v in entry.values()]
        tensors += [param.detach() for param in self.model.parameters()]
        kept = [self.losses, self.scheduler.state_dict(), self.scaler.state_dict()]
        return [*[each.numpy().tobytes() for each in tensors], repr(kept)]


def once(feed: Feed, command: commands.Command) -> Callable[[int], None]:
    def ask(update: int) -> None:
        if update == AT:
            assert feed.ask(command).state == "accepted"

    return ask


@pytest.mark.parametrize(("kind", "how", "amp"), COMBINATIONS)
@pytest.mark.parametrize("infinite", [-1, 7])
def test_clipping(kind: Any, how: str, amp: bool, infinite: int, feed: Feed) -> None:
    def trained(**options: Any) -> list[Any]:
        return Trained(kind, how, amp, infinite=infinite, **options).bits()

    free = trained()
    clipped = trained(own="clip")
    assert clipped != free, "clipping makes no difference here: the test is blind"
    assert trained(ask=once(feed, commands.SetClip("on", BOUND))) == clipped
    off = commands.SetClip("off")
    assert trained(clips=BOUND, ask=lambda u: u or once(feed, off)(AT)) == free
    assert trained(clips=9.0, own="clip", ask=None) == trained(
        clips=9.0, ask=lambda u: u or once(feed, commands.SetClip("on", BOUND))(AT)
    )


@pytest.mark.parametrize(("kind", "how", "amp"), COMBINATIONS)
@pytest.mark.parametrize("clips", [None, 0.5])
def test_a_skipped_update_is_a_loop_that_did_not_call_step(
    kind: Any, how: str, amp: bool, clips: float | None, feed: Feed
) -> None:
    own = Trained(kind, how, amp, own="skip", clips=clips).bits()
    assert own != Trained(kind, how, amp, clips=clips).bits()
    ask = once(feed, commands.SkipUpdate(2))
    assert Trained(kind, how, amp, clips=clips, ask=ask).bits() == own


class Going:
    """A training with BatchNorm and a scheduler that can be stopped after each update."""

    def __init__(self, kind: Any, how: str, amp: bool, *, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))
        extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        self.optimizer = kind(self.model.parameters(), lr=0.05, **STEPS[how], **extra)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4, enabled=amp)
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.9)
        self.losses: list[float] = []

    def update(
        self, number: int, *, rate: Callable[[float], float] | None = None, instead: Any = None
    ) -> None:
        """One iteration, its update at another rate, or with a state to go back to `instead`."""
        made = torch.Generator().manual_seed(number)
        x, y = torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        self.losses.append(loss.item())
        self.scaler.scale(loss).backward()
        (group,) = self.optimizer.param_groups
        own = group["lr"]
        if instead is not None:
            self.scaler.unscale_(self.optimizer)
            self.load(instead)
        else:
            group["lr"] = own if rate is None else rate(own)
            self.scaler.step(self.optimizer)
            if rate is not None:
                group["lr"] = own
        self.scaler.update()
        self.scheduler.step()

    def state(self) -> Any:
        """What goes back: all but rates, schedule and random streams."""
        parts = (self.model, self.optimizer, self.scaler)
        return copy.deepcopy([part.state_dict() for part in parts])

    def load(self, state: Any) -> None:
        lrs = [group["lr"] for group in self.optimizer.param_groups]
        for part, kept in zip((self.model, self.optimizer, self.scaler), state, strict=True):
            part.load_state_dict(copy.deepcopy(kept))
        for group, lr in zip(self.optimizer.param_groups, lrs, strict=True):
            group["lr"] = lr

    def bits(self) -> list[Any]:
        model, optimizer, scaler = self.state()
        values = [v for entry in optimizer["state"].values() for v in entry.values()]
        tensors = [torch.as_tensor(each) for each in (*model.values(), *values)]
        kept = [scaler, self.scheduler.state_dict(), optimizer["param_groups"]]
        return [*[each.numpy().tobytes() for each in tensors], repr(kept)]


EVERY, KEPT, BACK_AT = 4, 4, 9  # the state after update 8 has not proved itself by then


@pytest.mark.parametrize(("kind", "how", "amp"), COMBINATIONS)
@pytest.mark.parametrize("factor", [None, 0.25])
def test_what_follows_a_roll_back_is_a_training_restarted_from_the_snapshot(
    kind: Any, how: str, amp: bool, factor: float | None, feed: Feed
) -> None:
    watched = Going(kind, how, amp)
    tuimon.watch(watched.model, watched.optimizer, snapshot_every=EVERY)
    for number in range(BACK_AT + UPDATES):
        if number == BACK_AT:
            assert feed.ask(commands.RollBack(factor)).state == "accepted"
        watched.update(number)

    first = Going(kind, how, amp)
    for number in range(BACK_AT):
        first.update(number)
        if number == KEPT:
            kept = first.state()
    restarted = Going(kind, how, amp, seed=1)
    restarted.scheduler.load_state_dict(first.scheduler.state_dict())
    restarted.optimizer.param_groups[0]["lr"] = first.optimizer.param_groups[0]["lr"]
    restarted.update(BACK_AT, instead=kept)
    smaller = None if factor is None else lambda own: own * factor
    for number in range(BACK_AT + 1, BACK_AT + UPDATES):
        restarted.update(number, rate=smaller)
        first.update(number)
    assert watched.bits() == restarted.bits() != first.bits()
    assert watched.losses[BACK_AT + 1 :] == restarted.losses[1:]


@pytest.mark.parametrize(("kind", "how", "amp"), COMBINATIONS)
def test_rates_from_outside(kind: Any, how: str, amp: bool, feed: Feed) -> None:
    asked = {3: commands.ScaleLr(0.5), 6: commands.SetLr(0.3), 9: commands.ReleaseLr()}
    rates = {
        number: (lambda own: 0.3) if number >= 6 else (lambda own: own * 0.5)
        for number in range(3, 9)
    }
    watched, own, free = (Going(kind, how, amp) for _ in range(3))
    tuimon.watch(watched.model, watched.optimizer)
    for number in range(UPDATES):
        if number in asked:
            assert feed.ask(asked[number]).state == "accepted"
        watched.update(number)
        own.update(number, rate=rates.get(number))
        free.update(number)
    assert watched.bits() == own.bits() != free.bits()
    assert repr(watched.scheduler.state_dict()) == repr(free.scheduler.state_dict())
