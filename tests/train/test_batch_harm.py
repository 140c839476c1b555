"""Looking at the batch changes nothing: no number, no life of a tensor, no code of the user's."""

from __future__ import annotations

import collections
import copy
import gc
import io
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.data import DataLoader, TensorDataset

import tuimon
from tests.train.conftest import Feed
from tests.train.twins import Diary, Loop, twins
from tuimon.model.records import Batch
from tuimon.train import monitor as monitors
from tuimon.train.leaves import MAX_PLACES, Leaves


class Takes(nn.Module):
    """A net that is called in whatever way a test wants."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 3))

    def forward(self, batch: Any, **kwargs: Any) -> torch.Tensor:
        x = batch["x"] if issubclass(type(batch), dict) else batch.x
        return self.layers(x)


@dataclass
class Lazy:
    """A batch whose parts are made when they are asked for."""

    seed: int
    made: int = 0

    @property
    def x(self) -> torch.Tensor:
        self.made += 1
        return torch.randn(6, 4)


class Trap:
    """Every way of asking draws a random number and fails."""

    def __init__(self, x: torch.Tensor) -> None:
        self.__dict__["_x"] = x

    @property
    def x(self) -> torch.Tensor:
        return self.__dict__["_x"]

    @property
    def __class__(self) -> type:
        raise _spring()

    def __getattr__(self, name: str) -> Any:
        raise _spring()

    def __iter__(self) -> Iterator[Any]:
        raise _spring()

    def __len__(self) -> int:
        raise _spring()

    def __eq__(self, other: object) -> bool:
        raise _spring()

    __hash__ = None  # type: ignore[assignment]


@dataclass
class TrapFields:
    x: torch.Tensor

    def __getattribute__(self, name: str) -> Any:
        if name == "x":
            return object.__getattribute__(self, name)
        raise _spring()


class TrapDict(dict):
    def items(self) -> Any:
        raise _spring()

    def values(self) -> Any:
        raise _spring()

    def __iter__(self) -> Any:
        raise _spring()


class TrapKey:
    def __str__(self) -> str:
        raise _spring()


def _spring() -> Exception:
    torch.rand(())
    return RuntimeError("a trap was sprung")


def odd_batches(x: torch.Tensor, step: int) -> Any:
    """One batch, of another structure at every step."""
    looped: list[Any] = [x]
    looped.append(looped)
    deep: Any = x
    for _ in range(50):
        deep = [deep]
    structures = [
        {"x": x, "loop": looped},
        {"x": x, "deep": deep},
        {"x": x, TrapKey(): x},
        {"x": x, "many": {f"k{index}": [index, x] for index in range(3000)}},
        TrapDict(x=x),
        {"x": x, "trap": Trap(x)},
        Trap(x),
        Lazy(step),
        TrapFields(x),
        collections.OrderedDict(x=x, view=x[::2, 1:], shared=x.expand(6, 4)),
        {"x": x, "complex": torch.complex(x, x), "half": x.half(), "big": x.new_zeros(700, 700)},
    ]
    return structures[step % len(structures)]


def odd(watch: Diary) -> list[Any]:
    model = Takes()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watch(model, optimizer)
    for step in range(22):
        optimizer.zero_grad()
        out = model(odd_batches(torch.randn(6, 4), step), labels=torch.arange(6))
        functional.cross_entropy(out, torch.randint(0, 3, (6,))).backward()
        optimizer.step()
    return [model, optimizer]


def not_finite(watch: Diary) -> list[Any]:
    model = Takes()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    watch(model, optimizer)
    data = TensorDataset(torch.randn(40, 4).index_fill(0, torch.tensor([33]), torch.inf))
    for _ in range(2):
        for (x,) in DataLoader(data, batch_size=4, shuffle=True):
            optimizer.zero_grad()
            loss = functional.mse_loss(model({"x": x}), torch.randn(4, 3))
            loss.backward()
            if torch.isfinite(loss):
                optimizer.step()
    return [model, optimizer]


def by_autograd_grad(watch: Diary) -> list[Any]:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    watch(model, optimizer)
    params = [*model.parameters()]
    for _ in range(10):
        loss = functional.huber_loss(model({"x": torch.randn(6, 4)}), torch.zeros(6, 3))
        for param, grad in zip(params, torch.autograd.grad(loss, params), strict=True):
            param.grad = grad
        optimizer.step()
    return [model, optimizer]


@pytest.mark.parametrize("loop", [odd, not_finite, by_autograd_grad])
def test_bit_for_bit(loop: Loop, feed: Feed) -> None:
    assert twins(loop, feed).steps, "nothing was watched"
    assert len(feed.of(Batch)) >= 3
    assert monitors._wiring is not None
    assert monitors._wiring.observer.boundary.failures == {}


def test_nothing_lazy_is_made(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    batch = Lazy(0)
    model(batch).sum().backward()
    optimizer.step()
    assert batch.made == 1
    assert len(feed.of(Batch)) == 1


def test_the_search_is_bounded() -> None:
    x = torch.ones(1)
    wide = Leaves(({index: index for index in range(10 * MAX_PLACES)}, x), {}, 16)
    assert [name for name, _ in wide.found] == ["1"]
    assert wide.left_out == 1
    many = Leaves(([x] * 100,), {}, 16)
    assert (len(many.found), many.left_out) == (16, 84)
    looped: list[Any] = [x]
    looped.append(looped)
    once = Leaves((looped,), {}, 16)
    assert ([name for name, _ in once.found], once.left_out) == (["0.0"], 0)


@pytest.mark.parametrize("trained", [True, False])
def test_a_batch_lives_as_long_as_without_tuimon(trained: bool, feed: Feed) -> None:
    """Not one step longer, so that the peak of memory is the script's own."""
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    gc.disable()
    try:
        for _ in range(5):
            batch = {"x": torch.randn(6, 4)}
            target = torch.randn(6, 3)
            alive = [weakref.ref(batch["x"]), weakref.ref(target)]
            loss = functional.mse_loss(model(batch), target)
            alive.append(weakref.ref(loss))
            if trained:
                loss.backward()
                optimizer.step()
            del batch, target, loss
            assert [reference() for reference in alive] == [None] * 3
    finally:
        gc.enable()


def test_a_loader_and_its_passes_are_let_go(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    loader = DataLoader(TensorDataset(torch.randn(4, 4)), batch_size=2)
    alive = [weakref.ref(loader)]
    for (x,) in loader:
        alive.append(weakref.ref(x))
        model({"x": x}).sum().backward()
        optimizer.step()
    del loader, x
    gc.collect()
    assert [reference() for reference in alive] == [None] * 3


def test_an_input_can_still_be_resized(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    x, target = torch.randn(6, 4), torch.randn(6, 3)
    functional.mse_loss(model({"x": x}), target).backward()
    optimizer.step()
    versions = x._version, target._version
    assert versions == (0, 0)
    x.resize_(100, 4)
    target.resize_(100, 3)


class CountsFunctions(TorchFunctionMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(getattr(func, "__name__", str(func)))
        return func(*args, **(kwargs or {}))


class CountsOperations(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("mode", [CountsFunctions, CountsOperations])
def test_a_mode_of_the_script_sees_no_look(mode: Callable[[], Any], feed: Feed) -> None:
    def calls(*, watch: bool) -> list[str]:
        torch.manual_seed(0)
        model = Takes()
        if watch:
            tuimon.watch(model, torch.optim.SGD(model.parameters(), lr=0.01))
        with mode() as counted:
            model({"x": torch.randn(6, 4), "more": torch.ones(6, 4)})
        return counted.calls

    bare = calls(watch=False)
    assert calls(watch=True) == bare
    assert len(feed.of(Batch)) == 0  # it waits for its backward
    assert monitors._wiring is not None
    assert monitors._wiring.observer.batches.due


def test_hooks_on_saved_tensors_are_not_called(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    unpacked: list[int] = []

    def unpack(tensor: torch.Tensor) -> torch.Tensor:
        unpacked.append(1)
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, unpack):
        loss = functional.mse_loss(model({"x": torch.randn(6, 4)}), torch.randn(6, 3))
    batches = monitors._wiring.observer.batches  # type: ignore[union-attr]
    batches.on_loss([loss], False)
    assert unpacked == []
    (batch,) = feed.of(Batch)
    assert "hook" in batch.losses[0].target.why_not


def test_copies_are_called_with_names_too(feed: Feed) -> None:
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    stored = io.BytesIO()
    torch.save(model, stored)
    stored.seek(0)
    loaded = torch.load(stored, weights_only=False)
    batch = {"x": torch.randn(6, 4)}
    for twin in (copy.deepcopy(model), loaded):
        assert twin.train()(batch=batch, labels=None).shape == (6, 3)
        compiled = torch.compile(twin.eval(), backend="eager", fullgraph=True)
        assert compiled(batch, labels=None).shape == (6, 3)
    assert feed.of(Batch) == []


def test_a_failing_look_changes_nothing(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuimon.train.taps import batch as tap

    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(tap, "summarise", broken)
    monkeypatch.setattr(tap, "losses_below", broken)
    model = Takes()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer)
    for _ in range(10):
        functional.mse_loss(model({"x": torch.randn(6, 4)}), torch.randn(6, 3)).backward()
        optimizer.step()
    assert len(feed.steps) == 10
    assert feed.of(Batch) == []
    assert [event.kind for event in feed.events].count("tap-disarmed") == 1
