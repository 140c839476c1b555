"""What is seen of the inputs of a batch, and when."""

from __future__ import annotations

import collections
import math
import warnings
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

import tuimon
from tests.train.conftest import Feed
from tests.train.fed import Takes, batches, seen_loss, suspicious, watched
from tuimon.model.records import Loss
from tuimon.model.samples import Activations


class Pair(NamedTuple):
    left: torch.Tensor
    right: torch.Tensor


@dataclass
class Sample:
    image: torch.Tensor
    extra: dict[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    image: torch.Tensor


def test_inputs_are_found_wherever_they_are_nested(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    x, y = torch.randn(8, 4), torch.arange(8)
    model(
        x,
        (x, [y]),
        Pair(x, y),
        Sample(x, {"ids": y}),
        Slotted(x),
        collections.UserDict(mask=y),
        7,
        None,
        "text",
        flags={"a": y, 3: y},
    ).sum().backward()
    optimizer.step()
    (batch,) = batches(feed)
    assert [each.name for each in batch.inputs] == [
        *("0", "1.0", "1.1.0", "2.0", "2.1", "3.image", "3.extra.ids", "4.image", "5.mask"),
        *("flags.a", "flags.3"),
    ]
    assert batch.left_out == 0
    assert batch.inputs[0].shape == [8, 4]
    assert batch.inputs[2].dtype == "int64"


def test_the_figures_of_an_input(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    x = torch.randn(16, 4)
    x[:, 2] = 0.5
    x[9] = x[4]
    x[12] = x[4]
    model(x).sum().backward()
    optimizer.step()
    (found,) = batches(feed)[0].inputs
    assert (found.low, found.high) == (x.min().item(), x.max().item())
    assert found.mean == pytest.approx(x.double().mean().item())
    assert found.std == pytest.approx(x.double().std(correction=0).item())
    assert (found.nan, found.posinf, found.neginf, found.looked_at) == (0, 0, 0, 64)
    assert (found.features, found.constant_features) == (4, 1)
    assert (found.duplicates, found.duplicate_pair) == (2, [9, 4])


@pytest.mark.parametrize(
    "dtype", [torch.float64, torch.float16, torch.bfloat16, torch.bool, torch.uint8, torch.int16]
)
def test_kinds_of_numbers(dtype: torch.dtype, feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    values = torch.tensor([[0, 1, 1, 0], [1, 1, 1, 1]]).to(dtype)
    model(torch.randn(2, 4), values).sum().backward()
    optimizer.step()
    found = batches(feed)[0].inputs[1]
    assert (found.low, found.high, found.mean, found.why_not) == (0.0, 1.0, 0.75, "")
    assert found.zero_frac == 0.25


def ragged() -> torch.Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls this kind of tensor a prototype
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


@pytest.mark.parametrize(
    ("tensor", "reason"),
    [
        (torch.empty(2, 3, device="meta"), "on meta"),
        (torch.eye(3).to_sparse(), "not a plain dense"),
        (torch.empty(0, 3), "empty"),
        (ragged(), "not a plain"),
    ],
)
def test_what_cannot_be_read_says_why(tensor: torch.Tensor, reason: str, feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    model(torch.randn(2, 4), tensor).sum().backward()
    optimizer.step()
    found = batches(feed)[0].inputs[1]
    assert reason in found.why_not
    assert (found.looked_at, found.nan, found.low, found.mean) == (0, None, None, None)
    assert not [event for event in feed.events if event.kind.startswith("tap")]


def test_a_large_tensor_is_looked_at_in_part(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    wide = torch.zeros(1000, 1000)
    wide[::2, ::3] = 1.0
    model(torch.randn(2, 4), wide).sum().backward()
    optimizer.step()
    found = batches(feed)[0].inputs[1]
    assert found.shape == [1000, 1000]
    assert 0 < found.looked_at <= 1 << 18


def test_the_first_batches_and_those_of_sampled_steps(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer, activations=True)
    for _ in range(120):
        optimizer.zero_grad()
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    found = [(batch.step, batch.why) for batch in batches(feed)]
    assert found[:3] == [(0, "first"), (1, "first"), (2, "first")]
    sampled = {record.step for record in feed.of(Activations)} - {0, 1, 2}
    assert len(sampled) >= 2
    assert found[3:] == [(step, "sample") for step in sorted(sampled)]


def test_without_a_budget_only_the_first(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer, budget_frac=0)
    for _ in range(60):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
    assert len(batches(feed)) == 3


def test_a_bad_batch_is_told_before_its_loss(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    for step in range(12):
        x = torch.randn(32, 4)
        if step == 9:
            x[13, 2] = math.nan
        optimizer.zero_grad()
        functional.cross_entropy(model(x), torch.randint(0, 3, (32,))).backward()
        optimizer.step()
    # The weights are lost from here on: later losses are no news about the data.
    (batch,) = suspicious(feed)
    assert batch.step == 9
    first_loss = next(record for record in feed.read() if isinstance(record, Loss))
    assert feed.read().index(batch) < feed.read().index(first_loss)
    (found,) = batch.inputs
    assert (found.nan, found.first_bad, found.bad_samples) == (1, [13, 2], 1)


def test_an_input_that_only_the_graph_still_holds(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    data = torch.randn(100, 4)
    data[77, 1] = math.inf
    for step in range(10):
        optimizer.zero_grad()
        loss = model(data[10 * step : 10 * step + 10]).pow(2).mean()
        loss.backward()
        optimizer.step()
    (batch,) = suspicious(feed)
    assert batch.step == 7
    assert (batch.inputs[0].posinf, batch.inputs[0].first_bad) == (1, [7, 1])


def test_a_bad_target_is_found_in_the_loss(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    for step in range(6):
        target = torch.rand(16, 3)
        if step == 5:
            target[10, 2] = -math.inf
        optimizer.zero_grad()
        functional.mse_loss(model(torch.randn(16, 4)), target).backward()
        optimizer.step()
    (seen,) = suspicious(feed)[0].losses
    assert seen.target is not None
    assert (seen.target.neginf, seen.target.first_bad) == (1, [10, 2])


def test_bad_gradients_of_a_finite_loss_lead_to_their_inputs(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    for step in range(6):
        x = torch.rand(4, 4) + 1
        optimizer.zero_grad()
        out = model(x)
        loss = torch.where(out.abs() > 1e9, torch.sqrt(-out.abs()), out).sum()
        if step < 5:
            loss = out.sum()
        loss.backward()
        optimizer.step()
    assert [batch.step for batch in suspicious(feed)] == [5]


def test_targets_behind_a_checkpoint_are_not_unpacked(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    forwards = []

    def head(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        forwards.append(1)
        return functional.cross_entropy(x, labels)

    loss = checkpoint(
        head, model(torch.randn(6, 4)), torch.arange(3).repeat(2), use_reentrant=False
    )
    seen = seen_loss(feed, loss, optimizer)
    assert len(forwards) == 2  # the script's own forward and its recomputation in backward
    assert seen.target is not None and "hook" in seen.target.why_not


def test_a_target_changed_in_place_is_left_alone(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    target = torch.rand(6, 3)
    loss = functional.mse_loss(model(torch.randn(6, 4)), target)
    target.zero_()
    with pytest.raises(RuntimeError, match="inplace"):
        loss.backward()
    optimizer.step()
    (seen,) = batches(feed)[0].losses
    assert seen.target is not None and seen.target.why_not.startswith("not readable")


def test_a_batch_whose_backward_never_comes_is_told_at_the_next(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    loss = model(torch.randn(2, 4)).sum()
    for param, grad in zip(
        model.parameters(), torch.autograd.grad(loss, [*model.parameters()]), strict=True
    ):
        param.grad = grad
    optimizer.step()
    assert batches(feed) == []
    model(torch.randn(2, 4))
    (batch,) = batches(feed)
    assert (batch.step, len(batch.inputs), batch.losses) == (0, 1, [])
