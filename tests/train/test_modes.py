"""Modes and subclasses of the script see the script's own operations, no more and no fewer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import pytest
import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train.conftest import Feed
from tests.train.test_loops import batches, mse, net
from tests.train.twins import Diary, twins


class Functions(TorchFunctionMode):
    """Counts what is called."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(getattr(func, "__name__", func))] += 1
        return func(*args, **(kwargs or {}))


class Operations(TorchDispatchMode):
    """Counts what is dispatched."""

    def __init__(self, seen: Counter[str]) -> None:
        super().__init__()
        self.seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.seen[str(func)] += 1
        return func(*args, **(kwargs or {}))


Mode = Callable[[Counter[str]], AbstractContextManager[Any]]


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("mode", [Functions, Operations])
def test_a_mode_sees_the_script_alone(mode: Mode, scaled: bool, feed: Feed) -> None:
    """Every step is sampled here, one is clipped, one is bad: none of it shows."""

    def loop(diary: Diary) -> list[Any]:
        seen: Counter[str] = Counter()
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        scaler = torch.amp.GradScaler("cpu", enabled=scaled)
        diary(model, optimizer)
        for step, (x, y) in enumerate(batches()):
            with mode(seen):
                optimizer.zero_grad()
                loss = mse(model(x), y * (torch.inf if step == 6 else 1))
                scaler.scale(loss).backward()
                if step % 2:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                scaler.step(optimizer)
                scaler.update()
        return [model, optimizer, sorted(seen.items())]

    found = twins(loop, feed)
    assert len(found.steps) == 8 and found.steps[6].bad_total > 0


class Marked(torch.Tensor):
    """A tensor that tells what is asked of it."""

    seen: ClassVar[Counter[str]] = Counter()

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        cls.seen[str(getattr(func, "__name__", func))] += 1
        return super().__torch_function__(func, types, args, kwargs or {})


def test_a_loss_of_a_kind_of_its_own_is_asked_nothing(feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        Marked.seen.clear()
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        diary(model, optimizer)
        for x, y in batches(4):
            optimizer.zero_grad()
            loss = mse(model(x.as_subclass(Marked)), y)
            assert type(loss) is Marked
            loss.backward()
            diary.losses[0].append(torch.Tensor.item(loss.as_subclass(torch.Tensor).detach()))
            grads = [param.grad for param in model.parameters()]
            diary.norms[0].append(float(nn.utils.get_total_norm(grads)))
            optimizer.step()
        return [model, sorted(Marked.seen.items())]

    twins(loop, feed)
