"""An update that loses its epsilon in half precision: it is made again on copies, changed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.diagnose.findings import Finding, Where
from tuimon.model.autopsy import OPTIMIZER, Autopsy
from tuimon.model.trials import CONFIRMED, TrialRecord
from tuimon.train.trials import trying


def trained() -> None:
    torch.manual_seed(0)
    model = nn.Linear(4, 1).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)  # its epsilon is 0 in float16
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for _ in range(2):
        loss = (model(torch.ones(2, 4).half()) * 1e-4).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def test_an_epsilon_that_is_zero_is_confirmed(feed: Feed) -> None:
    trained()
    (autopsy,) = feed.of(Autopsy)
    assert autopsy.first is not None and autopsy.first.phase == OPTIMIZER
    found = {trial.cause: trial for trial in feed.of(TrialRecord)}
    assert found["eps-underflow"].result == CONFIRMED
    assert "epsilon" in found["eps-underflow"].change


def test_placebos_do_not_confirm(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(autopsy: Autopsy) -> list[Finding]:
        assert autopsy.first is not None
        where = Where(module=autopsy.first.module, op=autopsy.first.op)
        about = {"severity": "critical", "confidence": 0.9, "status": "consistent", "step": 0}
        causes = ("lr-too-high", "log-zero", "data-nonfinite", "grad-explode")
        return [Finding(cause=cause, where=where, **about) for cause in causes]

    monkeypatch.setattr(trying, "candidates", wrong)
    trained()
    found = {trial.cause: trial.result for trial in feed.of(TrialRecord)}
    assert found and CONFIRMED not in found.values()
