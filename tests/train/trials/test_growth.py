"""A loss that grows: what is tested is whether the update overshoots, and what would tame it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.model.trials import CONFIRMED, TrialRecord
from tuimon.train.trials.growth import Growth

Batches = Iterator[tuple[torch.Tensor, torch.Tensor]]


def batches(steps: int, spike: int | None = None) -> Batches:
    weights = torch.randn(16, 1)
    for step in range(steps):
        x = torch.randn(256, 16)
        yield x, x @ weights * (40 if step == spike else 1)


class Recurrent(nn.Module):
    """One weight, as often as the sequence is long."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.tensor(1.2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = x[:, :1]
        for _ in range(x.shape[1]):
            h = h * self.gain
        return h


def sequences(steps: int) -> Batches:
    for step in range(steps):
        yield torch.ones(4, 40 if step == steps - 1 else 5), torch.full((4, 1), 1.5)


def trained(
    model: nn.Module,
    given: Batches,
    lr: float,
    *,
    criterion: Callable[..., torch.Tensor] = F.mse_loss,
    momentum: float = 0.0,
    clears: bool = True,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for x, y in given:
        loss = criterion(model(x), y)
        if clears:
            optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def results(feed: Feed) -> dict[str, str]:
    found: dict[str, str] = {}
    for trial in feed.of(TrialRecord):
        if found.get(trial.cause) != CONFIRMED:
            found[trial.cause] = trial.result
    return found


def test_a_rate_that_overshoots_is_confirmed(feed: Feed) -> None:
    trained(nn.Linear(16, 1), batches(6), 1.5)
    assert results(feed) == {"lr-too-high": CONFIRMED}


def test_a_summed_loss_is_confirmed(feed: Feed) -> None:
    trained(nn.Linear(16, 1), batches(6), 0.02, criterion=nn.MSELoss(reduction="sum"))
    assert results(feed)["loss-scaling"] == CONFIRMED
    assert results(feed).get("grad-explode") != CONFIRMED


def test_a_product_over_time_is_confirmed(feed: Feed) -> None:
    trained(Recurrent(), sequences(4), 1e-3)
    assert results(feed) == {"lr-too-high": "no-difference", "grad-explode": CONFIRMED}


def test_gradients_that_add_up_are_no_fault_of_the_rate(feed: Feed) -> None:
    trained(nn.Linear(16, 1), batches(40), 0.05, momentum=0.9, clears=False)
    assert results(feed)["zero-grad"] == CONFIRMED
    assert results(feed)["lr-too-high"] != CONFIRMED


def test_a_rate_that_overshoots_by_itself_is_no_fault_of_what_adds_up(feed: Feed) -> None:
    trained(nn.Linear(16, 1), batches(8), 3.0, clears=False)
    assert results(feed).get("zero-grad") != CONFIRMED
    assert results(feed)["lr-too-high"] == CONFIRMED


def test_a_rate_out_of_proportion_is_no_product_over_time(feed: Feed) -> None:
    trained(nn.Linear(16, 1), batches(6), 20.0)
    assert results(feed).get("grad-explode") != CONFIRMED


@pytest.mark.parametrize("spike", [None, 7])
def test_placebos_do_not_confirm(feed: Feed, spike: int | None) -> None:
    """A sound training, and one whose data jump for a step."""
    trained(nn.Linear(16, 1), batches(10, spike), 0.05)
    assert CONFIRMED not in results(feed).values()
    assert bool(results(feed)) is (spike is not None)


def test_growth_is_of_loss_and_gradient_together() -> None:
    seen = Growth()
    assert not any(seen.rises(loss, 1.0) for loss in (1.0, 0.9, 0.8, 0.9))
    assert not seen.rises(50.0, 1.1)  # the gradient is as it was
    assert seen.rises(60.0, 30.0)
    for missing in (None, float("nan"), -1.0):
        assert not seen.rises(missing, 1.0) and not seen.rises(1e9, missing)
    assert not seen.rises(float("inf"), 1.0)
    assert seen.rises(1e9, float("inf"))  # finite gradients whose squares are not
