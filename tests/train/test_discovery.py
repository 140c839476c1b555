"""Which modules a script's optimizers belong to, found without a word from the script."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_pre_hooks

import __main__
from tuimon.train.launch.discovery import Arrival, Discovery, all_modules, by_variable, roots_of


class Reports:
    """The calls that a `Discovery` made."""

    def __init__(self) -> None:
        self.calls: list[tuple[list[nn.Module], list[Optimizer]]] = []

    def __call__(self, models: list[nn.Module], optimizers: list[Optimizer]) -> None:
        self.calls.append((models, optimizers))


@pytest.fixture
def reports() -> Iterator[Reports]:
    """An armed discovery; torch is as before afterwards."""
    original = Optimizer.__init__
    hooks = dict(_global_optimizer_pre_hooks)
    found = Reports()
    Discovery(found, lambda action: action()).arm()
    yield found
    Optimizer.__init__ = original  # type: ignore[method-assign]
    _global_optimizer_pre_hooks.clear()
    _global_optimizer_pre_hooks.update(hooks)


def sgd(parameters: object) -> torch.optim.SGD:
    return torch.optim.SGD(parameters, lr=0.1)  # type: ignore[arg-type]


def step(model: nn.Module, optimizer: Optimizer) -> None:
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()


def test_the_outermost_callable_modules_are_roots() -> None:
    inner = nn.Linear(2, 2)
    model = nn.Sequential(nn.Sequential(inner), nn.ReLU())
    loose = nn.ModuleList([nn.Linear(2, 2), nn.ModuleDict({"a": nn.Linear(2, 2)})])
    other = nn.Linear(2, 2)
    wanted = [*loose.parameters(), *model.parameters()]
    roots = roots_of([id(parameter) for parameter in wanted], all_modules())
    assert roots == [loose[0], loose[1]["a"], model]
    assert all(root is not other for root in roots)


def test_models_are_known_before_their_first_forward(reports: Reports) -> None:
    generator, critic = nn.Linear(2, 2), nn.Sequential(nn.Linear(2, 1))
    first = sgd(generator.parameters())
    assert reports.calls == [([generator], [first])]
    second = sgd(critic.parameters())
    assert reports.calls[-1] == ([generator, critic], [first, second])
    count = len(reports.calls)
    step(critic, second)
    step(critic, second)
    assert len(reports.calls) == count + 1  # looked at once more, at the first step


def test_a_wrapper_made_later_is_the_root_from_the_first_step_on(reports: Reports) -> None:
    model = nn.Linear(2, 1)
    optimizer = sgd(model.parameters())
    wrapper = nn.Sequential(model)
    step(wrapper, optimizer)
    assert reports.calls[-1] == ([wrapper], [optimizer])


def test_bare_tensors_and_copies(reports: Reports) -> None:
    tensors = [torch.zeros(2, requires_grad=True) for _ in range(40)]
    optimizers = [sgd([tensor]) for tensor in tensors]
    assert reports.calls[-1] == ([], optimizers)
    del optimizers[1:]
    reports.calls.clear()
    gc.collect()
    newest = sgd([tensors[0]])
    assert reports.calls[-1][1] == [optimizers[0], newest]  # dead ones are forgotten
    with pytest.raises(ValueError, match="empty"):
        sgd([])


def test_names_come_from_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    one, two = nn.Linear(1, 1), nn.Linear(1, 1)
    monkeypatch.setattr(__main__, "encoder", one, raising=False)
    assert by_variable([one, two]) == {}
    monkeypatch.setattr(__main__, "decoder", two, raising=False)
    assert by_variable([one, two]) == {"encoder": one, "decoder": two}
    assert by_variable([one]) == {}


def test_torch_already_there() -> None:
    arrived: list[int] = []
    Arrival("torch", lambda: arrived.append(1)).watch()
    assert arrived == [1]
    assert not any(isinstance(finder, Arrival) for finder in sys.meta_path)
