"""Code around the models is followed with what they gave: losses, batches, items of datasets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, Subset

import tuimon
from tests.train.conftest import Feed
from tuimon.model.autopsy import LEAF, OPERATION, Autopsy, OpSite
from tuimon.train.autopsy import bytecode

torch.set_num_threads(1)

pytestmark = [
    pytest.mark.skipif(not bytecode.is_readable(), reason="bytecode of another version"),
    pytest.mark.filterwarnings("ignore"),
]


def watched(*layers: nn.Module) -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(0)
    model = nn.Sequential(*(layers or (nn.Linear(4, 3),)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    return model, optimizer


def update(loss: torch.Tensor, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def certain_target() -> None:
    model, optimizer = watched()
    for step in range(3):
        p = torch.eye(3)[[0, 1, 2, 0]] * (1 - 0.3 * (step < 2)) + 0.1 * (step < 2)
        difference = p.log() - F.log_softmax(model(torch.randn(4, 4)), 1)  # certain_target
        update((p * difference).sum(1).mean(), optimizer)


class Pinball(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("quantiles", torch.tensor([0.1, 0.5, 0.9]))

    def forward(self, predicted: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        error = target[:, None] - predicted  # missing_target
        return torch.maximum(self.quantiles * error, (self.quantiles - 1) * error).mean()


def missing_target() -> None:
    model, optimizer = watched()
    criterion = Pinball()
    x, y = torch.randn(12, 4), torch.rand(12)
    y[9] = torch.nan
    for part in (slice(0, 4), slice(4, 8), slice(8, 12)):
        update(criterion(model(x[part]), y[part]), optimizer)


class Trainer:
    def __init__(self) -> None:
        self.model, self.optimizer = watched()
        self.reference = nn.Sequential(nn.Linear(4, 3), nn.Tanh())

    def compute(self) -> None:
        self.given = self.reference(self.x) * self.scale
        error = (self.model(self.x) - self.given).abs()
        self.loss = nn.L1Loss()(error / self.given.abs().amin(), torch.zeros(4, 3))  # in_attributes

    def run(self) -> None:
        for self.scale in (1.0, 0.5, 0.0):
            self.x = torch.ones(4, 4)
            self.compute()
            self.optimizer.zero_grad()
            self.loss.backward()
            self.optimizer.step()


def in_attributes() -> None:
    Trainer().run()


def windows(values: torch.Tensor) -> Iterator[torch.Tensor]:
    for part in values.split(8):
        rows = part.reshape(2, 4)
        yield rows / rows.std(1, keepdim=True)  # from_a_generator


def from_a_generator() -> None:
    model, optimizer = watched()
    values = torch.randn(24)
    values[20:] = 1.0
    for x in windows(values):
        update(model(x).pow(2).mean(), optimizer)


class Clips(Dataset[Any]):
    def __init__(self) -> None:
        self.waves = torch.randn(14, 4)
        self.waves[9] = 0

    def __len__(self) -> int:
        return len(self.waves)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        wave = self.waves[index]
        return self.loud(wave), index % 3

    def loud(self, wave: torch.Tensor) -> torch.Tensor:
        return wave / wave.abs().max()  # from_a_dataset


def from_a_dataset() -> None:
    model, optimizer = watched()
    part = Subset(Clips(), list(range(13, 1, -1)))
    for x, y in DataLoader(part, batch_size=4, shuffle=True):
        update(F.cross_entropy(model(x), y), optimizer)


def mixture_of_nothing() -> None:
    model, optimizer = watched()
    for step in range(3):
        near = torch.tensor([-1.0, -2.0, -3.0])
        share = torch.relu(model(torch.randn(4, 4)) + (9.0 if step < 2 else -9.0))
        scores = near + torch.log(share)  # mixture_of_nothing
        update(-scores.log_softmax(1)[:, 0].mean(), optimizer)


def late_penalty() -> None:
    model, optimizer = watched()
    for step in range(7):
        out = model(torch.randn(4, 4))
        loss = out.square().mean()
        if step == 6:
            gap = out - out.detach()
            loss = loss + gap.square().sum(1).sqrt().mean()  # late_penalty
        update(loss, optimizer)


@torch.no_grad()
def reference(out: torch.Tensor) -> torch.Tensor:
    return out.square().sqrt()


def second_loss() -> None:
    model, optimizer = watched()
    for step in range(7):
        out = model(torch.ones(4, 4) * torch.rand(4, 1))
        optimizer.zero_grad()
        out.mean().backward(retain_graph=True)
        if step == 6:
            (0.0 * out + reference(out - out)).pow(0.5).sum().backward()  # second_loss
        optimizer.step()


AT_THE_GATE: list[tuple[Callable[[], None], str, str]] = [
    (late_penalty, "aten::div", "SqrtBackward0"),
    (second_loss, "aten::pow", "PowBackward0"),
]


LOOPS: list[tuple[Callable[[], None], str]] = [
    (certain_target, "aten::log"),
    (in_attributes, "aten::div"),
    (mixture_of_nothing, "aten::log"),
    (from_a_generator, "aten::div"),
    (from_a_dataset, "aten::div"),
]


def first_of(feed: Feed) -> tuple[Autopsy, OpSite]:
    told = feed.of(Autopsy)
    assert told[0].trigger == "non-finite-loss"
    assert told[0].first is not None
    return told[0], told[0].first


@pytest.mark.parametrize(("loop", "op"), LOOPS)
def test_the_operation_is_named(feed: Feed, loop: Callable[[], None], op: str) -> None:
    loop()
    autopsy, first = first_of(feed)
    assert (autopsy.verdict, first.op) == (OPERATION, op)
    assert first.source.endswith(f"# {loop.__name__}")
    assert (first.module, first.in_model) == ("", False)
    assert "F" in autopsy.engine


def test_a_missing_target_is_named(feed: Feed) -> None:
    missing_target()
    autopsy, first = first_of(feed)
    assert (autopsy.verdict, first.op) == (LEAF, "aten::sub")
    assert first.source.endswith("# missing_target")
    leaf = autopsy.leaves[0]
    assert (leaf.kind, leaf.tensor.name, leaf.tensor.nan) == ("target", "y", 1)


@pytest.mark.parametrize(("spoiled", "kind"), [("state", ""), ("data", "batch")])
def test_a_model_that_is_fed_by_another_one(feed: Feed, spoiled: str, kind: str) -> None:
    torch.manual_seed(0)
    body, head = nn.RNN(4, 8, nonlinearity="relu", batch_first=True), nn.Linear(8, 1)
    optimizer = torch.optim.SGD([*body.parameters(), *head.parameters()], lr=0.01)
    tuimon.watch(body, optimizer)
    tuimon.watch(head, optimizer)
    x = torch.randn(3, 12, 4)
    if spoiled == "data":
        x[1, 2, 3] = torch.nan
    else:
        with torch.no_grad():
            body.weight_hh_l0.copy_(torch.eye(8) * 1e5)
    update(head(body(x)[0][:, -1]).square().mean(), optimizer)
    autopsy, first = first_of(feed)
    assert first.module == "RNN"  # and not the head, which met it first
    assert autopsy.verdict == (LEAF if kind else OPERATION)
    assert [leaf.kind for leaf in autopsy.leaves] == ([kind] if kind else [])


@pytest.mark.parametrize(("loop", "op", "node"), AT_THE_GATE)
def test_a_gradient_of_code_around_the_models(
    feed: Feed, loop: Callable[[], None], op: str, node: str
) -> None:
    loop()
    autopsy = feed.of(Autopsy)[0]
    first = autopsy.first
    assert autopsy.trigger == "non-finite-gradient"
    assert first is not None and autopsy.verdict == OPERATION, autopsy.notes
    assert first.op == op and first.node == node
    assert first.source.endswith(f"# {loop.__name__}")
    assert (first.module, first.in_model) == ("", False)
