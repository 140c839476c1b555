"""A number format is not too small for gradients that only a stray loss scale makes too large."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.model.trials import CONFIRMED, REFUTED, TrialRecord


@pytest.mark.parametrize(
    ("size", "scale", "expected"), [(1.0, 2.0**14, REFUTED), (1e4, 4.0, CONFIRMED)]
)
def test_an_update_past_the_scaler(feed: Feed, size: float, scale: float, expected: str) -> None:
    torch.manual_seed(0)
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for _ in range(2):
        x, y = size * torch.rand(64, 8), torch.randint(4, (64,))
        with torch.autocast("cpu", dtype=torch.float16):
            loss = F.cross_entropy(model(x).float(), y, reduction="sum")
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        optimizer.step()  # in the place of scaler.step(optimizer)
    found = [t.result for t in feed.of(TrialRecord) if t.cause == "fp16-overflow"]
    assert found and set(found) == {expected}
