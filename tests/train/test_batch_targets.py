"""What loss functions were given, seen through the graph of the loss."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from tests.train.conftest import Feed
from tests.train.fed import Takes, batches, seen_loss, watched
from tuimon.model.records import Facts


def test_class_indices_meet_their_classes(feed: Feed) -> None:
    model = Takes(out=6)
    optimizer = watched(model)
    labels = torch.tensor([1, 2, 2, 5, -100, 5])
    loss = functional.cross_entropy(model(torch.randn(6, 4)), labels)
    seen = seen_loss(feed, loss, optimizer)
    assert (seen.facts.op, seen.facts.reduction) == ("NllLossBackward0", "mean")
    assert (seen.facts.classes, seen.facts.ignore_index) == (6, -100)
    assert seen.facts.above[0] == "LogSoftmaxBackward0"
    assert seen.labels == [(1, 1), (2, 2), (5, 2)]
    assert (seen.label_range, seen.ignored, seen.outside) == ([1, 5], 1, 0)
    facts = feed.of(Facts)[-1]
    assert facts.losses == [seen.facts]


def test_targets_of_an_image_and_a_weighted_sum_of_losses(feed: Feed) -> None:
    model = nn.Conv2d(3, 5, 3, padding=1)
    optimizer = watched(model)
    out = model(torch.randn(2, 3, 8, 8))
    labels = torch.randint(0, 5, (2, 8, 8))
    loss = functional.cross_entropy(out, labels, label_smoothing=0.1)
    total = (loss + 0.3 * functional.mse_loss(out, torch.zeros_like(out))) / 4
    total.backward()
    optimizer.step()
    found = {seen.facts.op: seen for seen in batches(feed)[0].losses}
    assert found["NllLoss2DBackward0"].facts.classes == 5
    assert found["MseLossBackward0"].facts.classes is None
    assert found["MseLossBackward0"].spread == []


@pytest.mark.parametrize(
    ("function", "op"),
    [
        (functional.mse_loss, "MseLossBackward0"),
        (functional.smooth_l1_loss, "SmoothL1LossBackward0"),
        (functional.huber_loss, "HuberLossBackward0"),
        (functional.binary_cross_entropy_with_logits, "BinaryCrossEntropyWithLogitsBackward0"),
    ],
)
def test_targets_that_are_numbers(function: Any, op: str, feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    target = torch.rand(8, 3)
    target[2, 1] = 255.0
    seen = seen_loss(feed, function(model(torch.randn(8, 4)), target), optimizer)
    assert seen.facts.op == op
    assert seen.target is not None and seen.target.high == 255.0
    assert seen.outside == (1 if op.startswith("Binary") else None)


def test_a_scaled_loss_is_walked_through(feed: Feed) -> None:
    model = Takes(out=6)
    optimizer = watched(model)
    scaler = torch.amp.GradScaler("cpu")
    loss = functional.cross_entropy(model(torch.randn(6, 4)), torch.arange(6)) / 4
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    assert batches(feed)[0].losses[0].facts.classes == 6


@pytest.mark.parametrize(
    ("shapes", "spread"),
    [
        (((64, 1), (64,)), [[64, 1], [64]]),
        (((64, 1), (64, 1)), []),
        (((64, 3), (1,)), []),  # one target for all is nothing unusual
    ],
)
def test_a_prediction_against_a_target_of_another_shape(
    shapes: tuple[tuple[int, ...], tuple[int, ...]], spread: list[list[int]], feed: Feed
) -> None:
    prediction, target = shapes
    model = Takes(out=prediction[1])
    optimizer = watched(model)
    with pytest.warns(UserWarning) if prediction != target else _nothing():
        loss = functional.mse_loss(model(torch.randn(64, 4)), torch.randn(target))
    assert seen_loss(feed, loss, optimizer).spread == spread


class _nothing:
    def __enter__(self) -> None: ...
    def __exit__(self, *error: object) -> None: ...
