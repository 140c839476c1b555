"""What a step says: losses, skips, times, flags, and which tensor turned bad at which update."""

from __future__ import annotations

import math
import struct

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import tuimon
from tests.train.conftest import Feed
from tuimon.feed.registry import list_runs
from tuimon.model.records import (
    NAN,
    NEG_INF,
    NO_GRAD,
    NORM_OVERFLOW,
    POS_INF,
    UNMEASURED,
    Facts,
    Step,
)
from tuimon.train import monitor as monitors


def norms_of(step: Step) -> np.ndarray:
    return np.frombuffer(step.norms, np.float32)


def small(lr: float = 0.1) -> tuple[nn.Module, torch.optim.Optimizer]:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
    return model, torch.optim.SGD(model.parameters(), lr=lr)


def test_a_plain_step(feed: Feed) -> None:
    model, optimizer = small()
    monitor = tuimon.watch(model, optimizer, name="plain")
    loss = model(torch.randn(5, 3)).pow(2).mean()
    loss.backward()
    norms = [float(param.grad.norm()) for param in model.parameters()]
    monitor.log(**{"train/accuracy": 0.5, "tensor": torch.tensor(2.0)})
    optimizer.step()
    (step,) = feed.steps
    assert (step.step, step.optimizer, step.backward_calls, step.skipped) == (0, 0, 1, False)
    assert step.loss == loss.item() == step.loss_sum
    assert norms_of(step) == pytest.approx(norms, rel=1e-6)
    assert step.grad_norm == pytest.approx(math.hypot(*norms), rel=1e-6)
    assert step.lrs == [0.1] and step.flags == b"" and step.loss_scale is None
    assert step.weights_checked == "after" and step.bad == []
    assert min(step.forward_s, step.backward_s, step.optimizer_s, step.cost_s) > 0
    assert feed.table.names == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert feed.of(Facts)[-1].optimizers == ["SGD"] and feed.of(Facts)[-1].loss_node
    (scalars,) = feed.of(tuimon.model.records.Scalars)
    assert scalars.values == {"train/accuracy": 0.5, "tensor": 2.0}
    assert feed.session.info.name == "plain"


def test_numbers_are_logged_in_whatever_form_and_a_wrong_one_is_told(feed: Feed) -> None:
    model, optimizer = small()
    monitor = tuimon.watch(model, optimizer)
    monitor.log("acc", 0.5)
    monitor.log({"valid/loss": 2.0}, seen=3)
    monitor.log(0.5)
    monitor.log("acc")
    monitor.log("acc", 0.5, 0.6)
    told = [record.values for record in feed.of(tuimon.model.records.Scalars)]
    assert told == [{"acc": 0.5}, {"valid/loss": 2.0, "seen": 3.0}]
    assert any("a number without a name" in event.text for event in feed.events)


def test_accumulation_and_the_tuple_form(feed: Feed) -> None:
    model, optimizer = small()
    tuimon.watch(model, optimizer)
    values = []
    for _ in range(3):
        loss = model(torch.randn(5, 3)).pow(2).mean()
        values.append(loss.item())
        torch.autograd.backward([loss])
    optimizer.step()
    (step,) = feed.steps
    assert step.backward_calls == 3
    assert step.loss == values[-1] and step.loss_sum == pytest.approx(sum(values))


def test_losses_whose_gradients_were_cleared_do_not_add_up(feed: Feed) -> None:
    model, optimizer = small()
    tuimon.watch(model, optimizer)
    values = []
    for index in range(4):
        if index == 2:
            optimizer.zero_grad()
        loss = model(torch.randn(5, 3)).pow(2).mean()
        values.append(loss.item())
        loss.backward()
    optimizer.step()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=3)
    tuimon.watch(model, optimizer)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(5, 3)).pow(2).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    first, second = feed.steps
    assert first.backward_calls == 4 and first.loss == values[3]
    assert first.loss_sum == pytest.approx(sum(values[2:]))
    assert second.backward_calls > 1 and second.loss_sum == second.loss


@pytest.mark.hazard(23, 24)
def test_evaluation_is_not_a_step_and_data_waits_are_the_trainings(feed: Feed) -> None:
    model, optimizer = small()
    tuimon.watch(model, optimizer)
    loader = DataLoader(TensorDataset(torch.randn(8, 3)), batch_size=4, num_workers=1)
    for (x,) in loader:
        optimizer.zero_grad()
        model(x).sum().backward()
        optimizer.step()
        model.eval()
        with torch.inference_mode():
            model(x)
        model.train()
    assert [step.step for step in feed.steps] == [0, 1]
    assert all(step.data_s is not None and step.data_s > 0 for step in feed.steps)
    assert feed.steps[1].step_s > 0


class Busy(torch.utils.data.Dataset):
    """Trains in a worker, and tells what the worker made of it."""

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> torch.Tensor:
        model, optimizer = small()
        closed = tuimon.watch(model, optimizer).closed
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        observer = monitors._wiring.observer
        return torch.tensor([closed, observer.losses.calls, observer.off])


@pytest.mark.hazard(30)
def test_workers_are_inert(feed: Feed) -> None:
    model, optimizer = small()
    tuimon.watch(model, optimizer)
    told = list(DataLoader(Busy(), batch_size=None, num_workers=2))
    assert [each.tolist() for each in told] == [[1, 0, 1]] * 2
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert len(feed.steps) == 1 and feed.session.watched and len(list_runs()) == 1


def test_state_that_turns_bad_by_itself_is_found_in_the_first_steps(feed: Feed) -> None:
    model = nn.Linear(3, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.0)
    tuimon.watch(model, optimizer)
    for index in range(12):
        model(torch.ones(1, 3)).sum().backward()
        if index in (3, 10):
            optimizer.state[model.bias]["exp_avg_sq"].fill_(math.inf)
        optimizer.step()
        optimizer.state[model.bias]["exp_avg_sq"].zero_()
    assert [(bad.what, bad.name) for bad in feed.steps[3].bad] == [
        ("optimizer-state", "bias.exp_avg_sq")
    ]
    assert feed.steps[9].weights_checked == "after" and feed.steps[10].weights_checked == ""


@pytest.mark.hazard(4)
def test_scaler_skips_are_counted_and_scaled_losses_are_unscaled(feed: Feed) -> None:
    for fused in (False, True):
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.0, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=4.0)
        tuimon.watch(model, optimizer, scaler)
        seen = len(feed.steps)
        for index in range(4):
            x = torch.full((2, 3), math.inf if index == 1 else 1.0)
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        steps = feed.steps[seen:]
        assert [step.skipped for step in steps] == [False, True, False, False]
        assert [step.found_inf for step in steps] == [False, True, False, False]
        assert [step.loss_scale for step in steps] == [4.0, 4.0, 2.0, 2.0]
        assert steps[3].loss == loss.item()
        assert steps[0].grad_norm == pytest.approx(steps[3].grad_norm, rel=1e-6)
        assert math.isnan(steps[1].grad_norm) or math.isinf(steps[1].grad_norm)
        assert "amp-scale" in [event.kind for event in feed.events]
    assert feed.losses[0].step == 1 and "test_steps.py" in feed.losses[0].site


@pytest.mark.hazard(5)
def test_fused_and_unscaled_norms_are_the_same(feed: Feed) -> None:
    norms = []
    for fused, unscale in ((False, False), (False, True), (True, False), (True, True)):
        torch.manual_seed(0)
        model = nn.Linear(3, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=fused)
        scaler = torch.amp.GradScaler("cpu", init_scale=2.0**12)
        tuimon.watch(model, optimizer)
        scaler.scale(model(torch.ones(2, 3)).mean()).backward()
        if unscale:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        norms.append(feed.steps[-1].grad_norm)
    assert norms == pytest.approx([norms[0]] * 4, rel=1e-6)


def test_the_scalers_own_errors_are_the_users(feed: Feed) -> None:
    model = nn.Linear(3, 1).half()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    tuimon.watch(model, optimizer)
    scaler.scale(model(torch.ones(2, 3).half()).float().mean()).backward()
    with pytest.raises(ValueError, match="FP16"):
        scaler.step(optimizer)
    assert feed.steps == []


def test_adam_eps_poison_belongs_to_the_update_that_made_it(feed: Feed) -> None:
    model = nn.Linear(3, 2).half()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3, eps=1e-8)
    tuimon.watch(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        (model(torch.zeros(2, 3).half()).float().mean() * 0).backward()
        optimizer.step()
    first = feed.steps[0]
    assert math.isfinite(first.loss) and first.grad_norm == 0.0
    assert {bad.what for bad in first.bad} == {"parameter"} and first.bad_before is None
    assert feed.losses[0].step == 1
    assert feed.steps[1].bad_before > 0


def test_a_poisoned_buffer_is_named_at_its_step(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
    tuimon.watch(model, optimizer)
    for index in range(14):
        x = torch.randn(4, 3)
        if index == 12:
            x[0, 0] = math.inf
        optimizer.zero_grad()
        scaler.scale(model(x).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
    step = feed.steps[12]
    assert step.skipped and step.weights_checked == "before"
    assert {bad.name for bad in step.bad if bad.what == "buffer"} == {
        "1.running_mean",
        "1.running_var",
    }
    assert not [bad for bad in step.bad if bad.what == "parameter"]


def test_an_uninitialised_weight_was_bad_before_step_0(feed: Feed) -> None:
    model, optimizer = small()
    with torch.no_grad():
        model[2].weight[0, 1] = math.nan
        model[2].weight[0, 2] = -math.inf
    tuimon.watch(model, optimizer)
    model(torch.randn(4, 3)).mean().backward()
    optimizer.step()
    (step,) = feed.steps
    assert step.bad_before == 1 and step.weights_checked == "both"


def test_suspicion_has_a_bounded_price(feed: Feed) -> None:
    model, optimizer = small()
    with torch.no_grad():
        model[0].weight.fill_(math.nan)
    tuimon.watch(model, optimizer)
    for _ in range(30):
        optimizer.zero_grad()
        model(torch.randn(4, 3)).mean().backward()
        optimizer.step()
    late = feed.steps[-1]
    assert late.bad == [] and late.weights_checked == "" and late.bad_total > 0
    assert all(flag & NAN for flag in late.flags[:1])


Row = tuple[nn.Parameter, torch.Tensor | None, int, float]  # parameter, gradient, flags, norm


def odd_kinds() -> dict[str, Row]:
    """Every kind of parameter and of gradient, with what must be said of it."""
    inf, nan = math.inf, math.nan
    table: dict[str, Row] = {}

    def add(
        name: str, values: torch.Tensor, grad: torch.Tensor | None, flag: int, norm: float
    ) -> None:
        frozen = not (values.is_floating_point() or values.is_complex())
        table[name] = nn.Parameter(values, requires_grad=not frozen), grad, flag, norm

    add("fine", torch.ones(2), torch.tensor([3.0, 4.0]), 0, 5.0)
    add("zero", torch.ones(2), torch.zeros(2), 0, 0.0)
    add("none", torch.ones(2), None, NO_GRAD, nan)
    add("integer", torch.ones(2, dtype=torch.int32), None, NO_GRAD, nan)
    add("nan", torch.ones(3), torch.tensor([1.0, nan, 2.0]), NAN, nan)
    add("posinf", torch.ones(2), torch.tensor([1.0, inf]), POS_INF, inf)
    add("neginf", torch.ones(2), torch.tensor([1.0, -inf]), NEG_INF, inf)
    add("both", torch.ones(2), torch.tensor([-inf, inf]), POS_INF | NEG_INF, inf)
    add("all", torch.ones(3), torch.tensor([-inf, nan, inf]), NAN | POS_INF | NEG_INF, nan)
    add("overflow", torch.ones(2), torch.full((2,), 1e30), NORM_OVERFLOW, inf)
    add("f16", torch.ones(9).half(), torch.full((9,), 6e4).half(), 0, 1.8e5)
    add("bf16", torch.ones(4).bfloat16(), torch.full((4,), 2.0).bfloat16(), 0, 4.0)
    add("f64", torch.ones(2).double(), torch.tensor([3.0, 4.0]).double(), 0, 5.0)
    add(
        "huge",
        torch.ones(2).double(),
        torch.tensor([1e200, 1e200], dtype=torch.float64),
        NORM_OVERFLOW,
        inf,
    )
    add("complex", torch.ones(1, dtype=torch.complex64), torch.tensor([3 + 4j]), 0, 5.0)
    add("empty", torch.ones(0), torch.ones(0), UNMEASURED, nan)
    add("sparse", torch.ones(3, 2), torch.eye(3, 2).to_sparse(), 0, math.sqrt(2))
    add("strided", torch.ones(3, 2), torch.ones(2, 3).t(), 0, math.sqrt(6))
    add(
        "float8", torch.ones(4).to(torch.float8_e4m3fn), torch.ones(4).to(torch.float8_e4m3fn), 0, 2
    )
    return table


@pytest.mark.hazard(10, 11)
def test_flags_table(feed: Feed) -> None:
    """Missing is never 0, and NaN, +Inf and -Inf stay apart."""
    table = odd_kinds()
    model = nn.ParameterDict({name: row[0] for name, row in table.items()})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    tuimon.watch(model, optimizer)
    for name, (param, grad, _, _) in table.items():
        if grad is not None:
            model[name].grad = grad if param.dtype == grad.dtype else grad.to(param.dtype)
    with pytest.raises((RuntimeError, NotImplementedError)):
        optimizer.step()  # torch itself cannot update these; statistics come first
    monitors_track = next(iter(monitors._wiring.observer.roster.tracks.values()))
    measured = monitors_track.update.measured
    assert measured is not None
    flags = measured.flags
    for name, flag, norm in zip(monitors_track.plan.names, flags, measured.norms, strict=True):
        _, _, wanted_flag, wanted_norm = table[name]
        assert flag == wanted_flag, name
        assert norm == pytest.approx(wanted_norm, rel=1e-3, nan_ok=True), name
    counts = {bad.name: (bad.nan, bad.posinf, bad.neginf) for bad in measured.bad}
    assert counts["all"] == (1, 1, 1) and counts["both"] == (0, 1, 1)
    assert "overflow" not in counts and measured.bad_total == 5


@pytest.mark.hazard(11)
def test_meta_parameters_do_not_spoil_the_others(feed: Feed) -> None:
    from tuimon.train.stats import Plan, measure

    real, meta = nn.Parameter(torch.ones(3)), nn.Parameter(torch.empty(3, device="meta"))
    real.grad, meta.grad = torch.ones(3), torch.empty(3, device="meta")
    measured = measure(Plan([real, meta], ["real", "meta"], [0, 1], 2))
    assert measured.norms[0] == pytest.approx(math.sqrt(3))
    assert math.isnan(measured.norms[1]) and list(measured.flags) == [0, UNMEASURED]


def test_check_every_leaves_steps_out_but_no_suspicion(feed: Feed) -> None:
    model, optimizer = small()
    tuimon.watch(model, optimizer, check_every=3)
    for index in range(6):
        optimizer.zero_grad()
        x = torch.full((2, 3), math.nan) if index == 4 else torch.randn(2, 3)
        model(x).sum().backward()
        optimizer.step()
    measured = [step.grad_norm is not None for step in feed.steps]
    assert measured == [True, False, False, True, True, True]
    assert feed.steps[1].norms == b""


def test_the_ring_header_follows(feed: Feed) -> None:
    model, optimizer = small()
    tuimon.watch(model, optimizer)
    for _ in range(3):
        optimizer.step()
    feed.read()
    assert feed._reader.status().step == 2
    assert struct.calcsize("f") * len(feed.table.names) == len(feed.steps[-1].norms)
    assert all(flag == NO_GRAD for flag in feed.steps[-1].flags)
