"""What is kept of a forward lives as long as an update may follow from it, and no longer."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.sampled import net, sgd
from tuimon.train import monitor as monitors
from tuimon.train.autopsy import scene
from tuimon.train.autopsy.scene import Call


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def kept() -> list[Call]:
    assert monitors._wiring is not None
    return monitors._wiring.observer.scenes.calls


def watched() -> tuple[nn.Module, torch.optim.Optimizer]:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    return model, optimizer


def test_a_graph_that_is_gone_after_its_backward_is_kept(feed: Feed, uncollected: None) -> None:
    model, optimizer = watched()
    model(torch.randn(8, 6)).sum().backward()
    (call,) = kept()
    assert call.grads is not None and call.grads[0] is not None
    optimizer.step()
    assert kept() == []


@pytest.mark.parametrize("limit", [scene.MAX_OUTPUT_BYTES, 0])
def test_of_several_forwards_those_that_are_trained_on_are_kept(
    limit: int, feed: Feed, monkeypatch: pytest.MonkeyPatch, uncollected: None
) -> None:
    monkeypatch.setattr(scene, "MAX_OUTPUT_BYTES", limit)
    model, optimizer = watched()
    first = model(torch.zeros(1, 6))
    model(torch.zeros(2, 6))
    second = model(torch.zeros(3, 6))
    assert [len(call.args[0]) for call in kept()] == [1, 3]
    (first.sum() + second.sum()).backward()
    del first, second
    model(torch.zeros(4, 6))
    assert [len(call.args[0]) for call in kept()] == [1, 3]
    optimizer.step()
    assert kept() == []


def test_one_output_of_several_is_enough(feed: Feed, uncollected: None) -> None:
    class Two(nn.Linear):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:  # type: ignore[override]
            return {"used": super().forward(x), "aside": self.weight.sum() * 2}

    model = Two(6, 1)
    tuimon.watch(model, sgd(model))
    used = model(torch.zeros(1, 6))["used"]
    assert len(kept()) == 1
    del used
    assert kept() == []


def test_a_forward_that_raised_keeps_no_batch(feed: Feed, uncollected: None) -> None:
    model, _ = watched()
    batch = torch.randn(8, 5)
    alive = weakref.ref(batch)
    with pytest.raises(RuntimeError, match="shapes") as raised:
        model(batch)
    assert kept() == []
    del batch, raised
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("when", ["before", "after", "within"])
def test_an_exception_passes_whatever_hooks_the_script_has(when: str, feed: Feed) -> None:
    ran: list[int] = []

    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if when == "within":
                self.register_forward_hook(also, always_call=True)
            return super().forward(x)

    def also(*_: object) -> None:
        ran.append(1)

    model = Fails(6, 1)
    if when == "before":
        model.register_forward_hook(also, always_call=True)
    tuimon.watch(model, sgd(model))
    if when == "after":
        model.register_forward_hook(also, always_call=True)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.randn(8, 5))
    assert not torch.is_anomaly_enabled()
    assert ran == [1]


@pytest.mark.parametrize("inside", [True, False])
def test_a_compiled_root_is_compiled_once(inside: bool, feed: Feed) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    model = net()
    optimizer = sgd(model)
    called = model
    if inside:
        model.compile(backend="eager", fullgraph=True)
    else:
        called = torch.compile(model, backend="eager", fullgraph=True)
    tuimon.watch(called, optimizer)
    for _ in range(6):
        called(torch.randn(8, 6)).sum().backward()
        optimizer.step()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
