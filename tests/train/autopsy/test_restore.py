"""User code is run a second time inside the sandbox, and nothing tells afterwards."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import functools
import itertools
import pathlib
import random
import re
import sys
import time
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from tuimon.train.autopsy import sandbox as sandboxes
from tuimon.train.autopsy import streams
from tuimon.train.autopsy.restore import TENSORS_LEFT, CannotKeep
from tuimon.train.autopsy.sandbox import sandbox

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    LIVING = torch.nested.nested_tensor([torch.ones(2, 3), torch.ones(4, 3)])  # has no shape
CALLS: list[int] = []
SEEN = 0


class Meter:
    """An object of the user's with a state of its own."""

    __slots__ = ("__dict__", "last")

    def __init__(self) -> None:
        self.total = 0.0
        self.last = 0.0


class Fussy(nn.Module):
    """Changes everything that a forward can change."""

    made = 0

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(6)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(6, 6))
        self.rnn = nn.GRU(6, 6, batch_first=True)
        self.drop = nn.Dropout(0.4)
        self.out = nn.Linear(6, 2)
        self.register_buffer("seen", torch.zeros(1))
        self.generator = torch.Generator().manual_seed(5)
        self.numpy_generator = np.random.default_rng(7)
        self.calls = 0
        self.recent: collections.deque[float] = collections.deque(maxlen=3)
        self.cache: dict[str, Any] = {"nested": [1, {"deep": {2}}]}
        self.meter = Meter()
        self.average = torch.zeros(2)
        self.table = np.zeros(3)
        self.numbers = itertools.count(3)
        self.last: torch.Tensor | None = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global SEEN
        SEEN += 1
        CALLS.append(self.calls)
        print("from the forward")
        warnings.warn("from the forward", stacklevel=1)
        Fussy.made += 1
        self.calls += 1
        self.seen += 1
        self.meter.total += float(x.mean())
        self.meter.last = float(x.sum())
        self.cache["nested"].append(self.calls)
        self.cache["nested"][1]["deep"].add(self.calls)
        self.cache[f"new {self.calls}"] = x
        self.table += 1
        self.average.mul_(0.9).add_(x.detach().mean())
        self.average.data.add_(random.random())
        self.recent.append(random.random() + np.random.rand() + self.numpy_generator.random())
        noise = torch.randn(x.shape, generator=self.generator) * 0.01 * next(self.numbers)
        h = self.spectral(self.norm(x + noise))
        h, _ = self.rnn(h[:, None])
        self.last = self.drop(F.relu(h[:, 0]))
        return self.out(self.last)


def everything(model: Fussy) -> list[Any]:
    """All there is to compare, without using up anything."""
    return [
        {name: value.clone() for name, value in model.state_dict().items()},
        [None if p.grad is None else p.grad.clone() for p in model.parameters()],
        [id(p.grad) for p in model.parameters()],
        [p._version for p in model.parameters()],
        [b._version for b in model.buffers()],
        (model.calls, list(model.recent), repr(model.cache), repr(model.numbers), Fussy.made),
        (dict(vars(model.meter)), model.meter.last, model.average.clone(), model.average._version),
        (model.table.copy(), id(model.last), list(CALLS), SEEN),
        [streams.read(name) for name in streams.PROCESS_WIDE],
        (model.generator.get_state(), repr(model.numpy_generator.bit_generator.state)),
    ]


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return torch.equal(one, other)
    if isinstance(one, np.ndarray):
        return bool(np.array_equal(one, other))
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


@pytest.fixture
def model() -> Fussy:
    torch.manual_seed(1)
    return Fussy()


def test_nothing_tells_that_a_forward_and_backward_have_run(
    model: Fussy, capsys: pytest.CaptureFixture[str]
) -> None:
    x = torch.randn(8, 6)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model(x).sum().backward()
    capsys.readouterr()
    before = everything(model)
    params = list(model.parameters())
    with sandbox([model]):
        loss = model(x.clone()).sum()
        loss.backward()
        inside = [param.grad for param in model.parameters()]
        assert not any(a is b for a in params for b in model.parameters())
    assert all(grad is not None for grad in inside), "the stand-ins took part"
    after = everything(model)
    for index, (one, other) in enumerate(zip(before, after, strict=True)):
        assert same(one, other), f"{index}: {one} became {other}"
    assert all(a is b for a, b in zip(params, model.parameters(), strict=True))
    assert capsys.readouterr() == ("", "")


def test_a_forward_in_the_sandbox_repeats_the_one_whose_streams_it_is_given(model: Fussy) -> None:
    x = torch.randn(8, 6)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Dropout(0.5))
    states = {name: streams.read(name) for name in streams.PROCESS_WIDE}
    first = plain(x)
    random.random()
    torch.randn(3)
    with sandbox([plain], random_states=states):
        again = plain(x)
    assert torch.equal(first, again)


def test_an_error_inside_is_put_back_from_as_well(model: Fussy) -> None:
    before = everything(model)
    with pytest.raises(KeyboardInterrupt), sandbox([model]):
        model(torch.randn(4, 6))
        raise KeyboardInterrupt
    for one, other in zip(before, everything(model), strict=True):
        assert same(one, other)


def test_hooks_of_the_script_on_its_parameters_are_not_met() -> None:
    model = nn.Linear(3, 1)
    stepped: list[str] = []
    model.weight.register_post_accumulate_grad_hook(lambda param: stepped.append("stepped"))
    model.weight.register_hook(lambda grad: stepped.append("seen"))
    with sandbox([model]):
        model(torch.randn(2, 3)).sum().backward()
    assert stepped == []
    model(torch.randn(2, 3)).sum().backward()
    assert stepped == ["seen", "stepped"]


def test_the_users_backward_still_finds_what_it_has_saved(model: Fussy) -> None:
    """Buffers and tensors are not written to, not even with what they hold."""
    model.eval()
    x = torch.randn(8, 6, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = (model(x) * model.average * model.seen).sum()
        with sandbox([model]):
            model(x.detach())
    loss.backward()
    assert x.grad is not None


def test_tied_parameters_stay_tied_inside() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(3, 3), nn.Linear(3, 3)
            self.second.weight = self.first.weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x))

    model = Tied()
    with sandbox([model]):
        assert model.first.weight is model.second.weight
    assert model.first.weight is model.second.weight


def test_what_cannot_be_put_back_is_not_run() -> None:
    class Feeds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.source = iter([1, 2, 3])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * next(self.source)

    for model in (Feeds(), torch.jit.script(nn.Linear(2, 2))):
        with pytest.raises(CannotKeep), sandbox([model]):
            raise AssertionError("something was run")


def test_a_closure_of_the_script_is_put_back() -> None:
    seen: list[int] = []
    count = 0

    class Closing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal count
            count += 1
            seen.append(count)
            return x

    model = Closing()
    model.register_forward_hook(lambda module, args, output: seen.append(-1))
    with sandbox([model]):
        model(torch.zeros(1))
    assert (seen, count) == ([], 0)


def test_switches_are_as_before() -> None:
    model = nn.Linear(2, 2)
    with torch.no_grad():
        with sandbox([model]):
            assert torch.is_grad_enabled()
            torch.set_anomaly_enabled(True)
            torch.set_default_dtype(torch.float64)
        assert not torch.is_grad_enabled()
    assert not torch.is_anomaly_enabled()
    assert torch.get_default_dtype() is torch.float32


def emptied(tensor: torch.Tensor) -> torch.Tensor:
    """The memory was given up, as sharding does."""
    tensor.untyped_storage().resize_(0)
    return tensor


def leaked() -> torch.Tensor:
    """A tensor from inside a transform that is over."""
    found: list[torch.Tensor] = []
    torch.vmap(lambda x: found.append(x) or x)(torch.ones(3))  # type: ignore[func-returns-value]
    return found[0]


def test_tensors_that_cannot_be_asked_do_not_hinder_a_second_run() -> None:
    class Writing(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own = [LIVING.clone(), emptied(torch.ones(3)), leaked()]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            LIVING.mul_(2)
            self.own[0].mul_(2)
            return x + 1

    model = Writing()
    with sandbox([model]) as kept:
        model(torch.zeros(1))
    for nested in (LIVING, model.own[0]):
        assert float(nested.values().sum()) == 18.0
    assert TENSORS_LEFT in kept.notes


def test_a_parameter_without_memory_is_not_read() -> None:
    model = nn.Linear(3, 3)
    emptied(model.weight.data)
    with pytest.raises(CannotKeep, match="given up"), sandbox([model]):
        raise AssertionError("something was run")


def test_globals_that_cannot_be_asked_do_not_hinder_a_second_run(
    monkeypatch: pytest.MonkeyPatch, model: Fussy
) -> None:
    class Odd:
        """Pretends to be something that it cannot reach, as lazy objects do."""

        @property  # type: ignore[misc]
        def __class__(self) -> Any:
            raise RuntimeError("outside of any context")

    monkeypatch.setitem(globals(), "ODD", Odd())
    before = everything(model)
    with sandbox([model]):
        model(torch.randn(4, 6))
    for one, other in zip(before, everything(model), strict=True):
        assert same(one, other)


def test_objects_of_any_kind_in_the_script_do_not_hinder_a_second_run(
    monkeypatch: pytest.MonkeyPatch, model: Fussy
) -> None:
    many = [
        datetime.timedelta(milliseconds=200),
        datetime.datetime(2026, 12, 1, 12, 30),
        slice(0, 5000),
        functools.partial(max, 7),
        complex(1, 2),
        fractions.Fraction(1, 3),
        decimal.Decimal("1.5"),
        pathlib.Path("a/b"),
        re.match("a", "a"),
        memoryview(b"abc"),
        sys.float_info,
        time.localtime(),
        ValueError("kept"),
        property(len),
    ]
    monkeypatch.setitem(globals(), "MANY", many)
    model.many = many
    before = everything(model)
    with sandbox([model]):
        model(torch.randn(4, 6))
    for one, other in zip(before, everything(model), strict=True):
        assert same(one, other)


def test_an_interruption_while_all_is_put_back_leaves_no_half(
    model: Fussy, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_back, calls = sandboxes._put_back, 0

    def interrupted(*args: Any) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt
        put_back(*args)

    monkeypatch.setattr(sandboxes, "_put_back", interrupted)
    before = everything(model)
    with pytest.raises(KeyboardInterrupt), sandbox([model]):
        model(torch.randn(4, 6))
    for one, other in zip(before, everything(model), strict=True):
        assert same(one, other)
