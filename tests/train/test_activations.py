"""Activations of forwards of all kinds, and nothing left behind when something breaks."""

from __future__ import annotations

import copy
import io
from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tuimon
from tests.train.conftest import Feed
from tests.train.sampled import activations, hooks_of, left_out, loop, net, parameters, sgd
from tuimon.model.samples import Activations, Governor
from tuimon.train import monitor as monitors
from tuimon.train.samples.activations import leaf_modules
from tuimon.train.samples.extras import Extras
from tuimon.train.samples.governor import LONGEST_STRIDE


def test_modules_called_several_times_and_odd_outputs(feed: Feed, every_step: None) -> None:
    class Several(dict[str, Any]):
        def values(self) -> Any:
            raise AssertionError("code of the script was run")

    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return Several({"a": (x, [x * 2, None, 3]), "n": torch.arange(4), "s": "text"})

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.odd, self.rnn = nn.Linear(6, 6), Odd(), nn.GRU(6, 6)
            self.never = nn.Linear(1, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.line(self.line(self.line(x)))
            return self.rnn(self.odd(x)["a"][1][0])[0]

    model = Model()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 2)
    found = {item.module: item for item in activations(feed)}
    assert found["line"].calls == 3 and found["line"].numel == 3 * 48
    assert found["odd"].calls == 1 and found["odd"].numel == 2 * 48
    assert found["rnn"].numel == 48 + 6
    assert "never" not in found


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_modules_count_once(reentrant: bool, feed: Feed, every_step: None) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.inner = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.Dropout())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return checkpoint(self.inner, self.first(x), use_reentrant=reentrant)

    model = Model()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 3)
    assert Counter(item.calls for item in activations(feed)) == {1: 6}


def test_a_checkpoint_that_runs_again_inside_the_forward_counts_once(
    feed: Feed, every_step: None
) -> None:
    class Penalty(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Sequential(nn.Linear(6, 6), nn.Tanh())

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.requires_grad_()
            y = checkpoint(self.inner, x, use_reentrant=False).sum()
            return torch.autograd.grad(y, x, create_graph=True)[0]

    model = Penalty()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 3)
    assert {item.calls for item in activations(feed)} == {1}


def test_only_training_forwards_are_seen(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 1)
    model.eval()
    with torch.inference_mode():
        model(torch.full((3, 6), 1e9))
    model.train()
    with torch.no_grad():
        model(torch.full((3, 6), 1e9))
    loop(model, optimizer, 1)
    assert all(item.numel % 8 == 0 and item.absmax < 100 for item in activations(feed))


def test_an_exception_in_forward_leaves_no_hook_behind(feed: Feed, every_step: None) -> None:
    class Fails(nn.Module):
        now = False

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if Fails.now:
                raise RuntimeError("the user's own")
            return x

    model = nn.Sequential(nn.Linear(6, 6), Fails(), nn.Linear(6, 1))
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 2)
    Fails.now = True
    with pytest.raises(RuntimeError, match="the user's own"):
        model(torch.randn(8, 6))
    Fails.now = False
    assert not any(m._forward_hooks for m in model.children()), "hooks on submodules"
    loop(model, optimizer, 2)
    assert hooks_of(model) == 0 and len(feed.steps) == 4
    assert not [event for event in feed.events if event.kind.startswith("tap-")]


def test_a_root_that_is_a_leaf_survives_its_exception(feed: Feed, every_step: None) -> None:
    model = nn.Linear(6, 1)
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 2)
    with pytest.raises(RuntimeError, match="shapes"):
        model(torch.randn(8, 5))
    loop(model, optimizer, 2)
    assert hooks_of(model) == 0
    assert {item.module for item in activations(feed)} == {""}


def test_a_hook_that_the_script_adds_before_its_exception_still_runs(
    feed: Feed, every_step: None
) -> None:
    ran: list[int] = []

    class Fails(nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.register_forward_hook(lambda *_: ran.append(1), always_call=True)
            raise RuntimeError("the user's own")

    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 2)
    model.__class__ = type("Root", (Fails, nn.Sequential), {})
    with pytest.raises(RuntimeError, match="the user's own"):
        model(torch.randn(8, 6))
    assert ran == [1]


def test_compiled_parts_are_left_alone(feed: Feed, every_step: None) -> None:
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.act = nn.Linear(6, 6), nn.ReLU()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.line(x))

    inner = Inner()
    inner.compile(backend="eager", fullgraph=True)
    wrapped = torch.compile(nn.Linear(6, 6), backend="eager", fullgraph=True)
    model = nn.Sequential(nn.Linear(6, 6), inner, wrapped, nn.Linear(6, 1))
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    torch._dynamo.utils.counters.clear()
    loop(model, optimizer, 5)
    assert {item.module for item in activations(feed)} == {"0", "3"}
    assert feed.of(Activations)[-1].left_out == {"compiled": 3}
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 2
    assert not torch._dynamo.utils.counters["graph_break"]


@pytest.mark.parametrize("how", ["function", "step", "method", "root"])
def test_sampling_makes_nothing_compile_again(how: str, feed: Feed, every_step: None) -> None:
    torch._dynamo.reset()
    model = net()
    optimizer = sgd(model)
    forward: Any = model
    watched: nn.Module = model
    if how == "function":
        forward = torch.compile(lambda x: model(x) * 2, backend="eager", fullgraph=True)
    elif how == "step":

        def whole(x: torch.Tensor) -> torch.Tensor:
            return model(x).pow(2)

        forward = torch.compile(whole, backend="eager", fullgraph=True)
    elif how == "method":
        model[0].forward = torch.compile(model[0].forward, backend="eager", fullgraph=True)
    else:
        watched = forward = torch.compile(model, backend="eager", fullgraph=True)
    tuimon.watch(watched, optimizer)
    torch._dynamo.utils.counters.clear()
    loop(model, optimizer, 6, forward)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
    assert not torch._dynamo.utils.counters["graph_break"]
    assert not [event for event in feed.events if event.kind.startswith("tap-")]


def test_hooks_are_nothing_to_what_compiles_while_they_are_on(feed: Feed, every_step: None) -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line, self.head = nn.Linear(6, 6), nn.Linear(6, 1)
            self.compiled = torch.compile(
                lambda x: self.line(x), backend="eager", fullgraph=True, dynamic=False
            )

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.compiled(x))

    torch._dynamo.reset()
    model = Model()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    torch._dynamo.utils.counters.clear()
    loop(model, optimizer, 2)
    for rows in (3, 4, 5, 3, 4, 5):
        loop(model, optimizer, 1, lambda x, rows=rows: model(x[:rows]))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 4
    assert not torch._dynamo.utils.counters["graph_break"]
    assert {item.module for item in activations(feed)} == {"head"}


def test_an_inference_encoder_keeps_its_own_path() -> None:
    encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    model = nn.ModuleDict({"frozen": encoder.eval(), "head": nn.Linear(8, 1)})
    reasons: Counter[str] = Counter()
    assert [path for path, _ in leaf_modules(model, reasons)] == ["head"]
    assert reasons["inference encoder"] > 0


def test_modes_and_transformations_are_left_alone(feed: Feed, every_step: None) -> None:
    from torch.utils.flop_counter import FlopCounterMode

    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    with FlopCounterMode(display=False) as bare:
        model(torch.randn(9, 6))
    loop(model, optimizer, 1)
    with FlopCounterMode(display=False) as seen:
        model(torch.randn(9, 6))
    assert seen.get_total_flops() == bare.get_total_flops()
    loop(model, optimizer, 1)
    assert not left_out(feed)  # it sees nothing of ours, so that nothing has to be left out
    assert {item.numel % 9 for item in feed.of(Activations)[-1].items} == {0}


def test_copies_and_files_made_inside_a_sampled_forward_are_inert(
    feed: Feed, every_step: None
) -> None:
    made: list[Any] = []

    class Copies(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = nn.Linear(6, 6)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if len(made) < 2 and self.line._forward_hooks:
                made.append(copy.deepcopy(self.line))
                buffer = io.BytesIO()
                torch.save(self.line, buffer)
                buffer.seek(0)
                made.append(torch.load(buffer, weights_only=False))
            return self.line(x)

    model = Copies()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 3)
    assert len(made) == 2
    x = torch.randn(2, 6)
    for twin in made:
        (hook,) = twin._forward_hooks.values()
        assert type(hook).__module__ == "builtins"
        assert twin(x).shape == (2, 6)


def test_detaching_takes_a_running_sample_off(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model)
    monitor = tuimon.watch(model, optimizer)
    loop(model, optimizer, 1)
    model(torch.randn(8, 6))
    with monitor.detached():
        assert not any(module._forward_hooks for module in model.modules())
        torch.jit.script(model)
    loop(model, optimizer, 2)
    monitor.close()
    assert not any(module._forward_hooks for module in model.modules())
    assert not model._forward_pre_hooks


def test_whatever_breaks_in_an_extra_the_loop_goes_on(
    feed: Feed, every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    for place in (
        "tuimon.train.samples.extras.leaf_modules",
        "tuimon.train.samples.activations.absmax_of",
        "tuimon.train.samples.turns.absmax_of",
        "tuimon.train.samples.turns.norms_of",
        "tuimon.train.samples.turns.histogram_of",
    ):
        with monkeypatch.context() as patch:
            patch.setattr(place, broken)
            model = net()
            optimizer = sgd(model)
            monitor = tuimon.watch(model, optimizer)
            before = len(feed.steps)
            loop(model, optimizer, 6)
            assert len(feed.steps) == before + 6, place
            assert all(step.grad_norm is not None for step in feed.steps)
            assert hooks_of(model) == 0, place
            assert_nothing_is_kept()
            monitor.close()
            monitors._wiring.observer.boundary.disarmed.clear()
            monitors._wiring.observer.boundary.failures.clear()


def test_no_graph_and_no_copy_outlives_a_sample(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 5)
    assert_nothing_is_kept()


def assert_nothing_is_kept() -> None:
    extras: Extras = monitors._wiring.observer.extras
    assert not extras._watches
    assert all(not turns.waiting and not turns.histograms for turns in extras._turns.values())


def test_what_lies_outside_host_memory_is_left_out_and_said_once(
    feed: Feed, every_step: None
) -> None:
    model = net()
    model.register_parameter("far", nn.Parameter(torch.ones(3, device="meta")))
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 4)
    assert [event.text for event in feed.events if event.kind == "extras"] == [
        "parameters outside host memory are not sampled"
    ]
    assert parameters(feed, "far") == [] and parameters(feed, "0.weight")


def test_a_model_without_anything_to_sample_is_left_in_peace(feed: Feed) -> None:
    model = nn.Linear(6, 1, device="meta")
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    for _ in range(8):
        model(torch.ones(8, 6, device="meta")).sum().backward()
        optimizer.step()
    (told,) = {(g.stride, g.note) for g in feed.of(Governor)}
    assert told == (LONGEST_STRIDE, "nothing can be sampled")
    assert left_out(feed) == {"not in host memory"}
