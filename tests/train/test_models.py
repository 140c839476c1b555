"""Whatever the model is and becomes: names, norms and epochs follow, and the numbers stay."""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.checkpoint import checkpoint

import tuimon
from tests.train.conftest import Feed
from tests.train.test_loops import batches, mse
from tests.train.twins import Diary, twins
from tuimon.model.records import NO_GRAD, UNMEASURED, LayerTable, Step
from tuimon.train import monitor as monitors


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 1))


def descend(
    diary: Diary,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    *,
    between: Callable[[int], Any] = lambda step: None,
    call: Callable[[Any], Any] | None = None,
    steps: int = 8,
) -> None:
    """A plain loop; `between` runs after each update, `call` stands in for the model."""
    for step, (x, y) in enumerate(batches(steps)):
        optimizer.zero_grad()
        loss = mse((model if call is None else call)(x), y)
        loss.backward()
        diary.note(loss, [p for group in optimizer.param_groups for p in group["params"]])
        optimizer.step()
        between(step)


class Odd(nn.Module):
    """One parameter of every kind that a module may hold."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(6, 3, sparse=True)
        self.tied = self.table
        self.frozen = nn.Linear(3, 3).requires_grad_(False)
        self.unused = nn.Linear(2, 2)
        self.empty = nn.Parameter(torch.zeros(0, 3))
        self.wave = nn.Parameter(torch.randn(3, dtype=torch.complex64))
        self.short = nn.Parameter(torch.randn(3).half())
        self.wide = nn.Parameter(torch.randn(3).double())
        self.count = nn.Parameter(torch.tensor([3]), requires_grad=False)
        self.scalar = nn.Parameter(torch.tensor(0.5))
        self.eighth = nn.Parameter(torch.ones(3).to(torch.float8_e4m3fn), requires_grad=False)
        self.nowhere = nn.Parameter(torch.empty(3, device="meta"))

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        found = self.frozen(self.table(index)) * self.scalar + self.empty.sum()
        found = found * self.eighth.float()
        return found @ (self.wave.abs() + self.short.float() + self.wide.float())


@pytest.mark.hazard(11)
def test_odd_parameters_in_one_model(feed: Feed) -> None:
    """Frozen, unused, tied, complex, sparse, empty, half, fp8, meta: each says what is known."""

    def loop(diary: Diary) -> list[Any]:
        model = Odd()
        optimizer = torch.optim.SGD(
            [p for p in model.parameters() if p.requires_grad], lr=0.01, foreach=False
        )
        diary(model, optimizer)
        for step in range(6):
            optimizer.zero_grad()
            loss = model(torch.tensor([step, 1, 1 + step % 2])).pow(2).sum()
            loss.backward()
            model.table.weight.grad = model.table.weight.grad.coalesce()
            diary.note(loss, model.parameters())
            optimizer.step()
        return [model, optimizer]

    found = twins(loop, feed)
    flags = dict(zip(feed.table.names, found.steps[-1].flags, strict=True))
    assert {name for name, flag in flags.items() if flag == NO_GRAD} == {
        "unused.weight",
        "unused.bias",
        "nowhere",
    }
    assert {name for name, flag in flags.items() if flag == UNMEASURED} == {
        "empty",
        "frozen.weight",
        "frozen.bias",
        "count",
        "eighth",
    }
    assert feed.table.aliases == {"tied.weight": "table.weight"}
    assert feed.table.dtypes[feed.table.names.index("wave")] == "complex64"


def change(how: str, model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    """One change of the parameter list in the middle of a training."""
    if how == "assign":
        state = {name: value.clone() for name, value in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
    elif how == "to":
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        try:
            model.double().float()
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(False)
    elif how == "head":
        model[3] = nn.Linear(8, 1)
    elif how == "unfreeze":
        model.requires_grad_(True)
        return
    optimizer.param_groups[0]["params"] = list(model.parameters())
    optimizer.state.clear()


@pytest.mark.hazard(14)
@pytest.mark.parametrize("how", ["assign", "to", "head", "unfreeze"])
def test_parameters_that_are_replaced(how: str, feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        model = net()
        if how == "unfreeze":
            model[0].requires_grad_(False)
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        diary(model, optimizer)

        def between(step: int) -> None:
            if step == 3:
                change(how, model, optimizer)

        descend(diary, model, optimizer, between=between)
        return [model, optimizer]

    steps = twins(loop, feed).steps
    tables = {table.epoch: table for table in feed.of(LayerTable)}
    assert tables[steps[-1].epoch].names == [name for name, _ in net().named_parameters()]
    assert all(flag == 0 for flag in steps[-1].flags)
    assert all(np.isfinite(np.frombuffer(step.norms, np.float32)).all() for step in steps[4:])


@pytest.mark.hazard(25)
@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointing_counts_once(reentrant: bool, feed: Feed) -> None:
    """Both forms run the forward again inside backward: neither a boundary nor a step."""
    boundaries = []

    def loop(diary: Diary) -> list[Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.3), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)
        if diary.watched:
            observer = monitors._wiring.observer
            observer.gate.busy = True
            original = observer.gate.at_boundary
            observer.gate.at_boundary = lambda: boundaries.append(1) or original()

        def call(x: torch.Tensor) -> Any:
            if diary.watched:
                monitors._wiring.observer.gate.busy = True
            return checkpoint(model, x.requires_grad_(), use_reentrant=reentrant)

        descend(diary, model, optimizer, call=call)
        if diary.watched:
            del observer.gate.at_boundary
            observer.gate.busy = False
        return [model, optimizer]

    found = twins(loop, feed)
    assert {step.backward_calls for step in found.steps} == {1}
    assert len(boundaries) == (0 if reentrant else 8)  # the reentrant form runs without gradients


@pytest.mark.hazard(26)
def test_transforms_of_functions(feed: Feed) -> None:
    """Per-sample gradients: the model runs under interpreters where nothing can be read."""

    def loop(diary: Diary) -> list[Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)

        def loss_of(params: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
            return mse(functional_call(model, params, (x,)), y)

        kept = []
        for x, y in batches(4):
            params = dict(model.named_parameters())
            grads = vmap(grad(loss_of), in_dims=(None, 0, 0))(params, x, y)
            for name, param in params.items():
                param.grad = grads[name].mean(0).detach()
            kept.append(loss_of(params, x, y).detach())
            optimizer.step()
        return [model, optimizer, kept]

    found = twins(loop, feed)
    assert len(found.steps) == 4 and all(step.grad_norm > 0 for step in found.steps)


@pytest.mark.hazard(23, 24)
@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, None])
def test_evaluation_between_steps(mode: Any, feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        diary(model, optimizer)
        seen = []

        def between(step: int) -> None:
            model.train(mode is torch.no_grad)
            if mode is None:
                seen.append(model(torch.ones(3, 6)).detach())
            else:
                with mode():
                    seen.append(model(torch.ones(3, 6)))
            model.train()

        with torch.inference_mode():
            model(torch.ones(3, 6))
        descend(diary, model, optimizer, between=between)
        return [model, optimizer, seen]

    twins(loop, feed)


@pytest.mark.hazard(21)
@pytest.mark.parametrize("kind", ["deepcopy", "averaged", "ema"])
def test_moving_averages(kind: str, feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)
        if kind == "deepcopy":
            average: nn.Module = copy.deepcopy(model)
        elif kind == "ema":
            average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
        else:
            average = AveragedModel(model)
        seen = []

        def between(step: int) -> None:
            if isinstance(average, AveragedModel):
                average.update_parameters(model)
            else:
                for mine, new in zip(average.parameters(), model.parameters(), strict=True):
                    mine.data.lerp_(new.data, 0.1)
            seen.append(average(torch.ones(3, 6)).detach())
            seen.append(copy.deepcopy(model)(torch.ones(3, 6)).detach())

        descend(diary, model, optimizer, between=between)
        return [model, average, optimizer, seen]

    found = twins(loop, feed)
    assert feed.table.names == [name for name, _ in net().named_parameters()]
    assert len(found.steps) == 8


@contextmanager
def other_defaults() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            yield
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.hazard(29)
def test_defaults_of_dtype_and_device_are_the_scripts(feed: Feed) -> None:
    def loop(diary: Diary) -> list[Any]:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        data = batches(8)
        with other_defaults():
            diary(model, optimizer)
            for step, (x, y) in enumerate(data):
                optimizer.zero_grad()
                loss = mse(model(x), y * (math.nan if step == 6 else 1))
                loss.backward()
                optimizer.step()
        return [model]

    steps = twins(loop, feed).steps
    assert len(steps) == 8 and steps[6].bad_total > 0 and steps[5].grad_norm > 0


@pytest.mark.hazard(27)
def test_forwards_of_other_threads_are_not_ours(feed: Feed) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            for _ in range(20):
                mse(model(torch.ones(4, 6)), torch.ones(4, 1)).backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    mse(model(torch.ones(4, 6)), torch.ones(4, 1)).backward()
    optimizer.step()
    assert failures == []
    (step,) = feed.steps
    assert step.backward_calls == 1 and step.max_norm is None


@pytest.mark.hazard(35)
def test_a_cell_run_three_times(feed: Feed) -> None:
    """The same objects: one hook. New objects under the same names: the training goes on."""

    def cell() -> tuple[nn.Module, torch.optim.Optimizer]:
        model = net()
        return model, torch.optim.SGD(model.parameters(), lr=0.1)

    for _ in range(3):
        model, optimizer = cell()
        for _ in range(3):
            tuimon.watch(model, optimizer)
        for x, y in batches(2):
            mse(model(x), y).backward()
            optimizer.step()
    assert len(model._forward_pre_hooks) == 1 and len(optimizer._optimizer_step_pre_hooks) == 1
    assert [(step.optimizer, step.step) for step in feed.steps] == [(0, n) for n in range(6)]
    assert feed.table.names == [name for name, _ in model.named_parameters()]
    assert len({feed.session.info.id}) == 1


def test_models_one_after_the_other(feed: Feed) -> None:
    """The second begins where the first ended, while the first still lives."""
    steps: list[Step] = []
    kept = []
    for kind in (torch.optim.SGD, torch.optim.Adam):
        model = net()
        optimizer = kind(model.parameters(), lr=0.01)
        tuimon.watch(model, optimizer)
        kept.append((model, optimizer))
        for x, y in batches(3):
            optimizer.zero_grad()
            mse(model(x), y).backward()
            optimizer.step()
        steps = feed.steps
    assert len(steps) == 6 and all(step.grad_norm > 0 for step in steps)
    assert {(step.optimizer, step.step) for step in steps} in (
        {(0, n) for n in range(6)},
        {(index, n) for index in (0, 1) for n in range(3)},
    )
