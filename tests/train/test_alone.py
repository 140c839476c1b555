"""What one rank does by itself, while the others wait for it in a collective."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.train.agree.link import SHARE_ALONE, alone_s
from tuimon.train.autopsy.reruns import Reruns
from tuimon.train.trials.trying import Trials

GROUP_S, SMALL_S = 40.0, 8.0


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Callable[[], None]]:
    """A process group; from a call on, one of two ranks."""
    store = dist.FileStore(str(tmp_path / "store"), 1)
    dist.init_process_group(
        "gloo", store=store, rank=0, world_size=1, timeout=timedelta(seconds=GROUP_S)
    )
    try:
        with pytest.MonkeyPatch.context() as patch:
            yield lambda: patch.setattr(dist, "get_world_size", lambda *_: 2)
    finally:
        dist.destroy_process_group()


def test_the_shortest_time_out_of_all_groups_counts(group: Callable[[], None]) -> None:
    assert alone_s(30.0) == 30.0
    group()
    assert alone_s(30.0) == SHARE_ALONE * GROUP_S and alone_s(1.0) == 1.0
    dist.new_group([0], timeout=timedelta(seconds=SMALL_S))
    assert alone_s(30.0) == SHARE_ALONE * SMALL_S


def test_an_autopsy_and_its_trials_end_before_the_others_give_up(
    group: Callable[[], None], feed: Feed, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[float] = []
    forwards = Reruns.forwards

    def rerun(self: Reruns, limit_s: float, fields: dict[str, Any]) -> Any:
        given.append(limit_s)
        return forwards(self, limit_s, fields)

    monkeypatch.setattr(Reruns, "forwards", rerun)
    monkeypatch.setattr(Trials, "test", lambda *args: given.append(args[-1]))
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    for value in (1.0, float("nan")):
        model(torch.full((3, 2), value)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        group()
    examined_s, tried_s = given
    assert 0 < examined_s <= tried_s == SHARE_ALONE * GROUP_S
