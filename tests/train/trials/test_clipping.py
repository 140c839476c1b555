"""What clipping does to gradients that are scaled, or that are not finite."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, TrialRecord


def results(feed: Feed, cause: str) -> list[str]:
    return [trial.result for trial in feed.of(TrialRecord) if trial.cause == cause]


@pytest.mark.parametrize(("scale", "expected"), [(65536.0, CONFIRMED), (1.0, NO_DIFFERENCE)])
def test_a_clipping_of_scaled_gradients(feed: Feed, scale: float, expected: str) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for _ in range(3):
        loss = model(torch.randn(8, 4)).pow(2).mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
    assert results(feed, "amp-order") == [expected]


def test_an_order_that_is_right_is_not_tested(feed: Feed) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu")
    tuimon.watch(model, optimizer, policy=PATIENCE)
    scaler.scale(model(torch.randn(8, 4)).pow(2).mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    assert results(feed, "amp-order") == []


class Twofold(nn.Module):
    """Two heads, of which one has a root of 0."""

    def __init__(self) -> None:
        super().__init__()
        self.fine = nn.Linear(4, 1)
        self.ill = nn.Linear(4, 1, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fine(x).sum() + self.ill(x).pow(2).sqrt().sum()


@pytest.mark.parametrize("clips", [True, False])
def test_a_clipping_by_a_norm_that_is_nan(feed: Feed, clips: bool) -> None:
    model = Twofold()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for step in range(2):
        x = torch.randn(4, 4) if step == 0 else torch.zeros(4, 4)
        loss = model(x)
        optimizer.zero_grad()
        loss.backward()
        if clips:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert results(feed, "sqrt-norm-zero") == [CONFIRMED]
    assert results(feed, "clip-nonfinite") == ([CONFIRMED] if clips else [])
