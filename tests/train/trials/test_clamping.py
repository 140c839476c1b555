"""A loss that fails for its labels runs with clamped ones; one that fails otherwise does not."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.diagnose.engine import Engine
from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE, TrialRecord
from tuimon.train.trials.clamping import clamped_labels

X = torch.rand(6, 3)
ONE_BASED = torch.tensor([1, 2, 3, 1, 2, 3])


def failed(call: Callable[[], object]) -> BaseException:
    with pytest.raises((IndexError, RuntimeError, ValueError)) as caught:
        call()
    return caught.value


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.cross_entropy(X, ONE_BASED),
        lambda: nn.NLLLoss(torch.ones(3), ignore_index=1)(X, ONE_BASED),
        lambda: F.binary_cross_entropy(X, 255 * X.round()),
    ],
)
def test_labels_outside_of_their_range_are_confirmed(call: Callable[[], object]) -> None:
    found = clamped_labels(failed(call))
    assert found is not None and found.result == CONFIRMED


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (lambda: F.cross_entropy(X, ONE_BASED[:5] - 1), None),  # another number of labels
        (lambda: F.cross_entropy(X, ONE_BASED[:5]), NO_DIFFERENCE),  # that, and outside
        (lambda: F.binary_cross_entropy(X * 3, X), None),  # it is the prediction
        (lambda: F.mse_loss(X, X[:4]), None),
        (lambda: X @ X, None),
    ],
)
def test_other_failures_are_not(call: Callable[[], object], expected: str | None) -> None:
    found = clamped_labels(failed(call))
    assert (None if found is None else found.result) == expected


def test_the_finding_of_a_crash_is_confirmed(feed: Feed) -> None:
    model = nn.Linear(3, 3)
    tuimon.watch(model, torch.optim.SGD(model.parameters(), lr=0.1), policy=PATIENCE)
    feed.session.crashed(failed(lambda: F.cross_entropy(model(X), ONE_BASED)))
    (trial,) = feed.of(TrialRecord)
    assert trial.detail.startswith("2 labels of 6 clamped")
    engine = Engine()
    for record in feed.read():
        engine.see(record)
    engine.close()
    assert [(f.cause, f.status) for f in engine.findings] == [("label-range", CONFIRMED)]
