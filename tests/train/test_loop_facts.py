"""What a loop does with gradients, parameters, modes and state is told; so are its look-alikes."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.loop import LoopCalls, NormLayers, Reach, StateLoaded, Warned
from tuimon.train import monitor

UPDATES = 12


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def lost(model: nn.Module) -> torch.Tensor:
    return model(torch.randn(16, 4)).square().mean()


def calls(feed: Feed) -> LoopCalls:
    monitor._wiring.observer.loop.publish()  # type: ignore[union-attr]
    return feed.of(LoopCalls)[-1]


def watched(model: nn.Module, kind: Callable[..., torch.optim.Optimizer] = torch.optim.SGD):
    optimizer = kind(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    return optimizer


def train(model: nn.Module, optimizer: torch.optim.Optimizer, clear: Callable[[], None]) -> None:
    for _ in range(UPDATES):
        clear()
        lost(model).backward()
        optimizer.step()


def by_hand(model: nn.Module) -> None:
    for param in model.parameters():
        param.grad = None


def by_data(model: nn.Module) -> None:
    for param in model.parameters():
        if param.grad is not None:
            param.grad.data.zero_()


def by_foreach(model: nn.Module) -> None:
    grads = [param.grad for param in model.parameters() if param.grad is not None]
    if grads:
        torch._foreach_zero_(grads)


def test_gradients_that_are_never_cleared_add_up(feed: Feed) -> None:
    model = net()
    train(model, watched(model), lambda: None)
    assert calls(feed).uncleared >= 4
    assert calls(feed).first == {"uncleared": 1}
    assert "0.weight" in calls(feed).names


@pytest.mark.parametrize("clear", [by_hand, by_data, by_foreach, nn.Module.zero_grad])
def test_however_gradients_are_cleared_they_are(
    feed: Feed, clear: Callable[[nn.Module], None]
) -> None:
    model = net()
    train(model, watched(model), lambda: clear(model))
    assert (calls(feed).uncleared, calls(feed).emptied) == (0, 0)


def test_accumulation_is_meant_and_clearing_between_its_parts_is_not(feed: Feed) -> None:
    model = net()
    optimizer = watched(model)
    for update in range(2 * UPDATES):
        optimizer.zero_grad()
        for _ in range(4):
            if update >= UPDATES:
                optimizer.zero_grad()
            lost(model).backward()
        optimizer.step()
        if update == UPDATES - 1:
            assert (calls(feed).uncleared, calls(feed).discarded) == (0, 0)
    assert calls(feed).discarded == UPDATES


def test_a_discriminator_that_the_generator_leaves_gradients_in_is_no_fault(feed: Feed) -> None:
    maker, judge = nn.Linear(3, 4), net()
    for_maker = torch.optim.SGD(maker.parameters(), 0.01)
    for_judge = torch.optim.SGD(judge.parameters(), 0.01)
    tuimon.watch([judge, maker], [for_judge, for_maker])
    for _ in range(UPDATES):
        for_judge.zero_grad()
        (lost(judge) + judge(maker(torch.randn(8, 3)).detach()).mean()).backward()
        for_judge.step()
        for_maker.zero_grad()
        judge(maker(torch.randn(8, 3))).mean().backward()
        for_maker.step()
    assert (calls(feed).uncleared, calls(feed).emptied, calls(feed).unreached) == (0, 0, 0)


def test_of_two_optimizers_the_one_that_is_wrong_is_told(feed: Feed) -> None:
    actor, critic = net(), net()
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (critic, actor)]
    tuimon.watch([actor, critic], optimizers)
    for _ in range(UPDATES):
        lost(critic).backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        lost(actor).backward()
        optimizers[1].step()
    assert (calls(feed).looked, calls(feed).uncleared) == (UPDATES, UPDATES - 1)


@pytest.mark.parametrize("to_none", [True, False])
def test_gradients_cleared_between_backward_and_update(feed: Feed, to_none: bool) -> None:
    model = net()
    optimizer = watched(model)
    for _ in range(UPDATES):
        lost(model).backward()
        optimizer.zero_grad(set_to_none=to_none)
        optimizer.step()
    assert calls(feed).emptied >= 4


def test_an_optimizer_of_other_parameters(feed: Feed) -> None:
    old, model = net(), net()
    optimizer = torch.optim.SGD(old.parameters(), 0.01)
    tuimon.watch(model, optimizer)
    train(model, optimizer, optimizer.zero_grad)
    reach = feed.of(Reach)[0]
    assert (reach.reached, reach.unowned, reach.orphans) == (0, 4, 4)
    assert set(reach.unowned_names) == {"0.weight", "0.bias", "2.weight", "2.bias"}
    assert calls(feed).unreached >= 4


@pytest.mark.parametrize("replaced", [True, False])
def test_a_second_optimizer_that_goes_on_alone_is_followed(feed: Feed, replaced: bool) -> None:
    first, model = net(), net()
    primary, optimizer = watched(first), watched(model)
    for _ in range(6):  # so long that only some of its updates are still looked at
        train(first, primary, first.zero_grad)
    model = net() if replaced else model
    for _ in range(3):
        train(model, optimizer, model.zero_grad)
    assert calls(feed).looked >= UPDATES
    assert (calls(feed).unreached >= 8) is replaced
    reach = feed.of(Reach)[-1]
    assert (reach.unowned, reach.orphans > 0) == ((4, True) if replaced else (0, False))


def test_modules_in_a_plain_list_and_those_that_come_late(feed: Feed) -> None:
    class Hiding(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = nn.Linear(4, 4)
            self.blocks = [nn.Linear(4, 4)]
            self.teacher = [nn.Linear(4, 4).eval()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.blocks[0](self.first(x)) + self.teacher[0](x)
            return self.head(x) if hasattr(self, "head") else x

    model = Hiding()
    optimizer = watched(model)
    model.head = nn.Linear(4, 2)
    train(model, optimizer, optimizer.zero_grad)
    reach = feed.of(Reach)[0]
    assert set(reach.hidden) == {"blocks[0].weight", "blocks[0].bias"}
    assert set(reach.late) == {"head.weight", "head.bias"}


def test_a_head_that_is_trained_alone_is_whole(feed: Feed) -> None:
    model = net()
    optimizer = torch.optim.SGD(model[2].parameters(), 0.01)
    tuimon.watch(model, optimizer)
    train(model, optimizer, model.zero_grad)
    reach = feed.of(Reach)[0]
    assert (reach.reached, reach.unowned, reach.orphans) == (2, 2, 0)
    assert not (reach.hidden or reach.late)


def test_modes_and_running_statistics(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8, momentum=0.0), nn.Linear(8, 1))
    optimizer = watched(model)
    train(model, optimizer, optimizer.zero_grad)
    with torch.no_grad():
        model(torch.randn(4, 4))
        model(torch.randn(4, 4))
    model.eval()
    train(model, optimizer, optimizer.zero_grad)
    monitor._wiring.observer.loop.close()  # type: ignore[union-attr]
    found = calls(feed)
    assert (found.train_updates, found.eval_updates, found.train_evals) == (UPDATES, UPDATES, 1)
    assert found.first_eval_update == UPDATES
    (norm,) = feed.of(NormLayers)[-1].items
    assert (norm.name, norm.momentum, norm.is_initial, norm.training) == ("1", 0.0, True, False)


def test_state_that_is_loaded_and_what_an_optimizer_begins_with(feed: Feed) -> None:
    model, other = net(), net()
    optimizer = watched(model, torch.optim.Adam)
    assert model.load_state_dict(other.state_dict()).missing_keys == []
    renamed = {f"module.{name}": value for name, value in other.state_dict().items()}
    model.load_state_dict(renamed, strict=False)
    train(model, optimizer, optimizer.zero_grad)
    optimizer.load_state_dict(optimizer.state_dict())
    whole, nothing, begins, again = feed.of(StateLoaded)
    assert (whole.matched, whole.missing, whole.unexpected) == (4, 0, 0)
    assert (nothing.matched, nothing.missing, nothing.unexpected) == (0, 4, 4)
    assert (begins.what, begins.entries, begins.holds) == ("begins", 0, ["module"])
    assert (again.what, again.optimizer, again.entries, again.rate) == ("optimizer", 0, 4, 0.01)


def test_a_warning_is_seen_and_shown_as_ever(feed: Feed) -> None:
    model = nn.Linear(4, 1)
    optimizer = watched(model)
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        for _ in range(2):
            nn.functional.mse_loss(model(torch.randn(6, 4)), torch.randn(6)).backward()
            warnings.warn("the script's own", UserWarning, stacklevel=1)
    optimizer.step()
    words = [str(each.message)[:16] for each in shown]
    assert words == ["Using a target s", "the script's own"] * 2
    assert {each.filename for each in shown} == {__file__}
    assert [(each.about, each.step) for each in feed.of(Warned)] == [("broadcast", 0)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(UserWarning, match="Using a target size"):
            nn.functional.mse_loss(model(torch.randn(6, 4)), torch.randn(6))
