"""Gradients that a loss scale alone makes bad, large outputs, and shards: what an autopsy says."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.amp import AmpSkip
from tuimon.model.autopsy import Autopsy
from tuimon.train.autopsy import examine, scene
from tuimon.train.autopsy.doubting import FITTED, MAX_LOOKS, is_its_own
from tuimon.train.autopsy.examine import NON_FINITE_GRADIENT, SKIPS_IN_A_ROW
from tuimon.train.autopsy.reruns import SEEDED


class Steep(nn.Module):
    """Large gradients, or at the root of an exact 0 infinite ones."""

    def __init__(self, *, factor: float = 1.0, rooted: bool = False) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 1)
        self.factor = factor
        self.rooted = rooted

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x).sigmoid()
        if self.rooted:
            return (y * 0).sqrt() + y
        return y + (y - y.detach()) * self.factor


@pytest.fixture(autouse=True)
def kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards are kept, however short steps are."""
    monkeypatch.setattr(scene, "SHORT_STEP_S", 0.0)


@pytest.mark.parametrize(
    ("model", "scale", "at_scale_1", "at"),
    # A NaN without any infinity is no overflow, and is looked at when it comes.
    [(Steep(factor=1e6), 2.0**125, False, SKIPS_IN_A_ROW), (Steep(rooted=True), 2.0**8, True, 1)],
)
def test_whether_it_is_bad_without_the_scale_too(
    feed: Feed, model: nn.Module, scale: float, at_scale_1: bool, at: int
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    other = torch.amp.GradScaler("cpu", init_scale=3.0)
    tuimon.watch(model, optimizer, scaler=other)  # it is known, and not the one that steps
    for step in range(at):
        assert feed.of(Autopsy) == [], step
        scaler.scale(model(torch.ones(4, 3)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    (found,) = feed.of(Autopsy)
    assert other.is_enabled()
    assert (found.bad_at_scale_1, found.loss_scale) == (at_scale_1, scale / 2**step)
    assert found.first is not None and found.first.phase == "backward"


class Normed(nn.Module):
    """Divides each row by its length, which is 0 for padding."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        length: torch.Tensor = torch.rsqrt((y * y).mean(-1, keepdim=True))
        return length.mul(y)


def _selected(output: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    return output[is_kept].mean()


def _ignoring(output: torch.Tensor, is_kept: torch.Tensor) -> torch.Tensor:
    """What comes back from it holds NaN where an output does that it ignores."""
    return nn.functional.cross_entropy(output, torch.where(is_kept, 0, -100))


def _train(
    model: nn.Module,
    scaler: torch.amp.GradScaler,
    batches: list[torch.Tensor],
    lose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = _selected,
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    tuimon.watch(model, optimizer)
    for batch in batches:
        loss = lose(model(batch), batch.abs().sum(-1) > 0)  # padding is no part of it
        assert loss.isfinite()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()


@pytest.mark.parametrize(("lose", "at_scale_1"), [(_selected, True), (_ignoring, None)])
def test_an_update_left_out_for_a_forward_that_was_not_finite_is_examined_at_once(
    feed: Feed,
    lose: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
    at_scale_1: bool | None,
) -> None:
    torch.manual_seed(0)
    batches = [torch.randn(4, 3) for _ in range(FITTED + 4)]
    batches[FITTED + 1][2] = batches[FITTED + 3][1] = 0.0
    _train(Normed(), torch.amp.GradScaler("cpu", init_scale=4.0), batches, lose)
    (found,) = feed.of(Autopsy)  # the same place the second time
    assert (found.step, found.trigger) == (FITTED + 1, NON_FINITE_GRADIENT)
    assert found.first is not None
    assert (found.first.op, found.first.phase) == ("aten::rsqrt", "forward")
    assert found.bad_at_scale_1 is at_scale_1


def test_an_update_left_out_for_its_scale_alone_is_none_of_ours(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked: list[bool] = []

    def judge(fields: Mapping[str, Any]) -> bool:
        looked.append(is_its_own(fields))
        return looked[-1]

    monkeypatch.setattr(examine, "is_its_own", judge)
    model = nn.Linear(3, 1)
    few, large, odd = (size * torch.ones(4, 3) for size in (1.0, 64.0, 1e4))
    # It grows beyond what fits: that is how the scaler finds it.
    growing = torch.amp.GradScaler("cpu", init_scale=2.0**120, growth_interval=3)
    _train(model, growing, [large] * (FITTED + 6))
    assert feed.of(AmpSkip) and not looked
    # Batches with a larger gradient than any before: looked at, and cleared.
    batches = [*[few] * FITTED, *[odd, few] * (MAX_LOOKS + 1)]
    _train(model, torch.amp.GradScaler("cpu", init_scale=2.0**120), batches)
    assert looked == [False] * MAX_LOOKS
    assert not feed.of(Autopsy)


def test_without_the_gradient_of_a_large_output_ones_stand_in_for_it(
    feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scene, "MAX_OUTPUT_BYTES", 15)  # it has 16
    model = Steep(rooted=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    model(torch.ones(4, 3)).sum().backward()
    optimizer.step()
    (found,) = feed.of(Autopsy)
    assert SEEDED in found.notes
    assert found.first is not None and found.first.op == "aten::div"


def test_shards_are_not_run_again_and_it_is_said(feed: Feed, tmp_path: Path) -> None:
    from torch.distributed.fsdp import fully_shard

    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        model = Steep(rooted=True)
        fully_shard(model)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        tuimon.watch(model, optimizer)
        model(torch.ones(4, 3)).sum().backward()
        optimizer.step()
        (found,) = feed.of(Autopsy)
        assert any("was not run again" in note and "FSDP" in note for note in found.notes)
    finally:
        dist.destroy_process_group()
