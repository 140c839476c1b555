"""A backward fault in loss code, in a watched loop: what the lines learned reaches the verdict."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.autopsy import BACKWARD, OPERATION, Autopsy

BAD = 5


def distances(one: torch.Tensor, other: torch.Tensor, shown: torch.Tensor) -> torch.Tensor:
    return ((one - other) * shown).pow(2).sum(1).sqrt()


def test_a_root_of_zero_in_the_loss_is_named(feed: Feed) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 2))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    tuimon.watch(model, optimizer)
    for step in range(BAD + 2):
        x = torch.randn(6, 3)
        shown = torch.ones(6, 1)
        shown[2] = float(step != BAD)
        loss = distances(model(x), x[:, :2], shown).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found: list[Any] = [each for each in feed.read() if isinstance(each, Autopsy)]
    first = found[0].first
    assert (found[0].verdict, found[0].step) == (OPERATION, BAD)
    assert (first.op, first.phase, first.function) == ("aten::sqrt", BACKWARD, "distances")
