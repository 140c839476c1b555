"""Small models with one fault each, and what an examination of their step has to say.

The guilty line of a fault bears the mark `here: NAME` in the source of the test.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tuimon.model.autopsy import BACKWARD, FORWARD, LEAF, OPERATION
from tuimon.train.autopsy.examination import Examination
from tuimon.train.autopsy.names import flat_tensors
from tuimon.train.autopsy.rerun import read_autocast, rerun_closure, rerun_model
from tuimon.train.autopsy.tracer import Limits

WIDTH = 6
ROWS = 4

Body = Callable[[torch.Tensor], torch.Tensor]


class Part(nn.Module):
    """A submodule that runs a function."""

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)


class Net(nn.Module):
    """Layer, faulty part, layer, under names that may be chosen."""

    def __init__(self, part: nn.Module, names: tuple[str, str, str] = ("pre", "part", "post")):
        super().__init__()
        self.names = names
        for name, module in zip(
            names, (nn.Linear(WIDTH, WIDTH), part, nn.Linear(WIDTH, 2)), strict=True
        ):
            self.add_module(name, module)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for name in self.names:
            x = getattr(self, name)(x)
        return x


@dataclass(frozen=True)
class Fault:
    """One fault.

    Attributes:
        build: makes the faulty part anew.
        ops: names that an expert accepts, aten name or autograd node.
        phase: where it happens.
        module: path below the faulty part; "" is the part itself.
        constants: ends of what has to be named as the source of an infinity that was meant.
    """

    name: str
    build: Callable[[], nn.Module | Body]
    ops: tuple[str, ...]
    phase: str = FORWARD
    module: str = ""
    constants: tuple[str, ...] = ()

    def part(self) -> nn.Module:
        built = self.build()
        return built if isinstance(built, nn.Module) else Part(built)


class Table(dict[str, Fault]):
    """Faults by name, filled by decorating functions that build them."""

    def fault(
        self, phase: str, *ops: str, module: str = "", constants: tuple[str, ...] = ()
    ) -> Callable[[Any], Any]:
        def learn(build: Any) -> Any:
            name = build.__name__
            self[name] = Fault(name, build, ops, phase, module, constants)
            return build

        return learn


def batch(rows: int = ROWS) -> torch.Tensor:
    return torch.randn(rows, WIDTH)


def square(output: Any) -> torch.Tensor:
    """A loss that hides nothing."""
    terms = [t.float().pow(2).mean() for t in flat_tensors(output) if t.dtype.is_floating_point]
    return torch.stack(terms).sum()


@dataclass
class Step:
    """One real step: what a producer knows of it."""

    loss: torch.Tensor
    random: torch.Tensor
    autocast: Any
    grads: list[torch.Tensor | None]
    bad: set[str]

    @property
    def loss_bad(self) -> bool:
        return not bool(torch.isfinite(self.loss))


def take(
    model: nn.Module,
    *args: Any,
    loss_of: Callable[[Any], torch.Tensor] = square,
    within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    **kwargs: Any,
) -> Step:
    """Forward and backward as a training does them, with the gradient of the output kept."""
    random, kept = torch.get_rng_state(), {}
    with within():
        autocast = read_autocast()
        output = model(*args, **kwargs)
        tensors = flat_tensors(output)
        for index, tensor in enumerate(tensors):
            if tensor.requires_grad:
                tensor.register_hook(lambda grad, index=index: kept.__setitem__(index, grad))
        loss = loss_of(output)
    loss.backward()
    grads = [kept.get(index) for index in range(len(tensors))]
    bad = {
        name
        for name, param in model.named_parameters()
        if param.grad is not None and not torch.isfinite(param.grad).all()
    }
    return Step(loss.detach(), random, autocast, grads, bad)


def examine_model(
    model: nn.Module, *args: Any, loss_of: Any = square, **kwargs: Any
) -> Examination:
    """Engine M on a real step."""
    within = kwargs.pop("within", nullcontext)
    limits = kwargs.pop("limits", Limits())
    step = take(model, *args, loss_of=loss_of, within=within, **kwargs)
    torch.set_rng_state(step.random)
    return rerun_model(
        model,
        args,
        kwargs,
        output_grads=step.grads,
        autocast=step.autocast,
        loss_bad=step.loss_bad,
        limits=limits,
    )


def examine_loop(model: nn.Module, *args: Any, loss_of: Any = square, **kwargs: Any) -> Examination:
    """Engine R on a real step."""
    within = kwargs.pop("within", nullcontext)
    scale = kwargs.pop("loss_scale", None)
    random = torch.get_rng_state()
    with within():
        autocast = read_autocast()
    torch.set_rng_state(random)
    return rerun_closure(
        lambda *batch: loss_of(model(*batch)),
        args,
        roots=[("", model)],
        autocast=autocast,
        loss_scale=scale,
    )


def blamed_line(found: Examination) -> str:
    first = found.first
    assert first is not None
    return linecache.getline(first.file, first.line) if first.file and first.line else ""


def check(found: Examination, fault: Fault, path: str = "part") -> None:
    """The verdict is the one that an expert would give."""
    told = f"{fault.name}: {found.verdict} {found.first} {found.leaves} {found.notes}"
    assert found.verdict == OPERATION, told
    first = found.first
    assert first is not None
    base = first.op.rpartition("::")[2]
    assert {first.op, base, first.node} & {*fault.ops}, told
    assert first.phase == fault.phase, told
    assert first.module == ".".join(filter(None, (path, fault.module))), told
    assert f"# here: {fault.name}\n" in blamed_line(found), told
    named = [one for want in fault.constants for one in found.constants if one.endswith(want)]
    assert len(named) == len(fault.constants), f"{told} {found.constants}"
    assert found.path[0] == first and len(found.path) <= 32
    if fault.phase == BACKWARD:
        assert first.node


def check_leaf(found: Examination, kind: str, name: str, samples: list[int] | None = None) -> None:
    """The verdict names a tensor that was bad from the beginning."""
    assert found.verdict == LEAF, (found.verdict, found.first, found.notes)
    leaf = found.leaves[0]
    assert (leaf.kind, leaf.tensor.name) == (kind, name)
    if samples is not None:
        assert leaf.samples == samples
