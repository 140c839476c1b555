"""What a training begins with: its weights, its optimizer's settings, the shape of its loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.records import Batch, Facts
from tuimon.model.samples import StartingWeights


class Unrolled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(9, 6)
        self.again = nn.Parameter(torch.full((6, 6), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        for _ in range(20):
            h = torch.tanh(h @ self.again)
        return h


class Squared(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: torch.Tensor) -> torch.Tensor:
        return x * x

    @staticmethod
    def backward(ctx: object, grad: torch.Tensor) -> torch.Tensor:
        return 2 * grad


def test_weights_settings_and_graph_are_told_once(feed: Feed) -> None:
    model = Unrolled()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, betas=(0.8, 0.95))
    tuimon.watch(model, optimizer)
    first = {name: p.detach().clone() for name, p in model.named_parameters()}
    for _ in range(3):
        out = model(torch.arange(8))
        loss = 3 * Squared.apply(out).sum(1).sum() / 2 + 0.1 * model.again.pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    (start,) = feed.of(StartingWeights)
    rms = dict(zip(start.names, np.frombuffer(start.rms, "<f4"), strict=True))
    assert rms == pytest.approx({k: v.square().mean().sqrt().item() for k, v in first.items()})
    assert dict(zip(start.names, start.fan_in, strict=True)) == {"embed.weight": 1, "again": 6}
    spread = dict(zip(start.names, np.frombuffer(start.spread, "<f4"), strict=True))
    assert spread["again"] == 0 and spread["embed.weight"] > 1
    (settings,) = feed.of(Facts)[-1].settings
    assert (settings["beta1"], settings["beta2"]) == (0.8, 0.95)
    graphs = [batch.graph for batch in feed.of(Batch) if batch.graph is not None]
    (graph,) = graphs
    assert graph.uses[0] == ("again", 21) and graph.is_whole and graph.functions == ["Squared"]
    terms = {(term.reduction, term.elements, round(term.factor, 3)) for term in graph.terms}
    assert terms == {("sum", 48, 1.5), ("mean", 36, 0.1)}
