"""What looks ill and is not: nothing is accused."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.train.autopsy.patients import (
    ROWS,
    WIDTH,
    Fault,
    Net,
    Part,
    batch,
    check,
    examine_loop,
    examine_model,
)
from tuimon.model.autopsy import NOT_REPRODUCED

NONE = float("-inf")
HEALTHY: dict[str, Callable[[], nn.Module]] = {}


def healthy(build: Callable[[], Callable[[torch.Tensor], torch.Tensor] | nn.Module]) -> None:
    def part() -> nn.Module:
        built = build()
        return built if isinstance(built, nn.Module) else Part(built)

    HEALTHY[build.__name__] = part


@healthy
def causal_attention_by_hand():
    def body(x):
        scores = x @ x.mT
        later = torch.ones(ROWS, ROWS).triu(1).bool()
        return scores.masked_fill(later, NONE).softmax(-1) @ x

    return body


@healthy
def causal_attention_of_torch():
    def body(x):
        mask = torch.full((ROWS, ROWS), NONE).triu(1)
        return F.scaled_dot_product_attention(x[None], x[None], x[None], attn_mask=mask)[0]

    return body


class _Masks(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.full((ROWS, ROWS), NONE).triu(1))

    def forward(self, x):
        return torch.softmax(x @ x.mT + self.mask, -1) @ x


@healthy
def a_mask_in_a_buffer():
    return _Masks()


@healthy
def a_mask_by_its_logarithm():
    return lambda x: (x + torch.tensor([1.0, 1, 0, 1, 0, 1]).log()).softmax(-1)


@healthy
def a_logarithm_that_is_repaired():
    return lambda x: x + torch.log(F.relu(x.detach())).nan_to_num(neginf=0.0)


@healthy
def logsumexp_of_masked_scores():
    def body(x):
        closed = torch.zeros_like(x).bool()
        closed[:, ::2] = True
        return x - x.masked_fill(closed, NONE).logsumexp(-1, keepdim=True)

    return body


@healthy
def where_that_is_guarded_twice():
    def body(x):
        inside = torch.where(x > 0, x, torch.ones_like(x))
        return torch.where(x > 0, inside.log(), torch.zeros_like(x))

    return body


@healthy
def the_best_of_masked_scores():
    def body(x):
        best = x.masked_fill(x < x.mean(), NONE).topk(2, dim=-1).values
        return x + torch.where(best.isfinite(), best, 0.0).sum(-1, keepdim=True)

    return body


@healthy
def the_least_so_far():
    def body(x):
        least = torch.full((ROWS,), float("inf"))
        for column in x.unbind(1):
            least = torch.minimum(least, column)
        return x - least[:, None]

    return body


@healthy
def memory_filled_piece_by_piece():
    def body(x):
        room = torch.empty(ROWS, WIDTH).fill_(float("nan"))
        room[:, :3] = x[:, 3:]
        room[:, 3:] = x[:, :3]
        return room

    return body


@healthy
def pooling_with_padding():
    return lambda x: F.max_pool1d(x[None], 3, stride=1, padding=1)[0]


@healthy
def guarded_derivatives_at_zero():
    def body(x):
        zero = x * 0
        return (
            x
            + zero.norm(dim=-1, keepdim=True)
            + torch.atan2(zero, zero)
            + (zero + 1).std(-1)[:, None]
        )

    return body


@healthy
def dropout_and_batch_norm():
    return nn.Sequential(nn.BatchNorm1d(WIDTH), nn.Dropout(0.5), nn.ReLU())


@healthy
def missing_values_left_out():
    def body(x):
        known = torch.ones(ROWS, WIDTH)
        known[0, 0] = float("nan")
        return x * torch.where(known.isnan(), 0.0, known)

    return body


@pytest.mark.parametrize("name", HEALTHY)
def test_nothing_is_accused(name: str) -> None:
    torch.manual_seed(5)
    for engine in (examine_model, examine_loop):
        found = engine(Net(HEALTHY[name]()), batch())
        assert (found.verdict, found.first) == (NOT_REPRODUCED, None), found
        assert not found.leaves and not found.bad_grads and not found.bad_outputs


class _Decides(nn.Module):
    """Gives -Inf for what is not allowed, as it should."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        forbidden = torch.tensor([False, True, False, False])
        return self.layer(x).masked_fill(forbidden, NONE)


def _choice(output: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(output, torch.zeros(ROWS, dtype=torch.long))


def test_outputs_may_be_infinite_on_purpose() -> None:
    for engine in (examine_model, examine_loop):
        found = engine(_Decides(), batch(), loss_of=_choice)
        assert (found.verdict, found.first) == (NOT_REPRODUCED, None)


class _DecidesBadly(_Decides):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raw = self.layer(x)
        gap = (raw - raw.detach()).square().sum()
        return super().forward(x) + gap.sqrt()  # here: behind_masks


def test_a_fault_in_the_company_of_masks_is_found() -> None:
    fault = Fault("behind_masks", _DecidesBadly, ("SqrtBackward0",), "backward")
    check(examine_model(_DecidesBadly(), batch(), loss_of=_choice), fault, "")


def test_the_loss_code_is_told_from_the_model() -> None:
    model = Net(Part(torch.tanh))
    bad_loss = examine_model(model, batch(), loss_of=lambda y: (y * 0).log().sum())
    bad_gradient = examine_model(model, batch(), loss_of=lambda y: (y - y.detach()).sqrt().sum())
    for found in (bad_loss, bad_gradient):
        assert found.loss_code and found.first is None and found.notes
    found = examine_loop(model, batch(), loss_of=lambda y: (y * 0).log().sum())
    assert found.first is not None and not found.first.in_model
    assert (found.first.op, found.first.module) == ("aten::log", None)
