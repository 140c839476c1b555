"""Learning lines changes no number, leaves nothing switched on, and survives what loops do."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.fx.traceback as stacks
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.train.autopsy import loss_faults
from tests.train.autopsy.loss_faults import FORWARD, Fault, X, Y, net
from tests.train.autopsy.loss_faults_backward import BACKWARD
from tests.train.autopsy.test_loss_code import Loop
from tuimon.model.autopsy import BACKWARD as BACKWARD_PHASE
from tuimon.model.autopsy import FORWARD as FORWARD_PHASE
from tuimon.train.autopsy import linemap
from tuimon.train.autopsy.graph import walk
from tuimon.train.autopsy.linemap import LineMap
from tuimon.train.autopsy.lossnodes import LossNodes

torch.set_num_threads(1)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lift, self.norm, self.drop = nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Dropout(0.3)
        self.head = nn.Linear(16, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = checkpoint(lambda h: torch.tanh(self.norm(h)), self.lift(x), use_reentrant=False)
        return self.head(self.drop(hidden))


def train(watched: bool, loss_of: Callable[..., torch.Tensor]) -> tuple[list[float], list[bytes]]:
    torch.manual_seed(3)
    model = Block()
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    lines = LineMap(lambda: [("", model)])
    listening = LossNodes(lines)
    if watched:
        model.register_forward_pre_hook(lambda *_: lines.before_forward())
    losses = []
    for _ in range(8):
        optimizer.zero_grad()
        x = torch.randn(12, 4)
        loss = loss_of(model(x), x)
        if watched:
            walk([loss], lines=lines)
            listening.before_backward([loss], lines.before_backward([loss]))
        loss.backward()
        listening.verdict()
        listening.drop()
        optimizer.step()
        losses.append(loss.item())
    state = [value.numpy().tobytes() for value in model.state_dict().values()]
    return losses, [*state, torch.get_rng_state().numpy().tobytes()]


def _risky(out: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    gap = (out - x[:, :3]).pow(2).sum(1).sqrt()
    return torch.where(gap > 0.5, gap.log(), gap / gap.std()).mean() + out.exp().mean()


def test_not_one_bit_differs() -> None:
    assert train(True, _risky) == train(False, _risky)


def test_a_walk_recomputes_nothing_and_unpacks_nothing() -> None:
    calls = []

    def segment(h: torch.Tensor) -> torch.Tensor:
        calls.append(1)
        return torch.log(h * 0)

    weight = torch.ones(4, requires_grad=True)
    loss = checkpoint(segment, weight * 2, use_reentrant=False).sum()
    unpacked = []
    pack = torch.autograd.graph.saved_tensors_hooks(lambda t: t, lambda t: unpacked.append(1) or t)
    with pack:
        loss = loss + torch.log(weight * 0).sum()
    found = walk([loss])
    assert len(calls) == 1 and not unpacked
    assert any("packed away" in note for note in found.notes)


def test_an_exception_in_forward_puts_the_flag_back() -> None:
    class Raises(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.inner(x)
            assert torch.is_anomaly_enabled()
            raise ValueError("the script's own")

    model = Raises()
    lines = LineMap(lambda: [("", model)])
    model.register_forward_pre_hook(lambda *_: lines.before_forward())
    model.register_forward_hook(lambda *_: lines.after_forward(), always_call=True)
    before = stacks.format_stack
    with pytest.raises(ValueError, match="own"):
        model(X)
    assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
    assert stacks.format_stack is before


def test_the_flag_of_the_script_stays_its_own() -> None:
    model = net()
    lines = LineMap(lambda: [("", model)])
    with torch.autograd.set_detect_anomaly(True, check_nan=True):
        lines.before_forward()
        loss = model(X).sum()
        learned = lines.before_backward([loss])
        assert torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()
        loss.backward()
    assert learned is not None
    assert any(site is not None and site.place is not None for site in learned.sites)
    assert not torch.is_anomaly_enabled()


def test_a_flag_set_within_our_window_ends_off() -> None:
    model = net()
    lines = LineMap(lambda: [("", model)])
    lines.before_forward()
    out = model(X)
    with torch.autograd.set_detect_anomaly(True):
        loss = out.sum()
        lines.before_backward([loss])
        assert torch.is_anomaly_enabled()
        loss.backward()
    lines.before_forward()
    lines.release()
    assert not torch.is_anomaly_enabled() and torch.is_anomaly_check_nan_enabled()


def test_a_window_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linemap, "MAX_STACKS", 50)
    model = net()
    lines = LineMap(lambda: [("", model)])
    lines.before_forward()
    loss = model(X).sum()
    for _ in range(100):
        loss = loss * 1.0
    assert not torch.is_anomaly_enabled()
    assert lines.before_backward([loss]) is not None


def test_learning_becomes_rare() -> None:
    model = net()
    now = [0.0]

    def clock() -> float:
        now[0] += 1e-6
        return now[0]

    lines = LineMap(lambda: [("", model)], clock)
    learned = []
    for step in range(200):
        now[0] += 0.1
        lines.before_forward()
        loss = model(X).sum()
        if lines.before_backward([loss]) is not None:
            learned.append(step)
    assert learned[:4] == [0, 1, 2, 3]
    assert 5 < len(learned) < 16


def test_graphs_are_not_kept_alive() -> None:
    loop = Loop(BACKWARD[0])
    loop.run([BACKWARD[0].good])
    saved = X.clone()
    loss = BACKWARD[0].loss(loop.model, saved, Y)
    loop.nodes.before_backward([loss], loop.lines.before_backward([loss]))
    kept = weakref.ref(saved)
    gc.disable()
    try:
        del loss, saved  # and no backward: hooks hold no graph
        assert kept() is None
    finally:
        gc.enable()


def test_two_losses_of_one_shape_are_told_apart() -> None:
    model = net(1)
    lines = LineMap(lambda: [("", model)])
    model.register_forward_pre_hook(lambda *_: lines.before_forward())
    found = []

    def finish(loss: torch.Tensor) -> None:
        found.append(walk([loss], lines=lines)), lines.before_backward([loss])

    for step in range(5):
        scale = 0.0 if step == 4 else 1.0
        real = torch.log(model(X).abs() * scale).mean()
        finish(real)
        fake = torch.log(model(X).abs() * scale).mean()
        finish(fake)
    said = [each.first.line for each in found[-2:] if each.first is not None]
    assert said == [line_of("real = torch.log"), line_of("fake = torch.log")]
    assert not found[-1].notes


class _OwnRoot(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x.sqrt()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad / ctx.saved_tensors[0].sqrt() / 2  # root of its own


def test_a_derivative_on_the_way_to_the_loss_is_that_of_what_was_differentiated() -> None:
    def pulled(out: torch.Tensor, x: torch.Tensor, kind: str) -> torch.Tensor:
        size = x.square().sum(1)
        if kind == "before":
            size = early
        elif kind == "own":
            size = _OwnRoot.apply(size)
        else:
            size = size.sqrt()  # root of torch
        asked = (out.sum(1) * size).sum()
        (slope,) = torch.autograd.grad(asked, x, create_graph=True)  # slope
        return slope.square().mean()

    for kind, line, node in (
        ("torch", "# root of torch", "SqrtBackward0"),
        ("own", "# root of its own", ""),  # a line of the script, as any other
        ("before", "# slope", "SqrtBackward0"),  # made before the forward that was learned
    ):
        model = net(1)
        lines = LineMap(lambda model=model: [("", model)])  # type: ignore[misc]
        model.register_forward_pre_hook(lambda *_, lines=lines: lines.before_forward())
        for step in range(4):
            x = X.clone()
            x[2] *= step < 3
            x.requires_grad_()
            early = x.square().sum(1).sqrt()
            loss = pulled(model(x), x, kind)
            if step < 3:
                lines.before_backward([loss])
        first = walk([loss], lines=lines).first
        lines.release()
        assert first is not None and first.op == "aten::div"
        assert (first.line, first.node) == (line_of(line), node)
        assert first.phase == (BACKWARD_PHASE if node else FORWARD_PHASE)


def test_a_branch_that_was_never_seen_is_not_guessed() -> None:
    model = net()
    lines = LineMap(lambda: [("", model)])
    model.register_forward_pre_hook(lambda *_: lines.before_forward())
    for step in range(4):
        out = model(X)
        loss = out.pow(2).mean() if step < 3 else (out * 0).log().sum()
        if step < 3:
            lines.before_backward([loss])
    found = walk([loss], lines=lines)
    lines.release()
    assert found.first is not None and found.first.op == "aten::log"
    assert found.first.line in (None, line_of(".log().sum()"))


def line_of(text: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(at for at, line in enumerate(lines, 1) if text in line)


def test_nothing_is_listened_to_without_need() -> None:
    model = net()
    lines = LineMap(lambda: [("", model)])
    nodes = LossNodes(lines)
    model.register_forward_pre_hook(lambda *_: lines.before_forward())
    for _ in range(3):
        loss = F.cross_entropy(model(X), loss_faults.LABELS) + F.mse_loss(model(X), Y)
        nodes.before_backward([loss], lines.before_backward([loss]))
        assert not nodes.roots


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_whole(backend: str) -> None:
    torch._dynamo.reset()
    model = torch.compile(net(), backend=backend, fullgraph=True)
    loss_of = torch.compile(
        lambda out, y: -(y * (out * 0 + y).log()).mean(), backend=backend, fullgraph=True
    )
    lines = LineMap(lambda: [("", model)])
    counted = torch._dynamo.utils.counters
    with torch._dynamo.config.patch(error_on_recompile=True):
        for scale in (1.0, 1.0, 1.0, 0.0):
            lines.before_forward()
            loss = loss_of(model(X), Y * scale)
            found = walk([loss], lines=lines)
            lines.before_backward([loss])
            loss.backward()
    assert not counted["graph_break"]
    assert found.first is not None


def _renamed(fault: Fault) -> nn.Module:
    torch.manual_seed(11)
    return nn.Sequential(
        nn.Sequential(nn.Linear(4, 16), nn.LayerNorm(16)), nn.GELU(), nn.Dropout(0.0),
        nn.Sequential(nn.Linear(16, 3)),
    )  # fmt: skip


SIMPLE = [fault for fault in [*FORWARD, *BACKWARD] if fault.name not in ("two heads",)]


@pytest.mark.parametrize("fault", SIMPLE, ids=lambda fault: fault.name)
def test_another_model_the_same_verdict(fault: Fault) -> None:
    """Other modules, other names, other seed, a DataLoader's worth of good batches before."""
    loop = Loop(fault, _renamed(fault))
    found = loop.run([fault.good] * 6 + [fault.bad])
    assert found is not None and found.first is not None
    assert found.first.line == fault.line
    assert found.verdict == "leaf" if fault.leaf else found.first.op == fault.op
