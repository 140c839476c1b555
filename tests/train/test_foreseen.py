"""How long a training will go on is told where somebody knows it."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tuimon.model.records import Hello
from tuimon.train.session import start_session


class Stubborn:
    """A scheduler whose total cannot be asked for."""

    @property
    def total_steps(self) -> int:
        raise RuntimeError("not yet")


def test_the_total_is_that_of_the_call_or_of_the_scheduler(feed: Feed) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer, scheduler=Stubborn())
    assert feed.of(Hello)[-1].total_steps is None
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=321)
    tuimon.watch(model, optimizer, scheduler=scheduler)
    assert feed.of(Hello)[-1].total_steps == 321
    tuimon.watch(model, optimizer, scheduler=scheduler, total_steps=400)
    told = feed.of(Hello)
    assert told[-1].total_steps == 400 and told[-1].run_id == told[0].run_id
    tuimon.watch(model, optimizer, total_steps=400)
    assert len(feed.of(Hello)) == len(told), "told once"


def test_what_the_command_line_says_wins(feed: Feed) -> None:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    start_session(name="told", total_steps=77)
    tuimon.watch(model, optimizer, total_steps=400)
    assert [hello.total_steps for hello in feed.of(Hello)] == [77]


@pytest.mark.parametrize("total", [0, -1, 2.5, "many"])
def test_a_total_that_is_none_is_refused(total: object) -> None:
    with pytest.raises(ValueError, match="total_steps"):
        tuimon.watch(nn.Linear(2, 1), total_steps=total)  # type: ignore[arg-type]
