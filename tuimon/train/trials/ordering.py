"""Trials of what is done to gradients between backward and update, on copies of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import nn

from tuimon.model.trials import CONFIRMED, NO_DIFFERENCE
from tuimon.model.units import number
from tuimon.train.account import ClipCall
from tuimon.train.autopsy import looks
from tuimon.train.trials.judging import Judgement

LOST = 0.5  # of the length an update should have: less is another update

UNSCALED_FIRST = "the kept gradients were divided by the loss scale before they were clipped"
UNCLIPPED = "the gradients were computed again and not clipped"


class Lengths(NamedTuple):
    """L2 norms of the gradient that an optimizer would get."""

    as_it_is: float
    unscaled_first: float


def lengths(call: ClipCall, scale: float) -> Lengths | None:
    """What a clipping of scaled gradients leaves, and what it would leave the other way round.

    Args:
        call: the clipping, which has happened.
        scale: the loss scale that the gradients still carry.
    """
    factor, bound = call.factor, call.max_norm
    if factor is None or bound is None or not (0 < factor < math.inf and 0 < scale < math.inf):
        return None
    with looks.apart():
        grads = [p.grad.detach() for p in call.params if p.grad is not None]
        if any(grad.layout is not torch.strided for grad in grads):
            return None
        as_it_is = _norm([grad / scale for grad in grads])
        kept = [grad.float() / (factor * scale) for grad in grads]
        twins = [nn.Parameter(torch.empty_like(grad), requires_grad=False) for grad in kept]
        for twin, grad in zip(twins, kept, strict=True):
            twin.grad = grad
        nn.utils.clip_grad_norm_(twins, bound)
        return Lengths(as_it_is, _norm(kept))


def judge_order(found: Lengths, scale: float) -> Judgement:
    """Whether the order of the calls takes something from the update."""
    detail = (
        f"the optimizer gets a gradient of norm {number(found.as_it_is)}; unscaled first it would "
        f"be {number(found.unscaled_first)} (the loss scale is {number(scale)})"
    )
    lost = found.as_it_is < LOST * found.unscaled_first
    return Judgement(CONFIRMED if lost else NO_DIFFERENCE, detail)


def is_spreading(calls: Sequence[ClipCall]) -> bool:
    """Whether gradients were multiplied by what is no factor."""
    return any(
        call.factor is not None and (call.factor == 0 or not math.isfinite(call.factor))
        for call in calls
    )


def judge_spread(params: Sequence[torch.Tensor], without: int) -> Judgement:
    """Whether a clipping has made more gradients bad than the backward did.

    Args:
        params: with the gradients that the optimizer would get.
        without: how many are not finite where nothing is clipped.
    """
    with looks.apart():
        live = sum(looks.is_bad(p.grad) for p in params if p.grad is not None)
    detail = f"{without:,} gradients are not finite without the clipping, {live:,} with it"
    return Judgement(CONFIRMED if live > without > 0 else NO_DIFFERENCE, detail)


def _norm(tensors: Sequence[torch.Tensor]) -> float:
    return math.sqrt(sum(float(tensor.double().square().sum()) for tensor in tensors))
