"""The training loops whose step times are compared, from 300 µs steps to a small GPT."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import nn


class Loop(NamedTuple):
    """One training that can be stepped; `update` is everything after backward."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    backward: Callable[[], None]
    update: Callable[[], None]

    def step(self) -> None:
        """One whole step."""
        self.backward()
        self.update()


def tiny(clip: bool) -> Loop:
    """A net whose step takes some 300 µs."""
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    return _loop(model, torch.randn(32, 64), clip)


def mlp(clip: bool) -> Loop:
    """2.9 M parameters in 8 tensors."""
    layers: list[nn.Module] = []
    for wide, narrow in ((784, 1024), (1024, 1024), (1024, 1024)):
        layers += [nn.Linear(wide, narrow), nn.ReLU()]
    return _loop(nn.Sequential(*layers, nn.Linear(1024, 10)), torch.randn(128, 784), clip)


def many(clip: bool) -> Loop:
    """1,000 small tensors."""
    model = nn.Sequential(*(nn.Linear(32, 32) for _ in range(500)))
    return _loop(model, torch.randn(8, 32), clip)


def gpt(clip: bool) -> Loop:
    """A GPT of 10 M parameters on 8 x 128 tokens."""
    return _loop(_Gpt(), torch.randint(0, 4000, (8, 128)), clip)


LOOPS: dict[str, Callable[[bool], Loop]] = {"tiny": tiny, "mlp": mlp, "many": many, "gpt": gpt}


class _Gpt(nn.Module):
    def __init__(self, width: int = 320, depth: int = 6, tokens: int = 4000) -> None:
        super().__init__()
        self.embed = nn.Embedding(tokens, width)
        layer = nn.TransformerEncoderLayer(
            width, 8, 4 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, tokens)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        hidden: torch.Tensor = self.blocks(self.embed(tokens), mask=mask, is_causal=True)
        logits: torch.Tensor = self.head(hidden)
        return nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten(), reduction="none"
        )


def _loop(model: nn.Module, batch: torch.Tensor, clip: bool) -> Loop:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)

    def backward() -> None:
        loss = model(batch).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()

    def update() -> None:
        if clip:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return Loop(model, optimizer, backward, update)
