"""What tuimon must not leave, keep, replace or cost: hooks, references, descriptors, threads."""

from __future__ import annotations

import gc
import os
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.optim import optimizer as torch_optimizer

import tuimon
from tests.train.conftest import Feed
from tests.train.test_failures import everything
from tests.train.test_loops import batches, mse, net
from tests.train.twins import Diary, twins
from tuimon.train import monitor as monitors
from tuimon.train.autopsy import scene

OURS = str(Path(tuimon.__file__).parent)
MAX_CALLS = 100  # of functions of ours in one update of a small net


def namespaces() -> dict[tuple[str, str], int]:
    """Every function that torch's modules and classes hold by name."""
    found: dict[tuple[str, str], int] = {}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] != "torch" or "distributed" in name:
            continue
        for key, value in list(vars(module).items()):
            if isinstance(value, type) and value.__module__.partition(".")[0] == "torch":
                for attribute, each in list(vars(value).items()):
                    if callable(each):
                        found[f"{name}.{key}", attribute] = id(each)
            elif callable(value):
                found[name, key] = id(value)
    return found


def hooks_of(model: nn.Module, *optimizers: torch.optim.Optimizer) -> Counter[str]:
    """How many hooks there are, by the name of their table, process-wide ones included."""
    owners: list[Any] = [*model.modules(), *optimizers, torch_module, torch_optimizer]
    return Counter(
        {
            f"{index}.{name}": len(table)
            for index, owner in enumerate(owners)
            for name, table in vars(owner).items()
            if "hooks" in name and isinstance(table, dict)
        }
    )


def handlers() -> list[Any]:
    return [
        sys.excepthook,
        threading.excepthook,
        sys.getprofile(),
        sys.gettrace(),
        *sys.meta_path,
        *(signal.getsignal(number) for number in sorted(signal.valid_signals())),
    ]


def descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
        except OSError:  # that of the listing itself
            continue
    return found


@pytest.mark.hazard(49)
def test_close_leaves_no_trace(feed: Feed) -> None:
    """Functions, hooks, handlers, threads and descriptors are as before the first `watch`."""
    kept: list[Any] = []

    def rehearse(diary: Diary) -> None:
        kept[:] = everything(diary)

    rehearse(Diary(None))  # what torch itself sets up at its first use is not ours
    model, optimizer, second = kept[1:4]
    before = namespaces(), hooks_of(model, optimizer, second), handlers()
    threads, files = {thread.ident for thread in threading.enumerate()}, descriptors()
    diary = Diary(tuimon.watch)
    rehearse(diary)
    assert namespaces() != before[0] and descriptors() != files
    assert diary.monitor is not None
    assert handlers() == before[2], "no handler is touched even while watching"
    model, optimizer, second = kept[1:4]
    diary.monitor.close()
    after = namespaces()
    assert {key for key in before[0] if after.get(key) != before[0][key]} == set()
    assert hooks_of(model, optimizer, second) == before[1]
    assert {thread.ident for thread in threading.enumerate()} == threads
    assert descriptors() - files == set()
    loss = mse(model(torch.ones(4, 6)), torch.ones(4, 1))
    loss.backward()
    optimizer.step()


class Through(nn.Module):
    """Hands on what it is given, whatever it is."""

    def __init__(self, *inner: nn.Module) -> None:
        super().__init__()
        self.inner = nn.ModuleList(inner)

    def forward(self, thing: Any, *, named: Any = None) -> Any:
        for module in self.inner:
            thing = module(thing, named=named)
        return thing if not isinstance(thing, list) else thing[0]


@pytest.mark.hazard(1)
def test_no_hook_replaces_what_passes(feed: Feed) -> None:
    model = nn.ModuleDict({"a": Through(Through(), Through()), "b": nn.Linear(2, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    root = model["a"]
    tuimon.watch([root, model["b"]], optimizer, activations=True)
    for step in range(60):
        for thing in (object(), {"x": torch.ones(2)}, (torch.ones(1), None), torch.ones(3)):
            assert root(thing, named=step) is thing
        for hook in optimizer._optimizer_step_pre_hooks.values():
            assert callable(hook)
        model["b"](torch.ones(1, 2)).sum().backward()
        result = optimizer.step()
        assert result is None
    assert len(feed.steps) == 60


@pytest.mark.hazard(19, 22, 51)
def test_hooks_of_these_kinds_are_never_there(feed: Feed) -> None:
    """No backward hooks on modules, none on parameters: also while a step is sampled."""

    class Views(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(6, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x).view(-1)

    model = nn.Sequential(Views())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer, activations=True)
    for _ in range(60):
        out = model(torch.ones(3, 6))
        for module in model.modules():
            assert not module._backward_hooks and not module._backward_pre_hooks
        for param in model.parameters():
            assert not param._backward_hooks and not param._post_accumulate_grad_hooks
        out += 1  # a full backward hook would forbid this
        out.sum().backward()
        optimizer.step()
    assert len(feed.steps) == 60


@pytest.mark.hazard(20)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_scripted_traced_and_exported(feed: Feed) -> None:
    x = torch.randn(4, 6)

    def loop(diary: Diary) -> list[Any]:
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        diary(model, optimizer)
        made = [torch.jit.trace(model, x), torch.fx.symbolic_trace(model)]
        made.append(torch.export.export(model, (x,)).module())
        if diary.monitor is None:
            made.append(torch.jit.script(model))
        else:
            with diary.monitor.detached():
                assert not model._forward_pre_hooks
                made.append(torch.jit.script(model))
        kept = [each(x).detach() for each in made]
        for data, y in batches(3):
            optimizer.zero_grad()
            loss = mse(model(data), y)
            loss.backward()
            diary.note(loss, model.parameters())
            optimizer.step()
        return [model, optimizer, kept]

    twins(loop, feed)


@pytest.mark.hazard(52)
def test_outputs_and_losses_live_no_longer_than_without_us(feed: Feed) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    gc.collect()
    gc.disable()
    try:
        for x, y in batches():
            out = model(x)
            loss = mse(out, y)
            died = [weakref.ref(out), weakref.ref(loss)]
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            del out, loss
            assert [reference() for reference in died] == [None, None]
    finally:
        gc.enable()


@pytest.mark.hazard(52)
@pytest.mark.parametrize("limit_bytes", [1 << 20, 8])
def test_a_captured_gradient_goes_with_its_update(
    feed: Feed, monkeypatch: pytest.MonkeyPatch, limit_bytes: int
) -> None:
    monkeypatch.setattr(scene, "MAX_OUTPUT_BYTES", limit_bytes)
    monkeypatch.setattr(scene, "SHORT_STEP_S", 0.0)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    scenes = monitors._wiring.observer.scenes
    for x, y in batches():
        mse(model(x), y).backward()
        (call,) = scenes.calls
        if limit_bytes == 8:  # the output has 32 bytes
            assert call.grads is None
        else:
            (grad,) = call.grads
            captured = weakref.ref(grad)
            del grad
        del call
        optimizer.step()
        assert scenes.calls == []
        assert limit_bytes == 8 or captured() is None


@pytest.mark.hazard(34)
def test_the_helper_thread_sleeps(feed: Feed) -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    (helper,) = [t for t in threading.enumerate() if t.name.startswith("tuimon")]
    assert helper.ident is not None
    clock = time.pthread_getcpuclockid(helper.ident)
    time.thread_time()
    began_s, own_s = time.clock_gettime(clock), time.thread_time()
    for _ in range(25):
        for x, y in batches():
            mse(model(x), y).backward()
            optimizer.step()
    used_s, took_s = time.clock_gettime(clock) - began_s, time.thread_time() - own_s
    assert used_s < 0.001 * took_s or used_s < 1e-4


@pytest.mark.hazard(50)
def test_a_step_that_is_not_sampled_calls_little(feed: Feed) -> None:
    """What a step costs at least, counted in calls, which do not vary as times do."""
    model = nn.Linear(6, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer, budget_frac=0)
    calls: list[int] = []

    def profile(frame: FrameType, event: str, _: Any) -> None:
        if event == "call" and frame.f_code.co_filename.startswith(OURS):
            calls[-1] += 1

    ((x, y),) = batches(1)
    for step in range(120):
        optimizer.zero_grad()
        if step >= 100:
            calls.append(0)
            sys.setprofile(profile)
        mse(model(x), y).backward()
        optimizer.step()
        sys.setprofile(None)
    assert sorted(calls)[len(calls) // 2] <= MAX_CALLS
