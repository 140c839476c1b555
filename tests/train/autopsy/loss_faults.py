"""Faults in loss code: each with a batch on which it is well and one on which it is not.

The line that is to blame carries a comment with the name of the fault.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

INF = math.inf
ROWS, CLASSES = 6, 3


@dataclass(frozen=True)
class Fault:
    """One fault: `loss(model, *batch)` is called with `good` a few times and then with `bad`."""

    name: str
    loss: Callable[..., torch.Tensor]
    good: tuple[torch.Tensor, ...]
    bad: tuple[torch.Tensor, ...]
    op: str | None = None
    leaf: str = ""
    backward: bool = False
    file: str = __file__
    node: str = ""
    constants: tuple[str, ...] = ()
    model: Callable[[], nn.Module] = field(default=lambda: net())

    @property
    def line(self) -> int:
        marked = [
            number
            for number, text in enumerate(Path(self.file).read_text().splitlines(), 1)
            if text.endswith(f"# {self.name}")
        ]
        assert len(marked) == 1, self.name
        return marked[0]


def net(outputs: int = CLASSES) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, outputs))


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.mean, self.spread = nn.Linear(4, 8), nn.Linear(8, 3), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        hidden = torch.tanh(self.body(x))
        return {"mean": self.mean(hidden), "spread": self.spread(hidden)}


def two_heads() -> nn.Module:
    torch.manual_seed(0)
    return TwoHeads()


_random = torch.Generator().manual_seed(1)
X = torch.randn(ROWS, 4, generator=_random)
Y = torch.rand(ROWS, CLASSES, generator=_random)
LABELS = torch.tensor([0, 1, 2, 0, 1, 2])
NONE = torch.zeros(ROWS, CLASSES, dtype=torch.bool)
ONE_ROW = NONE.clone()
ONE_ROW[2] = True
ONE = NONE.clone()
ONE[1, 2] = True
HOLE = Y.clone()
HOLE[4, 1] = math.nan


# --- forward --------------------------------------------------------------------------------------


def log_of_softmax(model, x, y):
    prob = torch.softmax(model(x) * y.sum(), dim=-1)
    return -(F.one_hot(LABELS, 3) * torch.log(prob)).sum(-1).mean()  # log of softmax


def bce(p, t):
    one = t * p.log()  # bce by hand
    other = (1 - t) * (1 - p).log()
    return -(one + other).mean()


def bce_by_hand(model, x, y):
    return bce(torch.sigmoid(model(x) * y), torch.zeros(ROWS, CLASSES))


def divides(model, x, y):
    out = model(x)
    return (out / y.sum(0)).pow(2).mean()  # division


def nothing_over_nothing(model, x, mask):
    kept = model(x)[:, 0] * mask[:, 0]
    total = kept.sum()
    count = mask[:, 0].sum()
    return total / count  # empty mask


def mean_of_nothing(model, x, mask):
    return F.mse_loss(model(x)[mask], torch.zeros(int(mask.sum())))  # mean of nothing


def fractional_power(model, x, y):
    base = torch.tanh(model(x)) + y
    return base.pow(0.3).sum()  # fractional power


def by_operator(model, x, y):
    return ((model(x) * 0.01 + y) ** 1.5).abs().mean()  # power operator


def exponent(model, x, y):
    logvar = model(x) * y
    kl = 1 + logvar - logvar.exp()  # exponent
    return -0.5 * kl.sum(1).mean()


def squared(model, x, y):
    out = model(x) * y
    return (out * out).mean()  # product overflows


class Entropy:
    """A loss that is an object, no module."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def __call__(self, logits, mask):
        logp = torch.log_softmax(logits.masked_fill(mask, -INF), -1)
        prob = logp.exp()
        return self.weight * (prob * logp).sum(-1).mean()  # entropy


ENTROPY = Entropy(0.1)


def entropy(model, x, mask):
    return ENTROPY(model(x), mask)


def masked_softmax(model, x, mask):
    scores = model(x).masked_fill(mask, -INF)
    return scores.softmax(-1).square().mean()  # masked softmax


def masked_by_where(model, x, mask):
    scores = torch.where(mask, torch.tensor(-INF), model(x))
    weights = F.softmax(scores, dim=1)  # softmax of where
    return weights.pow(2).mean()


def masked_by_sum(model, x, mask):
    scores = model(x) + torch.zeros(ROWS, CLASSES).masked_fill(mask, -INF)
    return torch.softmax(scores, 1).std()  # softmax of sum


def all_ignored(model, x, labels):
    return F.cross_entropy(model(x), labels)  # all ignored


CRITERION = nn.CrossEntropyLoss()


def all_ignored_by_module(model, x, labels):
    logits = model(x)
    return CRITERION(logits, labels)  # all ignored by a module


def spread_of_one(model, x, y):
    out = model(x)
    scaled = out - out.mean(0)
    scaled = scaled / out.std(0)  # std of one
    return scaled.sum()


class Focal(nn.Module):
    """A criterion that is a module and belongs to no watched root."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Softmax(dim=-1)

    def forward(self, logits, mask):
        p = self.inner(logits)
        p = (p * ~mask).sum(-1)
        return -((1 - p) ** 2 * p.log()).mean()  # focal module


FOCAL = Focal()


def focal(model, x, mask):
    return FOCAL(model(x), mask)


def dice_in_half(model, x, y):
    with torch.autocast("cpu", dtype=torch.float16):
        prob = torch.sigmoid(model(x))
        overlap = (prob * y.half()).sum()  # dice in half
        return 1 - overlap / (prob.float().sum() + y.sum())


def cast_to_half(model, x, y):
    out = (model(x) * y.sum()).square()
    small = out.to(torch.float16)  # cast to half
    return small.float().mean()


def second_of_three(model, x, y):
    out = model(x)
    first = F.mse_loss(out, Y)
    second = torch.sqrt(y.sum() - out.abs().max().detach() * 0 + 0 * out.sum())  # second of three
    third = out.abs().mean()
    return first + 0.1 * second + 0.01 * third


def heads(model, x, y):
    out = model(x)
    return F.gaussian_nll_loss(out["mean"], Y, (out["spread"] * y).exp())  # two heads


def in_place(model, x, y):
    out = model(x).abs() + 1
    out = out.clone()
    out.div_(y)  # in place
    return out.mean()


def inverse(model, x, y):
    return (model(x) * y).abs().reciprocal().mean()  # reciprocal


def logs(model, x, y):
    return (model(x) * y).abs().log1p().sub(1).log2().mean()  # log2


def arc(model, x, y):
    cosine = torch.tanh(model(x)) * y
    return torch.acos(cosine).mean()  # arc cosine


def looped(model, x, y):
    total = 0.0
    out = model(x)
    for row in range(ROWS):
        total = total + torch.log(out[row].abs() * y[row]).sum()  # in a loop
    return total


curry = partial(lambda scale, out, y: (out * scale).div(y).sum(), 2.0)  # partial


def curried(model, x, y):
    return curry(model(x), y)


def several_lines(model, x, y):
    return (
        model(x)
        .abs()
        .mul(y)
        .log()  # several lines
        .mean()
    )


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 3 * x**3 / x


def custom_forward(model, x, y):
    return Cube.apply(model(x) * y).mean()  # custom forward


def contrastive(model, x, y):
    z = F.normalize(model(x), dim=-1)
    logits = z @ z.T / y.mean()
    logits = logits - 1e30 * torch.eye(ROWS)
    return torch.log(logits.exp().sum(1)).mean()  # contrastive


def hole_in_target(model, x, y):
    return (model(x) - y).pow(2).mean()  # hole in a target


def hole_in_mse(model, x, y):
    return F.mse_loss(model(x), y)  # hole in mse


def hole_in_weights(model, x, y):
    return F.cross_entropy(model(x), LABELS, weight=y[4])  # hole in weights


FORWARD = [
    Fault("log of softmax", log_of_softmax, (X, Y), (X, Y * 1e4), "aten::log"),
    Fault("bce by hand", bce_by_hand, (X, Y), (X, Y * 1e4), "aten::log"),
    Fault("division", divides, (X, Y), (X, Y * 0), "aten::div"),
    Fault("empty mask", nothing_over_nothing, (X, ~NONE), (X, NONE), "aten::div"),
    Fault("mean of nothing", mean_of_nothing, (X, ~NONE), (X, NONE), "aten::mse_loss"),
    Fault("fractional power", fractional_power, (X, Y + 1), (X, Y - 2), "aten::pow"),
    Fault("power operator", by_operator, (X, Y + 1), (X, Y - 2), "aten::pow"),
    Fault("exponent", exponent, (X, Y), (X, Y * 1e5), "aten::exp"),
    Fault("product overflows", squared, (X, Y), (X, Y * 1e25), "aten::mul"),
    Fault("entropy", entropy, (X, NONE), (X, ONE), "aten::mul", constants=("masked_fill",)),
    Fault(
        "masked softmax",
        masked_softmax,
        (X, NONE),
        (X, ONE_ROW),
        "aten::_softmax",
        constants=("masked_fill",),
    ),
    Fault(
        "softmax of where",
        masked_by_where,
        (X, NONE),
        (X, ONE_ROW),
        "aten::_softmax",
        constants=("where",),
    ),
    Fault("softmax of sum", masked_by_sum, (X, NONE), (X, ONE_ROW), "aten::_softmax"),
    Fault("all ignored", all_ignored, (X, LABELS), (X, LABELS * 0 - 100), "aten::nll_loss_forward"),
    Fault(
        "all ignored by a module",
        all_ignored_by_module,
        (X, LABELS),
        (X, LABELS * 0 - 100),
        "aten::nll_loss_forward",
    ),
    Fault("std of one", spread_of_one, (X, Y), (X[:1], Y[:1]), "aten::std"),
    Fault("focal module", focal, (X, NONE), (X, ONE_ROW), "aten::log"),
    Fault(
        "dice in half",
        dice_in_half,
        (X, Y),
        (X.repeat(40_000, 1), Y.repeat(40_000, 1)),
        "aten::sum",
    ),
    Fault("cast to half", cast_to_half, (X, Y), (X, Y * 1e4), "aten::_to_copy"),
    Fault("second of three", second_of_three, (X, Y), (X, -Y), "aten::sqrt"),
    Fault("two heads", heads, (X, Y), (X, Y * 1e5), "aten::exp", model=two_heads),
    Fault("in place", in_place, (X, Y + 1), (X, Y * 0), "aten::div"),
    Fault("reciprocal", inverse, (X, Y + 1), (X, Y * 0), "aten::reciprocal"),
    Fault("log2", logs, (X, Y + 1e4), (X, Y * 0), "aten::log2"),
    Fault("arc cosine", arc, (X, Y), (X, Y * 1e4), "aten::acos"),
    Fault("in a loop", looped, (X, Y + 1), (X, Y * (~ONE_ROW)), "aten::log"),
    Fault("partial", curried, (X, Y + 1), (X, Y * 0), "aten::div"),
    Fault("several lines", several_lines, (X, Y + 1), (X, Y * 0), "aten::log"),
    Fault("custom forward", custom_forward, (X, Y), (X, Y * 1e20), "Cube", node="CubeBackward"),
    Fault("contrastive", contrastive, (X, Y), (X, Y * 1e-4), "aten::exp"),
    Fault("hole in a target", hole_in_target, (X, Y), (X, HOLE), leaf="batch"),
    Fault("hole in mse", hole_in_mse, (X, Y), (X, HOLE), leaf="batch"),
    Fault("hole in weights", hole_in_weights, (X, Y), (X, HOLE), leaf="constant"),
]
