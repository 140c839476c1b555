"""The optimizer's own step: the operation that spoils a parameter, without touching a live one."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import torch
from torch import nn

from tuimon.model.autopsy import LEAF, NOT_REPRODUCED, OPERATION, OPTIMIZER, UNKNOWN
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.optimizing import trace_optimizer
from tuimon.train.autopsy.sites import Place
from tuimon.train.autopsy.tracer import Limits

PLACE = Place("train.py", 12, "main")
Make = Callable[[Iterable[torch.Tensor]], torch.optim.Optimizer]


class Normalised(torch.optim.Optimizer):
    """An optimizer of somebody's own, which divides by the gradient's norm."""

    def __init__(self, params: Any) -> None:
        super().__init__(params, {"lr": 0.1})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for param in group["params"]:
                scaled = param.grad / param.grad.norm()  # here: own optimizer
                param.sub_(scaled, alpha=group["lr"])


CASES: dict[str, tuple[Make, float, tuple[str, ...]]] = {
    "Adam without eps": (lambda p: torch.optim.Adam(p, eps=0.0), 0.0, ("aten::addcdiv_",)),
    "AdamW, foreach": (
        lambda p: torch.optim.AdamW(p, eps=0.0, foreach=True),
        0.0,
        ("aten::addcdiv_",),
    ),
    "Adam, fused": (lambda p: torch.optim.Adam(p, eps=0.0, fused=True), 0.0, ("aten::addcdiv_",)),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, eps=0.0), 0.0, ("aten::addcdiv_",)),
    "Adagrad": (lambda p: torch.optim.Adagrad(p, eps=0.0), 0.0, ("aten::addcdiv_",)),
    "SGD with a vast rate": (lambda p: torch.optim.SGD(p, lr=1e38), 1e6, ("aten::add_",)),
    "SGD with momentum": (
        lambda p: torch.optim.SGD(p, lr=1e38, momentum=0.9, nesterov=True),
        1e6,
        ("aten::add_",),
    ),
    "one's own": (Normalised, 0.0, ("aten::div",)),
}


def net(dtype: torch.dtype = torch.float32) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).to(dtype)


def fill(model: nn.Module, value: float) -> None:
    for param in model.parameters():
        param.grad = torch.full_like(param, value)


def trace(model: nn.Module, optimizer: torch.optim.Optimizer, **more: Any) -> Examination:
    names = {id(param): name for name, param in model.named_parameters()}
    return trace_optimizer(optimizer, names=names, called_from=PLACE, **more)


@pytest.mark.parametrize("name", CASES)
def test_the_operation_is_named(name: str) -> None:
    make, grad, ops = CASES[name]
    model = net()
    optimizer = make(model.parameters())
    fill(model, grad)
    values = [param.detach().clone() for param in model.parameters()]
    state = copy.deepcopy(optimizer.state_dict())
    found = trace(model, optimizer)
    assert found.verdict == OPERATION and found.first is not None, found
    first = found.first
    assert (first.op in ops, first.phase, first.module) == (True, OPTIMIZER, "0")
    if name == "one's own":
        assert first.source.endswith("# here: own optimizer")
    else:
        assert (first.file, first.line) == PLACE[:2]
        assert any(note.name == "0.weight" for note in first.inputs)
    assert ("fused" in " ".join(found.notes)) == ("fused" in name)
    assert all(map(torch.equal, values, model.parameters()))
    assert same(state, optimizer.state_dict())


@pytest.mark.parametrize("name", CASES)
def test_a_step_that_has_been_taken_is_understood_and_left(name: str) -> None:
    make, grad, ops = CASES[name]
    model = net()
    optimizer = make(model.parameters())
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # replaces `step` of the live object
    fill(model, grad)
    optimizer.step()
    before = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    objects = [(param, param.grad) for param in model.parameters()]
    found = trace(model, optimizer)
    assert found.first is not None and found.first.op in ops, found
    assert "began with 0" in " ".join(found.notes)
    after = model.state_dict(), optimizer.state_dict()
    assert same(before, after)
    assert all(param.grad is grad for param, grad in objects)


def same(left: Any, right: Any) -> bool:
    """Bit for bit, NaN like NaN."""
    if isinstance(left, torch.Tensor):
        return torch.equal(left.nan_to_num(7.0), right.nan_to_num(7.0))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[k], right[k]) for k in left)
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    return left == right


def test_half_precision_loses_the_eps() -> None:
    model = net(torch.float16)
    optimizer = torch.optim.Adam(model.parameters())
    fill(model, 0.0)
    found = trace(model, optimizer)
    assert found.first is not None and found.first.op == "aten::addcdiv_"
    assert found.first.inputs[2].zeros == 12


def test_a_healthy_step_is_not_accused() -> None:
    for make in (torch.optim.Adam, torch.optim.SGD, torch.optim.Rprop, torch.optim.Adafactor):
        model = net()
        fill(model, 0.3)
        found = trace(model, make(model.parameters(), lr=0.01))
        assert (found.verdict, found.first) == (NOT_REPRODUCED, None), (make, found)


def test_a_bad_gradient_is_a_leaf() -> None:
    model = net()
    fill(model, 1.0)
    assert model[2].bias.grad is not None
    model[2].bias.grad[0] = torch.nan
    found = trace(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert found.verdict == LEAF
    assert [leaf.tensor.name for leaf in found.leaves] == ["gradient of 2.bias"]


def test_a_spoiled_state_is_a_leaf() -> None:
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    fill(model, 1.0)
    optimizer.step()
    optimizer.state[model[0].weight]["exp_avg"][1] = torch.inf
    found = trace(model, optimizer)
    leaf = found.leaves[0]
    assert (leaf.kind, leaf.tensor.name) == ("optimizer-state", "exp_avg of 0.weight")


def test_only_some_parameters_and_their_values_before() -> None:
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e38)
    fill(model, 1e6)
    kept = {id(param): param.detach().clone() for param in model.parameters()}
    optimizer.step()
    found = trace(model, optimizer, before=kept, only=[model[2].weight])
    assert found.bad_outputs == ["2.weight"] and not found.notes
    assert found.first is not None and found.first.module == "2"


def test_a_step_with_a_closure_is_not_taken() -> None:
    model = net()
    fill(model, 1.0)
    found = trace(model, torch.optim.LBFGS(model.parameters()))
    assert found.verdict == UNKNOWN and "closure" in found.notes[0]


def test_what_has_no_copy_is_not_run() -> None:
    model = net()
    fill(model, 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    optimizer.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
    found = trace(model, optimizer)
    assert found.verdict == UNKNOWN and "cannot be copied" in found.notes[0]


def test_it_gives_up_in_time() -> None:
    model = net()
    fill(model, 0.0)
    found = trace(
        model, torch.optim.Adam(model.parameters(), eps=0.0), limits=Limits(deadline_s=0.0)
    )
    assert found.stopped and found.verdict == UNKNOWN
    assert time.monotonic() > 0
