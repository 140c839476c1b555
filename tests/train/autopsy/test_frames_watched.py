"""Values computed without a graph, named by the autopsy of a watched training."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import tuimon
from tests.train.conftest import Feed
from tuimon.model.autopsy import LEAF, OPERATION, Autopsy
from tuimon.train.autopsy import bytecode

torch.set_num_threads(1)

pytestmark = [
    pytest.mark.skipif(not bytecode.is_readable(), reason="bytecode of another version"),
    pytest.mark.filterwarnings("ignore"),
]


def with_advantages() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    x, gains_of_all = torch.randn(9, 4), torch.rand(9)
    for start in range(0, 9, 4):
        part = slice(start, start + 4)
        gains = gains_of_all[part]
        gains = (gains - gains.mean()) / (gains.std() + 1e-8)  # advantages
        loss = -(model(x[part]).squeeze(1) * gains).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def with_inputs() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    x = torch.randn(3, 8, 4).abs() + 1
    x[2] = 1.0
    for step in range(3):
        inputs = x[step]
        inputs = (inputs - inputs.mean(0)) / inputs.std(0)  # inputs
        loss = model(inputs).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("loop", "mark", "op", "engines"),
    [(with_advantages, "advantages", "aten::std", "MF"), (with_inputs, "inputs", "aten::div", "F")],
)
def test_an_autopsy(feed: Feed, loop: Callable[[], None], mark: str, op: str, engines: str) -> None:
    loop()
    told = [each for each in feed.of(Autopsy) if each.trigger == "non-finite-loss"]
    assert [each.verdict for each in told] == [OPERATION]
    first = told[0].first
    assert first is not None
    assert first.op == op
    assert first.source.endswith(f"# {mark}")
    assert (first.module, first.in_model) == ("", False)
    assert set(engines) <= set(told[0].engine)
    assert told[0].path[0].op == op
    assert not told[0].leaves


def test_light_autopsies_follow_nothing(feed: Feed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUIMON_AUTOPSY", "light")
    with_advantages()
    assert [each.verdict for each in feed.of(Autopsy)] == [LEAF]
