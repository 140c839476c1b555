"""Sampled extras on real loops: right figures, no change of the training, nothing left behind."""

from __future__ import annotations

import copy
import io
import math
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import tuimon
from tests.train.conftest import Feed
from tests.train.test_no_harm import accumulated, adversarial, closures, plain, scaled
from tests.train.twins import Loop, twins
from tuimon.model.samples import (
    HISTOGRAM_BINS,
    HISTOGRAM_LOW,
    Activation,
    Activations,
    Governor,
    Histogram,
    ParameterSample,
    ParameterSamples,
)
from tuimon.train import monitor as monitors
from tuimon.train.activations import leaf_modules
from tuimon.train.extras import Extras
from tuimon.train.spectrum import evenly, histogram_of

Watch = Callable[..., Any]


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A governor that always says yes, so that a short loop is sampled all through."""
    monkeypatch.setattr("tuimon.train.governor.Governor.step", lambda self, *_, **__: True)


def loop(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    steps: int = 6,
    forward: Callable[[torch.Tensor], torch.Tensor] | None = None,
    clip: float | None = None,
) -> None:
    made = torch.Generator().manual_seed(5)
    for _ in range(steps):
        optimizer.zero_grad()
        (forward or model)(torch.randn(8, 6, generator=made)).pow(2).mean().backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()


def net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.1), nn.Linear(16, 1))


def sgd(model: nn.Module, lr: float = 0.1) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=lr)


def activations(feed: Feed) -> list[Activation]:
    return [item for record in feed.of(Activations) for item in record.items]


def left_out(feed: Feed) -> set[str]:
    return {reason for record in feed.of(Activations) for reason in record.left_out}


def parameters(feed: Feed, name: str) -> list[tuple[int, ParameterSample]]:
    return [
        (record.step, item)
        for record in feed.of(ParameterSamples)
        for item in record.items
        if item.name == name
    ]


def hooks_of(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) for module in model.modules())


# --- figures --------------------------------------------------------------------------------------


def test_figures_of_a_parameter_are_those_of_the_update(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    truth = []
    for x in torch.randn(4, 8, 6):
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        weight = model[0].weight
        before, grad = weight.detach().clone(), weight.grad.clone()
        optimizer.step()
        truth.append(
            (before.norm(), (weight - before).norm(), weight.abs().max(), grad.abs().max())
        )
    found = parameters(feed, "0.weight")
    assert [step for step, _ in found] == [1, 2, 3]
    for step, item in found:
        norm, moved, largest, grad_largest = (float(value) for value in truth[step])
        assert item.weight_norm == pytest.approx(norm, rel=1e-5)
        assert item.update_ratio == pytest.approx(moved / norm, rel=1e-3)
        assert item.weight_absmax == pytest.approx(largest)
        assert item.grad_absmax == pytest.approx(grad_largest)
        assert item.compared == 96


def test_the_largest_gradient_is_told_unclipped_and_unscaled(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model, lr=0.0)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    tuimon.watch(model, optimizer, scaler)
    x = torch.randn(8, 6)
    largest = []
    for step in range(5):
        optimizer.zero_grad()
        loss = model[3](torch.relu(model[0](x))).pow(2).mean()
        if step < 3:
            loss.backward()
        else:
            scaler.scale(loss).backward()
        if step == 2:
            nn.utils.clip_grad_norm_(model.parameters(), 1e-3)
        if step < 3:
            optimizer.step()
        else:
            scaler.step(optimizer)
            scaler.update()
        if step == 0:
            largest.append(float(model[0].weight.grad.abs().max()))
    found = dict(parameters(feed, "0.weight"))
    for step in (1, 2, 3, 4):
        assert found[step].grad_absmax == pytest.approx(largest[0], rel=1e-4)


def test_single_and_double_precision_in_one_model(feed: Feed, every_step: None) -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 1).double()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.two(self.one(x).double())

    model = Two()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 3)
    for name in ("one.weight", "two.weight"):
        assert all(item.update_ratio > 0 for _, item in parameters(feed, name))
        assert len(parameters(feed, name)) == 2


def test_a_skipped_update_has_no_ratio(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model)
    scaler = torch.amp.GradScaler("cpu")
    tuimon.watch(model, optimizer, scaler)
    for step in range(4):
        optimizer.zero_grad()
        loss = model(torch.randn(8, 6)).pow(2).mean() * (math.inf if step == 2 else 1.0)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    found = dict(parameters(feed, "0.weight"))
    assert found[2].update_ratio is None and found[2].weight_absmax is not None
    assert found[3].update_ratio is not None


def test_a_nan_is_a_nan_and_no_gradient_is_none(feed: Feed, every_step: None) -> None:
    model = net()
    model.register_parameter("unused", nn.Parameter(torch.ones(3)))
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 2)
    with torch.no_grad():
        model[3].bias.fill_(math.nan)
    loop(model, optimizer, 1)
    (_, last) = parameters(feed, "0.weight")[-1]
    assert all(math.isnan(x) for x in (last.grad_absmax, last.weight_absmax, last.update_ratio))
    (_, unused) = parameters(feed, "unused")[-1]
    assert unused.grad_absmax is None and unused.update_ratio is None
    assert unused.weight_absmax == 1.0
    final = [item for item in activations(feed) if item.module == "3"][-1]
    assert math.isnan(final.absmax) and math.isnan(final.mean) and final.headroom is None
    histograms = [h for h in feed.of(Histogram) if h.nan]
    assert histograms and all(h.nan <= h.counted for h in histograms)


def test_figures_of_an_activation(feed: Feed, every_step: None) -> None:
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 1)).half()
    optimizer = sgd(model, lr=0.0)
    tuimon.watch(model, optimizer)
    x = torch.randn(8, 6, dtype=torch.float16)
    for _ in range(2):
        model(x).float().pow(2).mean().backward()
        optimizer.step()
    found = {item.module: item for item in activations(feed)}
    assert list(found) == ["0", "1", "2"]
    truth = torch.relu(model[0](x)).detach().float()
    item = found["1"]
    assert (item.calls, item.numel, item.dtype) == (1, 128, "float16")
    assert item.mean == pytest.approx(float(truth.mean()), rel=1e-3)
    assert item.rms == pytest.approx(float(truth.pow(2).mean().sqrt()), rel=1e-3)
    assert item.absmax == pytest.approx(float(truth.max()))
    assert item.headroom == pytest.approx(65504 / float(truth.max()), rel=1e-3)
    assert item.zero_frac == pytest.approx(float((truth == 0).float().mean()))


def test_figures_that_single_precision_cannot_hold(feed: Feed, every_step: None) -> None:
    class Large(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 0 + 3e38

    model = nn.Sequential(Large(), nn.Linear(6, 1))
    optimizer = sgd(model, lr=0.0)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 2)
    item = next(item for item in activations(feed) if item.module == "0")
    assert item.mean == pytest.approx(3e38) and item.rms == pytest.approx(3e38)
    assert item.headroom == pytest.approx(1.134, rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_a_histogram_counts_every_element_once(dtype: torch.dtype) -> None:
    special = [math.nan, math.inf, -math.inf, 0.0, -0.0, 1.0, 1.5, -2.0, 2.0**-14, 2.0**15]
    found = histogram_of(torch.tensor(special, dtype=dtype), 3, "weight", "w")
    assert (found.zeros, found.nan, found.posinf, found.neginf) == (2, 1, 1, 1)
    counts = np.frombuffer(found.counts, "<u4")
    assert found.counted == found.numel == 10 == counts.sum() + 5
    positive, negative = counts[HISTOGRAM_BINS:], counts[:HISTOGRAM_BINS][::-1]
    assert positive[-HISTOGRAM_LOW] == 2  # 1 and 1.5
    assert negative[1 - HISTOGRAM_LOW] == 1  # -2
    assert positive[-14 - HISTOGRAM_LOW] == 1 and positive[15 - HISTOGRAM_LOW] == 1


def test_a_histogram_folds_what_lies_outside_its_bins() -> None:
    values = torch.tensor([1e-300, -1e-310, 1e300, -1e30], dtype=torch.float64)
    counts = np.frombuffer(histogram_of(values, 0, "weight", "w").counts, "<u4")
    assert counts[0] == 1 and counts[-1] == 1
    assert counts[HISTOGRAM_BINS - 1] == 1 and counts[HISTOGRAM_BINS] == 1
    tiny = torch.tensor([1e-42, -1e-42])  # below the normal numbers of single precision
    found = histogram_of(tiny, 0, "weight", "w")
    assert found.zeros == 0 and np.frombuffer(found.counts, "<u4").sum() == 2


def test_a_large_tensor_is_looked_at_evenly_and_without_a_copy() -> None:
    values = torch.arange(1000.0).view(10, 100)
    part = evenly(values, 100)
    assert part.data_ptr() == values.data_ptr() and 80 <= part.numel() <= 100
    assert set((part % 100).int().tolist()) >= set(range(0, 100, 3)) or part.unique().numel() > 80
    assert len({int(x) // 100 for x in part}) == 10
    assert evenly(values.T, 2000).numel() == 1000
    assert evenly(torch.ones(1).expand(5000), 100) is None
    channels_last = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert evenly(channels_last, 10_000).data_ptr() == channels_last.data_ptr()


# --- when and what --------------------------------------------------------------------------------


def test_the_default_samples_and_tells_what_it_costs(feed: Feed) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    for _ in range(100):
        loop(model, optimizer, 20)
        governors = [g for g in feed.of(Governor) if g.step is not None]
        if len({g.step for g in governors}) > 1:
            break
    assert governors[0].step == 2
    last = governors[-1]
    assert last.stride >= 1 and last.share_frac > 0 and last.budget_frac == 0.005
    assert {h.what for h in feed.of(Histogram)} == {"weight", "gradient", "activation"}
    assert hooks_of(model) == 0


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"budget_frac": 0}, set()),
        ({"budget_frac": 0, "activations": True}, set()),
        ({"activations": False}, {ParameterSamples, Histogram}),
        ({}, {ParameterSamples, Histogram, Activations}),
    ],
)
def test_what_is_switched_off_is_not_sampled(
    options: dict[str, Any], kinds: set[type], feed: Feed
) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer, **options)
    loop(model, optimizer, 8)
    seen = {type(record) for record in feed.read()}
    assert seen & {ParameterSamples, Histogram, Activations} == kinds
    if not options.get("budget_frac", 1):
        assert [(g.stride, g.note) for g in feed.of(Governor)] == [(None, "switched off")]


def test_activations_that_were_asked_for_come_every_50_steps(feed: Feed) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer, activations=True, budget_frac=1e-9)
    loop(model, optimizer, 200)
    steps = [record.step for record in feed.of(Activations)]
    assert max(b - a for a, b in zip(steps, [*steps[1:], 200], strict=True)) <= 50
    assert feed.of(Governor)[-1].note == "one sample costs more than its budget"


def test_every_parameter_and_module_has_its_turn(
    feed: Feed, every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuimon.train.turns.MAX_TENSORS", 3)
    monkeypatch.setattr("tuimon.train.extras.MODULES", 2)
    model = nn.Sequential(*(nn.Linear(6, 6) for _ in range(5)))
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 40)
    records = feed.of(ParameterSamples)
    assert max(len(record.items) for record in records) == 3
    assert {item.name for record in records for item in record.items} == set(feed.table.names)
    assert max(len(record.items) for record in feed.of(Activations)) == 2
    assert {item.module for item in activations(feed)} == {"0", "1", "2", "3", "4"}
    drawn = {(h.what, h.name) for h in feed.of(Histogram)}
    assert {name for what, name in drawn if what == "weight"} == set(feed.table.names)
    assert {name for what, name in drawn if what == "activation"} == {"0", "1", "2", "3", "4"}


def test_the_copy_of_weights_is_bounded(
    feed: Feed, every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tuimon.train.turns.MAX_ELEMENTS", 50)
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 20)
    for record in feed.of(ParameterSamples):
        assert sum(item.compared for item in record.items) <= 50
    assert {item.name for r in feed.of(ParameterSamples) for item in r.items} == {*feed.table.names}


def test_both_of_two_optimizers_are_sampled(feed: Feed, every_step: None) -> None:
    maker, judge = nn.Linear(4, 6), net()
    first, second = sgd(judge), sgd(maker)
    tuimon.watch([maker, judge], [second, first])
    for x in torch.randn(6, 8, 4):
        fake = maker(x)
        first.zero_grad()
        judge(fake.detach()).mean().backward()
        first.step()
        second.zero_grad()
        judge(fake).mean().backward()
        second.step()
    assert {record.optimizer for record in feed.of(ParameterSamples)} == {0, 1}
    assert {"Linear", "Sequential.0"} <= {item.module for item in activations(feed)}


@pytest.mark.parametrize("shape", [plain, scaled, accumulated, closures, adversarial])
def test_bit_for_bit_with_every_step_sampled(shape: Loop, feed: Feed, every_step: None) -> None:
    assert twins(shape, feed).steps
    assert feed.of(ParameterSamples) and feed.of(Activations)


# --- forwards of all kinds ------------------------------------------------------------------------


def test_modules_called_several_times_and_odd_outputs(feed: Feed, every_step: None) -> None:
    class Odd(nn.Module):
        def forward(self, x: torch.Tensor) -> Any:
            return {"a": (x, [x * 2, None, 3]), "n": torch.arange(4), "s": "text"}

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
        model(torch.randn(8, 6))
    loop(model, optimizer, 1)
    with FlopCounterMode(display=False) as seen:
        model(torch.randn(8, 6))
    assert seen.get_total_flops() == bare.get_total_flops()
    loop(model, optimizer, 1)
    assert "inside a dispatch mode" in left_out(feed)


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
        assert hooks_of(model) == 0
        torch.jit.script(model)
    loop(model, optimizer, 2)
    monitor.close()
    assert hooks_of(model) == 0 and not model._forward_pre_hooks


def test_whatever_breaks_in_an_extra_the_loop_goes_on(
    feed: Feed, every_step: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*args: Any, **kwargs: Any) -> Any:
        raise ZeroDivisionError

    for place in (
        "tuimon.train.extras.leaf_modules",
        "tuimon.train.activations.absmax_of",
        "tuimon.train.turns.absmax_of",
        "tuimon.train.turns.norms_of",
        "tuimon.train.turns.histogram_of",
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
            monitor.close()
            monitors._wiring.observer.boundary.disarmed.clear()
            monitors._wiring.observer.boundary.failures.clear()


def test_no_graph_and_no_copy_outlives_a_sample(feed: Feed, every_step: None) -> None:
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 5)
    extras: Extras = monitors._wiring.observer.extras
    assert not extras._watches
    assert all(not turns.waiting and not turns.histograms for turns in extras._turns.values())
