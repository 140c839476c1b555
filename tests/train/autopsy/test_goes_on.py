"""A training that goes on after an autopsy equals one without it, bit for bit."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tuimon
from tests.train.conftest import Feed
from tests.train.twins import Diary, twins
from tuimon.model.autopsy import Autopsy
from tuimon.train.autopsy.examine import Examiner

STEPS = 8


class Fussy(nn.Module):
    """A model with everything that a second run could disturb."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 8))
        self.norm = nn.BatchNorm1d(8)
        self.drop = nn.Dropout(0.3)
        self.rnn = nn.GRU(8, 8, batch_first=True)
        self.out = nn.Linear(8, 3)
        self.generator = torch.Generator().manual_seed(5)
        self.numpy_generator = np.random.default_rng(7)
        self.calls = 0
        self.seen: list[float] = []
        self.average = torch.zeros(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        noise = random.random() + np.random.rand() + self.numpy_generator.random()
        self.seen.append(noise)
        x = x + 0.01 * torch.randn(x.shape, generator=self.generator) * self.calls
        h = self.drop(F.relu(self.norm(self.first(x)))) + 0.001 * noise
        self.average = self.average * 0.9 + h.detach().mean(0) * 0.1
        h, _ = self.rnn(h[:, None])
        return self.out(h[:, 0] + self.average)


@pytest.fixture
def at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """An autopsy at each update, also of healthy ones."""
    always = property(lambda self: True, lambda self, _: None)
    monkeypatch.setattr(Examiner, "requested", always, raising=False)
    monkeypatch.setattr("tuimon.train.autopsy.examine.MAX_AUTOPSIES", 1 << 20)
    monkeypatch.setattr("tuimon.train.autopsy.examine.MAX_EXAMINED", 1 << 20)


def trained(diary: Diary, *, scaled: bool, parts: int) -> list[Any]:
    model = Fussy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=1024.0)
    diary(model, optimizer)
    for step in range(STEPS):
        for _ in range(parts):
            x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
            if step == 3:
                y[:] = -100  # a loss that is NaN, with gradients of zero
            with torch.autocast("cpu", enabled=scaled):
                loss = F.cross_entropy(model(x).float(), y) / parts
            scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    state = (model.calls, sum(model.seen), model.average, model.generator.get_state())
    return [model, optimizer, scaler, state, str(model.numpy_generator.bit_generator.state)]


@pytest.mark.hazard(42)
@pytest.mark.parametrize(("scaled", "parts"), [(False, 1), (True, 1), (False, 3)])
def test_autopsies_in_mid_training(
    feed: Feed, at_every_step: None, scaled: bool, parts: int
) -> None:
    twins(lambda diary: trained(diary, scaled=scaled, parts=parts), feed)
    found = feed.of(Autopsy)
    asked = [autopsy for autopsy in found if autopsy.trigger == "request"]
    assert len(asked) >= STEPS - 1
    assert all("M" in autopsy.engine or autopsy.verdict != "operation" for autopsy in asked)
    notes = [note for autopsy in asked for note in autopsy.notes]
    assert not any("was not run again" in note for note in notes), notes
    told = [autopsy for autopsy in found if autopsy.trigger == "non-finite-loss"]
    assert [autopsy.step for autopsy in told] == [3]
    assert told[0].first is not None and told[0].first.op == "aten::nll_loss_forward"


def test_a_batch_that_is_run_again_as_a_whole(feed: Feed, at_every_step: None) -> None:
    def loop(diary: Diary) -> list[Any]:
        model = Fussy()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        diary(model, optimizer)
        calls = 0

        def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return F.cross_entropy(model(x) * random.random(), y)

        forward = diary.monitor.forward(loss_of) if diary.monitor else loss_of
        for _ in range(STEPS):
            x, y = torch.randn(16, 6), torch.randint(0, 3, (16,))
            loss = forward(x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [model, optimizer, calls, model.calls]

    twins(loop, feed)
    found = feed.of(Autopsy)
    assert len(found) == STEPS and {autopsy.engine for autopsy in found} <= {"R", ""}
    assert all(autopsy.rerun_loss is not None for autopsy in found)


@pytest.mark.hazard(45)
def test_a_batch_that_was_changed_after_its_forward_is_told(
    feed: Feed, at_every_step: None
) -> None:
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    x = torch.randn(3, 4)
    model(x).sum().backward()
    with torch.no_grad():
        x.mul_(2)
    optimizer.step()
    (found,) = feed.of(Autopsy)
    assert any("written to after the forward" in note for note in found.notes)


@pytest.mark.hazard(44)
def test_an_intended_infinity_is_not_accused(feed: Feed, at_every_step: None) -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.out = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            scores = self.out(x) @ x.T
            mask = torch.ones_like(scores, dtype=torch.bool).triu(1)
            return scores.masked_fill(mask, -torch.inf).softmax(-1) @ x

    model = Masked()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(5, 4)).pow(2).sum().backward()
    optimizer.step()
    (found,) = feed.of(Autopsy)
    assert (found.verdict, found.first) == ("not-reproduced", None)
