"""A model that gives its loss beside what that was computed from: a backward fault within."""

from __future__ import annotations

import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.autopsy import BACKWARD, OPERATION, Autopsy


class WithLoss(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(4, 3)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        logits = self.out(x)
        loss = ((logits - y) * (x[:, :1] > 0)).pow(2).sum(1).sqrt().mean()
        return {"loss": loss, "logits": logits}


def test_the_operation_is_named(feed: Feed) -> None:
    model = WithLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    tuimon.watch(model, optimizer)
    for step in range(3):
        x = torch.rand(6, 4) + 0.1
        x[2, 0] = -1.0 if step == 2 else 1.0
        out = model(x, torch.randn(6, 3))
        optimizer.zero_grad()
        out["loss"].backward()
        optimizer.step()
    (found,) = feed.of(Autopsy)
    assert found.verdict == OPERATION and found.first is not None
    assert (found.first.node, found.first.phase, found.step) == ("SqrtBackward0", BACKWARD, 2)
