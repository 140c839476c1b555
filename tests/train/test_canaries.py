"""Tests of the tests: taps that do harm on purpose, each of which the harness must notice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train.conftest import Feed
from tests.train.test_loops import batches, by, mse
from tests.train.twins import Diary, twins
from tuimon.model.records import DeviceStats
from tuimon.train import monitor as monitors
from tuimon.train import track as tracks
from tuimon.train.account import ClipCall
from tuimon.train.boundary import Boundary
from tuimon.train.control import clip, rates
from tuimon.train.facts import clearing, loop
from tuimon.train.late import LateStats
from tuimon.train.taps import clipping, loss
from tuimon.train.track import Track

plain = by(lambda model: torch.optim.Adam(model.parameters(), lr=0.01))


def draw(track: Track) -> None:
    torch.rand(())


def draw_python(track: Track) -> None:
    import random

    random.random()


def draw_numpy(track: Track) -> None:
    import numpy as np

    np.random.rand()


def scale(track: Track) -> None:
    for param in track.plan.params:
        if param.grad is not None:
            param.grad.mul_(1 + 1e-7)


def lose(track: Track) -> None:
    track.plan.params[0].grad = None


def evaluate(track: Track) -> None:
    for module in monitors._wiring.observer.roster.roots():
        module[1].eval()


def raise_at(track: Track) -> None:
    raise RuntimeError("out of order")


@pytest.mark.parametrize(
    "harm",
    [draw, draw_python, draw_numpy, scale, lose, evaluate, raise_at],
    ids=lambda h: h.__name__,
)
def test_a_harmful_tap_turns_the_harness_red(
    harm: Callable[[Track], None], feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Track.look
    calls = []

    def look(self: Track, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        calls.append(1)
        if len(calls) == 5:  # once is enough
            harm(self)

    monkeypatch.setattr(Track, "look", look)
    with pytest.raises(AssertionError):
        twins(plain, feed)
    assert len(calls) == 8


class NoReading(TorchDispatchMode):
    """Stands for a device: whoever asks for a value on the host makes it wait, and is told so."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "_local_scalar_dense" in func.name() or func.name() in ("aten::nonzero", "aten::equal"):
            raise AssertionError(f"a value was read: {func.name()}")
        return func(*args, **(kwargs or {}))


class Mark:
    """An event of a device that has always been reached."""

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return True


class Elsewhere:
    """Tensors of this host pass for those of a device that delivers by itself."""

    def pinned(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32)

    def mark(self) -> Mark:
        return Mark()


def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take every tensor for one on a device, and run every hook of ours under `NoReading`."""
    guard = Boundary.guard

    def strict(self: Boundary, tap: str, body: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any) -> Any:
            with NoReading():
                return body(*args)

        return guard(self, tap, run)

    def called(params: Any, bound: Any, total: torch.Tensor, mode: str) -> ClipCall:
        return ClipCall(params, bound, mode, total=total.detach())

    monkeypatch.setattr(Boundary, "guard", strict)
    monkeypatch.setattr(monitors, "_wiring", None)
    monkeypatch.setattr(loss, "_read", lambda tensor: (None, tensor.detach()))
    monkeypatch.setattr(clip, "called", called)
    for module in (rates, clipping):
        monkeypatch.setattr(module, "host_number", lambda x: None if torch.is_tensor(x) else x)
    monkeypatch.setattr(loop, "host_number", lambda x: None if torch.is_tensor(x) else x)
    monkeypatch.setattr(tracks.census, "is_due", lambda step: False)
    monkeypatch.setattr(clearing, "_is_on_host", lambda tensor: False)


def on_a_device(diary: Diary) -> list[Any]:
    """A loop whose every tensor is taken for one that lies elsewhere.

    Without extras: these look at tensors in host memory only, and here all are.
    """
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
    diary(model, optimizer, budget_frac=0)
    for x, y in batches():
        optimizer.zero_grad()
        if diary.watched:
            for track in monitors._wiring.observer.roster.tracks.values():
                if track.late is None:
                    track.late = LateStats(track.plan, torch.device("cpu"), Elsewhere())
        mse(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        optimizer.step()
    return [model, optimizer]


@pytest.fixture
def device(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> Iterator[Feed]:
    elsewhere(monkeypatch)
    yield feed
    for monitor in list(monitors._monitors):
        monitor.close()


@pytest.mark.hazard(16, 37)
def test_nothing_on_a_device_is_read(device: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    found = twins(on_a_device, device)
    late = device.of(DeviceStats)
    assert [each.step for each in late] == list(range(len(found.steps))) == list(range(8))
    assert all(step.loss is None and step.grad_norm is None and step.late for step in found.steps)
    assert all(each.loss > 0 and each.grad_norm > 0 for each in late)


@pytest.mark.parametrize("how", ["item", "bool", "tolist", "float"])
def test_a_tap_that_reads_turns_the_harness_red(
    how: str, device: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Track.look
    read = {
        "item": lambda tensor: tensor.item(),
        "bool": lambda tensor: bool(tensor > 0),
        "tolist": lambda tensor: tensor.reshape(1).nonzero(),
        "float": float,
    }[how]

    def look(self: Track, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        read(self.plan.params[1].grad[0])

    monkeypatch.setattr(Track, "look", look)
    with pytest.raises(AssertionError):
        twins(on_a_device, device)


@pytest.mark.hazard(16)
def test_a_training_without_any_values(feed: Feed) -> None:
    """On the meta device nothing can be read at all: losses, rates, logs and gradients included."""

    def loop(diary: Diary) -> list[Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1)).to("meta")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)
        for x, y in batches():
            optimizer.zero_grad()
            loss = mse(model(x.to("meta")), y.to("meta"))
            loss.backward()
            optimizer.step()
        return [model]

    found = twins(loop, feed)
    assert {(step.loss, step.grad_norm) for step in found.steps} == {(None, None)}
    assert len(found.steps) == 8 and found.steps[0].backward_calls == 1
