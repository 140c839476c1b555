"""Faults of the backward in loss code, and healthy look-alikes; marked as in `loss_faults`."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from tests.train.autopsy.loss_faults import (
    INF,
    LABELS,
    NONE,
    ONE,
    ONE_ROW,
    Cube,
    Fault,
    X,
    Y,
    all_ignored,
)

Fault = partial(Fault, file=__file__)

# --- backward -------------------------------------------------------------------------------------


def root_of_zero(model, x, y):
    gap = model(x) * y
    distance = gap.pow(2).sum(1).sqrt()  # root of zero
    return (distance * 0.5).mean()


def norm_by_hand(out, y):
    return ((out * y) * (out * y)).sum() ** 0.5  # norm by hand


def norm_of_zero(model, x, y):
    return norm_by_hand(model(x), y) + model(x).abs().mean()


def guarded_log(model, x, y):
    ratio = model(x).abs() * y
    safe = torch.where(ratio > 0, torch.log(ratio), torch.zeros_like(ratio))  # guarded log
    return safe.mean()


def guarded_exp(model, x, y):
    big = model(x).abs() * y
    return torch.where(big > 80, big, big.exp()).clamp(max=1e4).mean()  # guarded exp


def guarded_division(model, x, y):
    count = model(x).abs() * y
    share = 1.0 / count  # guarded division
    return share.masked_fill(count == 0, 0.0).mean()


def arc_at_one(model, x, y):
    cosine = torch.clamp(model(x) * 0 + y, -1, 1)
    return cosine.acos().mean()  # arc at one


def spread_of_constant(model, x, y):
    out = model(x) * y
    deviation = out.var(0).sqrt()  # spread of a constant
    return F.relu(1 - deviation).mean()


class Cosine(nn.Module):
    def forward(self, a, b):
        length = (a * a).sum(-1).sqrt() + 1e-8  # criterion backward
        return 1 - ((a * b).sum(-1) / length).mean()


COSINE = Cosine()


def cosine(model, x, y):
    return COSINE(model(x) * y, Y)


def custom_backward(model, x, y):
    return Cube.apply(model(x) * y).mean()  # custom backward


def hypotenuse(model, x, y):
    out = model(x) * y
    turned = torch.rsqrt(out[:, 0] ** 2 + 1).mean()
    length = (out[:, 0].square() + out[:, 1].square()).pow(0.5)  # hypotenuse
    return turned + length.mean()


BACKWARD = [
    Fault("root of zero", root_of_zero, (X, Y), (X, Y * (~ONE_ROW)), "aten::sqrt", backward=True),
    Fault("norm by hand", norm_of_zero, (X, Y), (X, Y * 0), "aten::pow", backward=True),
    Fault("guarded log", guarded_log, (X, Y), (X, Y * 0), "aten::log", backward=True),
    Fault("guarded exp", guarded_exp, (X, Y), (X, Y * 1e5), "aten::exp", backward=True),
    Fault(
        "guarded division", guarded_division, (X, Y), (X, Y * 0), "aten::reciprocal", backward=True
    ),
    Fault("arc at one", arc_at_one, (X, Y * 0), (X, Y * 0 + 1), "aten::acos", backward=True),
    Fault("spread of a constant", spread_of_constant, (X, Y), (X, Y * 0), "aten::sqrt",
          backward=True),
    Fault("criterion backward", cosine, (X, Y), (X, Y * (~ONE_ROW)), "aten::sqrt", backward=True),
    Fault(
        "custom backward", custom_backward, (X, Y), (X, Y * 0), "Cube", backward=True,
        node="CubeBackward",
    ),
    Fault("hypotenuse", hypotenuse, (X, Y), (X, Y * (~ONE_ROW)), "aten::pow", backward=True),
]  # fmt: skip


# --- healthy look-alikes --------------------------------------------------------------------------


def masked_attention(model, x, mask):
    weights = model(x).masked_fill(mask, -INF).softmax(-1)
    return (weights * Y).sum(-1).clamp_min(1e-9).log().mean()


def guarded_well(model, x, y):
    out = model(x).abs() * y
    safe = torch.where(out > 0, out, torch.ones_like(out))
    return torch.where(out > 0, safe.log(), torch.zeros_like(out)).mean()


def norms(model, x, y):
    out = model(x) * y
    return out.norm() + torch.cdist(out, out).mean() + F.normalize(out, dim=-1).sum()


HEALTHY = [
    Fault("masked attention", masked_attention, (X, NONE), (X, ONE)),
    Fault("guarded well", guarded_well, (X, Y), (X, Y * 0)),
    Fault("norms", norms, (X, Y), (X, Y * 0)),
    Fault("one ignored", all_ignored, (X, LABELS), (X, torch.tensor([0, -100, 2, 1, 0, -100]))),
]
