"""Loops whose loss is made bad by code without a graph; the line to be named is marked."""

from __future__ import annotations

import inspect
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

MARK = "# this one"
Batch = namedtuple("Batch", "x y")


@dataclass(frozen=True)
class Variant:
    """A loop and the operation to be named."""

    loop: Callable[[], None]
    op: str

    @property
    def name(self) -> str:
        return self.loop.__name__

    @property
    def line(self) -> int:
        """The marked line, in the loop or in a function beside it."""
        source = inspect.getsource(inspect.getmodule(self.loop)).splitlines()  # type: ignore[arg-type]
        lines = [i for i, line in enumerate(source, 1) if line.endswith(f"{MARK}: {self.name}")]
        return lines[0]


VARIANTS: list[Variant] = []


def names(op: str) -> Callable[[Callable[[], None]], Callable[[], None]]:
    def keep(loop: Callable[[], None]) -> Callable[[], None]:
        VARIANTS.append(Variant(loop, op))
        return loop

    return keep


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Linear(4, 1)


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.linspace(-1, 1, 36).reshape(9, 4), torch.linspace(0, 2, 9)


@names("aten::std")
def overwritten() -> None:
    model, (x, all_weights) = net(), data()
    for start in range(0, 9, 4):
        part = slice(start, start + 4)
        weights = all_weights[part]
        weights = (weights - weights.mean()) / (weights.std() + 1e-8)  # this one: overwritten
        loss = (model(x[part]).squeeze(1) * weights).mean()
        loss.backward()


def encode(target: torch.Tensor, *, scale: float = 1.0) -> torch.Tensor:
    width = target * scale
    return torch.stack([width, torch.log(width)], 1)  # this one: in_a_function


@names("aten::log")
def in_a_function() -> None:
    model, (x, y) = net(), data()
    for i in range(8, -1, -4):
        out = model(x[i : i + 4])
        loss = F.mse_loss(out.expand(-1, 2), encode(y[i : i + 4], scale=0.0))
        loss.backward()


@names("aten::div")
def unpacked() -> None:
    model, (x, y) = net(), data()
    batches = [Batch(x[:4], y[:4]), Batch(x[4:8], y[4:8] * 0)]
    for inputs, target in batches:
        low, high = target.min(), target.max()
        first, *_, second = (target - low) / (high - low), None, high  # this one: unpacked
        loss = (model(inputs).squeeze(1) * first).sum() * second
        loss.backward()


@names("aten::log")
def subtracted() -> None:
    model, (x, y) = net(), data()
    for i in (4, 0):
        target = torch.log(y[i : i + 4])  # this one: subtracted
        out = model(x[i : i + 4]).squeeze(1)
        difference = out - target
        loss = (difference**2).mean()
        loss.backward()


@names("aten::div")
def keywords() -> None:
    model, (x, _) = net(), data()
    labels = torch.zeros(9, dtype=torch.long)
    head = nn.Linear(1, 3)
    for _ in range(2):
        counts = torch.bincount(labels, minlength=3).float()
        weight = torch.div(0 * counts, counts, rounding_mode=None)  # this one: keywords
        loss = F.cross_entropy(input=head(model(x)), target=labels, weight=weight)
        loss.backward()


@names("aten::reciprocal")
def strings_and_prints() -> None:
    model, (x, y) = net(), data()
    seen: list[str] = []
    for i, start in enumerate(range(8, -1, -4)):
        weights = 1 / (y[start : start + 4] * 0)  # this one: strings_and_prints
        note = f"step {i}: {weights.sum():.3f} {start!r}"
        seen.append(note)
        loss = (model(x[start : start + 4]).squeeze(1) * weights).mean()
        print(f"{note} {loss.item()}", end="")
        loss.backward()


@names("aten::div_")
def augmented() -> None:
    model, (x, y) = net(), data()
    for i in (4, 0):
        weights = y[i : i + 4] + 0
        weights -= weights.mean()
        weights *= 0
        weights /= weights.std()  # this one: augmented
        loss = (model(x[i : i + 4]).squeeze(1) * weights).mean()
        loss.backward()


@names("aten::sqrt")
def closures() -> None:
    model, (x, y) = net(), data()
    shift = 5.0

    def shifted(values: torch.Tensor) -> torch.Tensor:
        return (values - shift).sqrt()  # this one: closures

    for i in (4, 0):
        weights = (lambda v: shifted(v))(y[i : i + 4])
        loss = (model(x[i : i + 4]).squeeze(1) * weights).mean()
        loss.backward()


class Criterion(nn.Module):
    """A loss of the script's own."""

    floor = 0.0

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    @property
    def base(self) -> torch.Tensor:
        return self.scale * self.floor

    @staticmethod
    def inverse(values: torch.Tensor) -> torch.Tensor:
        return values.reciprocal()  # this one: loss_module

    def forward(self, out: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.l1_loss(out, self.inverse(target * self.base))


@names("aten::reciprocal")
def loss_module() -> None:
    model, criterion, (x, y) = net(), Criterion(), data()
    for i in (4, 0):
        loss = criterion(model(x[i : i + 4]).squeeze(1), y[i : i + 4])
        loss.backward()


class Trainer:
    """Steps in methods."""

    def __init__(self) -> None:
        self.model = net()
        self.batches = dict(zip("xy", data(), strict=True))
        self.step = 0

    def normalise(self, values: torch.Tensor, eps: float = 0.0) -> torch.Tensor:
        spread = values.std() * 0
        return (values - values.mean()) / (spread + eps)  # this one: methods

    def update(self) -> None:
        self.step += 1
        weights = self.normalise(self.batches["y"])
        loss = (self.model(self.batches["x"]).squeeze(1) * weights).mean()
        self.finish(loss)

    def finish(self, loss: torch.Tensor) -> None:
        loss.backward()


@names("aten::div")
def methods() -> None:
    trainer = Trainer()
    for _ in range(2):
        trainer.update()


@names("aten::rsqrt")
def while_loop() -> None:
    model, (x, y) = net(), data()
    i = 8
    while i >= 0:
        weights = torch.rsqrt(y[i : i + 4])  # this one: while_loop
        loss = (model(x[i : i + 4]).squeeze(1) * weights).mean()
        loss.backward()
        i -= 4


@names("aten::log")
def before_the_inner_loop() -> None:
    model, (x, y) = net(), data()
    for epoch in range(2):
        logs = torch.log(y * epoch)  # this one: before_the_inner_loop
        for i in range(0, 8, 4):
            loss = (model(x[i : i + 4]).squeeze(1) * logs[i : i + 4]).mean()
            loss.backward()


@names("aten::div")
def branches_and_blocks() -> None:
    model, (x, y) = net(), data()
    for i in (4, 0):
        target = y[i : i + 4]
        if not target.any():
            continue
        try:
            with torch.no_grad():
                if model.training and target.shape[0] > 2:
                    target = target / (target * 0)  # this one: branches_and_blocks
                else:
                    target = target * 2
        finally:
            pass
        if torch.rand(()) > 2:
            print("never")
        with torch.autocast("cpu", enabled=False):
            loss = (model(x[i : i + 4]).squeeze(1) * target).mean()
        if loss.requires_grad:
            loss.backward()


@names("aten::log")
def collected() -> None:
    model, (x, y) = net(), data()
    for i in (4, 0):
        rows = []
        for value in y[i : i + 4]:
            row = torch.log(value)  # this one: collected
            rows.append(row.clone())
        more = [row * 2 for row in rows]
        weights = torch.stack(more) if more else torch.ones(4)
        loss = (model(x[i : i + 4]).squeeze(1) * weights).mean()
        loss.backward()


@torch.no_grad()
def advantages(values: torch.Tensor, returns: torch.Tensor) -> torch.Tensor:
    gains = returns - values
    return gains / gains.abs().clamp(max=0)  # this one: decorated


@names("aten::div")
def decorated() -> None:
    model, (x, y) = net(), data()
    for _ in range(2):
        out = model(x).squeeze(1)
        gains = advantages(out.detach(), returns=y)
        loss = (out * gains).mean()
        loss.backward()


@names("aten::log")
def filled() -> None:
    model, (x, y) = net(), data()
    for i in (0, 4):
        target = torch.zeros(4)
        target[1:] = y[i + 1 : i + 4]
        target = torch.log(target)  # this one: filled
        loss = (model(x[i : i + 4]).squeeze(1) * target).mean()
        loss.backward()


@names("aten::div")
def model_input() -> None:
    model, (x, _) = net(), data()
    for i in (0, 4):
        inputs = x[i : i + 4]
        inputs = (inputs - inputs.mean(0)) / (inputs.std(0) * 0)  # this one: model_input
        loss = model(inputs).mean()
        loss.backward()


@names("aten::log")
def generated() -> None:
    def steps() -> Any:
        model, (x, y) = net(), data()
        for i in (4, 0):
            weights = y[i : i + 4].log()  # this one: generated
            loss = (model(x[i : i + 4]).squeeze(1) * weights).mean()
            loss.backward()
            yield loss

    list(steps())
