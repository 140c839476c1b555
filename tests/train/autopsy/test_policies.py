"""What becomes of an update whose gradients are not finite: each policy, and holding."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed, wait_for
from tuimon.diagnose.gradients import gradient_bits
from tuimon.model import commands
from tuimon.model.autopsy import Autopsy
from tuimon.model.records import HELD, HELD_UPDATE, NON_FINITE, PAUSED, CommandState, Pending
from tuimon.train import monitor as monitors
from tuimon.train.control.gate import Gate
from tuimon.train.control.policy import Policy

BAD = 3  # the step whose gradients are not finite
STEPS = 7


class Training:
    """Ten parameters, a batch with an infinity at one step, and Adam, which remembers."""

    def __init__(self, policy: Any = None, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.05)
        self.monitor = tuimon.watch(self.model, self.optimizer, policy=policy, **options)
        self.step = 0
        self.returned: list[Any] = []

    def run(self, steps: int = STEPS) -> None:
        for self.step in range(steps):
            x = torch.randn(4, 3)
            loss = self.model(x).pow(2).mean()
            self.optimizer.zero_grad()
            loss.backward()
            if self.step == BAD:
                self.model[0].weight.grad[0, 0] = math.inf
            self.returned.append(self.optimizer.step())

    @property
    def is_healthy(self) -> bool:
        return all(bool(param.isfinite().all()) for param in self.model.parameters())


def bare(left_out: int | None) -> list[torch.Tensor]:
    """The weights of the same training without tuimon; one `step` may not be called at all."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 2), nn.Tanh(), nn.Linear(2, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for step in range(STEPS):
        loss = model(torch.randn(4, 3)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        if step == BAD:
            model[0].weight.grad[0, 0] = math.inf
        if step != left_out:
            optimizer.step()
    return [*model.parameters(), *(each["exp_avg"] for each in optimizer.state.values())]


def weights(training: Training) -> list[torch.Tensor]:
    state = training.optimizer.state.values()
    return [*training.model.parameters(), *(each["exp_avg"] for each in state)]


def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
    return all(
        torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in zip(one, other, strict=True)
    )


def with_viewer(feed: Feed, training: Training, viewer: Callable[[], None]) -> None:
    """Run the training here while `viewer` acts in another thread."""
    failures: list[BaseException] = []

    def act() -> None:
        try:
            viewer()
        except BaseException as error:
            failures.append(error)
            feed.ask(commands.Stop())

    thread = threading.Thread(target=act)
    thread.start()
    try:
        training.run()
    finally:
        thread.join(30)
    assert not failures, failures


def held(feed: Feed) -> Callable[[], bool]:
    def is_held() -> bool:
        feed.read()
        assert feed._reader is not None
        return feed._reader.status().state == HELD

    return is_held


def gate() -> Gate:
    assert monitors._wiring is not None
    return monitors._wiring.observer.gate


def test_to_continue_changes_nothing(feed: Feed) -> None:
    training = Training()
    training.run()
    assert same(weights(training), bare(None)) and not training.is_healthy


def test_to_skip_is_as_if_step_had_not_been_called(feed: Feed) -> None:
    training = Training("skip")
    training.run()
    assert same(weights(training), bare(BAD)) and training.is_healthy
    assert training.returned == [None] * STEPS
    assert len(training.optimizer.param_groups) == 1
    steps = feed.steps
    assert [step.skipped for step in steps] == [step == BAD for step in range(STEPS)]
    assert steps[BAD].left_out == "its gradients were not finite"


def test_to_raise_names_the_step_and_keeps_the_weights(feed: Feed) -> None:
    training = Training(Policy("raise"))
    with pytest.raises(tuimon.NonFinite, match=f"step {BAD}") as raised:
        training.run()
    assert raised.value.step == BAD and training.is_healthy


@pytest.mark.parametrize(
    "wrong", [Policy("rollback", snapshot_every=0), "nonsense", Policy(hold_limit_s=-1)]
)
def test_what_cannot_be_had_is_refused(feed: Feed, wrong: Any) -> None:
    with pytest.raises(ValueError, match=r"tuimon\.watch: "):
        Training(wrong)


def test_an_update_by_closure_is_not_left_out(feed: Feed) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=1)
    tuimon.watch(model, optimizer, policy="skip")

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.full((2, 2), math.inf)).mean()
        loss.backward()
        return loss

    optimizer.step(closure)
    assert [event.kind for event in feed.events if "skip" in event.kind] == ["skip-failed"]


def test_a_hold_waits_and_skipping_keeps_the_weights(feed: Feed) -> None:
    training = Training("hold")

    def viewer() -> None:
        wait_for(held(feed))
        assert training.step == BAD and len(training.returned) == BAD
        (pending,) = feed.of(Pending)  # told while it can still be decided about
        assert pending.step.step == BAD and pending.step.left_out == HELD_UPDATE
        assert gradient_bits(pending.step) & NON_FINITE and pending.step.lrs
        feed.ask(commands.SkipUpdate())

    with_viewer(feed, training, viewer)
    assert same(weights(training), bare(BAD))
    (event,) = [event for event in feed.events if event.kind == "hold"]
    assert f"update {BAD}" in event.text and event.severity == "critical"
    assert max(step.cost_s or 0 for step in feed.steps) < 1.0
    assert [autopsy.step for autopsy in feed.of(Autopsy)] == [BAD]


def test_a_hold_goes_on_by_resume_steps_by_step_and_turns_into_a_pause(feed: Feed) -> None:
    training = Training("hold")

    def viewer() -> None:
        wait_for(held(feed))
        assert feed.ask(commands.StepOnce()).state == "accepted"
        wait_for(lambda: len(training.returned) == BAD + 1)
        wait_for(lambda: feed._reader.status().state == PAUSED)
        feed.ask(commands.Resume())

    with_viewer(feed, training, viewer)
    assert same(weights(training), bare(None))


def test_a_hold_ends_by_itself(feed: Feed) -> None:
    training = Training(Policy("hold", hold_limit_s=50.0))
    now_s = 1000.0
    gate().hold.clock = lambda: now_s

    def viewer() -> None:
        nonlocal now_s
        wait_for(held(feed))
        now_s += 49.0
        assert held(feed)()
        now_s += 2.0

    with_viewer(feed, training, viewer)
    assert same(weights(training), bare(None))
    assert "nobody decided" in next(e.text for e in feed.events if e.kind == "hold-ended")


def test_stopping_a_held_training_keeps_the_weights(feed: Feed) -> None:
    training = Training("hold")

    def viewer() -> None:
        wait_for(held(feed))
        feed.ask(commands.Stop())

    with pytest.raises(tuimon.Stop):
        with_viewer(feed, training, viewer)
    assert training.is_healthy


def test_a_viewer_arms_it_and_takes_it_along_when_it_leaves(feed: Feed) -> None:
    training = Training()
    now_s = 1000.0
    gate().hold.clock = lambda: now_s

    assert feed.ask(commands.ArmHold(lease_s=30.0)).state == "accepted"

    def viewer() -> None:
        nonlocal now_s
        wait_for(held(feed))
        now_s += 20.0
        assert feed.ask(commands.RenewHold(30.0)).state == "accepted"
        now_s += 20.0
        assert held(feed)(), "the lease was renewed"
        now_s += 20.0

    with_viewer(feed, training, viewer)
    assert same(weights(training), bare(None))
    assert "viewer has left" in next(e.text for e in feed.events if e.kind == "hold-ended")
    assert {state.command for state in feed.of(CommandState)} == {"ArmHold"}


def test_disarming_ends_what_arming_began(feed: Feed) -> None:
    training = Training()
    feed.ask(commands.ArmHold())

    def viewer() -> None:
        wait_for(held(feed))
        feed.ask(commands.DisarmHold())

    with_viewer(feed, training, viewer)
    assert same(weights(training), bare(None)) and not gate().hold.is_armed


def test_an_autopsy_can_be_asked_for(feed: Feed) -> None:
    training = Training()
    feed.ask(commands.RunAutopsy())
    training.run(2)
    (found,) = feed.of(Autopsy)
    assert (found.trigger, found.step, found.first) == ("request", 0, None)


def test_off_and_light_run_nothing_of_the_script(feed: Feed) -> None:
    for level, most in (("off", 0), ("light", 1)):
        training = Training(Policy(autopsy=level))
        calls = 0
        training.model.register_forward_hook(lambda *_: None)

        def count(*_: Any) -> None:
            nonlocal calls
            calls += 1

        training.model.register_forward_pre_hook(count)
        training.run()
        assert calls == STEPS
        training.monitor.close()
        assert len(feed.of(Autopsy)) <= most
