"""Small trainings whose samples are read back from the ring."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.train.conftest import Feed
from tuimon.model.samples import Activation, Activations, ParameterSample, ParameterSamples
from tuimon.train.autopsy.scene import AfterForward


def loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clip: float | None = None,
) -> None:
    made = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        (forward or model)(torch.randn(8, 6, generator=made)).pow(2).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def activations(feed: Feed) -> list[Activation]:
    return [item for record in feed.of(Activations) for item in record.items]


def left_out(feed: Feed) -> set[str]:
    return {reason for record in feed.of(Activations) for reason in record.left_out}


def parameters(feed: Feed, name: str) -> list[tuple[int, ParameterSample]]:
    return [
        (record.step, item)
        for record in feed.of(ParameterSamples)
        for item in record.items
        if item.name == name
    ]


def hooks_of(model: nn.Module) -> int:
    """Those that a sample puts on; a watched root keeps the one that ends its forward."""
    return sum(
        type(hook) is not AfterForward
        for module in model.modules()
        for hook in module._forward_hooks.values()
    )
