"""Forward faults: each makes something non-finite of finite operands."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from tests.train.autopsy.patients import ROWS, WIDTH, Body, Table
from tuimon.model.autopsy import FORWARD

FORWARDS = Table()
forward = FORWARDS.fault


@forward(FORWARD, "aten::log1p")
def log1p_at_minus_one() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        gate = torch.ones_like(x) + x * 0
        return x + torch.log1p(-gate)  # here: log1p_at_minus_one

    return body


@forward(FORWARD, "aten::rsqrt")
def rsqrt_of_no_variance() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        flat = x * 0 + 5.0
        spread = (flat - flat.mean(-1, keepdim=True)).square().mean(-1, keepdim=True)
        return x * torch.rsqrt(spread)  # here: rsqrt_of_no_variance

    return body


@forward(FORWARD, "aten::div")
def unit_vector_of_a_zero_row() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        kept = x * (torch.arange(ROWS) != 2)[:, None]
        return kept / kept.norm(dim=-1, keepdim=True)  # here: unit_vector_of_a_zero_row

    return body


@forward(FORWARD, "aten::atanh")
def atanh_of_saturated_tanh() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        squashed = torch.tanh(x * 1e4)
        return squashed.atanh()  # here: atanh_of_saturated_tanh

    return body


@forward(FORWARD, "aten::asin")
def angle_of_a_cosine_above_one() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        cosine = torch.sigmoid(x) + 1e-3 + 1
        return torch.asin(cosine)  # here: angle_of_a_cosine_above_one

    return body


@forward(FORWARD, "aten::cumprod")
def long_product_of_factors() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        factors = torch.full_like(x, 1e8) + x
        return factors.cumprod(-1)  # here: long_product_of_factors

    return body


@forward(FORWARD, "aten::logit")
def logit_of_certainty() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        sure = (x * 0 + 40).sigmoid()
        return torch.logit(sure)  # here: logit_of_certainty

    return body


@forward(FORWARD, "aten::lgamma", "aten::digamma")
def lgamma_of_zero_counts() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        counts = F.relu(x - 100)
        return x + counts.lgamma()  # here: lgamma_of_zero_counts

    return body


@forward(FORWARD, "aten::sum")
def sum_beyond_half() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        wide = (x * 0 + 30000).half()
        return x + wide.sum(-1, keepdim=True).float()  # here: sum_beyond_half

    return body


@forward(FORWARD, "aten::pow", "aten::mul")
def square_beyond_half() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        energy = (x * 0 + 400).half() ** 2  # here: square_beyond_half
        return x + energy.float()

    return body


@forward(FORWARD, "aten::_to_copy")
def cast_beyond_half() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        raw = x * 0 + 7e5
        return raw.to(torch.float16).float() * 1e-6  # here: cast_beyond_half

    return body


@forward(FORWARD, "aten::_to_copy")
def cast_beyond_eight_bits() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        raw = x * 0 + 1e6
        small = raw.to(torch.float8_e5m2)  # here: cast_beyond_eight_bits
        return small.float() + x

    return body


@forward(FORWARD, "aten::bmm", "aten::matmul")
def attention_scores_overflow() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        query = (x * 0 + 1e20)[None]
        scores = torch.bmm(query, query.mT)  # here: attention_scores_overflow
        return x + scores[0].mean()

    return body


class _Biased(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("bias", torch.full((WIDTH,), -torch.inf))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.softmax(x + self.bias, dim=-1)  # here: everything_masked_by_a_buffer


@forward(FORWARD, "aten::_softmax", constants=("part.bias",))
def everything_masked_by_a_buffer() -> nn.Module:
    return _Biased()


class _Attends(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        words = x[None]
        padded = torch.ones(1, x.shape[0], dtype=torch.bool)
        return self.heads(words, words, words, padded)[0][0]  # here: only_padding_to_attend


@forward(FORWARD, "aten::_softmax", module="heads")
def only_padding_to_attend() -> nn.Module:
    return _Attends()


@forward(FORWARD, "aten::_log_softmax")
def mask_by_its_logarithm() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        open_places = torch.zeros(WIDTH)
        scores = x + open_places.log()
        return scores.log_softmax(-1)  # here: mask_by_its_logarithm

    return body


@forward(FORWARD, "aten::mul", constants=("masked_fill",))
def entropy_of_masked_choices() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        closed = torch.zeros_like(x, dtype=torch.bool)
        closed[:, 3:] = True
        chances = x.masked_fill(closed, float("-inf")).log_softmax(-1)
        return x - chances.exp() * chances  # here: entropy_of_masked_choices

    return body


@forward(FORWARD, "aten::sub", constants=("masked_fill_",))
def stable_softmax_of_nothing() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        scores = x.clone()
        scores[1] = scores[1].masked_fill_(torch.ones(WIDTH, dtype=torch.bool), -torch.inf)
        shifted = scores - scores.amax(-1, keepdim=True)  # here: stable_softmax_of_nothing
        return shifted.exp()

    return body


@forward(FORWARD, "aten::div")
def average_over_no_tokens() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        weight = (torch.arange(ROWS) > 10).float()[:, None]
        return x + (x * weight).sum(0) / weight.sum()  # here: average_over_no_tokens

    return body


@forward(FORWARD, "aten::mean")
def mean_of_an_empty_choice() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x + x[x > 1e6].mean()  # here: mean_of_an_empty_choice

    return body


@forward(FORWARD, "aten::var")
def variance_of_one_row() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        return x / (x[:1].var(dim=0) + 1)  # here: variance_of_one_row

    return body


class _Normalises(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm


class _RmsNormalises(_Normalises):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * 0)  # here: rms_norm_without_eps


class _GroupNormalises(_Normalises):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x * 0 + 2.0)  # here: group_norm_without_eps


@forward(FORWARD, "aten::_fused_rms_norm", "aten::rsqrt", "aten::mul", module="norm")
def rms_norm_without_eps() -> nn.Module:
    return _RmsNormalises(nn.RMSNorm(WIDTH, eps=0.0))


@forward(FORWARD, "aten::native_group_norm", module="norm")
def group_norm_without_eps() -> nn.Module:
    return _GroupNormalises(nn.GroupNorm(2, WIDTH, eps=0.0))


@forward(FORWARD, "aten::mul_")
def product_in_place() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        grown = x * 0 + 1e30
        grown.mul_(1e30)  # here: product_in_place
        return grown

    return body


@forward(FORWARD, "aten::log")
def written_into_a_column() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        table = torch.zeros(ROWS, WIDTH)
        table[:, 0] = x[:, 0]
        table[:, 2] = torch.log(x[:, 2] * 0)  # here: written_into_a_column
        table[:, 4] = x[:, 4]
        return table

    return body


@forward(FORWARD, "aten::log2")
def into_a_given_output() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        room = torch.empty(ROWS, WIDTH)
        with torch.no_grad():
            torch.log2(torch.zeros_like(x), out=room)  # here: into_a_given_output
        return x + room

    return body


class _Boltzmann(torch.autograd.Function):
    @staticmethod
    def forward(ctx, energy):
        return torch.exp(energy * 50)  # here: inside_a_function_of_ones_own

    @staticmethod
    def backward(ctx, grad):
        return grad


@forward(FORWARD, "aten::exp")
def inside_a_function_of_ones_own() -> Body:
    return lambda x: _Boltzmann.apply(x * 0 + 3)


@forward(FORWARD, "aten::remainder")
def remainder_by_zero() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        period = F.relu(-x.abs())
        return torch.remainder(x, period.detach())  # here: remainder_by_zero

    return body


@forward(FORWARD, "aten::div", "aten::reciprocal")
def complex_by_zero() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        wave = torch.complex(x, x)
        return (wave / torch.zeros_like(wave)).abs()  # here: complex_by_zero

    return body


@forward(FORWARD, "aten::pow")
def zero_to_a_negative_power() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        distance = F.relu(-x.abs())
        return x + distance**-1.5  # here: zero_to_a_negative_power

    return body


class _Repeats(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.grow = _Grows()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(6):
            x = self.grow(x)
        return x


class _Grows(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.abs() + 10) * (x.abs() + 10)  # here: the_same_module_again_and_again


@forward(FORWARD, "aten::mul", module="grow")
def the_same_module_again_and_again() -> nn.Module:
    return _Repeats()


def _risky(x: torch.Tensor) -> torch.Tensor:
    return x.sub(x).reciprocal()  # here: checkpointed_reciprocal


@forward(FORWARD, "aten::reciprocal")
def checkpointed_reciprocal() -> Body:
    return lambda x: checkpoint(_risky, x, use_reentrant=True)


class _Sparse(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        links = (torch.eye(ROWS) * 1e30).to_sparse()
        return torch.sparse.mm(links, x * 0 + 1e30)  # here: sparse_product_overflows


@forward(FORWARD, "aten::_sparse_mm", "aten::mm", "aten::addmm", "aten::_sparse_addmm")
def sparse_product_overflows() -> nn.Module:
    return _Sparse()


class _WeightNormed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))
        with torch.no_grad():
            self.layer.parametrizations.weight.original1.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x)  # here: weight_norm_of_zero_weights


@forward(
    FORWARD,
    "aten::_weight_norm_interface",
    "aten::div",
    module="layer.parametrizations.weight.0",
)
def weight_norm_of_zero_weights() -> nn.Module:
    return _WeightNormed()


@forward(FORWARD, "aten::log")
def depends_on_the_dropout_mask() -> Body:
    def body(x: torch.Tensor) -> torch.Tensor:
        kept = F.dropout(torch.ones_like(x), 0.6)
        return x + torch.log(kept)  # here: depends_on_the_dropout_mask

    return body
