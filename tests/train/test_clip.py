"""Our clipping is bitwise the user's own; "off" leaves gradients alone; statistics see both."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_  # by name, before anything is patched

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands
from tuimon.model.records import NEG_INF
from tuimon.train import monitor as monitors

COMBINATIONS = list(
    itertools.product((torch.optim.SGD, torch.optim.AdamW), (False, True), (False, True))
)


def train(
    kind: type[torch.optim.Optimizer],
    fused: bool,
    amp: bool,
    *,
    users: float | None = None,
    command: Callable[[], None] | None = None,
    watched: bool = False,
) -> torch.Tensor:
    """All parameters after 15 updates; `command` is run after `watch`."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 1)
    )
    extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
    optimizer = kind(model.parameters(), lr=0.01, fused=fused, **extra)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=7, enabled=amp)
    if watched:
        tuimon.watch(model, optimizer, scaler)
        if command is not None:
            command()
    made = torch.Generator().manual_seed(1)
    for _ in range(15):
        x, y = torch.randn(8, 6, generator=made) * 3, torch.randn(8, 1, generator=made) * 5
        optimizer.zero_grad()
        scaler.scale(nn.functional.mse_loss(model(x), y)).backward()
        if users is not None:
            scaler.unscale_(optimizer)
            clip_grad_norm_(model.parameters(), users)
        scaler.step(optimizer)
        scaler.update()
    return torch.cat([param.detach().flatten() for param in model.parameters()])


@pytest.mark.parametrize(("kind", "fused", "amp"), COMBINATIONS)
def test_bitwise_the_users_own(
    kind: type[torch.optim.Optimizer], fused: bool, amp: bool, feed: Feed
) -> None:
    own = train(kind, fused, amp, users=0.3)
    free = train(kind, fused, amp)
    assert not torch.equal(own, free), "clipping makes no difference here: the test is blind"

    def on() -> None:
        assert feed.ask(commands.SetClip("on", 0.3)).state == "accepted"

    assert torch.equal(train(kind, fused, amp, watched=True, command=on), own)
    _check_steps(feed, "on", 0.3, 15)
    assert torch.equal(train(kind, fused, amp, users=7.0, watched=True, command=on), own)
    _check_steps(feed, "on", 0.3, 30)

    def off() -> None:
        assert feed.ask(commands.SetClip("off")).state == "accepted"

    assert torch.equal(train(kind, fused, amp, users=0.3, watched=True, command=off), free)
    assert feed.steps[-1].clip == "off" and feed.steps[-1].max_norm is None
    assert feed.steps[-1].grad_norm == feed.steps[-1].grad_norm_clipped

    def user() -> None:
        assert feed.ask(commands.SetClip("user")).state == "accepted"

    assert torch.equal(train(kind, fused, amp, users=0.3, watched=True, command=user), own)
    _check_steps(feed, "user", 0.3, 60)


def _check_steps(feed: Feed, mode: str, bound: float, count: int) -> None:
    steps = feed.steps
    assert len(steps) == count
    for step in steps[-14:]:
        assert step.clip == mode and step.max_norm == pytest.approx(bound)
        assert step.grad_norm > bound
        assert step.grad_norm_clipped == pytest.approx(bound, rel=1e-4)


@pytest.mark.hazard(9)
def test_off_does_not_multiply_an_infinite_norm(feed: Feed) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    tuimon.watch(model, optimizer)
    feed.ask(commands.SetClip("off"))
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    model.weight.grad[0, 0] = math.inf
    clip_grad_norm_(model.parameters(), 1.0)
    assert math.isinf(model.weight.grad[0, 0]) and torch.isfinite(model.weight.grad[1]).all()


@pytest.mark.hazard(8)
def test_a_nan_is_named_before_clipping_spreads_it(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(3, 4)).sum().backward()
    model[1].weight.grad[2, 1] = math.nan
    clip_grad_norm_(model.parameters(), 1.0)
    assert all(torch.isnan(param.grad).all() for param in model.parameters())
    optimizer.step()
    (step,) = feed.steps
    guilty = [bad for bad in step.bad if bad.what == "gradient"]
    assert [(bad.name, bad.nan) for bad in guilty] == [("1.weight", 1)]
    flags = dict(zip(feed.table.names, step.flags, strict=True))
    assert {name for name, flag in flags.items() if flag} == {"1.weight"}
    assert math.isnan(step.grad_norm) and math.isnan(step.grad_norm_clipped)


def test_an_infinite_gradient_stays_one_although_clipping_makes_it_nan(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(3, 4)).sum().backward()
    model[0].weight.grad[2, 1] = -math.inf
    clip_grad_norm_(model.parameters(), 1.0)
    assert torch.isnan(model[0].weight.grad[2, 1])
    optimizer.step()
    (step,) = feed.steps
    guilty = [bad for bad in step.bad if bad.what == "gradient"]
    assert [(bad.name, bad.nan, bad.neginf) for bad in guilty] == [("0.weight", 0, 1)]
    assert dict(zip(feed.table.names, step.flags, strict=True))["0.weight"] == NEG_INF
    assert step.grad_norm == math.inf and math.isnan(step.grad_norm_clipped)


def test_other_norms_and_partial_clipping(feed: Feed) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(3, 4)).sum().backward()
    norms = [float(param.grad.norm()) for param in model.parameters()]
    clip_grad_norm_(model[0].parameters(), 0.01, norm_type=math.inf)
    after = math.sqrt(sum(float(param.grad.norm()) ** 2 for param in model.parameters()))
    optimizer.step()
    (step,) = feed.steps
    assert step.grad_norm == pytest.approx(math.hypot(*norms), rel=1e-5)
    assert step.grad_norm_clipped == pytest.approx(after, rel=1e-4)
    assert step.max_norm == 0.01


def test_an_infinite_bound_is_no_bound(feed: Feed) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.randn(3, 4)).sum().backward()
    clip_grad_norm_(model.parameters(), math.inf)
    optimizer.step()
    assert feed.steps[0].max_norm is None
    assert feed.steps[0].grad_norm == pytest.approx(feed.steps[0].grad_norm_clipped)


def test_clipping_goes_on_when_statistics_fail(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    from tuimon.train import track

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("out of order")

    own = train(torch.optim.SGD, False, False, users=0.3)

    def on() -> None:
        monkeypatch.setattr(track, "measure", broken)
        feed.ask(commands.SetClip("on", 0.3))

    assert torch.equal(train(torch.optim.SGD, False, False, watched=True, command=on), own)


def test_clipping_is_handed_back_when_its_tap_is_disarmed(feed: Feed) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    observer = monitors._wiring.observer
    observer.clipping.mode, observer.clipping.max_norm = "on", 1.0
    for _ in range(3):
        observer.boundary.failed("optimizer", RuntimeError("out of order"))
    assert observer.clipping.mode == "user"
    assert "clip" in [event.kind for event in feed.events]


def test_clipping_counts_before_its_optimizer_is_known(feed: Feed) -> None:
    model = nn.Linear(4, 1)
    tuimon.watch(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.randn(3, 4)).sum().backward()
    before = math.hypot(*(float(param.grad.norm()) for param in model.parameters()))
    clip_grad_norm_(model.parameters(), 0.5, norm_type=math.inf)
    optimizer.step()
    (step,) = feed.steps
    assert step.max_norm == 0.5 and step.grad_norm == pytest.approx(before, rel=1e-4)
    after = math.hypot(*(float(param.grad.norm()) for param in model.parameters()))
    assert step.grad_norm_clipped == pytest.approx(after, rel=1e-4)


def by_value(feed: Feed, *, poisoned: bool = False, known: bool = True) -> tuple[float, float]:
    """(norm before, norm after) of one update with elements clipped to 0.01."""
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer if known else None)
    model(torch.randn(3, 4)).sum().backward()
    if poisoned:
        model[1].bias.grad[0] = -math.inf
    before = math.hypot(*(float(param.grad.norm()) for param in model.parameters()))
    nn.utils.clip_grad_value_(model[1].parameters(), 0.01)
    optimizer.step()
    return before, math.hypot(*(float(param.grad.norm()) for param in model.parameters()))


def test_elements_clipped_by_value(feed: Feed) -> None:
    before, after = by_value(feed)
    assert after < before
    step = feed.steps[-1]
    assert step.max_norm is None and step.clip == "user"
    assert step.grad_norm == pytest.approx(before, rel=1e-5)
    assert step.grad_norm_clipped == pytest.approx(after, rel=1e-5)
    _, after = by_value(feed, poisoned=True)
    step = feed.steps[-1]
    assert math.isinf(step.grad_norm) and step.grad_norm_clipped == pytest.approx(after, rel=1e-5)
    assert [(bad.name, bad.neginf) for bad in step.bad] == [("1.bias", 1)]
    before, _ = by_value(feed, known=False)
    step = feed.steps[-1]
    assert step.grad_norm == pytest.approx(before, rel=1e-5) and step.grad_norm_clipped is None


def test_elements_are_left_alone_where_tuimon_clips_or_nobody_does(feed: Feed) -> None:
    model = nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    for mode, bound in (("off", None), ("on", 0.25)):
        feed.ask(commands.SetClip(mode, bound))
        model(torch.randn(3, 4)).sum().backward()
        before = float(torch.linalg.vector_norm(model.weight.grad))
        nn.utils.clip_grad_value_(model.parameters(), 0.01)
        assert float(torch.linalg.vector_norm(model.weight.grad)) == before
        optimizer.step()
        optimizer.zero_grad()
    off, on = feed.steps
    assert (off.clip, off.grad_norm) == ("off", off.grad_norm_clipped)
    assert (on.clip, on.max_norm) == ("on", 0.25)
    assert on.grad_norm_clipped == pytest.approx(0.25, rel=1e-4)
