"""Models that are replicated or sharded over ranks, here over one: no collective is ours."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.distributed.tensor import DTensor
from torch.utils._python_dispatch import TorchDispatchMode

from tests.train.conftest import Feed
from tests.train.test_loops import batches, mse
from tests.train.twins import Diary, twins
from tuimon.model import commands
from tuimon.train.agree.layout import Layout
from tuimon.train.stats import measurable
from tuimon.train.taps.ending import EndingTap
from tuimon.train.taps.patches import Patches


class Collectives(TorchDispatchMode):
    """Notes every collective that is issued while it is active."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if DTensor in types:  # what it does inside is what counts
            return NotImplemented
        if "c10d" in func.name():
            self.seen.append(func.name())
        return func(*args, **(kwargs or {}))


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def small() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 3), nn.Tanh(), nn.Linear(3, 1))


def test_replicated_with_accumulation(group: None, feed: Feed) -> None:
    """The names are those of the script's own module, the boundary is the update."""

    def loop(diary: Diary) -> list[Any]:
        model = small()
        replica = nn.parallel.DistributedDataParallel(model)
        optimizer = torch.optim.AdamW(replica.parameters(), lr=0.01)
        diary(replica, optimizer)
        for step, (x, y) in enumerate(batches()):
            if step % 2 == 0:
                with replica.no_sync():
                    mse(replica(x), y).backward()
                continue
            loss = mse(replica(x), y)
            loss.backward()
            diary.note(loss, model.parameters())
            nn.utils.clip_grad_norm_(replica.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
        return [model, optimizer]

    found = twins(loop, feed)
    assert feed.table.names == [name for name, _ in small().named_parameters()]
    assert {step.backward_calls for step in found.steps} == {2}


@pytest.mark.hazard(12, 14, 51)
@pytest.mark.parametrize("clip", [False, True])
def test_sharded(clip: bool, group: None, feed: Feed) -> None:
    """Sharding in the middle of a training replaces every parameter by a distributed tensor."""
    from torch.distributed.fsdp import fully_shard

    def loop(diary: Diary) -> list[Any]:
        model = small()
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        diary(model, optimizer)
        issued = []
        for step, (x, y) in enumerate(batches()):
            if step == 3:
                for layer in (model[0], model[2], model):
                    fully_shard(layer)
                optimizer.param_groups[0]["params"] = list(model.parameters())
                optimizer.state.clear()
            optimizer.zero_grad()
            loss = mse(model(x), y)
            loss.backward()
            diary.losses[0].append(float(loss.detach()))
            grads = [measurable(p.grad) for p in model.parameters() if p.grad is not None]
            total = sum(float(g.double().pow(2).sum()) for g in grads if g is not None)
            diary.norms[0].append(total**0.5)
            with Collectives() as collectives:
                if clip:
                    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
                optimizer.step()
            issued.append(sorted(collectives.seen))
            assert not any(p._post_accumulate_grad_hooks for p in model.parameters())
        kept = [p.to_local().detach().clone() for p in model.parameters()]
        return [kept, issued]

    found = twins(loop, feed)
    assert feed.table.names == [name for name, _ in small().named_parameters()]
    assert all(flag == 0 for flag in found.steps[-1].flags)
    assert all((step.max_norm is not None) is clip for step in found.steps)


EVERY = [
    commands.Pause(),
    commands.Resume(),
    commands.StepOnce(2),
    commands.SetClip("on", 1.0),
    commands.SetMaxNorm(1.0),
    commands.Dump([""], "/tmp"),
    commands.Stop(),
    commands.ArmHold(),
    commands.DisarmHold(),
    commands.RunAutopsy(),
    commands.SkipUpdate(),
    commands.ScaleLr(0.5),
    commands.SetLr(0.1),
    commands.ReleaseLr(),
    commands.RollBack(),
    commands.SaveCheckpoint("/tmp"),
    commands.SetBreakpoint("step > 1"),
    commands.ClearBreakpoint(),
    commands.Inspect("0"),
    commands.Undo(),
]


def refused(layout: Layout) -> dict[str, str]:
    """By name of the command: why ranks that lie so cannot carry it out."""
    told = {type(each).__name__: layout.objection(each) for each in EVERY}
    return {name: reason for name, reason in told.items() if reason}


def watched_by(layout: Layout) -> Any:
    """As much of an observer as the tap of endings asks for."""
    boundary = SimpleNamespace(guard=lambda _, action: action)
    return SimpleNamespace(boundary=boundary, gate=SimpleNamespace(together=layout))


def test_what_a_layout_rules_out(group: None) -> None:
    """All commands are gone through: what is refused says why, and nothing else is."""
    kinds = {type(each) for each in EVERY}
    assert kinds | {commands.RenewHold} == set(get_args(commands.AnyCommand))
    replica = nn.parallel.DistributedDataParallel(small())
    layout = Layout([replica])
    assert layout.is_replicated and refused(layout) == {}
    with replica.no_sync():  # the update is what counts: batches before it change nothing
        assert refused(layout) == {}
    patches = Patches()
    EndingTap(watched_by(layout)).install(patches)
    with Join([replica]):
        assert layout.uneven
        assert set(refused(layout)) == {kind.__name__ for kind in kinds}
        assert all("uneven inputs" in reason for reason in refused(layout).values())
    assert not layout.uneven and refused(layout) == {}
    with Join([replica]):
        assert layout.uneven
    patches.remove_all()
    normalised = nn.Sequential(nn.Linear(2, 2), nn.SyncBatchNorm(2))
    assert set(refused(Layout([normalised]))) == {"RunAutopsy"}


def test_what_sharding_rules_out(group: None) -> None:
    from torch.distributed.fsdp import fully_shard

    model = small()
    for layer in (model[0], model[2], model):
        fully_shard(layer)
    layout = Layout([model])
    assert layout.is_sharded and not layout.is_replicated
    assert set(refused(layout)) == {"RunAutopsy", "SaveCheckpoint", "RollBack"}
