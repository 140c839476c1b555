"""Epoch and batch of every step, by the DataLoader that feeds the training."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, Sampler, TensorDataset

from tests.train.conftest import Feed
from tests.train.fed import Takes, batches, watched
from tuimon.model.batches import TensorSummary
from tuimon.model.records import Facts


def train_on(loader: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for x, _ in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()


def places(feed: Feed) -> list[tuple[int | None, int | None]]:
    return [(step.data_epoch, step.batch_index) for step in feed.steps]


def table(count: int = 6) -> TensorDataset:
    return TensorDataset(torch.randn(count, 4), torch.arange(count))


OTHER = table(4)


def test_epoch_and_batch_of_every_step(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    loader, other = DataLoader(table(), batch_size=2, shuffle=True), DataLoader(table(), 3)
    next(iter(loader))  # a peek is no epoch
    for _ in range(2):
        train_on(loader, model, optimizer)
        model.eval()
        for x, _ in other:
            with torch.no_grad():
                model(x)
        model.train()
    assert places(feed) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert feed.of(Facts)[-1].batches_per_epoch == 3
    assert [batch.batches_per_epoch for batch in batches(feed)] == [3, 3, 3]


@pytest.mark.parametrize(
    ("made", "epochs"),
    [
        pytest.param(lambda data, epoch: data, [0, 1, 2], id="the same data"),
        pytest.param(lambda data, epoch: table(4), [0, 1, 2], id="data made anew, as long"),
        pytest.param(lambda data, epoch: list(table(4)), [0, 1, 2], id="a list"),
        pytest.param(lambda data, epoch: table(4 + 2 * epoch), [0, None, None], id="other data"),
        pytest.param(lambda data, epoch: Stream(), [0, None, None], id="a stream made anew"),
        pytest.param(lambda data, epoch: (data, OTHER)[epoch % 2], [0, 0, 1], id="two in turns"),
    ],
)
def test_a_loader_made_anew_for_every_epoch(
    made: Any, epochs: list[int | None], feed: Feed
) -> None:
    """Passes over the same data count; where nobody can know that it is the same, none is told."""
    model, data, other = Takes(), table(4), table(4)
    optimizer = watched(model)
    for epoch in range(3):
        train_on(DataLoader(made(data, epoch), batch_size=2), model, optimizer)
        model.eval()
        for x, _ in DataLoader(other, batch_size=2):
            with torch.no_grad():
                model(x)
        model.train()
    found = places(feed)
    assert list(dict.fromkeys(at for at, _ in found)) == list(dict.fromkeys(epochs))
    assert found[0] == (0, 0) and found[1] == (0, 1) and found[-1][0] == epochs[-1]
    assert all(batch is not None for _, batch in found)


def test_accumulated_batches(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    for index, (x, _) in enumerate(DataLoader(table(8), batch_size=2)):
        model(x).sum().backward()
        if index % 2:
            optimizer.step()
            optimizer.zero_grad()
    assert places(feed) == [(0, 1), (0, 3)]
    assert [(batch.step, batch.batch_index) for batch in batches(feed)] == [(0, 0), (1, 2)]


def test_a_loop_that_fetches_ahead(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)

    def ahead() -> Iterator[Any]:
        fetched = iter(DataLoader(table(), batch_size=2))
        current = next(fetched)
        for following in fetched:
            yield current
            current = following
        yield current

    train_on(ahead(), model, optimizer)
    assert places(feed) == [(0, 0), (0, 1), (0, 2)]


class Stream(IterableDataset):
    def __iter__(self) -> Iterator[Any]:
        return iter([(torch.randn(4), 0)] * 4)

    def __len__(self) -> int:
        raise AssertionError("asked for its length")


class Sly(Sampler):
    """Its length costs a random number."""

    def __iter__(self) -> Iterator[int]:
        return iter(range(4))

    def __len__(self) -> int:
        raise AssertionError("asked for its length")


@pytest.mark.parametrize(
    "loader", [DataLoader(Stream(), batch_size=2), DataLoader(table(4), 2, sampler=Sly())]
)
def test_the_length_of_an_epoch_is_learnt_where_asking_runs_code(
    loader: DataLoader, feed: Feed
) -> None:
    model = Takes()
    optimizer = watched(model)
    for _ in range(2):
        train_on(loader, model, optimizer)
    assert places(feed) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert [batch.batches_per_epoch for batch in batches(feed)] == [None, None, 2]
    assert feed.of(Facts)[-1].batches_per_epoch == 2


def test_a_loader_that_has_ended_feeds_nothing_more(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    train_on(DataLoader(table(2), batch_size=2), model, optimizer)
    train_on([(torch.randn(2, 4), None)] * 2, model, optimizer)
    assert places(feed) == [(0, 0), (None, None), (None, None)]


def test_without_a_loader_there_is_no_place(feed: Feed) -> None:
    model = Takes()
    optimizer = watched(model)
    model(torch.randn(2, 4)).sum().backward()
    optimizer.step()
    assert places(feed) == [(None, None)]
    assert isinstance(batches(feed)[0].inputs[0], TensorSummary)
