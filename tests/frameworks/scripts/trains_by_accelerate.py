"""Hand-written loops with Accelerate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from truth import Truth, norm_of, tell

Watch = Callable[..., Any]


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.1), nn.Tanh(), nn.Linear(8, 1))


def loader(count: int) -> DataLoader:
    made = torch.Generator().manual_seed(7)
    data = TensorDataset(
        torch.randn(count, 4, generator=made), torch.randn(count, 1, generator=made)
    )
    return DataLoader(data, batch_size=2, shuffle=True)


def train(truth: Truth, accelerator: Accelerator, parts: Any, data: Any, epochs: int = 2) -> None:
    model, optimizer, schedule = parts
    for _ in range(epochs):
        for x, y in data:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                truth.loss(loss)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if truth.max_norm is None:
                        norm = norm_of(model.parameters())
                    else:
                        norm = accelerator.clip_grad_norm_(model.parameters(), truth.max_norm)
                    truth.update(optimizer, float(norm), norm_of(model.parameters()))
                optimizer.step()
                schedule.step()
                optimizer.zero_grad()
    AcceleratorState._reset_state(True)


def accumulated(truth: Truth, watch: Watch) -> None:
    """What was prepared is watched; the clipping acts; the last update of an epoch is smaller."""
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    bare = net()
    truth.names = [name for name, _ in bare.named_parameters()]
    optimizer = torch.optim.AdamW(bare.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    model, optimizer, data, schedule = accelerator.prepare(bare, optimizer, loader(10), schedule)
    watch(model, optimizer, scheduler=schedule)
    truth.divided_by, truth.max_norm = 2, 0.3
    train(truth, accelerator, (model, optimizer, schedule), data)
    truth.finish(bare, optimizer)


def half(truth: Truth, watch: Watch) -> None:
    """bfloat16 autocast, no clipping; watched before anything is prepared."""
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    bare = net()
    truth.names = [name for name, _ in bare.named_parameters()]
    optimizer = torch.optim.SGD(bare.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
    watch(bare, optimizer)
    model, optimizer, data, schedule = accelerator.prepare(bare, optimizer, loader(8), schedule)
    train(truth, accelerator, (model, optimizer, schedule), data)
    truth.finish(bare, optimizer)


if __name__ == "__main__":
    tell({case.__name__: case for case in (accumulated, half)})
