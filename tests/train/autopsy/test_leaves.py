"""What was bad before anything was computed is named as such, and no operation is accused."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from tests.train.autopsy.patients import (
    ROWS,
    WIDTH,
    Net,
    Part,
    batch,
    blamed_line,
    check_leaf,
    examine_loop,
    examine_model,
)
from tuimon.model.autopsy import OPERATION
from tuimon.train.autopsy.names import Named


class Scales(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.ones(WIDTH))
        self.register_buffer("offset", torch.zeros(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.offset) * self.gain


class Speaks(nn.Module):
    """Takes its batch by name, in containers, and gives a dictionary."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 2)

    def forward(self, batch: dict[str, Any], *, weight: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"scores": self.layer(batch["features"][0]) * weight, "aux": weight.sum()}


def test_a_parameter() -> None:
    part = Scales()
    with torch.no_grad():
        part.gain[2] = torch.nan
    for found in (examine_model(Net(part), batch()), examine_loop(Net(part), batch())):
        check_leaf(found, "parameter", "part.gain", [2])
        assert found.first is not None and found.first.op == "aten::mul"
        states = {state.module: state for state in found.modules}
        assert states["part"].parameter_bad and not states["pre"].parameter_bad
        assert states["part"].forward_bad and states["post"].forward_bad
        assert states["pre"].forward_bad is False


def test_a_buffer() -> None:
    part = Scales()
    part.offset[4] = torch.inf
    check_leaf(examine_model(Net(part), batch()), "buffer", "part.offset", [4])


def test_a_row_of_the_batch() -> None:
    rows = batch()
    rows[1, 3] = torch.nan
    rows[3] = torch.inf
    check_leaf(examine_model(Net(Part(torch.tanh)), rows), "batch", "batch[0]", [1, 3])


def test_the_batch_with_a_minus_infinity() -> None:
    rows = batch()
    rows[2, 0] = -torch.inf
    check_leaf(examine_model(Net(Part(torch.sin)), rows), "batch", "batch[0]", [2])


def test_a_batch_in_containers() -> None:
    rows = batch()
    rows[0] = torch.nan
    good, weight = torch.ones(ROWS, 2), torch.full((ROWS, 2), torch.nan)
    given = {"features": [rows]}
    check_leaf(examine_model(Speaks(), given, weight=good), "batch", "batch[0][features][0]", [0])
    found = examine_model(Speaks(), {"features": [batch()]}, weight=weight)
    check_leaf(found, "batch", "batch[weight]")
    assert found.bad_outputs == ["output[0]", "output[1]"]


def test_a_tensor_that_is_told_by_name() -> None:
    from tuimon.train.autopsy.rerun import rerun_closure

    model, rows, target = Net(Part(torch.tanh)), batch(), torch.zeros(ROWS, 2)
    target[3, 1] = torch.nan
    found = rerun_closure(
        lambda: F.mse_loss(model(rows), target),
        roots=[("", model)],
        extra=[Named("target", "target", target)],
    )
    check_leaf(found, "target", "target", [3])
    assert found.first is not None and not found.first.in_model


def test_a_constant_of_the_script() -> None:
    table = torch.ones(WIDTH)
    table[0] = torch.nan
    found = examine_model(Net(Part(lambda x: x * table)), batch())
    assert found.leaves[0].kind == "constant"


def test_a_leaf_that_is_an_output() -> None:
    class Hands(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(WIDTH, 2)
            self.register_buffer("kept", torch.tensor([1.0, torch.nan]))

        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            return self.layer(x), self.kept

    check_leaf(examine_model(Hands(), batch()), "buffer", "kept", [1])


def test_memory_that_was_never_filled() -> None:
    def body(x: torch.Tensor) -> torch.Tensor:
        room = torch.empty(ROWS, WIDTH)  # here: never_filled
        room[:2] = x[:2]
        return room + x

    was = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)  # fills such memory with NaN
    try:
        found = examine_model(Net(Part(body)), batch())
    finally:
        torch.use_deterministic_algorithms(was)
    assert found.verdict == OPERATION and found.first is not None
    assert found.first.op == "aten::empty"
    assert "# here: never_filled" in blamed_line(found)
