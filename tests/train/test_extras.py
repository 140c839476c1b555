"""Sampled extras on real loops: right figures, no change of the training, nothing left behind."""

from __future__ import annotations

import math
import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.sampled import activations, hooks_of, loop, net, parameters, sgd
from tests.train.test_no_harm import accumulated, adversarial, closures, plain, scaled
from tests.train.twins import Loop, twins
from tuimon.model.samples import (
    HISTOGRAM_BINS,
    HISTOGRAM_LOW,
    Activations,
    Governor,
    Histogram,
    ParameterSamples,
)
from tuimon.train import monitor as monitors
from tuimon.train.samples.extras import Extras
from tuimon.train.samples.spectrum import evenly, histogram_of

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
    monkeypatch.setattr("tuimon.train.samples.turns.MAX_TENSORS", 3)
    monkeypatch.setattr("tuimon.train.samples.extras.MODULES", 2)
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
    monkeypatch.setattr("tuimon.train.samples.turns.MAX_ELEMENTS", 50)
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 20)
    for record in feed.of(ParameterSamples):
        assert sum(item.compared for item in record.items) <= 50
    assert {item.name for r in feed.of(ParameterSamples) for item in r.items} == {*feed.table.names}


def test_a_sample_does_not_make_the_step_longer_that_it_is_measured_by(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[float] = []
    burnt_s = 0.3

    def burn(*args: Any, **kwargs: Any) -> None:
        until_s = time.perf_counter() + burnt_s
        while time.perf_counter() < until_s:
            pass

    def always(self: Any, step_s: float | None, **_: Any) -> bool:
        told.append(step_s or 0.0)
        return True

    monkeypatch.setattr("tuimon.train.samples.turns.histogram_of", burn)
    monkeypatch.setattr("tuimon.train.samples.governor.Governor.step", always)
    model = net()
    optimizer = sgd(model)
    tuimon.watch(model, optimizer)
    loop(model, optimizer, 4)
    assert max(told) < burnt_s
    extras: Extras = monitors._wiring.observer.extras
    assert extras.governor.cost_s >= burnt_s
    assert sum(step.cost_s for step in feed.steps[1:]) >= 4 * burnt_s


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
