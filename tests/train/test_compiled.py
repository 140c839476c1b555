"""What is compiled runs as it would alone, and is watched from outside its regions."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch
from torch import nn

from tests.train.conftest import Feed
from tests.train.test_loops import batches, mse
from tests.train.test_models import descend
from tests.train.twins import Diary, twins


class Small(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 8)
        self.outer = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.outer(torch.tanh(self.inner(x)))


@pytest.mark.hazard(18)
@pytest.mark.parametrize("what", ["model", "wrapper", "in place", "step", "optimizer", "backward"])
def test_compiled(what: str, feed: Feed) -> None:
    """Compiled with `fullgraph=True`, nothing of ours breaks the graph or is compiled again."""
    frames: list[int] = []

    def loop(diary: Diary) -> list[Any]:
        torch._dynamo.reset()
        from torch._dynamo.testing import CompileCounterWithBackend

        counter = CompileCounterWithBackend("eager")
        compile_ = functools.partial(torch.compile, backend=counter, fullgraph=True)
        model = Small()
        optimizer = torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)
        called: Any = model
        if what == "wrapper":
            called = compile_(model)
            diary(called, optimizer)
        else:
            diary(model, optimizer)
        if what == "model":
            called = compile_(model)
        elif what == "in place":
            model.compile(backend=counter, fullgraph=True)
        if what == "step":
            called = compile_(lambda x: model(x) * 2)
        if what == "optimizer":
            optimizer.step = torch.compile(optimizer.step, backend=counter)
        if what == "backward":
            whole(diary, model, optimizer, counter)
        else:
            descend(diary, model, optimizer, call=called, steps=4)
        frames.append(counter.frame_count)
        return [model, [group["lr"] for group in optimizer.param_groups]]

    found = twins(loop, feed)
    assert frames[0] == frames[1] > 0
    assert len(found.steps) == 4 and all(step.grad_norm > 0 for step in found.steps)


@pytest.mark.hazard(18)
@pytest.mark.parametrize("kind", ["norm", "value"])
def test_clipping_inside_a_compiled_region_is_said(kind: str, feed: Feed) -> None:
    """The graph stays whole; what it left of the gradients is told as what it is."""
    frames: list[int] = []

    def loop(diary: Diary) -> list[Any]:
        torch._dynamo.reset()
        from torch._dynamo.testing import CompileCounterWithBackend

        counter = CompileCounterWithBackend("eager")
        model = Small()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)

        @torch.compile(backend=counter, fullgraph=True)
        def clipped() -> None:
            if kind == "norm":
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            else:
                nn.utils.clip_grad_value_(model.parameters(), 0.01)

        for x, y in batches(4):
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            clipped()
            diary.note(loss, model.parameters())
            optimizer.step()
        frames.append(counter.frame_count)
        return [model]

    found = twins(loop, feed)
    assert frames[0] == frames[1] > 0
    assert [event.kind for event in found.events].count("clip-compiled") == 1
    assert {step.max_norm for step in found.steps} == {None}


def whole(diary: Diary, model: nn.Module, optimizer: Any, backend: Any) -> None:
    """Forward and backward in one compiled function: torch breaks its graph at the backward."""

    @torch.compile(backend=backend)
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        loss = mse(model(x), y)
        loss.backward()
        return loss

    for x, y in batches(4):
        optimizer.zero_grad()
        diary.note(step(x, y), model.parameters())
        optimizer.step()
