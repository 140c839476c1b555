"""Symptoms of small real trainings that learn nothing, each beside the same training repaired."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.diagnose.engine import Engine

CLASSES, WIDTH = 6, 12
Loop = Callable[[bool], None]


def data(batch: int = 48) -> tuple[torch.Tensor, torch.Tensor]:
    labels = torch.randint(0, CLASSES, (batch,))
    return 2 * torch.eye(CLASSES, WIDTH)[labels] + 0.3 * torch.randn(batch, WIDTH), labels


def net(activation: type[nn.Module] = nn.ReLU, depth: int = 1) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(WIDTH, 24), activation()]
    for _ in range(depth - 1):
        layers += [nn.Linear(24, 24), activation()]
    return nn.Sequential(*layers, nn.Linear(24, CLASSES))


def train(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    steps: int = 160,
    labels: Callable[[torch.Tensor], torch.Tensor] = lambda y: y,
    clear_late: bool = False,
) -> None:
    tuimon.watch(model, optimizer)
    for _ in range(steps):
        x, y = data()
        dtype = next(model.parameters()).dtype
        loss = nn.functional.cross_entropy(model(x.to(dtype)).float(), labels(y))
        if not clear_late:
            optimizer.zero_grad()
        loss.backward()
        if clear_late:
            optimizer.zero_grad()
        optimizer.step()


def misplaced_zero_grad(broken: bool) -> None:
    model = net()
    train(model, torch.optim.AdamW(model.parameters(), 1e-2), clear_late=broken)


def rate_of_zero(broken: bool) -> None:
    model = net()
    train(model, torch.optim.Adam(model.parameters(), 0.0 if broken else 1e-2))


def labels_of_others(broken: bool) -> None:
    model = net()
    shuffled = (lambda y: y[torch.randperm(len(y))]) if broken else (lambda y: y)
    train(model, torch.optim.Adam(model.parameters(), 1e-3 if broken else 1e-2), labels=shuffled)


def deep_sigmoids(broken: bool) -> None:
    model = net(nn.Sigmoid if broken else nn.Tanh, depth=6)
    train(model, torch.optim.SGD(model.parameters(), 0.1))


def dead_layer(broken: bool) -> None:
    model = net()
    if broken:
        with torch.no_grad():
            model[0].bias.fill_(-100.0)
    train(model, torch.optim.SGD(model.parameters(), 0.1))


def half_precision(broken: bool) -> None:
    model = net().to(torch.bfloat16 if broken else torch.float32)
    train(model, torch.optim.AdamW(model.parameters(), 3e-5 if broken else 1e-2))


def replaced_layers(broken: bool) -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    if broken:
        model[0], model[2] = nn.Linear(WIDTH, 24), nn.Linear(24, CLASSES)
    train(model, optimizer)


@pytest.mark.parametrize("broken", [True, False])
@pytest.mark.parametrize(
    ("loop", "kinds"),
    [
        (misplaced_zero_grad, {"frozen-parameters"}),
        (rate_of_zero, {"frozen-parameters"}),
        (labels_of_others, {"plateau"}),
        (deep_sigmoids, {"vanishing-gradient", "plateau"}),
        (dead_layer, {"dead-units"}),
        (half_precision, {"frozen-parameters"}),
        (replaced_layers, {"frozen-parameters"}),
    ],
)
def test_each_stall_is_told_and_its_repaired_twin_is_not(
    feed: Feed, loop: Loop, kinds: set[str], broken: bool
) -> None:
    torch.manual_seed(3)
    loop(broken)
    engine = Engine()
    for record in feed.read():
        engine.see(record)
    engine.close()
    loud = {symptom.kind for symptom in engine.symptoms if symptom.severity != "info"}
    assert (loud >= kinds) if broken else not loud, [s.detail for s in engine.symptoms]


def test_probabilities_at_their_ends(feed: Feed) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(64, 5), torch.randint(0, 2, (64, 1)).float()
    model = nn.Sequential(nn.Linear(5, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
    with torch.no_grad():
        model[2].weight.mul_(1e4)
    optimizer = torch.optim.SGD(model.parameters(), 1e-9)
    tuimon.watch(model, optimizer)
    for _ in range(60):
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy(model(x), y).backward()
        optimizer.step()
    engine = Engine()
    for record in feed.read():
        engine.see(record)
    assert "saturated-output" in {s.kind for s in engine.symptoms if s.severity == "warning"}
