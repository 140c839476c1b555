"""Gradients that a loss scale alone makes bad, large outputs, and shards: what an autopsy says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.autopsy import Autopsy
from tuimon.train.autopsy import scene
from tuimon.train.autopsy.examine import SKIPS_IN_A_ROW
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
    ("model", "scale", "at_scale_1"),
    [(Steep(factor=1e6), 2.0**125, False), (Steep(rooted=True), 2.0**8, True)],
)
def test_whether_it_is_bad_without_the_scale_too(
    feed: Feed, model: nn.Module, scale: float, at_scale_1: bool
) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=scale)
    other = torch.amp.GradScaler("cpu", init_scale=3.0)
    tuimon.watch(model, optimizer, scaler=other)  # it is known, and not the one that steps
    for step in range(SKIPS_IN_A_ROW):
        assert feed.of(Autopsy) == [], step
        scaler.scale(model(torch.ones(4, 3)).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    (found,) = feed.of(Autopsy)
    assert other.is_enabled()
    assert (found.bad_at_scale_1, found.loss_scale) == (at_scale_1, scale / 2**step)
    assert found.first is not None and found.first.phase == "backward"


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
