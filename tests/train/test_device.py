"""The path that never waits, with slots and events as arguments: on CPU tensors, and on CUDA."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.records import (
    NAN,
    NEG_INF,
    NO_GRAD,
    NORM_OVERFLOW,
    POS_INF,
    UNMEASURED,
    DeviceStats,
    RingLost,
)
from tuimon.train.account import ClipCall, Losses, ScalerView
from tuimon.train.device import SLOTS, Lane, Sample
from tuimon.train.late import LateStats
from tuimon.train.session import start_session
from tuimon.train.stats import Plan
from tuimon.train.update import Place, Update


class Switch:
    """An event that is done when the test says so."""

    done = True

    def __init__(self, arrivals: Arrivals) -> None:
        self._arrivals = arrivals

    def record(self) -> None:
        pass

    def query(self) -> bool:
        return self._arrivals.open


class Arrivals:
    """Operations of a device that delivers when the test says so."""

    def __init__(self) -> None:
        self.open = True

    def pinned(self, count: int) -> torch.Tensor:
        return torch.empty(count, dtype=torch.float32)

    def mark(self) -> Switch:
        return Switch(self)


def plan_of(*grads: torch.Tensor | None) -> Plan:
    params = []
    for grad in grads:
        param = nn.Parameter(torch.zeros(3 if grad is None else grad.shape))
        param.grad = grad
        params.append(param)
    return Plan(params, [f"p{i}" for i in range(len(params))], [*range(len(params))], len(params))


def test_values_flags_and_extras() -> None:
    inf, nan = math.inf, math.nan
    plan = plan_of(
        torch.tensor([3.0, 4.0]),
        None,
        torch.tensor([1.0, nan]),
        torch.tensor([1.0, inf]),
        torch.tensor([-inf, 1.0]),
        torch.full((2,), 1e30),
    )
    lane = Lane(plan, torch.device("cpu"), Arrivals())
    sample = Sample(5, 0, 1, scaled=True, bound=2.0)
    assert lane.submit(
        plan,
        sample,
        losses=[torch.tensor(1.0), torch.tensor(2.5)],
        scale=torch.tensor(2.0),
        found_inf=[torch.tensor(0.0), torch.tensor(1.0)],
        total=torch.tensor(8.0),
    )
    (arrived,) = lane.collect()
    assert arrived.norms[0] == 2.5 and math.isnan(arrived.norms[1])
    assert list(arrived.flags) == [0, NO_GRAD, NAN, POS_INF, NEG_INF, NORM_OVERFLOW]
    assert (arrived.loss, arrived.loss_sum, arrived.loss_scale) == (2.5, 3.5, 2.0)
    assert arrived.found_inf is True and math.isnan(arrived.grad_norm)
    plan.params[2].grad = plan.params[3].grad = plan.params[4].grad = None
    plan.params[5].grad = None
    lane.submit(plan, Sample(6, 0, 1, bound=2.0), total=torch.tensor(4.0))
    (arrived,) = lane.collect()
    assert arrived.grad_norm == 5.0 and arrived.grad_norm_clipped == pytest.approx(2.5, rel=1e-5)
    assert arrived.loss is None and arrived.loss_scale is None and arrived.found_inf is None


def test_a_host_that_runs_ahead_drops_and_counts() -> None:
    plan, arrivals = plan_of(torch.ones(2)), Arrivals()
    lane = Lane(plan, torch.device("cpu"), arrivals)
    arrivals.open = False
    sent = [lane.submit(plan, Sample(step, 0, 1)) for step in range(SLOTS + 3)]
    assert sent == [True] * SLOTS + [False] * 3 and lane.dropped == 3
    assert lane.collect() == []
    arrivals.open = True
    assert [arrived.sample.step for arrived in lane.collect()] == list(range(SLOTS))
    assert lane.submit(plan, Sample(99, 0, 1))


def test_what_was_measured_before_clipping_counts() -> None:
    plan = plan_of(torch.tensor([3.0, 4.0]))
    lane = Lane(plan, torch.device("cpu"), Arrivals())
    lane.reduce(plan)
    plan.params[0].grad.mul_(math.nan)
    lane.reduce(plan)
    lane.submit(plan, Sample(0, 0, 1))
    assert lane.collect()[0].norms[0] == 5.0
    lane.forget()
    lane.submit(plan, Sample(1, 0, 1))
    assert list(lane.collect()[0].flags) == [NAN]


def test_what_was_not_measured_before_clipping_is_left_out(feed: Feed) -> None:
    session = start_session(name="late")
    plan = plan_of(torch.tensor([3.0, 4.0]))
    late = LateStats(plan, torch.device("cpu"), Arrivals())
    clipped = Update(calls=[ClipCall(plan.params, 1.0, total=torch.tensor(9.0))])
    for measured_in_time in (False, True):
        if measured_in_time:
            late.measure()
        late.measure(already_clipped=True)
        late.submit(Place(0, 0, 1), clipped, losses=Losses(), scaler=None)
    late.publish(session)
    first, second = feed.of(DeviceStats)
    assert list(first.flags) == [UNMEASURED] and first.grad_norm is None
    assert second.flags == b"" and second.grad_norm == 5.0


def test_records_arrive_late_and_losses_are_counted(feed: Feed) -> None:
    session = start_session(name="late")
    plan, arrivals = plan_of(torch.tensor([3.0, 4.0]), None), Arrivals()
    late = LateStats(plan, torch.device("cpu"), arrivals)
    arrivals.open = False
    losses = Losses(calls=1, pending=(torch.tensor(0.5),))
    clipped = Update(calls=[ClipCall(plan.params, 1.0, total=torch.tensor(5.0))])
    scaler = ScalerView(scale=torch.tensor(4.0))
    for step in range(SLOTS + 1):
        late.submit(Place(step, 0, 1), clipped, losses=losses, scaler=scaler)
        late.publish(session)
    assert feed.of(DeviceStats) == []
    assert [(lost.count) for lost in feed.of(RingLost)] == [1]
    arrivals.open = True
    late.publish(session)
    first = feed.of(DeviceStats)[0]
    assert (first.step, first.loss, first.loss_scale) == (0, 0.5, 4.0)
    assert first.grad_norm == 5.0 and first.grad_norm_clipped == pytest.approx(1.0, rel=1e-5)
    assert np.frombuffer(first.norms, np.float32)[0] == 5.0 and list(first.flags) == [0, NO_GRAD]
    arrivals.open = False
    late.submit(Place(50, 0, 1), clipped, losses=losses, scaler=None)
    late.abandon(session)
    assert "given up" in feed.of(RingLost)[-1].reason


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("amp", [False, True])
def test_no_synchronisation_on_cuda(feed: Feed, amp: bool) -> None:
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)).cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler("cuda", enabled=amp)
    tuimon.watch(model, optimizer, scaler)
    x = torch.randn(32, 64, device="cuda")
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(30):
            optimizer.zero_grad()
            loss = model(x).pow(2).mean()
            scaler.scale(loss).backward()
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            scaler.step(optimizer)
            scaler.update()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.cuda.synchronize()
    feed.session.finish("ok")
    late = feed.of(DeviceStats)
    assert len(late) + sum(lost.count for lost in feed.of(RingLost)) == len(feed.steps) == 30
    assert all(step.late or step.grad_norm is None for step in feed.steps)
    assert not [event for event in feed.events if event.kind.startswith("tap-")]
    assert late[0].grad_norm > 0.1 and late[0].grad_norm_clipped == pytest.approx(0.1, rel=1e-3)
