"""Trainings without backward and without an optimizer: a loss that is not finite is told."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, grad_and_value, vmap

import tuimon
from tests.train.conftest import Feed
from tuimon.diagnose.engine import Engine
from tuimon.model.records import Loss

Params = dict[str, torch.Tensor]


def _train(
    model: nn.Module, x: torch.Tensor, steps: int, *, has_aux: bool = False, rate: float = 0.05
) -> list[float]:
    def lose(params: Params, x: torch.Tensor) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        loss = functional_call(model, params, (x,)).square().mean()
        return (loss, x.sum()) if has_aux else loss

    params = {name: param.detach() for name, param in model.named_parameters()}
    losses = []
    for _ in range(steps):
        gradients, value = grad_and_value(lose, has_aux=has_aux)(params, x)
        losses.append(float(value[0] if has_aux else value))
        params = {name: param - rate * gradients[name] for name, param in params.items()}
    return losses


def test_a_loss_of_a_functional_training_that_is_not_finite_is_told(feed: Feed) -> None:
    model = nn.Linear(2, 1)
    earlier = tuimon.watch(model, torch.optim.SGD(model.parameters(), lr=0.1))
    model(torch.ones(4, 2)).mean().backward()
    earlier.close()  # what an earlier run did says nothing about this one
    tuimon.watch(model)
    _train(model, torch.ones(4, 2), 20)
    assert feed.of(Loss) == []
    losses = _train(model, 1e6 * torch.ones(4, 2), 8, has_aux=True)
    first = next(at for at, loss in enumerate(losses) if not math.isfinite(loss))
    told = feed.of(Loss)
    assert (told[0].step, told[0].value) == (20 + first, losses[first])
    assert "test_functional.py:" in told[0].site


@pytest.mark.parametrize(("size", "expected"), [(1e6, "data-scale"), (1.0, "unknown")])
def test_why_a_functional_training_is_lost_at_once(feed: Feed, size: float, expected: str) -> None:
    """By a usual rate on raw numbers; by an absurd one on usual numbers, which nobody sees."""
    model = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 1))
    tuimon.watch(model)
    losses = _train(model, size * torch.rand(16, 2), 8, rate=0.05 if size > 1 else 1e20)
    assert not all(map(math.isfinite, losses))
    engine = Engine()
    for record in feed.read():
        engine.see(record)
    engine.close()
    assert engine.findings[0].cause == expected
    if expected == "unknown":
        assert "loss.backward()" in engine.findings[0].remedy.code


def test_transforms_within_others_and_beside_an_optimizer_are_left_alone(feed: Feed) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    vmap(grad(torch.log))(torch.zeros(3))
    grad(lambda x: grad(torch.sqrt)(x))(torch.tensor(1.0))
    model(torch.ones(4, 2)).mean().backward()
    optimizer.step()
    grad(torch.log)(torch.tensor(0.0))
    assert feed.of(Loss) == []


def test_a_compiled_transform_is_one_graph_as_without_us(feed: Feed) -> None:
    tuimon.watch(nn.Linear(2, 1))

    def differentiate(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gradient, value = grad_and_value(torch.log)(x)
        return gradient + grad(torch.log)(x) - gradient, value

    compiled = torch.compile(differentiate, backend="eager", fullgraph=True)
    gradient, value = compiled(torch.tensor(2.0))
    assert (float(gradient), float(value)) == (0.5, float(torch.tensor(2.0).log()))
    _, value = compiled(torch.tensor(0.0))
    assert float(value) == -math.inf
