"""Small trainings whose batches are looked at, for the tests of that."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.batches import LossSeen
from tuimon.model.records import Batch


class Takes(nn.Module):
    """A linear layer that is called in whatever way a test wants."""

    def __init__(self, width: int = 4, out: int = 3) -> None:
        super().__init__()
        self.linear = nn.Linear(width, out)

    def forward(self, *args: Any, x: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        return self.linear(args[0] if x is None else x)


def watched(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    return optimizer


def batches(feed: Feed) -> list[Batch]:
    return feed.of(Batch)


def suspicious(feed: Feed) -> list[Batch]:
    return [batch for batch in batches(feed) if batch.why == "suspicion"]


def seen_loss(feed: Feed, loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> LossSeen:
    loss.backward()
    optimizer.step()
    (batch,) = batches(feed)
    (seen,) = batch.losses
    return seen
