"""The trainer's side of the AMP ledger: what overflowed first, and the order of the calls."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.amp import BY_GRAPH, BY_TABLE, AmpCalls, AmpSkip
from tuimon.model.records import Step
from tuimon.train.facts import overflow


class Loop:
    """A small half-precision training whose steps a test spoils."""

    def __init__(self, *, scale: float = 16.0, growth_interval: int = 2000, **sgd: float) -> None:
        self.model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.Linear(8, 2))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.01, **sgd)
        self.monitor = tuimon.watch(self.model, self.optimizer)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)

    def loss(self) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.float16):
            out: torch.Tensor = self.model(torch.ones(3, 4))
        return out.float().square().mean()

    def backward(self, loss: torch.Tensor | None = None) -> torch.Tensor:
        loss = self.loss() if loss is None else loss
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        return loss

    def clip(self, max_norm: float = 1.0) -> None:
        nn.utils.clip_grad_norm_(self.model.parameters(), max_norm)

    def step(self) -> None:
        self.scaler.step(self.optimizer)
        self.scaler.update()

    @contextmanager
    def overflows_at(self, layer: int) -> Iterator[None]:
        """The gradient that reaches the output of a layer is infinite in one element."""

        def spoil(grad: torch.Tensor) -> torch.Tensor:
            spoiled = grad.clone()
            spoiled.view(-1)[0] = math.inf
            return spoiled

        def hook(module: nn.Module, args: object, out: torch.Tensor) -> None:
            out.register_hook(spoil)

        handle = self.model[layer].register_forward_hook(hook)
        yield
        handle.remove()


@pytest.fixture
def loop(feed: Feed) -> Loop:
    return Loop()


def skips(feed: Feed) -> list[AmpSkip]:
    return feed.of(AmpSkip)


def calls(feed: Feed) -> AmpCalls:
    feed.session.finish("ok")
    found: AmpCalls = feed.of(AmpCalls)[-1]
    return found


def test_the_first_overflow_of_a_skipped_update_is_named_and_counted(
    loop: Loop, feed: Feed
) -> None:
    loss = loop.backward()
    loop.step()
    with loop.overflows_at(2):
        loss = loop.backward()
        loop.step()
    assert math.isfinite(loss.item())
    (skip,) = skips(feed)
    assert (skip.step, skip.optimizer, skip.scale) == (1, 0, 16.0)
    # Two layers below are bad as well; the last layer's own gradient is not.
    assert skip.name in ("2.weight", "2.bias") and skip.order == BY_GRAPH
    param = dict(loop.model.named_parameters())[skip.name]
    assert param.grad is not None
    assert skip.posinf == int(param.grad.isposinf().sum()) > 0
    assert (skip.nan, skip.neginf) == (
        int(param.grad.isnan().sum()),
        int(param.grad.isneginf().sum()),
    )
    assert (skip.numel, skip.measured, skip.loss_is_finite) == (param.numel(), 6, True)
    assert [step.skipped for step in feed.of(Step)] == [False, True]
    loop.backward()
    loop.step()
    assert len(skips(feed)) == 1


def test_a_later_run_of_the_process_looks_at_an_order_of_its_own(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overflow, "MAX_WALKS", 1)
    for _ in range(2):
        training = Loop()
        with training.overflows_at(2):
            loss = training.backward()  # its graph is what tells the order
            training.step()
        assert math.isfinite(loss.item()) and skips(feed)[-1].order == BY_GRAPH
        training.monitor.close()


class DefinedLast(nn.Module):
    """Its first parameters are those that are used last."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(8, 2, bias=False)
        self.first = nn.Linear(4, 8, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(self.first(x))
        return out


def test_the_order_is_that_of_the_backward_pass_not_of_the_table(feed: Feed) -> None:
    model = DefinedLast()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    scaler = torch.amp.GradScaler("cpu")
    loss = model(torch.ones(1, 4)).sum() * math.inf
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    (skip,) = skips(feed)
    assert (skip.name, skip.order, skip.tensors) == ("last.weight", BY_GRAPH, 2)
    assert skip.loss_is_finite is False


def test_without_a_graph_the_table_decides(loop: Loop, feed: Feed) -> None:
    loop.backward()
    for param in loop.model.parameters():
        param.grad = torch.full_like(param, math.nan)
    loop.step()  # the loss of `backward` is gone by now
    (skip,) = skips(feed)
    assert (skip.name, skip.order, skip.tensors) == ("3.bias", BY_TABLE, 6)
    assert skip.nan == 2


def test_a_gradient_too_large_to_count_is_named_all_the_same(
    loop: Loop, feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuimon.train.samples.census.MAX_INCIDENTS", 1)
    monkeypatch.setattr(overflow, "MAX_COUNTED", 1)
    for _ in range(2):  # the first is counted with everything else that is bad
        with loop.overflows_at(3):
            loop.backward()
            loop.step()
    counted, skip = skips(feed)
    assert counted.nan == 0 and counted.posinf
    assert skip.name.startswith("3.") and skip.nan is None and skip.numel > 0


def test_clipping_that_spreads_nan_does_not_hide_the_first(loop: Loop, feed: Feed) -> None:
    with loop.overflows_at(2):
        loss = loop.backward()
        loop.scaler.unscale_(loop.optimizer)
        loop.clip()  # every gradient is NaN or 0 now
        loop.step()
        assert loss.isfinite()
    (skip,) = skips(feed)
    assert skip.name.startswith("2.")
    assert skip.posinf  # as it was before the clipping
    assert calls(feed).clipped_scaled == 0


def wrong(feed: Feed) -> dict[str, int]:
    return calls(feed).first


def good_loop(loop: Loop) -> None:
    loop.backward()
    loop.step()


def unscale_and_clip(loop: Loop) -> None:
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.clip()
    loop.step()


def clip_at_the_scaled_bound(loop: Loop) -> None:
    loop.backward()
    loop.clip(1.0 * loop.scaler.get_scale())
    loop.step()


def logs_the_norm(loop: Loop) -> None:
    loop.backward()
    loop.clip(math.inf)
    loop.step()


def accumulates(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    for _ in range(3):
        (loop.scaler.scale(loop.loss()) / 3).backward()
    loop.step()


def sums_two_losses(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    (loop.scaler.scale(loop.loss()) + loop.scaler.scale(loop.loss())).backward()
    loop.step()


def unscales_and_steps_by_itself(loop: Loop) -> None:
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.optimizer.step()
    loop.scaler.update()


@pytest.mark.parametrize(
    "iteration",
    [
        good_loop,
        unscale_and_clip,
        clip_at_the_scaled_bound,
        logs_the_norm,
        accumulates,
        sums_two_losses,
        unscales_and_steps_by_itself,
    ],
)
def test_right_orders_are_not_accused(
    feed: Feed, loop: Loop, iteration: Callable[[Loop], None]
) -> None:
    for _ in range(3):
        iteration(loop)
    assert wrong(feed) == {}
    assert feed.of(AmpCalls)[-1].updates == 3


def clips_before_unscale(loop: Loop) -> None:
    loop.backward()
    loop.clip(0.01)
    loop.step()


def clips_then_unscales(loop: Loop) -> None:
    loop.backward()
    loop.clip(0.01)
    loop.scaler.unscale_(loop.optimizer)
    loop.step()


def clips_elements_before_unscale(loop: Loop) -> None:
    loop.backward()
    nn.utils.clip_grad_value_(loop.model.parameters(), 0.01)
    loop.step()


def steps_past_the_scaler(loop: Loop) -> None:
    loop.backward()
    loop.optimizer.step()


def scales_no_loss(loop: Loop) -> None:
    loop.optimizer.zero_grad()
    loop.loss().backward()
    loop.step()


def adds_after_unscale(loop: Loop) -> None:
    loop.backward()
    loop.scaler.unscale_(loop.optimizer)
    loop.scaler.scale(loop.loss()).backward()
    loop.step()


@pytest.mark.parametrize(
    ("iteration", "name"),
    [
        (clips_before_unscale, "clipped_scaled"),
        (clips_then_unscales, "clipped_scaled"),
        (clips_elements_before_unscale, "clipped_scaled"),
        (steps_past_the_scaler, "direct_steps"),
        (scales_no_loss, "unscaled_steps"),
        (adds_after_unscale, "backward_after_unscale"),
    ],
)
def test_a_wrong_order_is_counted_with_its_first_step(
    feed: Feed, loop: Loop, iteration: Callable[[Loop], None], name: str
) -> None:
    good_loop(loop)
    for _ in range(3):
        iteration(loop)
    assert wrong(feed) == {name: 1}
    assert getattr(feed.of(AmpCalls)[-1], name) == 3


def test_steps_of_the_scaler_against_those_of_the_optimizer(loop: Loop, feed: Feed) -> None:
    good_loop(loop)
    with loop.overflows_at(0):
        good_loop(loop)
        good_loop(loop)
    found = calls(feed)
    assert (found.scaler_steps, found.optimizer_steps, found.updates) == (3, 1, 3)
    assert (found.init_scale, found.growth_interval) == (16.0, 2000)


def test_two_optimizers_with_one_scaler(feed: Feed) -> None:
    one, two = nn.Linear(4, 4), nn.Linear(4, 1)
    optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (one, two)]
    tuimon.watch([one, two], optimizers)
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for index in range(3):
        for optimizer in optimizers:
            optimizer.zero_grad()
        loss = two(one(torch.ones(2, 4))).sum()
        scaler.scale(loss).backward()
        if index == 1:
            one.weight.grad = torch.full_like(one.weight, math.inf)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
    (skip,) = skips(feed)
    assert (skip.step, skip.optimizer, skip.posinf) == (1, 0, 16)
    assert wrong(feed) == {}
    assert feed.of(AmpCalls)[-1].scaler_steps == 6


def test_a_full_precision_optimizer_beside_a_scaled_one(feed: Feed) -> None:
    judge, maker = nn.Linear(4, 1), nn.Linear(4, 4)
    plain, scaled = (torch.optim.SGD(each.parameters(), lr=0.1) for each in (judge, maker))
    tuimon.watch([judge, maker], [plain, scaled])
    scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
    for _ in range(3):
        plain.zero_grad()
        judge(torch.ones(2, 4)).sum().backward()
        plain.step()
        scaled.zero_grad()
        scaler.scale(judge(maker(torch.ones(2, 4))).sum()).backward()
        scaler.step(scaled)
        scaler.update()
    assert wrong(feed) == {}


def test_a_disabled_scaler_is_none(feed: Feed) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    scaler.scale(model(torch.full((1, 2), math.inf)).sum()).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()
    feed.session.finish("ok")
    assert feed.of(AmpCalls) == [] and skips(feed) == []


def test_unscaling_twice_still_raises_as_torch_does(loop: Loop) -> None:
    loop.backward()
    loop.scaler.unscale_(optimizer=loop.optimizer)
    with pytest.raises(RuntimeError, match="already been called"):
        loop.scaler.unscale_(loop.optimizer)
