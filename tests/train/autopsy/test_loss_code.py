"""What is said of faults in loss code: operation, line and module, by the graph alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from torch import nn

from tests.train.autopsy.loss_faults import FORWARD, Fault
from tests.train.autopsy.loss_faults_backward import BACKWARD, HEALTHY
from tuimon.model import autopsy
from tuimon.train.autopsy.graph import Found, walk
from tuimon.train.autopsy.linemap import LineMap
from tuimon.train.autopsy.lossnodes import LossNodes
from tuimon.train.autopsy.names import Named

torch.set_num_threads(1)


class Loop:
    """A training loop with the three devices where a monitor would call them."""

    def __init__(self, fault: Fault, model: nn.Module | None = None) -> None:
        self.fault = fault
        self.model = fault.model() if model is None else model
        self.lines = LineMap(lambda: [("", self.model)])
        self.nodes = LossNodes(self.lines)
        self.model.register_forward_pre_hook(lambda *_: self.lines.before_forward())
        self.losses: list[float] = []

    def run(self, batches: Iterable[tuple[torch.Tensor, ...]]) -> Found | None:
        found = None
        for batch in batches:
            self.model.zero_grad()
            loss = self.fault.loss(self.model, *batch)
            self.losses.append(loss.item())
            found = self.step(loss, batch)
        return found

    def step(self, loss: torch.Tensor, batch: tuple[torch.Tensor, ...]) -> Found | None:
        found = None
        if not torch.isfinite(loss):
            found = walk([loss], lines=self.lines, name_of=self.name_of, batch=_named(batch))
        self.nodes.before_backward([loss], self.lines.before_backward([loss]))
        assert not torch.is_anomaly_enabled()
        loss.backward()
        grads = [param.grad for param in self.model.parameters() if param.grad is not None]
        if found is None and not all(bool(grad.isfinite().all()) for grad in grads):
            found = self.nodes.verdict()
            assert found is not None, "nothing heard"
        self.nodes.drop()
        return found

    def name_of(self, tensor: torch.Tensor) -> Named | None:
        for name, param in self.model.named_parameters():
            if param.data_ptr() == tensor.data_ptr():
                return Named("parameter", name, param)
        return None


def _named(batch: tuple[torch.Tensor, ...]) -> list[Named]:
    return [Named("batch", f"batch[{at}]", each) for at, each in enumerate(batch)]


def _is_right(fault: Fault, found: Found | None) -> None:
    assert found is not None, "healthy"
    assert found.first is not None
    said = found.first
    assert (said.file, said.line) == (fault.file, fault.line), said
    assert (said.module, said.in_model, found.in_loss_code) == ("", False, True)
    assert not found.by_elimination
    if fault.leaf:
        assert found.verdict == autopsy.LEAF
        assert found.leaves[0].kind == fault.leaf
    else:
        assert (found.verdict, said.op) == (autopsy.OPERATION, fault.op)
    assert said.phase == (autopsy.BACKWARD if fault.backward else autopsy.FORWARD)
    assert fault.node in said.node
    if fault.constants:
        assert set(fault.constants) <= set(found.constants)


@pytest.mark.parametrize("fault", FORWARD, ids=lambda fault: fault.name)
def test_forward(fault: Fault) -> None:
    loop = Loop(fault)
    found = loop.run([fault.good, fault.good, fault.bad])
    assert torch.tensor(loop.losses[:2]).isfinite().all()
    _is_right(fault, found)
    assert found is not None and found.path[0].op == found.first.op  # type: ignore[union-attr]


@pytest.mark.parametrize("fault", BACKWARD, ids=lambda fault: fault.name)
def test_backward(fault: Fault) -> None:
    loop = Loop(fault)
    found = loop.run([fault.good, fault.good, fault.bad])
    assert torch.tensor(loop.losses).isfinite().all()
    _is_right(fault, found)


@pytest.mark.parametrize("fault", HEALTHY, ids=lambda fault: fault.name)
def test_healthy(fault: Fault) -> None:
    loop = Loop(fault)
    assert loop.run([fault.good, fault.good, fault.bad, fault.bad]) is None
    assert torch.tensor(loop.losses).isfinite().all()
