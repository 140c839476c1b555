"""An operation that differs from itself is at most consistent with a bad kernel or device."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn

import tuimon
from tests.train.conftest import Feed
from tests.train.trials.patients import PATIENCE
from tuimon.diagnose.engine import Engine
from tuimon.model.trials import CONFIRMED, DIFFERS, TrialRecord

LIBRARY = "tuimon_repeating"
MARK = 7.0  # in a batch on which a kernel fails
own = itertools.cycle((True, False))  # a source that no replay puts back


@pytest.fixture(scope="module", autouse=True)
def kernels() -> Iterator[None]:
    """Kernels of a library of the script's: one flaky, one wrong in float32, one sound."""
    library = torch.library.Library(LIBRARY, "DEF")
    for name in ("flaky", "wrong", "root", "power"):
        library.define(f"{name}(Tensor x) -> Tensor")

    library.define("scratch(Tensor x) -> (Tensor, Tensor)")

    def scratch(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        left = float("nan") if chance() else 0.0  # memory beside its result that nobody has written
        return torch.log(MARK - x), torch.full_like(x, left)

    def flaky(x: torch.Tensor) -> torch.Tensor:
        bad = bool((x == MARK).any()) and chance()
        return x * torch.tensor(float("nan")) if bad else x * 2

    def wrong(x: torch.Tensor) -> torch.Tensor:
        bad = x.dtype == torch.float32 and bool((x == MARK).any())
        return x * torch.tensor(float("nan")) if bad else x * 2

    library.impl("scratch", scratch, "CPU")
    library.impl("flaky", flaky, "CPU")
    library.impl("wrong", wrong, "CPU")
    library.impl("root", lambda x: torch.log(MARK - x), "CPU")
    library.impl("power", lambda x: (x.pow(8) + 1).pow(1 / 8), "CPU")
    yield
    library._destroy()


def chance() -> bool:
    """Every other time."""
    return next(own)


class Model(nn.Module):
    def __init__(self, op: str) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.op = op

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size = torch.where(x == MARK, 1e6, 1.0) if self.op == "power" else 1.0
        fixed = getattr(getattr(torch.ops, LIBRARY), self.op)(x * size)
        return self.linear(fixed[0] if self.op == "scratch" else fixed)


class Flaky(torch.autograd.Function):
    """A backward that is not finite every other time, on some batches."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / 0.0 if bool((x > MARK - 1).any()) and chance() else grad * 2


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.linear.weight.data.mul_(1e-2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Flaky.apply(self.linear(x) * 1e-2 + x)


def told(feed: Feed, model: nn.Module) -> tuple[dict[str, str], list[tuple[str, str]]]:
    while chance():  # so that the next one is bad
        pass
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    tuimon.watch(model, optimizer, policy=PATIENCE)
    for step in range(3):
        x = torch.rand(8, 4)
        if step == 2:
            x[3, 1] = MARK
        loss = model(x).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    engine = Engine()
    for record in feed.read():
        engine.see(record)
    engine.close()
    trials = {t.cause: t.result for t in feed.of(TrialRecord)}
    return trials, [(f.cause, f.status) for f in engine.findings]


def test_a_kernel_that_is_flaky(feed: Feed) -> None:
    trials, findings = told(feed, Model("flaky"))
    assert trials == {"backend-kernel": DIFFERS, "hardware-fault": DIFFERS}
    assert ("backend-kernel", "consistent") in findings


def test_a_kernel_that_is_wrong_in_one_format(feed: Feed) -> None:
    trials, findings = told(feed, Model("wrong"))
    assert trials == {"backend-kernel": DIFFERS}
    assert findings[0] == ("backend-kernel", "consistent")


@pytest.mark.parametrize("op", ["root", "power", "scratch"])
def test_an_operation_that_is_what_it_is(feed: Feed, op: str) -> None:
    """A logarithm of 0 is that in every format; what has no room in one is no fault of it."""
    trials, findings = told(feed, Model(op))
    assert DIFFERS not in trials.values()
    assert not {"backend-kernel", "hardware-fault"} & {cause for cause, _ in findings}


def test_a_backward_of_the_script_that_is_flaky(feed: Feed) -> None:
    trials, findings = told(feed, Custom())
    assert DIFFERS in trials.values()
    assert CONFIRMED not in trials.values()
    assert ("backend-kernel", "consistent") in findings
