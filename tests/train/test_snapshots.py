"""Going back: the state is the one after the snapshot's update, and what follows is exact."""

from __future__ import annotations

import copy
import gc
import math
import weakref
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model import commands
from tuimon.model.snapshots import SnapshotState
from tuimon.train import monitor as monitors
from tuimon.train.account import Losses
from tuimon.train.control import snapshots
from tuimon.train.control.policy import Policy
from tuimon.train.track import _is_finite

EVERY, UPDATES, BACK_AT = 5, 24, 18
KEPT = 15  # the newest multiple of EVERY whose state has proved itself by then
COMBINATIONS = [(torch.optim.SGD, False, False), (torch.optim.AdamW, True, True)]  # all: test_exact


class Training:
    """A net with BatchNorm and dropout; batches by number; `bad` of them hold a NaN."""

    def __init__(self, kind: Any, fused: bool = False, amp: bool = False, bad: Any = ()) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(
            nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Dropout(0.1), nn.Linear(8, 1)
        )
        extra = {"momentum": 0.9} if kind is torch.optim.SGD else {}
        self.optimizer = kind(self.model.parameters(), lr=0.05, fused=fused, **extra)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=4, enabled=amp)
        self.bad = set(bad)
        self.losses: list[float] = []

    def update(self, number: int, *, instead: Any = None) -> None:
        """One iteration; with a state to go back to `instead` of making the update."""
        made = torch.Generator().manual_seed(number)
        x, y = torch.randn(8, 6, generator=made), torch.randn(8, 1, generator=made)
        if number in self.bad:
            y[0] = math.nan
        self.optimizer.zero_grad()
        loss = nn.functional.mse_loss(self.model(x), y)
        self.losses.append(loss.item())
        self.scaler.scale(loss).backward()
        if instead is None:
            self.scaler.step(self.optimizer)
        else:
            self.scaler.unscale_(self.optimizer)
            self.load(instead)
        self.scaler.update()

    def state(self) -> Any:
        parts = (self.model, self.optimizer, self.scaler)
        return copy.deepcopy([part.state_dict() for part in parts])

    def load(self, state: Any) -> None:
        for part, kept in zip((self.model, self.optimizer, self.scaler), state, strict=True):
            part.load_state_dict(copy.deepcopy(kept))

    def left(self) -> list[torch.Tensor]:
        model, optimizer, scaler = self.state()
        values = [v for entry in optimizer["state"].values() for v in entry.values()]
        return [torch.as_tensor(v) for v in (*model.values(), *values, *scaler.values())]


def same(one: Training, other: Training) -> bool:
    pairs = zip(one.left(), other.left(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("kind", "fused", "amp"), COMBINATIONS)
def test_what_follows_a_roll_back_equals_a_restart_from_the_snapshot(
    kind: Any, fused: bool, amp: bool, feed: Feed
) -> None:
    bare = Training(kind, fused, amp)
    kept = None
    for number in range(UPDATES):
        bare.update(number, instead=kept if number == BACK_AT else None)
        if number == KEPT:
            kept = bare.state()
    watched = Training(kind, fused, amp)
    tuimon.watch(watched.model, watched.optimizer, snapshot_every=EVERY)
    for number in range(UPDATES):
        if number == BACK_AT:
            assert feed.ask(commands.RollBack()).state == "accepted"
        watched.update(number)
    told = [event.text for event in feed.events if event.kind == "rollback"]
    assert told == [f"rolled back to the state after update {KEPT}: 2 updates lost"]
    assert feed.steps[BACK_AT].skipped and feed.steps[BACK_AT].left_out
    assert same(watched, bare)


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_taking_snapshots_changes_nothing(kind: Any, feed: Feed) -> None:
    bare = Training(kind, amp=True)
    for number in range(UPDATES):
        bare.update(number)
    watched = Training(kind, amp=True)
    tuimon.watch(watched.model, watched.optimizer, snapshot_every=1)
    for number in range(UPDATES):
        watched.update(number)
    assert same(watched, bare) and watched.losses == bare.losses


def test_a_poisoned_state_is_never_healthy_and_the_policy_goes_back(feed: Feed) -> None:
    training = Training(torch.optim.AdamW, bad=[12])
    policy = Policy("rollback", snapshot_every=EVERY, autopsy="off")
    tuimon.watch(training.model, training.optimizer, policy=policy)
    for number in range(UPDATES):
        training.update(number)
    assert all(torch.isfinite(tensor).all() for tensor in training.left())
    told = [event for event in feed.events if event.kind in ("rollback", "skip")]
    texts = [event.text for event in told]
    assert "rolled back to the state after update 10: 1 update lost" in texts
    assert next(e.first_step for e in feed.events if e.kind == "rollback") == 11
    assert [event.step for event in told] == [12, 12], "the update that it was about"
    assert [math.isnan(loss) for loss in training.losses].count(True) == 1


def test_weights_that_are_bad_are_not_kept(feed: Feed) -> None:
    training = Training(torch.optim.SGD, bad=[EVERY])  # the update that a copy follows
    tuimon.watch(
        training.model, training.optimizer, snapshot_every=EVERY, policy=Policy(autopsy="off")
    )
    for number in range(9):
        training.update(number)
    assert not torch.isfinite(training.model[0].weight).all()
    feed.ask(commands.RollBack(lr_factor=0.5))
    training.update(9)
    training.update(10)
    assert torch.isfinite(training.model[0].weight).all()
    assert feed.steps[-1].lrs == [0.025]


def test_what_goes_wrong_again_and_again_is_left_out_without_going_back(feed: Feed) -> None:
    training = Training(torch.optim.SGD, bad=range(12, UPDATES))
    tuimon.watch(training.model, training.optimizer, policy=Policy("rollback", snapshot_every=5))
    for number in range(UPDATES):
        training.update(number)
    kinds = [event.kind for event in feed.events]
    assert kinds.count("rollback") == snapshots.MAX_USES
    assert torch.isfinite(training.model[0].weight).all()


def test_nothing_to_go_back_to_is_said(feed: Feed) -> None:
    training = Training(torch.optim.SGD)
    tuimon.watch(training.model, training.optimizer)
    training.update(0)
    refused = feed.ask(commands.RollBack())
    training.update(1)
    assert "--snapshot-every" in feed.states(refused.id)[-1].reason


def test_no_copy_where_memory_is_short(feed: Feed) -> None:
    training = Training(torch.optim.SGD)
    tuimon.watch(training.model, training.optimizer, snapshot_every=2)
    observer = monitors._wiring.observer
    observer.snapshots._available = lambda: 1000
    for number in range(6):
        training.update(number)
    assert observer.snapshots.healthy is None
    assert "memory" in observer.snapshots.problem()
    assert [event.kind for event in feed.events].count("snapshots") == 1


def test_what_copies_cost_is_told(feed: Feed) -> None:
    training = Training(torch.optim.AdamW)
    tuimon.watch(training.model, training.optimizer, snapshot_every=2)
    for number in range(8):
        training.update(number)
    monitors._wiring.observer.snapshots.tell(at_once=True)  # as a pause does
    told = feed.of(SnapshotState)
    tensors = [*training.model.state_dict().values()]
    tensors += [v for e in training.optimizer.state.values() for v in e.values()]
    size = sum(each.numel() * each.element_size() for each in tensors)
    assert (told[-1].every, told[-1].step, told[-1].unable) == (2, 6, "")
    assert size <= told[-1].held_bytes / snapshots.SLOTS <= size + 64  # and the loss scale
    assert 0 < told[-1].took_s < 1 and 0 < told[-1].share_frac < 100
    assert len(told) == 2, "not one for every copy"


def test_memory_that_becomes_short_ends_the_copies_and_is_said(feed: Feed) -> None:
    training = Training(torch.optim.AdamW)
    tuimon.watch(training.model, training.optimizer, snapshot_every=1)
    observer = monitors._wiring.observer
    free = [1 << 30]
    observer.snapshots._available = lambda: free[0]
    training.update(0)
    free[0] = 100
    for number in range(1, 4):
        training.update(number)
    assert "memory that is free" in feed.of(SnapshotState)[-1].unable
    assert [each.kind for each in feed.events].count("snapshots") == 2  # the first, and the end
    assert observer.snapshots.healthy is not None, "what was proved before stays"


FINE = Losses(calls=2, last=1.0, total=2.0)


def test_what_proves_a_state(feed: Feed) -> None:
    """Each thing by itself; some come with others in a training, where one would hide another."""
    training = Training(torch.optim.SGD)
    tuimon.watch(training.model, training.optimizer, snapshot_every=4)
    for number in range(7):
        training.update(number)
    observer = monitors._wiring.observer
    found, track = observer.snapshots, observer.roster.primary

    def is_finite(losses: Losses) -> bool:
        return _is_finite(losses, track.update, track._weights)

    assert is_finite(FINE)
    for changed in ({"last": None}, {"total": None}, {"last": math.nan}, {"total": math.inf}):
        assert not is_finite(msgspec.structs.replace(FINE, **changed)), changed
    track._weights.bad_total = 1
    assert not is_finite(FINE)
    track._weights.bad_total, track.update.is_bad = 0, True
    assert not is_finite(FINE)
    track.update.is_bad = False

    measured, track.step = track.update.measured, 8
    assert found.healthy.step == 4 and measured.total is not None
    for finite, known in ((False, measured), (True, None), (True, SimpleNamespace(total=None))):
        track.update.measured = known
        found.after_update(track, finite=finite)
        assert found._waiting is None, (finite, known)
    track.update.measured = measured
    found.after_update(track, finite=True)
    found.after_update(track, finite=False)
    assert found.healthy.step == 4 and found._waiting is None, "what follows was not finite"
    found.after_update(track, finite=True)
    track.step = 9
    found.after_update(track, finite=True)
    assert found.healthy.step == 8


@pytest.mark.parametrize("bad", ["first", "last", "unread", "skipped"])
def test_what_keeps_a_state_from_being_healthy(bad: str, feed: Feed) -> None:
    """Gradients are measured at even updates; the state after update 4 is judged by update 5."""
    model = nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tuimon.watch(model, optimizer, snapshot_every=4, check_every=2, policy=Policy(autopsy="off"))
    for number in range(6):
        optimizer.zero_grad()
        for part in ("first", "last"):
            loss = model(torch.ones(2, 3)).pow(2).mean()
            if number == 5 and part == bad:
                loss = loss * math.nan
            if number == 5 and bad == "unread":
                model(torch.ones(2, 3)).backward(torch.ones(2, 1))
            else:
                loss.backward()
        if number == 5 and bad == "skipped":
            feed.ask(commands.SkipUpdate(1))
        optimizer.step()
    found = monitors._wiring.observer.snapshots
    assert found.healthy is not None and found.healthy.step == 0


def test_a_copy_that_fails_costs_the_snapshots_alone(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_memory(*_: Any, **__: Any) -> Any:
        raise MemoryError("no more")

    training = Training(torch.optim.SGD)
    tuimon.watch(training.model, training.optimizer, snapshot_every=1)
    monkeypatch.setattr(snapshots.Snapshot, "_keep", no_memory)
    for number in range(8):
        training.update(number)
    assert "MemoryError: no more" in monitors._wiring.observer.snapshots.problem()
    kinds = [event.kind for event in feed.events]
    assert kinds.count("snapshots") == 1 and "tap-failed" not in kinds
    assert len(feed.steps) == 8 and feed.steps[-1].grad_norm is not None


def test_a_training_that_is_given_up_is_not_kept_alive(feed: Feed) -> None:
    training = Training(torch.optim.AdamW)
    tuimon.watch(training.model, training.optimizer, snapshot_every=1)
    for number in range(4):
        training.update(number)
    gone = weakref.ref(training.optimizer), weakref.ref(training.model[0].weight)
    del training
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def test_where_gradients_are_measured_now_and_then_the_next_loss_proves_a_state(
    feed: Feed,
) -> None:
    training = Training(torch.optim.SGD, bad=[11])
    policy = Policy(autopsy="off")
    tuimon.watch(training.model, training.optimizer, snapshot_every=5, check_every=5, policy=policy)
    found = monitors._wiring.observer.snapshots
    for number, kept in ((7, 5), (11, 5), (12, 5)):
        while len(training.losses) <= number:
            training.update(len(training.losses))
        assert found.healthy is not None and found.healthy.step == kept, number


def test_a_warm_snapshot_allocates_no_tensor(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    training = Training(torch.optim.AdamW)
    tuimon.watch(training.model, training.optimizer, snapshot_every=1)
    for number in range(4):
        training.update(number)
    made: list[Any] = []
    original = torch.empty_like

    def empty_like(*args: Any, **kwargs: Any) -> Any:
        made.append(args)
        return original(*args, **kwargs)

    monkeypatch.setattr(snapshots.torch, "empty_like", empty_like)
    places = set()
    for number in range(4, 20):
        training.update(number)
        healthy = monitors._wiring.observer.snapshots.healthy
        places.add(tuple(kept.data_ptr() for _, kept in healthy._tensors))
    assert made == [] and len(places) == snapshots.SLOTS
