"""The same fault in other clothes gets the same verdict."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from torch import nn

from tests.train.autopsy.faults_backward import BACKWARDS
from tests.train.autopsy.faults_forward import FORWARDS
from tests.train.autopsy.patients import (
    WIDTH,
    Fault,
    Net,
    Part,
    batch,
    check,
    check_leaf,
    examine_loop,
    examine_model,
)
from tuimon.model.autopsy import BACKWARD, FORWARD, OPERATION
from tuimon.train.autopsy.examination import Examination

FAULTS = FORWARDS | BACKWARDS
CHOSEN = (
    "log1p_at_minus_one",
    "unit_vector_of_a_zero_row",
    "cast_beyond_half",
    "everything_masked_by_a_buffer",
    "entropy_of_masked_choices",
    "written_into_a_column",
    "the_same_module_again_and_again",
    "root_by_a_power",
    "softplus_by_hand",
    "a_backward_of_ones_own",
    "checkpointed_trap",
    "deviation_of_a_constant",
)


class _Wraps(nn.Module):
    """Somebody's whole model as a part of another."""

    def __init__(self, backbone: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        y = self.backbone(x)
        return y, {"twice": 2 * y, "rows": torch.arange(3)}


def _renamed(fault: Fault) -> Examination:
    return examine_model(Net(fault.part(), names=("a", "part", "zz")), batch())


def _other_seed(fault: Fault) -> Examination:
    torch.manual_seed(991)
    return examine_model(Net(fault.part()), batch())


def _in_sequential(fault: Fault) -> Examination:
    return examine_model(nn.Sequential(nn.Identity(), Net(fault.part())), batch())


def _in_a_class(fault: Fault) -> Examination:
    return examine_model(_Wraps(Net(fault.part())), batch())


def _under_autocast(fault: Fault) -> Examination:
    within = functools.partial(torch.autocast, "cpu", dtype=torch.bfloat16)
    return examine_model(Net(fault.part()), batch(), within=within)


def _compiled(fault: Fault) -> Examination:
    model = torch.compile(Net(fault.part()), backend="eager")
    return examine_model(model, batch())


def _behind_dropout(fault: Fault) -> Examination:
    body = nn.Sequential(nn.Dropout(0.3), Net(fault.part()), nn.Dropout(0.1))
    return examine_loop(body, batch(), loss_scale=8.0)


CLOTHES: dict[str, tuple[Callable[[Fault], Examination], str]] = {
    "renamed": (_renamed, "part"),
    "other seed": (_other_seed, "part"),
    "in a Sequential": (_in_sequential, "1.part"),
    "in a class with other outputs": (_in_a_class, "backbone.part"),
    "under autocast": (_under_autocast, "part"),
    "behind dropout, scaled": (_behind_dropout, "1.part"),
}


@pytest.mark.parametrize("name", CHOSEN)
def test_the_verdict_is_the_same(name: str) -> None:
    for wear, path in CLOTHES.values():
        torch.manual_seed(17)
        check(wear(FAULTS[name]), FAULTS[name], path)


@pytest.mark.parametrize("name", ("log1p_at_minus_one", "root_by_a_power"))
def test_a_compiled_model_is_run_as_it_was_written(name: str) -> None:
    torch.manual_seed(17)
    found = _compiled(FAULTS[name])
    check(found, FAULTS[name])
    assert any("OptimizedModule" in note for note in found.notes)


def _half(x: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    spread = centred.square().mean(-1, keepdim=True).add(1e-9).sqrt()
    return centred / spread  # here: half


def test_a_model_in_half_precision() -> None:
    fault = Fault("half", lambda: _half, ("aten::div",))
    for dtype, rows in ((torch.float16, torch.ones(3, WIDTH)),):
        model = nn.Sequential(Part(lambda x: x * 1), Part(_half), nn.Linear(WIDTH, 1)).to(dtype)
        check(examine_model(model, rows.to(dtype)), fault, "1")


def _penalty(model: nn.Module, rows: torch.Tensor) -> torch.Tensor:
    rows = rows.clone().requires_grad_(True)
    (grad,) = torch.autograd.grad(model(rows).sum(), rows, create_graph=True)
    steep = (grad - grad.detach()).square().sum()
    return model(rows).square().mean() + steep.sqrt()  # here: penalty


def test_a_gradient_penalty() -> None:
    class Penalised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.critic = nn.Sequential(nn.Linear(WIDTH, 4), nn.Tanh(), nn.Linear(4, 1))

        def forward(self, rows: torch.Tensor) -> torch.Tensor:
            return _penalty(self.critic, rows)

    fault = Fault("penalty", lambda: nn.Identity(), ("SqrtBackward0",), BACKWARD)
    check(examine_loop(Penalised(), batch(), loss_of=lambda loss: loss), fault, "")


class _Steep(nn.Module):
    """The fault lies in the derivative of a derivative that the forward itself asks for."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        bent = (y - y.detach()).abs().pow(1.5)  # here: steep
        (slope,) = torch.autograd.grad(bent.sum(), y, create_graph=True)
        return y + slope


def test_the_derivative_of_a_derivative() -> None:
    found = examine_model(_Steep(), batch())
    assert found.verdict == OPERATION and found.first is not None
    assert found.first.phase == BACKWARD and found.first.op in ("aten::pow", "aten::mul")
    fault = Fault("steep", lambda: nn.Identity(), (found.first.op,), BACKWARD)
    check(found, fault, "")


def test_the_way_up_is_told_where_a_branch_was_not_selected() -> None:
    torch.manual_seed(0)
    found = examine_model(Net(BACKWARDS["expm1_behind_where"].part()), batch())
    assert found.upstream[0] == "WhereBackward0" and "AddmmBackward0" in found.upstream


def test_several_models_have_names_of_their_own() -> None:
    from tuimon.train.autopsy.rerun import rerun_closure, rerun_model

    maker, critic = Net(Part(torch.tanh)), nn.Linear(2, 1)
    roots = [("maker.", maker), ("critic.", critic)]
    with torch.no_grad():
        critic.weight[0, 1] = torch.nan
    rows = batch()
    found = rerun_closure(lambda: critic(maker(rows)).mean(), roots=roots)
    check_leaf(found, "parameter", "critic.weight")
    assert found.first is not None and found.first.module == "critic"
    found = rerun_model(critic, (maker(rows).detach(),), roots=roots, loss_bad=True)
    check_leaf(found, "parameter", "critic.weight")


def test_a_recurrent_net_overflows_in_its_own_module() -> None:
    class Reads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.RNN(WIDTH, 8, nonlinearity="relu", batch_first=True)
            self.head = nn.Linear(8, 1)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.head(self.rnn(x)[0])  # here: recurrent

    model = Reads()
    with torch.no_grad():
        model.rnn.weight_hh_l0.fill_(1e3)
    ops = ("aten::addmm", "aten::mm", "aten::add", "aten::add_", "aten::relu")
    fault = Fault("recurrent", lambda: nn.Identity(), ops, FORWARD)
    check(examine_model(model, torch.rand(2, 40, WIDTH)), fault, "rnn")
