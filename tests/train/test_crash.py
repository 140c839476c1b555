"""An exception that nobody caught: phase, module, operation, line and operands from its frames."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import tuimon
from tests.train.conftest import Feed, wait_for
from tuimon.model.crash import MAX_TENSORS, Crash
from tuimon.model.records import Step
from tuimon.train import monitor as monitors
from tuimon.train.crash import look_at_crash
from tuimon.train.facts.shortage import asked_bytes, is_shortage

SOURCE = Path(__file__).read_text().splitlines()


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(8, 8)
        self.norm = nn.BatchNorm1d(8)
        self.table = nn.Embedding(10, 8)
        self.proj = nn.Parameter(torch.ones(3, 8))

    def forward(self, x: torch.Tensor, how: str = "") -> torch.Tensor:
        if how == "matmul":
            return x @ self.proj  # MATMUL
        if how == "embedding":
            return x + self.table(torch.tensor([3, 12]))  # EMBEDDING
        return self.norm(self.mix(x))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Block(), Block()])
        self.head = nn.Linear(8, 6)

    def forward(self, x: torch.Tensor, how: str = "") -> torch.Tensor:
        for block in self.blocks:
            x = block(x, how if block is self.blocks[1] else "")
        return self.head(x)


class BadBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("no gradient today")  # BACKWARD


class BadData(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == 2:
            raise KeyError("row 2 is broken")  # DATA
        return torch.zeros(3)


@pytest.fixture
def net(feed: Feed) -> Net:
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tuimon.watch(model, optimizer)
    for _ in range(3):
        optimizer.zero_grad()
        model(torch.randn(4, 8)).sum().backward()
        optimizer.step()
    return model


def crash_of(action: Callable[[], Any]) -> Crash:
    assert monitors._wiring is not None
    try:
        action()
    except Exception as error:
        return look_at_crash(error, monitors._wiring.observer)
    raise AssertionError("nothing was raised")


def line_of(mark: str) -> int:
    return next(n for n, line in enumerate(SOURCE, 1) if line.endswith(f"# {mark}"))


def operand(crash: Crash, name: str) -> Any:
    return next(each for each in crash.inputs if each.name == name)


def test_a_label_out_of_range(net: Net) -> None:
    def loss() -> torch.Tensor:
        xb, labels = torch.randn(4, 8), torch.tensor([1, 2, 6, 3])
        return nn.functional.cross_entropy(net(xb), labels)  # LABEL

    crash = crash_of(loss)
    assert (crash.step, crash.kind, crash.phase) == (3, "IndexError", "forward")
    assert crash.op == "aten::cross_entropy_loss"
    assert (crash.module, crash.in_model) == ("", False)
    assert crash.place is not None and crash.place.line == line_of("LABEL")
    assert crash.place.source.startswith("return nn.functional.cross_entropy(")
    assert crash.library.startswith("torch/nn/functional.py:")
    labels = operand(crash, "labels (target)")
    assert (labels.low, labels.high, labels.dtype, labels.shape) == (1, 6, "int64", [4])
    assert operand(crash, "input").shape == [4, 6]


def test_a_shape_that_does_not_fit_inside_a_module(net: Net) -> None:
    crash = crash_of(lambda: net(torch.randn(4, 8), "matmul"))
    assert (crash.kind, crash.phase, crash.op) == ("RuntimeError", "forward", "aten::matmul")
    assert (crash.module, crash.module_type, crash.in_model) == ("blocks.1", "Block", True)
    assert crash.place is not None and crash.place.line == line_of("MATMUL")
    assert [each.module for each in crash.frames[-2:]] == ["", "blocks.1"]
    assert [each.name for each in crash.inputs[:2]] == ["x", "blocks.1.proj"]
    assert crash.inputs[1].shape == [3, 8]


def test_an_index_that_an_embedding_does_not_have(net: Net) -> None:
    crash = crash_of(lambda: net(torch.randn(2, 8), "embedding"))
    assert (crash.module, crash.op) == ("blocks.1.table", "aten::embedding")
    assert crash.place is not None and crash.place.line == line_of("EMBEDDING")
    assert (operand(crash, "input").low, operand(crash, "input").high) == (3, 12)


def test_a_layer_of_torch_that_refuses_its_input(net: Net) -> None:
    with torch.no_grad():  # only the frames tell that this is a forward
        crash = crash_of(lambda: net(torch.randn(1, 8)))
    assert (crash.kind, crash.phase) == ("ValueError", "forward")
    assert (crash.module, crash.module_type) == ("blocks.0.norm", "BatchNorm1d")
    assert crash.op == ""  # a check in Python, no operation
    assert operand(crash, "input").shape == [1, 8]


def test_backward_update_and_data_are_told_apart(net: Net) -> None:
    backward = crash_of(lambda: BadBackward.apply(net(torch.randn(4, 8))).sum().backward())
    assert (backward.phase, backward.module, backward.in_model) == ("backward", "", False)
    assert backward.place is not None and backward.place.line == line_of("BACKWARD")
    half = torch.nn.Parameter(torch.zeros(2, dtype=torch.float16))
    half.grad = torch.ones_like(half)
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(torch.ones(()))
    update = crash_of(lambda: scaler.unscale_(torch.optim.SGD([half], lr=0.1)))
    assert (update.phase, update.kind) == ("optimizer", "ValueError")
    data = crash_of(lambda: list(DataLoader(BadData(), batch_size=2)))
    assert (data.phase, data.kind) == ("data", "KeyError")
    assert data.place is not None and data.place.line == line_of("DATA")


def test_an_exception_in_a_worker_process_is_placed_by_its_text(net: Net) -> None:
    crash = crash_of(lambda: list(DataLoader(BadData(), batch_size=2, num_workers=1)))
    assert (crash.phase, crash.op, crash.inputs) == ("data", "", [])
    assert crash.place is not None and crash.place.line == line_of("DATA")
    assert crash.place.source == 'raise KeyError("row 2 is broken")  # DATA'
    assert crash.message == "KeyError: 'row 2 is broken'"
    assert "another process" in crash.notes[0]


def test_loss_code_of_the_users_own(net: Net) -> None:
    def loss() -> None:
        out = net(torch.randn(4, 8))
        weights = torch.full((4, 6), float("nan"))
        torch.multinomial(weights, 1).squeeze(1)  # MULTINOMIAL
        raise AssertionError(out)

    crash = crash_of(loss)
    assert (crash.phase, crash.op, crash.module) == ("forward", "aten::multinomial", "")
    assert crash.place is not None and crash.place.line == line_of("MULTINOMIAL")
    weights = operand(crash, "weights")
    assert (weights.nan, weights.posinf, weights.low) == (24, 0, None)
    method = crash_of(lambda: torch.zeros(4).view(3))
    assert method.op == "aten::view"


def test_code_that_is_no_operation_has_none(net: Net) -> None:
    def fails() -> None:
        values = [1, 2, 3]
        len(values[7:][0])

    crash = crash_of(fails)
    assert (crash.kind, crash.op, crash.phase) == ("IndexError", "", "other")


def test_the_exception_it_was_raised_from_tells_the_place(net: Net) -> None:
    def wraps() -> None:
        try:
            net(torch.randn(4, 8), "matmul")
        except RuntimeError as error:
            raise ValueError("training failed") from error

    crash = crash_of(wraps)
    assert (crash.kind, crash.message) == ("ValueError", "training failed")
    assert crash.cause.startswith("RuntimeError: mat1 and mat2")
    assert (crash.module, crash.op) == ("blocks.1", "aten::matmul")


def test_memory_that_was_not_enough(net: Net) -> None:
    crash = crash_of(lambda: torch.empty(1 << 60, dtype=torch.uint8))
    assert crash.out_of_memory and crash.op == "aten::empty"
    host = crash.memory[-1]
    assert (host.device, host.asked_bytes) == ("host", 1 << 60)
    assert host.allocated_bytes and host.total_bytes and host.peak_bytes
    assert is_shortage(torch.OutOfMemoryError("CUDA out of memory."))
    assert is_shortage(MemoryError())
    assert not is_shortage(RuntimeError("shapes differ"))


@pytest.mark.parametrize(
    ("message", "asked"),
    [
        ("CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has", int(2.5 * (1 << 30))),
        ("DefaultCPUAllocator: can't allocate memory: you tried to allocate 96 bytes.", 96),
        ("Unable to allocate 7.28 TiB for an array", int(7.28 * (1 << 40))),
        ("out of memory", None),
    ],
)
def test_what_was_asked_for(message: str, asked: int | None) -> None:
    assert asked_bytes(message) == asked


def test_operands_are_bounded_and_none_is_kept(net: Net) -> None:
    kept: list[weakref.ref[torch.Tensor]] = []

    def fails() -> None:
        many = {f"t{index}": torch.zeros(2) + index for index in range(40)}
        kept.extend(map(weakref.ref, many.values()))
        torch.zeros(3).view(2)

    crash = crash_of(fails)
    assert len(crash.inputs) == MAX_TENSORS
    # Another thread that is collecting makes a call of `collect` do nothing.
    wait_for(lambda: gc.collect() >= 0 and all(reference() is None for reference in kept))


def test_a_deep_recursion_is_looked_at_from_its_end(net: Net) -> None:
    def deeper(depth: int) -> None:
        deeper(depth + 1)

    crash = crash_of(lambda: deeper(0))
    assert crash.kind == "RecursionError"
    assert crash.place is not None and crash.place.function == "deeper"


def test_it_is_published_once_before_the_last_word(net: Net, feed: Feed) -> None:
    for error in (KeyboardInterrupt(), ValueError("first"), ValueError("second")):
        feed.session.crashed(error)
    (crash,) = feed.of(Crash)
    assert (crash.message, crash.step) == ("first", feed.of(Step)[-1].step)
