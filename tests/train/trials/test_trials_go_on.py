"""A training that goes on after trials equals one without them, bit for bit."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from tests.train.autopsy.test_goes_on import Fussy
from tests.train.conftest import Feed
from tests.train.trials.patients import GUILTY, MARK, PATIENCE, PATIENTS, marked
from tests.train.twins import Diary, twins
from tuimon.model.trials import TrialRecord

STEPS = 5
BAD = 3
SOME = ("branch not selected", "half overflows", "hole in the data")


def step_loss(model: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """A loss with an exact 0 under its logarithm, for a marked sample."""
    p = F.softmax(model(x).float() * (1 + 1e6 * marked(x)), dim=1)
    return -(F.one_hot(y, 3) * torch.log(p)).sum(1).mean()


def trained(diary: Diary, *, scaled: bool, parts: int, through: bool) -> list[Any]:
    model = Fussy()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler("cpu", enabled=scaled, init_scale=1024.0)
    diary(model, optimizer, policy=PATIENCE)

    def whole(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return step_loss(model, x, y) * (1 + 1e-3 * random.random())

    forward = diary.monitor.forward(whole) if through and diary.monitor else whole
    if not through:
        forward = functools.partial(step_loss, model)
    losses = []
    for step in range(STEPS):
        for part in range(parts):
            x, y = torch.randn(8, 6), torch.randint(0, 3, (8,))
            if step == BAD and part == parts - 1:
                x[GUILTY, 0] = MARK
            with torch.autocast("cpu", enabled=scaled):
                loss = forward(x, y) / parts
            scaler.scale(loss).backward()
        losses.append(float(loss.detach()))
        if math.isfinite(losses[-1]):
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()
    state = (model.calls, sum(model.seen), model.average, model.generator.get_state())
    return [model, optimizer, scaler, state, str(model.numpy_generator.bit_generator.state)]


@pytest.mark.parametrize(
    ("scaled", "parts", "through"),
    [(True, 2, False), (False, 1, True)],
)
def test_trials_in_mid_training(feed: Feed, scaled: bool, parts: int, through: bool) -> None:
    twins(lambda diary: trained(diary, scaled=scaled, parts=parts, through=through), feed)
    found = [(trial.cause, trial.result) for trial in feed.of(TrialRecord)]
    assert ("log-zero", "confirmed") in found


@pytest.mark.parametrize("name", SOME)
def test_a_patient_is_left_as_it_was(feed: Feed, name: str) -> None:
    patient = PATIENTS[name]

    def loop(diary: Diary) -> list[Any]:
        torch.manual_seed(0)
        model = patient.model()
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        diary(model, optimizer, policy=PATIENCE)
        for step in range(STEPS):
            x, y = torch.randn(8, 6), torch.randint(0, 4, (8,))
            if step == BAD:
                _spoil(patient.spoil, x, y, model)
            with torch.autocast("cpu", torch.float16, enabled=patient.autocast):
                loss = patient.loss_of(model, x, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [model, optimizer, x, y]

    twins(loop, feed)
    assert (patient.cause, "confirmed") in [(t.cause, t.result) for t in feed.of(TrialRecord)]


def _spoil(spoil: Callable[..., None] | None, x: Any, y: Any, model: Any) -> None:
    if spoil is None:
        x[GUILTY, 0] = MARK
    else:
        spoil(x, y, model)
