"""Backward faults: the forward gives a finite output, a gradient is not finite."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.train.autopsy.patients import ROWS, WIDTH, Body, Table
from tuimon.model.autopsy import BACKWARD

BACKWARDS = Table()
backward = BACKWARDS.fault


@backward(BACKWARD, "PowBackward0")
def root_by_a_power() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        gap = (x - x.detach()).square().sum(-1, keepdim=True)
        return x + gap**0.5  # here: root_by_a_power

    return body


@backward(BACKWARD, "SqrtBackward0")
def root_in_place() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        length = (x - x.detach()).square()
        length.sqrt_()  # here: root_in_place
        return x + length

    return body


@backward(BACKWARD, "DivBackward0", "aten::div", "aten::mul")
def division_behind_where() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        parts = F.relu(x)
        share = x / parts  # here: division_behind_where
        return torch.where(parts > 0, share, torch.zeros_like(x))

    return body


@backward(BACKWARD, "AsinBackward0")
def arcsine_at_its_edge() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x + (x * 0 + 1).clamp(max=1.0).asin()  # here: arcsine_at_its_edge

    return body


@backward(BACKWARD, "Expm1Backward0", "aten::mul", constants=("expm1",))
def expm1_behind_where() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        far = x.abs() * 1e3 + 200
        bent = torch.expm1(far)  # here: expm1_behind_where
        return torch.where(far > 100, x, bent)

    return body


@backward(BACKWARD, "ExpBackward0", "aten::mul", constants=("exp",))
def softplus_by_hand() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        far = x * 0 + 500
        soft = (1 + far.exp()).log()  # here: softplus_by_hand
        return x + torch.where(far > 30, far, soft)

    return body


@backward(BACKWARD, "ExpBackward0", "aten::mul", constants=("exp",))
def sigmoid_by_hand() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        low = x * 0 - 300
        return x + 1 / (1 + torch.exp(-low))  # here: sigmoid_by_hand

    return body


@backward(BACKWARD, "AcoshBackward0")
def hyperbolic_distance_to_itself() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x + torch.acosh(1 + (x - x).square())  # here: hyperbolic_distance_to_itself

    return body


@backward(BACKWARD, "LinalgSvdBackward0", "LinalgEighBackward0", "aten::div", "aten::reciprocal")
def equal_eigenvalues() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        same = torch.eye(WIDTH) + (x.mT @ x) * 0
        return x @ torch.linalg.eigh(same).eigenvectors  # here: equal_eigenvalues

    return body


class _Amplify(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        louder = grad.sign() * 1e30
        return louder * louder  # here: a_backward_of_ones_own


@backward(BACKWARD, "aten::mul")
def a_backward_of_ones_own() -> Body:
    return lambda x: _Amplify.apply(x)


class _AmplifyInside(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad / (x - x)  # here: a_backward_inside_a_checkpoint


@backward(BACKWARD, "aten::div")
def a_backward_inside_a_checkpoint() -> Body:
    return lambda x: checkpoint(lambda y: _AmplifyInside.apply(y.sin()), x, use_reentrant=False)


def _by_zero(grad: torch.Tensor) -> torch.Tensor:
    return grad / (grad - grad)  # here: a_hook_on_the_gradient


@backward(BACKWARD, "aten::div")
def a_hook_on_the_gradient() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        hidden = x.cos()
        hidden.register_hook(_by_zero)
        return hidden

    return body


def _rooted(x: torch.Tensor) -> torch.Tensor:
    return x + (x - x).sqrt()  # here: checkpointed_root_reentrant


@backward(BACKWARD, "SqrtBackward0")
def checkpointed_root_reentrant() -> Body:
    return lambda x: checkpoint(_rooted, x, use_reentrant=True)


def _trapped(x: torch.Tensor) -> torch.Tensor:
    huge = torch.exp(x.abs() + 300)  # here: checkpointed_trap
    return torch.where(x.abs() >= 0, x, huge)


@backward(BACKWARD, "ExpBackward0", "aten::mul", constants=("exp",))
def checkpointed_trap() -> Body:
    return lambda x: checkpoint(_trapped, x, use_reentrant=False)


class _Deviates(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = _Deviation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x.new_full((ROWS, WIDTH), 4.0) + x * 0)


class _Deviation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        centred = x - x.mean(0, keepdim=True)
        return centred.square().mean(0).sqrt()  # here: deviation_of_a_constant


@backward(BACKWARD, "SqrtBackward0", module="inner")
def deviation_of_a_constant() -> nn.Module:
    return _Deviates()


@backward(BACKWARD, "ReciprocalBackward0")
def ratio_whose_square_overflows() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        tiny = x * 0 + 1e-30
        return x + (1e-10 / tiny) * 1e-20  # here: ratio_whose_square_overflows

    return body


@backward(BACKWARD, "aten::mul", "aten::mm", "aten::_to_copy", "ToCopyBackward0", "MulBackward0")
def gradient_beyond_half() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        small = (x * 1e-4).half()
        return (small * 6e4).float() * 60.0  # here: gradient_beyond_half

    return body
