"""What a training began with: sizes of its data and weights, tested by beginning anew."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.model.trials import CONFIRMED, TrialRecord


def net(*, norm: bool = False, spread: float | None = None, layers: int = 3) -> nn.Module:
    torch.manual_seed(0)
    parts: list[nn.Module] = [nn.LayerNorm(16)] if norm else []
    for _ in range(layers):
        parts += [nn.Linear(16, 16), nn.ReLU()]
    model = nn.Sequential(*parts, nn.Linear(16, 1))
    if spread is not None:
        for module in model:
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=spread)
    return model


def trained(
    model: nn.Module,
    lr: float,
    *,
    size: float = 1.0,
    steps: int = 5,
    momentum: float = 0.9,
    spike: float = 1.0,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr, momentum)
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for step in range(steps):
        x = size * torch.randn(64, 16)
        y = x[:, :1] / size
        if step == steps - 1:
            y = spike * y + spike - 1
        loss = F.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def confirmed(feed: Feed) -> set[str]:
    found = feed.of(TrialRecord)
    assert found
    return {trial.cause for trial in found if trial.result == CONFIRMED}


def test_raw_inputs_are_confirmed(feed: Feed) -> None:
    trained(net(), 1e-3, size=600.0)
    assert confirmed(feed) == {"data-scale"}


def test_inputs_that_the_model_normalises_are_not(feed: Feed) -> None:
    trained(net(norm=True), 3.0, size=600.0, momentum=0.0)
    assert "data-scale" not in confirmed(feed)


def test_raw_inputs_that_a_small_rate_suits_are_not(feed: Feed) -> None:
    """The loss grows, for its targets; the first update did no harm."""
    trained(net(), 1e-9, size=600.0, spike=1e4)
    assert "data-scale" not in confirmed(feed)


def test_weights_that_began_too_large_are_confirmed(feed: Feed) -> None:
    trained(net(spread=2.0), 1e-3)
    assert confirmed(feed) == {"bad-init"}


def test_usual_weights_are_not(feed: Feed) -> None:
    trained(net(), 3.0, momentum=0.0)
    assert "bad-init" not in confirmed(feed)


@pytest.mark.parametrize(
    ("size", "spread", "expected"),
    [(1.0, 1e4, {"bad-init"}), (1e37, None, {"data-scale"}), (1e37, 1e4, set())],
)
def test_what_overflows_at_once(
    feed: Feed, size: float, spread: float | None, expected: set[str]
) -> None:
    """The third has both faults: no single change heals it."""
    trained(net(spread=spread, layers=12), 1e-3, size=size, steps=1)
    found = {t.cause for t in feed.of(TrialRecord) if t.result == CONFIRMED}
    assert found & {"bad-init", "data-scale"} == expected
